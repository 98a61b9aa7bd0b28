"""A fit has one limit of seconds, and says whatever it has not reached within it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.errors import PrivacyWarning
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.sanitizers.mapping import profiles
from privpipe.sanitizers.mapping.solving import budgeted, law_fit
from privpipe.sanitizers.mapping.solving.assurance import CountedLaw
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from tests.laws_of_records import make_grid
from tests.numerics.mapping.test_time_limit import set_clock


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        set_clock(monkeypatch, lambda: self.now)


def test_deadline__ends_earlier_by_at_most_half_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    deadline = Deadline(10.0)
    clock.now = 2.0
    assert (deadline.spent, deadline.left) == (2.0, 8.0)
    assert deadline.end_earlier(3.0).left == 5.0
    assert deadline.end_earlier(100.0).left == 4.0
    clock.now = 11.0
    assert deadline.is_over
    assert 0 < deadline.left < 1e-300


def test_deadline__on_the_wall_others_take_nothing_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadline = Deadline(10.0, noted=-6.0)  # eight seconds for two of the processor
    clock.now = 2.0
    assert deadline.left_on_wall == pytest.approx(32.0)


def make_laws(*sizes: int) -> list[CountedLaw]:
    laws = [SimpleNamespace(fitted=SimpleNamespace(keys=range(size))) for size in sizes]
    return cast("list[CountedLaw]", laws)


@pytest.mark.parametrize("used", [1.0, 0.5])
def test_fit_each__what_one_value_leaves_passes_on_to_larger_ones(
    monkeypatch: pytest.MonkeyPatch, used: float
) -> None:
    """Each value took the whole limit: six took 2.9 seconds of 1."""
    clock, given = Clock(monkeypatch), dict[int, float]()
    monkeypatch.setattr(profiles, "make_joint", lambda counts: None)

    def fit(timed: tuple[Any, float]) -> Any:
        size, seconds = len(timed[0].fitted.keys), timed[1]
        given[size] = seconds
        clock.now += seconds * (1.0 if size == 5 else used)
        return size

    found = law_fit.fit_each(fit, make_laws(5, 1, 2), None, Deadline(8.0))
    assert found == [5, 1, 2]
    assert given[1] == pytest.approx(1.0)
    assert given[5] == pytest.approx(8.0 - used - used * given[2])
    assert clock.now == pytest.approx(8.0)


def test_fit_each__on_workers_the_last_one_ends_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest first, each by whoever is free: 5 beside 3 and 2, of a limit of ten seconds."""
    monkeypatch.setattr(profiles, "make_joint", lambda counts: None)
    taken: list[tuple[int, float]] = []

    def spread(fit: Callable[[Any], Any], tasks: Iterable[tuple[Any, float]], _: None) -> list[Any]:
        tasks = list(tasks)
        taken.extend((len(law.fitted.keys), seconds) for law, seconds in tasks)
        return [fit(one) for one in tasks]

    price = cast("Any", SimpleNamespace(n_threads=2, spread=spread, pays=lambda *_: True))
    laws = make_laws(2, 5, 3)
    found = law_fit.fit_each(
        lambda timed: cast("Any", len(timed[0].fitted.keys)), laws, price, Deadline(10.0)
    )
    assert found == [2, 5, 3]
    assert [size for size, _ in taken] == [5, 3, 2]
    assert [seconds for _, seconds in taken] == pytest.approx([10.0, 6.0, 4.0], rel=1e-2)


