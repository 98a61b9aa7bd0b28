"""Verdicts on single records: what decides, what does not, and how often each errs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.verdicts.record_decisions import (
    RECORD_ATTACKS,
    decide_records,
    share_level,
)
from privpipe.attacks.statistics.uncertainty.intervals import measure_exact_interval

OPTIONS = AttackOptions()


def recover(n_found: int, n: int = 1000) -> dict[str, Any]:
    level = share_level(OPTIONS).level
    return {
        "recovered": asdict(measure_exact_interval(n_found, n, level=level)),
        "by_chance": asdict(measure_exact_interval(0, n, level=level)),
        "cosine": 0.5,
        "n_attacked": n,
    }


def tell(hits: int, alarms: int, n: int = 5000) -> dict[str, Any]:
    level = share_level(OPTIONS).level
    return {
        "true_positive": asdict(measure_exact_interval(hits, n, level=level)),
        "false_positive": asdict(measure_exact_interval(alarms, n, level=level)),
    }


FAILING = {
    "membership": tell(500, 500),
    "tracing": tell(2500, 2500),
    "all_but_one": recover(0),
    "independent_components": recover(0),
    "outlying_record": recover(0, 1),
}
SUCCEEDING = {
    "membership": tell(5000, 0),
    "tracing": tell(4000, 1000),
    "all_but_one": recover(1000),
    "independent_components": recover(1000),
    "outlying_record": recover(1, 1),
}


def decide(name: str, attacks: dict[str, Any], controls: dict[str, Any]) -> str:
    found = {one.strongest: one for one in decide_records(attacks, controls, OPTIONS)}
    return found[name].verdict if name in found else "unknown"


@pytest.mark.parametrize("name", RECORD_ATTACKS)
def test_decide_records__safe_needs_a_control_that_succeeds(name: str) -> None:
    assert decide(name, FAILING, SUCCEEDING) == "safe"
    assert decide(name, FAILING, FAILING) == "unproven"
    assert decide(name, FAILING, {}) == "unproven"
    assert decide(name, SUCCEEDING, SUCCEEDING) == "leaks"
    assert decide(name, SUCCEEDING, {}) == "leaks"


@pytest.mark.parametrize("name", RECORD_ATTACKS)
def test_decide_records__what_failed_or_was_not_run_is_unknown(name: str) -> None:
    for attacks in (
        {key: one for key, one in FAILING.items() if key != name},
        FAILING | {name: {"failed": "no components"}},
    ):
        decided = decide_records(attacks, SUCCEEDING, OPTIONS)
        assert len(decided) == len(RECORD_ATTACKS)
        (lost,) = [one for one in decided if one.verdict != "safe"]
        assert lost.verdict == "unknown"


def test_decide_records__few_records_prove_nothing() -> None:
    few = FAILING | {"all_but_one": recover(0, 100), "membership": tell(10, 10, 100)}
    assert decide("all_but_one", few, SUCCEEDING) == "unproven"
    assert decide("membership", few, SUCCEEDING) == "unproven"


@pytest.mark.parametrize(("share", "wrong"), [(0.02, "safe"), (0.005, "leaks")])
def test_decide_records__errs_as_seldom_as_said(share: float, wrong: str) -> None:
    """Of recovered records beyond what is allowed none is said to be safe, and the other way."""
    random = np.random.default_rng(0)
    n_wrong = sum(
        decide("all_but_one", FAILING | {"all_but_one": recover(int(k))}, SUCCEEDING) == wrong
        for k in random.binomial(1000, share, 400)
    )
    assert n_wrong <= 400 * (1 - share_level(OPTIONS).level) / 2 + 5


def test_decide_records__a_single_record_that_chance_meets_is_no_leak() -> None:
    """Of two features a sixth of all directions is near enough; of many, none is."""
    met = recover(1, 1) | {"by_chance": asdict(measure_exact_interval(160, 1000))}
    attacks = FAILING | {"outlying_record": met}
    assert decide("outlying_record", attacks, SUCCEEDING) == "unproven"
    reasons = [one.reason for one in decide_records(attacks, SUCCEEDING, OPTIONS)]
    assert any("as 16.0% of records are that are in no surrogate" in one for one in reasons)
    few = recover(1, 1) | {"by_chance": asdict(measure_exact_interval(1, 1000))}
    assert decide("outlying_record", FAILING | {"outlying_record": few}, SUCCEEDING) == "leaks"
