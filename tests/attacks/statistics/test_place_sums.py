"""Sums of places: what they are, that they add up, and which copies they see."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.statistics.places import (
    PlaceSums,
    PlaceTest,
    add_total,
    code_column,
    count_codes,
    list_contrasts,
    sum_place,
)
from privpipe.protocols import Column

SECRET, WANTED = Column("secret", 2), Column("wanted", 3)


def draw_labels(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    wanted = random.integers(0, 3, n).astype(float)
    secret = (random.random(n) < 0.3 + 0.2 * (wanted == 1)).astype(float)
    secret[::17], wanted[::29] = np.nan, np.nan
    return secret, wanted


def sum_simply(secret: np.ndarray, wanted: np.ndarray, codes: np.ndarray, n_codes: int) -> list:
    """As the docstring says, a record after the other; the information last."""
    found, information = [0.0] * n_codes, 0.0
    for i, value in enumerate(secret):
        if np.isnan(value):
            continue
        alike = [
            other
            for other, one in zip(secret, wanted, strict=True)
            if (one == wanted[i] or np.isnan([one, wanted[i]]).all()) and not np.isnan(other)
        ]
        centred = value - sum(alike) / len(alike)
        found[codes[i]] += centred
        information += centred**2
    return [*found, information]


def test_sum_place__is_the_sum_of_contrasts_centred_in_their_strata() -> None:
    random = np.random.default_rng(0)
    secret, wanted = draw_labels(random, 80)
    codes = random.integers(0, 4, 80)
    x = random.normal(size=(80, 1))
    found = sum_place(
        [(SECRET, secret)], [(WANTED, wanted)], x, np.arange(80), [(codes, 4)], chunk=3
    )
    *sums, information = sum_simply(secret, wanted, codes, 4)
    assert found.chunk.tolist() == [3]
    np.testing.assert_allclose(found.coded[0, 0], sums, atol=1e-5)
    np.testing.assert_allclose(found.information[0, :, 0], information)


def test_sum_place__tells_two_measured_functions_of_a_column() -> None:
    """A column of quartiles -1 and 1: within these limits, and its size within 2."""
    x = np.tile([-3.0, -1.0, -1.0, -0.5, 0.5, 1.0, 1.0, 3.0], 8)
    secret = np.tile([0, 0, 0, 0, 1, 1, 1, 1], 8).astype(float)
    found = sum_place([(SECRET, secret)], [], x[:, None], np.arange(64), [])
    shift = sum((s - 0.5) * min(max(v, -1), 1) for s, v in zip(secret, x, strict=True))
    spread = sum((s - 0.5) * min(abs(v), 2) for s, v in zip(secret, x, strict=True))
    np.testing.assert_allclose(found.measured[0, 0, :, 0], [shift, spread], atol=1e-5)


def test_add_up__is_the_same_in_any_grouping() -> None:
    random = np.random.default_rng(1)
    places = []
    for chunk in range(6):
        secret, wanted = draw_labels(random, 50)
        places.append(
            sum_place(
                [(SECRET, secret)],
                [(WANTED, wanted)],
                random.normal(size=(50, 2)),
                np.arange(50),
                [(random.integers(0, 4, 50), 4)],
                chunk=chunk,
            )
        )
    sums = PlaceSums.concatenate(places)
    halves = sums.add_up(np.array([0, 0, 0, 1, 1, 1]), 2)
    for name in ("information", "proxy", "measured", "coded"):
        whole = getattr(sums, name).sum(axis=0)
        np.testing.assert_allclose(getattr(add_total(sums), name)[0], whole, atol=1e-6)
        np.testing.assert_allclose(getattr(add_total(halves), name)[0], whole, atol=1e-6)
    apart = sums.add_up(np.array([0, -1, -1, 0, -1, -1]), 1)
    np.testing.assert_allclose(
        apart.coded[0], sums.coded[0].astype(float) + sums.coded[3], atol=1e-6
    )


COPIES = {
    "a balanced copy": lambda secret, random: secret,
    "a copy of another scale": lambda secret, random: 1e6 - 1e-3 * secret,
    "a size": lambda secret, random: (
        np.where(random.random(len(secret)) < 0.5, -1, 1) * (1 + 3 * secret)
    ),
    "heavy tails": lambda secret, random: secret * 1e3 + random.standard_cauchy(len(secret)),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_find_excess__sees_a_copy_in_one_place(copy: str, share: float) -> None:
    random, parts = np.random.default_rng(2), []
    for chunk in range(20):
        secret = (random.random(2000) < share).astype(float)
        x = random.standard_cauchy((2000, 3))
        if chunk == 13:
            x[:, 1] = COPIES[copy](secret, random)
        parts.append(sum_place([(SECRET, secret)], [], x, np.arange(2000), [], chunk=chunk))
    sums = PlaceSums.concatenate(parts)
    advantage, excess = PlaceTest(add_total(sums), (), 20, 0.1, 0.95).find_excess(sums)
    assert [i for i in range(20) if excess[i].max() > 0.1] == [13]
    assert excess[13].argmax() % 3 == 1
    assert advantage[13].max() <= 1 + 1e-6


def test_list_contrasts__names_a_variable_for_each() -> None:
    assert list_contrasts([Column("a", 2), Column("b", 40)]) == ["a", *["b"] * 32]


@pytest.mark.parametrize("n_categories", [2, 63, 500, None])
def test_code_column__keeps_missing_values_apart(n_categories: int | None) -> None:
    random = np.random.default_rng(3)
    if n_categories is None:
        values = random.normal(size=300)
        values[:10] = np.nan
    else:
        values = random.integers(0, n_categories, 300)
        values[:10] = -1
    codes = code_column(values, n_categories)
    assert np.flatnonzero(codes == 0).tolist() == list(range(10))
    assert codes.max() < count_codes(n_categories)
    assert len(np.unique(codes)) > 2 or n_categories == 2


def test_sum_place__of_the_largest_values_of_single_precision_is_finite() -> None:
    random = np.random.default_rng(0)
    most = np.finfo(np.float32).max
    x = random.choice(np.array([-most, 0, most], np.float32), (300, 4))
    x[:, 1] = 0
    x[5, 1], x[:, 2] = most, most
    secret, wanted = draw_labels(random, 300)
    found = sum_place([(SECRET, secret)], [(WANTED, wanted)], x, np.arange(300), [])
    assert np.isfinite(found.measured).all()
    assert abs(found.measured[..., :2]).min() > 0


def test_sum_place__no_two_combinations_of_desired_values_are_one_stratum() -> None:
    random = np.random.default_rng(0)
    first, second = random.integers(0, 2, 400).astype(float), random.integers(0, 3, 400) * 1.0
    second[second == 2] = np.nan
    both = 3 * first + np.nan_to_num(second, nan=2)
    secret = (random.random(400) < 0.2 + 0.1 * both).astype(float)
    x, codes = np.empty((0, 0)), [(random.integers(0, 4, 400), 4)]
    cut, joined = (
        sum_place([(SECRET, secret)], desired, x, np.arange(0), codes)
        for desired in (
            [(Column("first", 2), first), (Column("second", 2), second)],
            [(Column("both", 6), both)],
        )
    )
    np.testing.assert_allclose(cut.coded, joined.coded, atol=1e-5)