@pytest.mark.parametrize("beside", [0.0, 0.3])
def test_budgets__are_solved_until_the_limit_is_spent(
    monkeypatch: pytest.MonkeyPatch, beside: float
) -> None:
    """A quarter of it was left, and what is done beside the solves came after its end."""
    clock = Clock(monkeypatch)
    measure = budgeted._Shares.measure

    def solve(*args: Any, max_seconds: float, **given: Any) -> Any:
        clock.now += max_seconds
        return solve_privacy_mapping(*args, **given)

    def slow(shares: Any, mapping: Any) -> Any:
        clock.now += beside
        return measure(shares, mapping)

    monkeypatch.setattr(budgeted, "solve_privacy_mapping", solve)
    monkeypatch.setattr(budgeted, "_mix", lambda mappings, _: (mappings[-1], np.array([0.4, 0.6])))
    monkeypatch.setattr(budgeted, "_step", lambda shares, here, there: there)
    monkeypatch.setattr(budgeted._Shares, "measure", slow)
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.ones(4), 6).T / 6
    found = budgeted.solve_budgeted_mapping(
        joint,
        make_grid(3, 2),
        private=make_grid(2, 2),
        information_budgets=(1.0, 1.0),
        distortion_budget=0.1,
        gap=1e-12,
        max_seconds=10.0,
    )
    assert found.stopped == "time limit"
    assert 9.0 <= clock.now <= 11.0


def make_records(n: int, *, several: bool = False) -> Records:
    rng = np.random.default_rng(3)
    codes = np.column_stack([rng.integers(0, 4, n), rng.integers(0, 3, n)])
    first = (codes[:, 0] + rng.integers(0, 4, n) >= 4).astype(int)
    second = np.where(rng.random(n) < 0.6, codes[:, 1] > 0, rng.integers(0, 2, n))
    private = np.stack([first, second], axis=1) if several else first
    regions = np.column_stack([codes, rng.integers(0, 2, n)])
    return Records(np.zeros((n, 1)), confidential=private.astype(str), attributes=regions)


def hear(several: bool = False, **changes: Any) -> tuple[Any, list[str]]:
    private = ("confidential_0", "confidential_1") if several else ("s",)
    given: dict[str, Any] = {
        "attributes": ("attribute_0", "attribute_1", "attribute_2"),
        "private": private,
        "distortion_budget": 0.3,
        "gap": 1e-14,
    }
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = fit_privacy_mapping(
            make_records(4_000, several=several), PrivacyMappingOptions(**{**given, **changes})
        )
    return found, [str(one.message) for one in heard if one.category is PrivacyWarning]


BY: dict[str, Any] = {"attributes": ("attribute_0", "attribute_1"), "by": "attribute_2"}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_seconds": 1e-6},
        {"max_posterior_odds": 1.5},
        {"max_leakage": 0.3},
        {"solver": "frank_wolfe"},
        {"information_budgets": (0.3, 0.3), "several": True},
        {"max_seconds": 1e-6, **BY},
        {"information_budgets": (0.3, 0.3), "several": True, **BY},
    ],
    ids=["plain", "odds", "leakage", "frank_wolfe", "budgets", "by", "budgets and by"],
)
def test_fit__a_gap_that_is_not_reached_is_said_of_every_kind(changes: dict[str, Any]) -> None:
    found, said = hear(**changes)
    assert len(said) == 1
    assert "nats between its mapping and what none within the budget betters" in said[0]
    assert "gap is 1e-14" in said[0]
    assert ("of the 2 values of attribute_2" in said[0]) == ("by" in changes)
    assert "earch ended with: " in found.guarantee.statement or "by" in changes
    assert "budget. Searches ended with: " in found.guarantee.statement or "by" not in changes
    reached, said = hear(**{**changes, "gap": 1e-2, "max_seconds": None})
    assert said == []
    assert "gap reached" in reached.guarantee.statement


def test_fit__of_several_values_the_worst_is_said_and_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit, calls = law_fit.fit_law, []

    def fake(timed: Any, **given: Any) -> Any:
        calls.append(timed)
        off = 0.1 * len(calls)
        return fit(timed, **given)[0], {"search_stopped": (off, f"off by {off:.1f}.")}

    monkeypatch.setattr(law_fit, "fit_law", fake)
    _, said = hear(**BY)
    assert said == [
        "off by 0.2. So it is for 2 of the 2 values of attribute_2; this is the worst of them."
    ]
