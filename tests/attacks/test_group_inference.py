"""Several records of one group: the Bayes rate where it is known, nothing where nothing is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import measure_attacks, plan_attacks, run_attack
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.pipeline.stages.gate import say_decision
from privpipe.protocols import FloatArray

QUICK = AttackOptions(adversaries=("logistic", "quadratic"))


def draw_groups(
    n_groups: int, n_each: int, *, seed: int = 0
) -> tuple[np.random.Generator, Any, Any]:
    """Random numbers, group of each record, class of each group; classes in equal shares."""
    rng = np.random.default_rng(seed)
    return rng, np.repeat(np.arange(n_groups), n_each), rng.permutation(n_groups) % 2


def accuracies(report: AttackReport) -> dict[str, float]:
    rows = report.table[report.table["source"] == "groups"]
    assert (rows["status"] == "measured").all(), rows["reason"].tolist()
    rows = rows[rows["score"] == "accuracy"]
    return dict(zip(rows["adversary"], rows["estimate"], strict=True))


def attack_groups(x: FloatArray, secret: Any, groups: Any, **more: Any) -> AttackReport:
    """The attacks on groups alone, as they are planned and judged among all others."""
    evidence = prepare_evidence(x, secret.astype(str), groups=groups, options=QUICK, **more)
    plan = [one for one in plan_attacks(evidence, QUICK) if one.source == "groups"]
    outcomes = [run_attack(evidence, one, QUICK) for one in plan]
    return summarise_outcomes(outcomes, plan, QUICK, **evidence.counts())


@pytest.mark.slow
def test_group_adversary__reaches_the_bayes_rate_of_independent_records() -> None:
    """Normal records of two means: the sum of k of them is normal, and Bayes' rule its sign."""
    shift, n_groups = 0.25, 400
    rng, groups, kind = draw_groups(n_groups, 20)
    x = rng.normal(size=(len(groups), 3))
    x[:, 1] += shift * (2 * kind[groups] - 1)
    found = accuracies(attack_groups(x, kind[groups], groups))
    for name, size in {"together_1": 1, "together_5": 5, "together_20": 20}.items():
        rate = norm.cdf(shift * np.sqrt(size))
        n_sets = 0.3 * n_groups * 20 // size
        assert found[name] < rate + 4 * np.sqrt(rate * (1 - rate) / n_sets)
        assert found[name] > rate - 0.03 - 4 * np.sqrt(rate * (1 - rate) / n_sets)
    assert abs(found["together_all"] - found["together_20"]) < 0.05  # chosen apart


@pytest.mark.slow
def test_group_adversary__reads_what_no_single_record_shows() -> None:
    """How far records of a group lie apart tells its class; where the group lies hides that."""
    rng, groups, kind = draw_groups(200, 20)
    centres = 4 * rng.normal(size=(200, 2))
    x = centres[groups] + (1 + 0.8 * kind[groups])[:, None] * rng.normal(size=(len(groups), 2))
    report = attack_groups(x, kind[groups], groups)
    found = accuracies(report)
    assert found["together_1"] < 0.62
    assert found["together_20"] > 0.9
    assert report.verdict == "leaks"
    assert report.decide()[0].source == "groups"
    assert "known to be of one group" in report.decide()[0].reason


@pytest.mark.slow
def test_group_adversary__finds_nothing_where_nothing_is() -> None:
    """Records of a group are alike, and its class is drawn: no verdict may say that it leaks."""
    leaks, found = 0, []
    for seed in range(8):
        rng, groups, kind = draw_groups(60, 10, seed=seed)
        x = rng.normal(size=(60, 3))[groups] + rng.normal(size=(len(groups), 3))
        report = attack_groups(x, kind[groups], groups)
        rows = report.table[report.table["source"] == "groups"]
        leaks += bool((rows["advantage_lower"] > 0).any())
        found.append(accuracies(report)["together_10"])
    assert leaks <= 1  # 5 % of reports, by the level
    assert abs(np.mean(found) - 0.5) < 0.12  # 18 groups judge, eight times


