"""Splits by keyed hash: disjoint, complete, of the right share, the same for any chunking."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from privpipe.records.sampling import make_split


def test_parts__are_disjoint_and_complete() -> None:
    numbers = np.arange(10_000)
    split = make_split(0.3)
    fit, attack, test = (split.keep(part, numbers) for part in ("fit", "attack", "test"))
    assert ((fit.astype(int) + attack + test) == 1).all()
    assert np.array_equal(attack | test, split.keep("held_out", numbers))


def test_share__is_kept_within_five_deviations() -> None:
    n, share = 200_000, 0.3
    held_out = make_split(share).keep("held_out", np.arange(n)).mean()
    assert abs(held_out - share) < 5 * np.sqrt(share * (1 - share) / n)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_keep__does_not_depend_on_chunking(sizes: list[int]) -> None:
    split, edges = make_split(0.25), np.cumsum([0, *sizes])
    parts = [split.keep("fit", np.arange(a, b)) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), split.keep("fit", np.arange(edges[-1])))


def test_groups__stay_on_one_side() -> None:
    groups = np.repeat(np.arange(500), 7)
    sides = make_split(0.5, "subject").keep("fit", groups).reshape(500, 7)
    assert ((sides.sum(axis=1) == 0) | (sides.sum(axis=1) == 7)).all()


def test_no_holdout__fits_on_all() -> None:
    assert make_split(0.0).keep("fit", np.arange(1000)).all()
