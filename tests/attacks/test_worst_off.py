"""The worst-off: leaks of few records are found, and where nothing is revealed none is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.adversaries.problem import Fitted, Problem
from privpipe.attacks.threats.verdicts.outcomes import without_nan
from privpipe.attacks.threats.worst_off import OUTLIERS, RAREST, measure_group, rank_best_column
from privpipe.pipeline.runs.run_options import GateSection
from privpipe.pipeline.stages.gate import judge_findings
from privpipe.protocols import Column
from privpipe.report.officer_page import describe_sheet
from privpipe.report.release_sections import write_sections

N_GROUPS = 12
TAIL = 0.025 / N_GROUPS
OPTIONS = AttackOptions(
    adversaries=("logistic", "least_squares"), min_class_records=4, level=1 - 0.05 / N_GROUPS
)


def rank(
    seed: int, n: int, share: float, *, rate: float = 0.5, n_cells: int = 1, d: int = 10
) -> tuple[bool, float]:
    """A column that tells the secret of a share of the records, among others of noise."""
    random = np.random.default_rng(seed)
    secret, other = random.random((2, n)) < rate
    told = np.where(random.random(n) < share, secret, other)
    x = random.normal(size=(n, d))
    x[:, 0] = 2.0 * told - 1 + 0.05 * x[:, 0]
    return rank_best_column(x, secret, random.integers(0, n_cells, n), TAIL)


def test_rank_best_column__finds_twenty_that_are_exposed() -> None:
    assert np.mean([rank(seed, 20, 1.0)[0] for seed in range(100)]) >= 0.9
    assert np.mean([rank(seed, 20, 1.0, d=30)[0] for seed in range(100)]) >= 0.85
    assert np.mean([rank(seed, 40, 1.0, rate=0.2, n_cells=2)[0] for seed in range(60)]) >= 0.9


@pytest.mark.parametrize(("n", "rate", "n_cells"), [(20, 0.5, 1), (40, 0.2, 2), (60, 0.5, 3)])
def test_rank_best_column__shows_nothing_where_there_is_nothing(
    n: int, rate: float, n_cells: int
) -> None:
    """Twelve groups jointly err in .025 of audits: 300 of one group hardly say so twice."""
    found = [rank(seed, n, 0.0, rate=rate, n_cells=n_cells)[0] for seed in range(300)]
    assert sum(found) <= 4


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rate"), [(20, 0.5), (60, 0.5), (60, 0.2)])
def test_rank_best_column__at_the_limit_few_are_said_to_leak(n: int, rate: float) -> None:
    found = [rank(seed, n, 0.1, rate=rate) for seed in range(1000)]
    assert np.mean([shown and gain > 0.1 for shown, gain in found]) <= 0.025


def test_rank_best_column__a_target_that_tells_is_no_leak() -> None:
    """Within the cells of the target the column says nothing, however well it does without."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(100):
        target = random.integers(0, 2, 60)
        secret = random.random(60) < np.where(target, 0.9, 0.1)
        x = target[:, None] + 0.1 * random.normal(size=(60, 1))
        assert rank_best_column(x, secret, np.zeros(60, np.int64), TAIL)[0]
        found.append(rank_best_column(x, secret, target, TAIL)[0])
    assert sum(found) <= 2


def judge(kind: str, told: float, seed: int = 0) -> list[str]:
    """Verdicts on a group of 2,000, or one without a name, of which a share is told."""
    random = np.random.default_rng(seed)
    secret = random.choice(5, 2000, p=[0.3, 0.3, 0.3, 0.05, 0.05])
    raw = random.normal(size=(2000, 4))
    x = random.normal(size=(2000, 4))
    if kind == OUTLIERS:
        worst = np.argsort(-(raw**2).sum(axis=1))[:100]
    elif kind == RAREST:
        codes, sizes = np.unique(secret, return_counts=True)
        worst = np.flatnonzero(secret == codes[sizes.argmin()])
    else:
        worst = np.arange(2000)
    worst = worst[random.random(len(worst)) < told]
    x[worst, 0] = 5.0 + 2 * secret[worst]
    columns = [Column("secret", 5)]
    evidence = prepare_evidence(x, secret, raw=raw, columns=columns, options=OPTIONS)
    return [row["verdict"] for row in measure_group(evidence, kind, replace(OPTIONS, seed=seed))]


@pytest.mark.parametrize("kind", [OUTLIERS, RAREST, "north"])
def test_measure_group__finds_the_worst_off(kind: str) -> None:
    assert judge(kind, 1.0) == ["leaks"]
    assert judge(kind, 0.0) in (["safe"], ["unproven"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OUTLIERS, RAREST, "north"])
def test_measure_group__errs_seldom_in_either_direction(kind: str) -> None:
    """Level .05 of twelve groups: of one group hardly any error in 40."""
    assert sum(judge(kind, 0.0, seed) == ["leaks"] for seed in range(40)) <= 1
    assert sum(judge(kind, 1.0, seed) == ["safe"] for seed in range(40)) == 0


@pytest.mark.parametrize(("n", "k"), [(100, 5), (1000, 12)])
def test_measure_group__finds_a_copy_of_a_class_of_few(n: int, k: int) -> None:
    """Folds hold a few of them: no adversary that learns shows what one column says."""
    for released, found in ((True, "leaks"), (False, "unproven")):
        random = np.random.default_rng(1)
        secret = np.zeros(n, int)
        secret[random.choice(n, k, replace=False)] = 1
        x = random.normal(size=(n, 6))
        x[:, 5] = 3 * secret if released else x[:, 5]
        evidence = prepare_evidence(x, secret, columns=[Column("ill", 2)], options=OPTIONS)
        [row] = measure_group(evidence, "north", OPTIONS)
        assert (row["verdict"], row["n_records"]) == (found, n)


def test_group__whose_attacks_fail_closes_the_gate_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Problem) -> Fitted:
        raise ValueError

    broken = replace(ADVERSARIES["logistic"], fit=fail)
    monkeypatch.setitem(ADVERSARIES, "logistic", broken)
    random, options = np.random.default_rng(0), replace(OPTIONS, adversaries=("logistic",))
    x, secret = random.normal(size=(400, 4)), random.integers(0, 2, 400)
    evidence = prepare_evidence(x, secret, columns=[Column("ill", 2)], options=options)
    rows = [without_nan(row) for row in measure_group(evidence, "north", options)]
    findings = json.loads((Path(__file__).parents[1] / "report" / "audit.json").read_text())
    findings["groups"] = {"n_groups": 3, "rows": rows, "utility": [], "unknown": []}
    said = [one.reason for one in judge_findings(findings, GateSection()) if one.code == "group"]
    assert [row["verdict"] for row in rows] == ["unknown"]
    assert len(said) == 1
    assert "attacks failed" in said[0]
    assert "north" not in said[0]
    rows[0] |= {"group": "north", "of": "region"}
    [page] = [one for one in write_sections("groups", findings) if one.title == "Group by group"]
    assert "closes the gate" in str(page)
    worst = [e["value"] for f in describe_sheet(findings)["fields"] for e in f["entries"]]
    assert any("gain not measured" in str(value) for value in worst)
