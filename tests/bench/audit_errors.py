"""How often audits err, in both directions: simulations with a leak of known size, or none.

``python -m tests.bench.audit_errors [audits]`` runs all at full size and prints shares; the suite
runs them small. Every audit is a whole one: sample, split, adversaries, intervals, verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import prepare_evidence
from privpipe.attacks.kinds.inference import measure_attacks
from privpipe.attacks.kinds.power import measure_power
from privpipe.attacks.kinds.verdicts.attack_report import AttackReport
from privpipe.protocols import Column

__all__ = ["LIMITS", "measure_false_leaks", "measure_false_safes", "measure_found"]

N_RECORDS = 1200

LIMITS = AttackOptions(
    adversaries=("least_squares",),
    decides=("accuracy", "auc", "tpr_at_0.01"),
    max_advantage=0.15,
    max_exposed=0.05,
    n_replicates=100,
    must_find=0.5,
)


TRUTH = {"accuracy": 0.5, "auc": 0.5, "tpr_at_0.01": 0.01}
"""Scores of whatever adversary on a fair coin."""


def audit(share: float, seed: int, *, grouped: bool, n_records: int = N_RECORDS) -> AttackReport:
    """A release of which a share of the records tells the secret, the same of all of a subject."""
    random = np.random.default_rng(seed)
    subject = np.arange(n_records) // (3 if grouped else 1)
    n = subject[-1] + 1
    secret = random.integers(0, 2, n)
    told = np.where(random.random(n) < share, secret, random.integers(0, 2, n))
    released = np.column_stack([(2.0 * told - 1), random.normal(size=n)])[subject]
    released[:, 1] += 0.1 * random.normal(size=n_records)
    return measure_attacks(
        released,
        secret[subject],
        columns=[Column("secret", 2)],
        groups=subject if grouped else None,
        options=replace(LIMITS, seed=seed),
    )


def measure_false_leaks(n_audits: int, *, grouped: bool) -> dict[str, float]:
    """Of noise: share of audits that say "leaks", and share whose intervals all hold the truth.

    The truth of the scores, not of advantages: these are counted from the majority of the test
    records, which is itself drawn.
    """
    leaks, covers = [], []
    for seed in range(n_audits):
        report = audit(0.0, seed, grouped=grouped)
        leaks.append(report.verdict == "leaks")
        covers.append(
            all(
                score.interval.lower <= TRUTH[score.name] <= score.interval.upper
                for outcome in report.outcomes
                for score in outcome.scores
                if score.name in LIMITS.decides
            )
        )
    return {"leaks": float(np.mean(leaks)), "covers": float(np.mean(covers))}


def measure_false_safes(n_audits: int, *, grouped: bool) -> float:
    """At a true advantage of twice the limit: share of audits that say "safe"."""
    share = 2 * LIMITS.max_advantage
    return float(
        np.mean([audit(share, s, grouped=grouped).verdict == "safe" for s in range(n_audits)])
    )


def _release_of_noise(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(N_RECORDS, 3)), random.integers(0, 2, N_RECORDS)


def list_sizes(leak: str, n_audits: int) -> Iterator[float]:
    """The smallest leak of a kind that each of several audits of noise says it would find."""
    for seed in range(n_audits):
        released, secret = _release_of_noise(seed)
        options = replace(LIMITS, seed=seed)
        evidence = prepare_evidence(released, secret, columns=[Column("s", 2)], options=options)
        yield measure_power(evidence, 0, leak, options).size


def measure_found(n_audits: int, *, size: float) -> float:
    """Share of audits that find an advantage of a size, by any interval above nothing."""
    found = []
    for seed in range(n_audits):
        report = audit(size, 10_000 + seed, grouped=False)
        found.append(
            any(
                score.advantage_lower > 0
                for outcome in report.outcomes
                for score in outcome.scores
                if score.name in LIMITS.decides
            )
        )
    return float(np.mean(found))


def main(n_audits: int) -> None:
    """Print all shares."""
    for grouped in (False, True):
        word = "grouped" if grouped else "not grouped"
        noise = measure_false_leaks(n_audits, grouped=grouped)
        print(f"{word}: noise said to leak {noise['leaks']:.3f}, ", end="")
        print(f"all intervals hold the truth {noise['covers']:.3f}", flush=True)
        safes = measure_false_safes(n_audits, grouped=grouped)
        print(f"{word}: twice the limit said to be safe {safes:.3f}", flush=True)
    few = max(20, n_audits // 10)
    stated = float(np.quantile(list(list_sizes("advantage", few)), 0.95))
    found = measure_found(max(20, 2 * n_audits // 5), size=stated)
    print(f"an advantage of {stated:g}, as {few} reports state it, is found in {found:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
