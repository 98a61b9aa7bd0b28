"""Whether a place is accused: error rates in both directions, and limits that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.statistics.places import PlaceSums, PlaceTest, add_total, sum_place
from privpipe.protocols import Column
from tests.bench.place_errors import LAWS, draw_audit, find_chunks

SECRET = Column("secret", 2)


@pytest.mark.parametrize("name", LAWS)
def test_find_excess__accuses_no_sound_release_and_finds_a_leak(name: str) -> None:
    """Small: 40 chunks, three of which leak. `tests.bench.place_errors` has the full figures."""
    for seed in range(2):
        assert not find_chunks(draw_audit(LAWS[name], seed, n_chunks=40), allowed=0.0)
        leaking = frozenset([seed, 17 + seed, 31 + seed])
        sums = draw_audit(LAWS[name], 9 + seed, leaking=leaking, n_chunks=40)
        assert find_chunks(sums) & leaking


def test_find_excess__counts_labels_in_runs_as_few() -> None:
    """Without that, features that change slowly would be accused of what only time explains."""
    sums = draw_audit(LAWS["runs and slow features"], 0, n_chunks=40)
    assert find_chunks(replace(sums, proxy=sums.information), allowed=0.0)
    assert not find_chunks(sums, allowed=0.0)


def make_places(chances: np.ndarray, n: int, seed: int) -> PlaceSums:
    """Places of two balanced classes, each code right with a chance of its own."""
    random, parts = np.random.default_rng(seed), []
    for place, chance in enumerate(chances):
        secret = random.integers(0, 2, n)
        codes = np.where(random.random(n) < chance, secret, 1 - secret)
        column = [(SECRET, secret.astype(float))]
        empty = np.empty((n, 0))
        parts.append(sum_place(column, [], empty, np.arange(n), [(codes, 2)], chunk=place))
    return PlaceSums.concatenate(parts)


def judge(sums: PlaceSums, level: float = 0.95) -> np.ndarray:
    _, excess = PlaceTest(add_total(sums), (2,), len(sums.chunk), 0.1, level).find_excess(sums)
    return excess[:, 0, 0]


def test_find_excess__is_a_lower_limit() -> None:
    """Of ten places one has an advantage of .6 and the rest .2: its excess is .4."""
    chances = np.array([0.8, *[0.6] * 9])
    found = np.array([judge(make_places(chances, 1500, seed)) for seed in range(60)])
    assert (found[:, 0] <= 0.4).mean() >= 0.95
    assert (found[:, 0] > 0.2).all()
    assert (found[:, 1:] <= 0).all()


def test_find_excess__compares_with_the_rest() -> None:
    """What every place reveals is the audit's business; a sign that changes reveals no more."""
    assert (judge(make_places(np.full(8, 0.9), 2000, 0)) <= 0).all()
    assert judge(make_places(np.array([0.1, *[0.9] * 7]), 2000, 0))[0] <= 0


def test_find_excess__finds_places_whose_signs_cancel() -> None:
    sums = make_places(np.array([1.0, 0.0] * 4), 500, 0)
    assert (judge(sums) > 0.5).all()


def test_find_excess__knows_nothing_of_a_place_without_labels_or_without_a_rest() -> None:
    some = make_places(np.array([1.0, 0.5, 0.5]), 500, 0)
    empty = replace(some, information=some.information * 0, proxy=some.proxy * 0)
    assert np.isneginf(judge(empty)).all()
    assert np.isneginf(judge(make_places(np.array([1.0]), 500, 0))).all()


@pytest.mark.parametrize(("n", "finds"), [(1500, True), (15, False)])
def test_finds_copies__says_where_a_copy_would_be_missed(n: int, finds: bool) -> None:
    sums = make_places(np.array([1.0, *[0.5] * 9]), n, 0)
    test = PlaceTest(add_total(sums), (2,), 10, 0.1, 0.95)
    assert test.finds_copies(sums).all() == finds
    assert (judge(sums)[0] > 0.1) == finds


def test_find_excess__of_more_places_shares_the_level() -> None:
    sums = make_places(np.array([0.9, 0.5, 0.5]), 400, 0)
    few, many = (
        PlaceTest(add_total(sums), (2,), n, 0.1, 0.95).find_excess(sums)[1][0, 0, 0]
        for n in (3, 3000)
    )
    assert few - many > 0.01


def test_find_excess__finds_measured_columns_whose_signs_cancel() -> None:
    random, parts = np.random.default_rng(0), []
    for place in range(8):
        secret = random.integers(0, 2, 500)
        x = (2.0 * secret - 1) * (-1) ** place + 0.1 * random.normal(size=500)
        column = [(SECRET, secret.astype(float))]
        parts.append(sum_place(column, [], x[:, None], np.arange(500), [], chunk=place))
    sums = PlaceSums.concatenate(parts)
    _, excess = PlaceTest(add_total(sums), (), 8, 0.1, 0.95).find_excess(sums)
    assert (excess[:, 0, 0] > 0.3).all()
