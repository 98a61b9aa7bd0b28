"""Rounding in balance: neighbours only, errors that cancel, and a budget that is kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.numerics.null_space.knapsack import shrink_coordinates
from privpipe.numerics.null_space.rounding_margin import (
    Balance,
    RoundingMargin,
    round_in_balance,
    store_within,
)


def make_wide(n_records=200, n_features=60, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-3, 3, n_features)
    wide = rng.normal(size=(n_records, n_features)) * scale
    return wide, rng.normal(size=(n_features, rank)) / scale[:, None]


def plan(encoder):
    return Balance(encoder, RoundingMargin(0.0, np.zeros(encoder.shape[1]), 0.0))


def cost_of(stored, wide, encoder):
    return np.linalg.norm((stored.astype(np.longdouble) - wide) @ encoder, axis=1).astype(float)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_round_in_balance__cancels_what_plain_rounding_adds_up(dtype, rank):
    wide, encoder = make_wide(rank=rank)
    stored = round_in_balance(wide, encoder, dtype)
    assert stored.dtype == dtype
    plain = cost_of(wide.astype(dtype), wide, encoder)
    balanced = cost_of(stored, wide, encoder)
    gain = np.median(plain) / np.median(balanced)
    assert gain > {1: 300, 3: 20, 8: 4}[rank]
    assert (balanced < plain).mean() > 0.99


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float16", "float32"]))
def test_round_in_balance__takes_one_of_the_two_neighbours(seed, dtype):
    wide, encoder = make_wide(8, 12, 2, seed)
    wide[0, :3] = [0.0, -0.0, -1e-60]
    wide[1] = wide[1].astype(dtype)
    stored = round_in_balance(wide, encoder, dtype)
    below = np.nextafter(stored, np.array(-np.inf, dtype)).astype(float)
    above = np.nextafter(stored, np.array(np.inf, dtype)).astype(float)
    assert ((below < wide) & (wide < above)).all()
    np.testing.assert_array_equal(stored[1], wide[1])
    assert not np.signbit(stored[stored == 0]).any()


def test_round_in_balance__is_among_the_best_of_all_roundings():
    wide, encoder = make_wide(20, 10, 1)
    ours = cost_of(round_in_balance(wide, encoder, "float32"), wide, encoder)
    down = wide.astype(np.float32)
    down = np.where(down > wide, np.nextafter(down, np.float32(-np.inf)), down)
    up = np.nextafter(down, np.float32(np.inf))
    choices = [np.where(mask, up, down) for mask in product([False, True], repeat=10)]
    others = np.array([cost_of(choice, wide, encoder) for choice in choices])
    assert (others >= ours * (1 - 1e-12)).mean() > 0.97
    steps = np.abs(up.astype(float) - down) * np.abs(encoder[:, 0])
    assert (ours <= steps.max(axis=1) / 2 * (1 + 1e-9)).all()


def test_round_in_balance__rounds_nothing_to_infinity():
    wide = np.array([[65510.0, 1 + 2.0**-11, 1 + 2.0**-11]])  # the first is beyond float16
    with np.errstate(over="ignore"):
        stored = round_in_balance(wide, np.array([[0.0], [1.0], [1.0]]), "float16")
    assert stored[0, 0] == 65504
    assert stored[0, 1:].astype(float).sum() == wide[0, 1:].sum()


def test_round_in_balance__treats_every_row_by_itself():
    wide, encoder = make_wide(50)
    whole = round_in_balance(wide, encoder, "float32")
    for part in (slice(0, 1), slice(7, 30)):
        np.testing.assert_array_equal(round_in_balance(wide[part], encoder, "float32"), whole[part])


def test_store_within__makes_room_for_what_storing_costs():
    rng = np.random.default_rng(0)
    encoder = np.linalg.qr(rng.normal(size=(30, 2)))[0]
    coordinates = 1e5 * rng.normal(size=(100, 2))
    # Plain rounding costs about 5e-3 here.
    allowed = np.geomspace(1e-5, 1e-1, 100)
    stored, loss, within = store_within(
        coordinates, allowed, shrink_coordinates, lambda b: b @ encoder.T, plan(encoder), "float32"
    )
    exact = stored.astype(np.longdouble) @ encoder.astype(np.longdouble) - coordinates
    true = np.sqrt((exact**2).sum(axis=1)).astype(float)
    np.testing.assert_allclose(loss, true, atol=1e-9)
    np.testing.assert_array_equal(within, loss <= allowed)
    assert within[allowed > 3e-3].all()
    assert (loss > 0.9 * allowed)[allowed > 3e-3].all()


def test_store_within__gives_up_where_no_rounding_is_close_enough():
    encoder = np.ones((2, 1)) / np.sqrt(2)
    coordinates = np.array([[1e8 + 0.3]])
    _, loss, within = store_within(
        coordinates,
        np.array([1e-9]),
        shrink_coordinates,
        lambda b: b @ encoder.T,
        plan(encoder),
        "f4",
    )
    assert not within.any()
    assert loss[0] > 1e-9
