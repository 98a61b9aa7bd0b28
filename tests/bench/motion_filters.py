"""Filters against who really attacks: motion records, fresh subjects, adversaries of other kinds.

Part of ``python -m tests.bench minimax`` where ``PRIVPIPE_PAPER_DATA`` is the folder of har.npz.
Each accuracy is a mean over draws of fifteen subjects, with the half-width of its 95 % interval;
chance is .067. Ratios are to the filter whose adversary is logistic (the paper's), d = 5.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from flows.reproduce.hamm_accuracies import Trial, draw_har_trial
from flows.reproduce.paper_adversaries import measure_accuracy
from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.verdicts.attack_report import summarise_outcomes
from privpipe.protocols import Column
from tests.bench.certificates import decide

Row = tuple[str, float, str, str, float, float]

FILTERS: dict[str, dict[str, Any]] = {
    "logistic": {},
    "kernel": {"adversary": ("logistic", "kernel"), "max_iterations": 30},
    "kernel and group": {"adversary": ("logistic", "kernel", "group"), "max_iterations": 30},
}
SINGLE = ("logistic", "rbf", "boosting")


def judge_filter(trial: Trial, seed: int, given: dict[str, Any]) -> dict[str, float]:
    """Accuracies on held-out records of one trial's filter."""
    fitted = fit_minimax_filter(_label(trial), MinimaxOptions(n_filtered=5, **given))
    z = (fitted.apply(trial.features[0]), fitted.apply(trial.features[1]))
    z = (z[0].astype(np.float64), z[1].astype(np.float64))
    found = {"target kept": measure_accuracy("logistic", z, trial.target, seed=seed)}
    for name in SINGLE:
        found[f"subject, {name}"] = measure_accuracy(name, z, trial.private, seed=seed)
    found["subject, forest"] = measure_forest(z, trial.private, seed)
    together = measure_together(z[1], trial.private[1], trial.target[1])
    found["subject, ten records known together"] = together["together_10"]
    return found


def _label(trial: Trial) -> Records:
    """Records to train on, each person a group."""
    target, private = (labels[0].astype(str) for labels in (trial.target, trial.private))
    x, person = trial.features[0], trial.private[0]
    return Records(x, desired=target, confidential=private, groups=person)


def measure_forest(z: Any, labels: Any, seed: int) -> float:
    """Accuracy of the audit's forest."""
    decided = decide("forest", z, labels, seed)
    return float((np.argmax(decided, axis=1) == labels[1]).mean())


def measure_together(z: Any, subject: Any, activity: Any) -> dict[str, float]:
    """Accuracy of the group adversaries, who know up to forty records of a person.

    Neighbours in time lie apart, all activities are on every side, and every record judges once.
    """
    names = ("least_squares", "logistic", "quadratic", "rbf", "boosting")
    options = AttackOptions(adversaries=names)
    evidence = prepare_evidence(
        z.astype(np.float32),
        subject.astype(str),
        groups=subject,
        desired=Auxiliary(
            activity[:, None].astype(float), (Column("activity", int(activity.max()) + 1),)
        ),
        options=options,
    )
    plan = [one for one in plan_attacks(evidence, options) if "together" in one.adversary]
    outcomes = [run_attack(evidence, one, options) for one in plan]
    table = summarise_outcomes(outcomes, plan, options, **evidence.counts()).table
    table = table[table["score"] == "accuracy"]
    return {name: float(of["estimate"].max()) for name, of in table.groupby("adversary")}


GROUP_BARS = {"together_10": 0.12, "together_40": 0.20, "target": 0.95}
"""Of a filter trained against groups."""


def judge_groups(folder: str, seed: int, n_seeds: int = 3) -> list[Row]:
    """What several records of one person reveal: of raw records, of filters, of the target itself.

    The last are released scores that are the target and nothing else: no filter that keeps the
    target shows less of a person to who sees its outputs. The filter against groups is fitted with
    so many seeds.
    """
    trial = draw_har_trial(folder, seed)
    rows: list[Row] = []
    released = {"raw": trial.features[1], "the target itself": np.eye(6)[trial.target[1]]}
    records = _label(trial)
    several = product(("kernel and group",), range(1, n_seeds))
    for kind, j in (*product(FILTERS, (0,)), *several):
        fitted = fit_minimax_filter(records, MinimaxOptions(n_filtered=5, seed=j, **FILTERS[kind]))
        z = tuple(fitted.apply(part).astype(np.float64) for part in trial.features)
        name = f"{kind}, seed {j}"
        released[name] = z[1]
        kept = measure_accuracy("logistic", z, trial.target, seed=seed)
        last = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
        rows += [
            (f"{name}: target, draw {seed}", kept, "accuracy", "bar", 0.95, kept / 0.95),
            (
                f"{name}: rounds, draw {seed}",
                last["rounds"],
                "rounds",
                "bar",
                150,
                last["rounds"] / 150,
            ),
        ]
    for name, z in released.items():
        for who, found in measure_together(z, trial.private[1], trial.target[1]).items():
            bar = 0.95 if name == "raw" else GROUP_BARS.get(who, 0.2)
            rows.append((f"{name}: {who}, draw {seed}", found, "accuracy", "bar", bar, found / bar))
    return rows


def compare_filters(folder: str, n_trials: int) -> list[Row]:
    """All adversaries on all filters; a draw is judged for all of them before the next."""
    judged: dict[str, list[dict[str, float]]] = {name: [] for name in FILTERS}
    for seed in range(n_trials):
        trial = draw_har_trial(folder, seed)
        for name, given in FILTERS.items():
            judged[name].append(judge_filter(trial, seed, given))
            shown = ", ".join(f"{key} {value:.3f}" for key, value in judged[name][-1].items())
            print(f"draw {seed}, {name}: {shown}", file=sys.stderr, flush=True)
    found = {
        name: {key: np.array([one[key] for one in of]) for key in of[0]}
        for name, of in judged.items()
    }
    rows: list[Row] = []
    for name, by_adversary in list(found.items())[1:]:
        for key, values in by_adversary.items():
            half = stats.t.ppf(0.975, n_trials - 1) * values.std(ddof=1) / np.sqrt(n_trials)
            mean, before = float(values.mean()), float(found["logistic"][key].mean())
            label = f"against {name}: {key} (± {half:.3f})"
            rows.append((label, mean, "accuracy", "logistic", before, mean / before))
    return rows


if __name__ == "__main__":
    for line in compare_filters(os.environ["PRIVPIPE_PAPER_DATA"], 5):
        print(f"{line[0]:60s} {line[1]:.3f}  ({line[3]} {line[4]:.3f})")
