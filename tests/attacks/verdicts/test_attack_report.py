"""Verdicts over all possible outcomes: nothing unknown, undefined or too large is ever safe."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome

OPTIONS = AttackOptions(max_advantage=0.2)


@st.composite
def scores(draw: st.DrawFn, name: str) -> Score:
    # Half of the scores stay near a guess, so that "safe" is within reach.
    reach = draw(st.sampled_from([0.05, 0.5]))
    lower, estimate, upper = sorted(draw(st.floats(0.5 - reach, 0.5 + reach)) for _ in range(3))
    if draw(st.integers(0, 9)) == 0:
        lower, upper = math.nan, math.nan
    if draw(st.integers(0, 19)) == 0:
        estimate = math.nan
    interval = Interval(estimate, lower, upper, 0.95, "wilson")
    return Score(name, interval, 0.5)


@st.composite
def outcomes(draw: st.DrawFn, number: int) -> AttackOutcome:
    attack = Attack(
        draw(st.sampled_from("ab")),
        "classes",
        draw(st.sampled_from(["released", "released", "raw"])),
        f"adversary_{number}",
    )
    if draw(st.integers(0, 9)) == 0:
        return AttackOutcome(attack, "unknown", reason="lost")
    found = tuple(draw(scores(name)) for name in ("accuracy", "auc"))
    return AttackOutcome(attack, "measured", scores=found)


@st.composite
def reports(draw: st.DrawFn) -> AttackReport:
    n = draw(st.integers(0, 6))
    return AttackReport(tuple(draw(outcomes(i)) for i in range(n)), OPTIONS, 100, 100)


@settings(deadline=None)  # shared machines are slow now and then
@given(report=reports())
def test_verdict__is_safe_only_where_every_attack_on_the_release_is_known_and_small(report) -> None:
    for decision in report.decide():
        mine = [
            o
            for o in report.outcomes
            if o.attack.target == decision.target and o.attack.source == "released"
        ]
        small = [s.advantage_upper <= OPTIONS.max_advantage for o in mine for s in o.scores]
        known = all(o.status == "measured" for o in mine)
        known &= all(np.isfinite(s.interval.estimate) for o in mine for s in o.scores)
        holds = bool(mine) and known and all(small)
        controls = [
            o
            for o in report.outcomes
            if o.attack.target == decision.target and o.attack.source == "raw"
        ]
        if controls:  # which may show that the labels mean nothing
            assert decision.verdict != "safe" or holds
        else:
            assert (decision.verdict == "safe") == holds
        leaky = any(s.advantage_lower > OPTIONS.max_advantage for o in mine for s in o.scores)
        assert (decision.verdict == "leaks") == leaky
    verdicts = {decision.verdict for decision in report.decide()}
    assert (report.verdict == "safe") == (verdicts == {"safe"})
    assert ("leaks" in verdicts) == (report.verdict == "leaks")


@settings(deadline=None)  # shared machines are slow now and then
@given(report=reports())
def test_to_json__holds_every_row_and_nothing_that_is_no_number(report) -> None:
    document = json.loads(report.to_json(), parse_constant=lambda name: 1 / 0)
    assert len(document["table"]) == len(report.table)
    assert len(document["decisions"]) == len(report.decisions)
    for row, (_, shown) in zip(document["table"], report.table.iterrows(), strict=True):
        for name, cell in row.items():
            assert cell == shown[name] or (cell is None and np.isnan(shown[name]))