@pytest.mark.parametrize("n_each", [66, pytest.param(100, marks=pytest.mark.slow)])
def test_group_adversary__names_the_group_itself_by_records_of_another_time(n_each: int) -> None:
    rng, groups, _ = draw_groups(12, n_each)
    centres = 0.8 * rng.normal(size=(12, 4))
    x = centres[groups] + rng.normal(size=(len(groups), 4))
    found = accuracies(attack_groups(x, groups, groups))
    assert found["together_1"] < 0.6
    assert found["together_20"] > 0.8
    assert "together_40" not in found  # a third judges at a time
    assert "together_all" not in found


@pytest.mark.parametrize("n_groups", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_group_adversary__is_asked_only_of_variables_of_whole_groups(n_groups: int) -> None:
    rng, groups, kind = draw_groups(n_groups, 10)
    x = rng.normal(size=(len(groups), 2))
    both = np.column_stack([kind[groups], rng.integers(0, 2, len(groups))]).astype(str)
    report = measure_attacks(x, both, groups=groups, options=QUICK)
    asked = report.table[report.table["source"] == "groups"]["target"]
    assert set(asked) == {"confidential_0"}
    few = measure_attacks(x[:30], kind[groups][:30].astype(str), groups=groups[:30], options=QUICK)
    grouped = few.table[few.table["source"] == "groups"]  # a class of one group is its name
    assert set(grouped["status"]) == {"unknown"}
    assert "A group has 10 records at most" in grouped["reason"].iloc[0]


@pytest.mark.slow
def test_verdict__asks_for_groups_and_for_so_many_as_decide() -> None:
    """Six judged groups asked for records, of which no number would have helped."""
    options = AttackOptions(adversaries=("logistic",), max_advantage=0.3, max_exposed=0.3)

    def attack(n_groups: int, seed: int, n_each: int = 12) -> AttackReport:
        rng, groups, kind = draw_groups(n_groups, n_each, seed=seed)
        x = rng.normal(size=(len(groups), 3))
        return measure_attacks(x, kind[groups].astype(str), groups=groups, options=options)

    (few,) = attack(20, seed=1).decide()
    assert few.verdict == "unproven"
    assert f"With about {few.n_needed:,.0f} held-out groups instead of 20" in few.reason
    # The gate's sentence is of groups, too: it counted records.
    assert few.needed in say_decision(few.as_row(), n_records=400)
    assert few.needed.startswith(f"With about {few.n_needed:,.0f} held-out groups instead of 20")
    assert "more records of the same groups would not help" in few.reason
    assert "records instead" not in few.reason
    (same,) = attack(20, seed=1, n_each=36).decide()
    assert same.verdict == "unproven"
    n_enough = int(few.n_needed)
    assert 300 < n_enough < 450  # leaks of a fifth must be found
    assert [attack(n_enough, seed=seed).verdict for seed in (2, 3)] == ["safe"] * 2
    assert attack(n_enough // 12, seed=2).verdict == "unproven"


def test_verdict__says_how_many_records_must_be_judged_for_so_many_groups() -> None:
    options = AttackOptions(
        adversaries=("logistic",), max_advantage=0.3, max_exposed=0.3, max_records=400
    )
    rng, groups, kind = draw_groups(20, 20)
    x = rng.normal(size=(len(groups), 3))
    (found,) = measure_attacks(x, kind[groups].astype(str), groups=groups, options=options).decide()
    n_records = 20 * found.n_needed
    assert f"max_records must be {n_records:,.0f}, not 400" in found.reason


def test_report__of_groups_counts_them() -> None:
    rng, groups, kind = draw_groups(20, 12)
    report = attack_groups(rng.normal(size=(len(groups), 3)), kind[groups], groups)
    assert report.groups is not None
    assert report.groups.n_groups == 20
    assert sum(next(iter(report.groups.shares.values()))) == pytest.approx(1)
    assert json.loads(report.to_json())["n_groups"] == 20
    assert report.verdict == "unproven"
