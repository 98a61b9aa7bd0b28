"""Verdicts on single records: what decides, what does not, and how often each errs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.threats.attack_table import RECORD_ATTACKS
from privpipe.attacks.threats.membership import MembershipReport
from privpipe.attacks.threats.record_decisions import (
    EARLIER,
    SINGLE_RECORDS,
    decide_records,
    share_level,
)
from privpipe.attacks.threats.record_recovery import RecoveryReport
from privpipe.errors import InputError

OPTIONS = AttackOptions()


def recover(n_found: int, n: int = 1000) -> RecoveryReport:
    level = share_level(OPTIONS).level
    found, chance = (measure_exact_interval(k, n, level=level) for k in (n_found, 0))
    return RecoveryReport(found, chance, 0.5, n)


def tell(hits: int, alarms: int, n: int = 5000) -> MembershipReport:
    level = share_level(OPTIONS).level
    found, chance = (measure_exact_interval(k, n, level=level) for k in (hits, alarms))
    return MembershipReport(chance, 0.0, found, chance, 0.0, 0.0, n, n)


FAILING = {
    "membership": tell(500, 500),
    "tracing": tell(2500, 2500),
    "all_but_one": recover(0),
    "with_and_without": recover(0),
    "independent_components": recover(0),
    "outlying_record": recover(0),
}
SUCCEEDING = {
    "membership": tell(5000, 0),
    "tracing": tell(4000, 1000),
    "all_but_one": recover(1000),
    "with_and_without": recover(1000),
    "independent_components": recover(1000),
    "outlying_record": recover(1000),
}


def decide(name: str, attacks: dict[str, Any], controls: dict[str, Any]) -> str:
    """Verdict of one attack; within its limit, none is said."""
    found = {one.target: one for one in decide_records(attacks, controls, OPTIONS)}
    assert found.pop(SINGLE_RECORDS).verdict == "not protected"
    return found[RECORD_ATTACKS[name]].verdict if RECORD_ATTACKS[name] in found else "within"


@pytest.mark.parametrize("attacks", [FAILING, SUCCEEDING, {}])
@pytest.mark.parametrize("controls", [FAILING, SUCCEEDING, {}])
def test_decide_records__never_says_safe(attacks: dict[str, Any], controls: dict[str, Any]) -> None:
    """Whatever was measured: behind exact coefficients no attack that fails shows anything."""
    decided = decide_records(attacks, controls, OPTIONS)
    assert decided[0].target == SINGLE_RECORDS
    assert decided[0].verdict == "not protected"
    assert not [one for one in decided if one.verdict == "safe"]


def test_decide_records__says_how_many_records_the_closed_forms_rebuilt() -> None:
    attacks = FAILING | {"all_but_one": recover(1000), "with_and_without": recover(250)}
    reason = decide_records(attacks, SUCCEEDING, OPTIONS)[0].reason
    assert "100.0% of those attacked by whoever knows all others" in reason
    assert "25.0% of those attacked by whoever has this release and one without" in reason


@pytest.mark.parametrize("name", RECORD_ATTACKS)
def test_decide_records__within_its_limit_needs_a_control_that_succeeds(name: str) -> None:
    assert decide(name, FAILING, SUCCEEDING) == "within"
    assert decide(name, FAILING, FAILING) == "unproven"
    assert decide(name, FAILING, {}) == "unproven"
    assert decide(name, FAILING | {name: SUCCEEDING[name]}, SUCCEEDING) == "leaks"
    assert decide(name, FAILING | {name: SUCCEEDING[name]}, {}) == "leaks"


@pytest.mark.parametrize("name", RECORD_ATTACKS)
def test_decide_records__what_failed_or_was_not_run_is_unknown(name: str) -> None:
    for attacks in (
        {key: one for key, one in FAILING.items() if key != name},
        FAILING | {name: InputError("no components")},
    ):
        _, lost = decide_records(attacks, SUCCEEDING, OPTIONS)
        assert lost.verdict == "unknown"


def test_decide_records__few_trials_prove_nothing() -> None:
    """One trial's interval is .000 to .998; a verdict takes as many as its limit needs."""
    few = FAILING | {"membership": tell(10, 10, 100)}
    for n, verdict in ((1, "unproven"), (100, "unproven"), (1000, "within")):
        attacks = few | {"outlying_record": recover(0, n)}
        assert decide("outlying_record", attacks, SUCCEEDING) == verdict
    assert decide("membership", few, SUCCEEDING) == "unproven"


@pytest.mark.parametrize(("share", "wrong"), [(0.02, "within"), (0.005, "leaks")])
def test_decide_records__errs_as_seldom_as_said(share: float, wrong: str) -> None:
    """Of recovered records beyond what is allowed none is within its limit, and the other way."""
    random = np.random.default_rng(0)
    name = "independent_components"
    n_wrong = sum(
        decide(name, FAILING | {name: recover(int(k))}, SUCCEEDING) == wrong
        for k in random.binomial(1000, share, 400)
    )
    assert n_wrong <= 400 * (1 - share_level(OPTIONS).level) / 2 + 5


def test_decide_records__the_farthest_record_alone_is_a_leak_unless_chance_meets_it() -> None:
    """Of two features a sixth of all directions is near enough; of many, none is."""
    one = replace(recover(1), farthest=0.99)
    assert decide("outlying_record", FAILING | {"outlying_record": one}, SUCCEEDING) == "leaks"
    chance = measure_exact_interval(160, 1000)
    met = replace(recover(160), farthest=0.99, by_chance=chance)
    attacks = FAILING | {"outlying_record": met}
    assert decide("outlying_record", attacks, SUCCEEDING) == "unproven"


def test_decide_records__a_record_that_two_releases_give_is_a_leak() -> None:
    for hit, verdicts in ((1, ["not protected", "leaks"]), (0, ["not protected"])):
        attacks = FAILING | {f"{EARLIER}: masking 12345678": recover(hit, 1)}
        decided = decide_records(attacks, SUCCEEDING, OPTIONS)
        assert [one.verdict for one in decided] == verdicts
    failed = FAILING | {f"{EARLIER}: masking 12345678": InputError("other columns")}
    assert decide_records(failed, SUCCEEDING, OPTIONS)[-1].verdict == "unknown"


def test_share_level__all_record_attacks_together_keep_it() -> None:
    errors = len(RECORD_ATTACKS) * (1 - share_level(AttackOptions(level=0.95)).level)
    assert errors == pytest.approx(0.05)
