"""Figures of which unknown passes nothing, and limits that are printed on the safe side."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privpipe.numerics.limits import Figure, fix_limits, say_limits, say_lower, say_upper, step_up

NOTHING = (math.nan, math.inf, -math.inf, None, "0.1", True)


@pytest.mark.parametrize("key", ["estimate", "upper"])
@pytest.mark.parametrize("value", NOTHING)
def test_figure__unknown_is_within_nothing(key: str, value: object) -> None:
    """Whatever a finding of any version holds in place of a number."""
    found = {"estimate": 0.1, "lower": 0.0, "upper": 0.2} | {key: value}
    assert Figure.read(found | {key: 0.15}).within(0.2)
    assert not Figure.read(found).within(1e9)
    assert not Figure.read({name: found[name] for name in found if name != key}).within(1e9)


def test_figure__nothing_at_all_neither_passes_nor_accuses() -> None:
    for figure in (Figure.read(None), Figure.unknown("x"), Figure()):
        assert not figure.within(1e9)
        assert not figure.exceeds(-1e9)
        assert figure.over(1.0) == math.inf
        assert not figure.minus(Figure(0, 0, 0)).within(1e9)
        assert not Figure(0, 0, 0).minus(figure).within(1e9)


def test_figure__an_estimate_beyond_its_own_limit_is_not_within() -> None:
    assert not Figure(0.3, 0.0, 0.2).within(0.25)


def test_figure__reads_limits_by_name() -> None:
    found = {"gain": 0.1, "gain_lower": 0.05, "gain_upper": 0.2}
    assert Figure.read(found, "gain") == Figure(0.1, 0.05, 0.2)
    assert Figure.read(found, "gain").exceeds(0.04)
    assert not Figure.read(found, "gain").exceeds(0.05)


def test_minus__reaches_as_far_as_both_limits() -> None:
    assert Figure(0.5, 0.25, 1.0).minus(Figure(0.25, 0.125, 0.5)) == Figure(0.25, -0.25, 0.875)


def test_say_upper__is_never_below_what_it_is_of() -> None:
    """10,000 of 10,000, at any digits, on the side of what is allowed where the limit is."""
    draw = random.Random(4)
    for _ in range(10_000):
        value = draw.uniform(-1, 1) * 10 ** draw.uniform(-9, 3)
        near = draw.choice([value, value * (1 + 1e-9), value * (1 - 1e-9), round(value, 2)])
        allowed, digits = draw.choice([near, math.nan]), draw.randint(1, 5)
        up, down = (float(say(value, allowed, digits)) for say in (say_upper, say_lower))
        assert down <= value <= up
        if not math.isnan(allowed):
            assert (up <= allowed) == (value <= allowed)
            assert (down > allowed) == (value > allowed)


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(0, 4),
    st.floats(-1e3, 1e3),
)
def test_fix_limits__of_whatever_was_measured_are_shown_outwards(
    lower: float, upper: float, decimals: int, allowed: float
) -> None:
    """A page was lost to a limit of -4e138."""
    for bound in (math.nan, allowed):
        down, up = fix_limits(lower, upper, decimals, bound).split(" to ")
        assert down == "-" if not math.isfinite(lower) else float(down) <= lower
        assert up == "-" if not math.isfinite(upper) else float(up) >= upper


@given(st.floats(0, 1), st.integers(1, 100))
def test_step_up__is_the_least_step_that_is_no_smaller(value: float, n_steps: int) -> None:
    found = step_up(value, n_steps)
    assert found >= value
    assert found - value <= 1 / n_steps + 1e-9


def test_say_limits__rounds_outwards() -> None:
    assert say_limits(0.0999, 0.2001, digits=1) == "0.09 to 0.3"
    assert Figure(0.15, 0.0999, 0.2501).say(0.25) == "0.15 (0.0999 to 0.251)"
    assert Figure.unknown("lost").say() == "unknown (lost)"
