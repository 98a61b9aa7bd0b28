"""Coordinates: the rank is found above rounding, and nothing that leaks is thrown away."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.adversaries.coordinates import measure_coordinates, measure_sizes
from privpipe.errors import InputError


@pytest.fixture
def low() -> np.ndarray:
    random = np.random.default_rng(0)
    scales = 10.0 ** random.uniform(-6, 6, 40)
    return (random.normal(size=(500, 3)) @ random.normal(size=(3, 40)) + 2) * scales


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_measure_coordinates__finds_the_rank_whatever_the_scales(low, dtype) -> None:
    found = measure_coordinates(low.astype(dtype))
    assert (found.rank, found.values.shape) == (3, (500, 3))
    np.testing.assert_allclose(found.values.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.values.std(axis=0), 1, rtol=1e-6)
    # The same information: the coordinates predict every column.
    design = np.column_stack([found.values, np.ones(500)])
    rest = low - design @ np.linalg.lstsq(design, low, rcond=None)[0]
    assert (np.abs(rest).max(axis=0) < 1e-4 * low.std(axis=0)).all()


def test_measure_coordinates__keeps_a_column_of_tiny_scale_that_leaks(low) -> None:
    secret = np.random.default_rng(1).integers(0, 2, 500)
    leaky = np.column_stack([low, 1e-12 * secret])
    found = measure_coordinates(leaky)
    assert found.rank == 4
    design = np.column_stack([found.values, np.ones(500)])
    fitted = design @ np.linalg.lstsq(design, secret.astype(float), rcond=None)[0]
    np.testing.assert_allclose(fitted, secret, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-200, 1e-170, 1e170, 1e200])
def test_measure_coordinates__finds_the_same_in_any_unit(unit: float) -> None:
    """Squares of such numbers are 0 or infinite: an adversary saw .42 of an advantage of .76."""
    x = np.random.default_rng(3).normal(size=(400, 5))
    near, far = (measure_coordinates(one).values for one in (x, x * unit))
    np.testing.assert_allclose(far, near, atol=1e-9)
    assert measure_sizes(x * unit).std(axis=0).min() > 0
    assert np.isfinite(measure_sizes(x * unit)).all()


def test_measure_coordinates__keeps_a_secret_in_the_last_digits(low) -> None:
    secret = np.random.default_rng(1).integers(0, 2, 500)
    hidden = np.column_stack([low, 1e6 + secret * 2.0**-32])
    found = measure_coordinates(hidden)
    at = np.abs(np.corrcoef(found.values.T, secret)[-1, :-1])
    assert at.max() == pytest.approx(1)
    assert (found.rank, found.values.shape) == (3, (500, 4))


@pytest.mark.parametrize("seed", range(4))
def test_measure_coordinates__lose_no_record_that_leaves_the_span_of_the_sample(low, seed) -> None:
    """Two records of 20,000 leave it, opposite ways, so that the mean does not betray them."""
    many = np.tile(low, (40, 1))
    step = 5 * low[:, 0].std()
    many[-1, 0] += step
    many[-2, 0] -= step
    found = measure_coordinates(many, seed=seed)
    design = np.column_stack([found.values, np.ones(len(many))])
    rest = many[:, 0] - design @ np.linalg.lstsq(design, many[:, 0], rcond=None)[0]
    assert np.abs(rest[-2:]).max() < 1e-3 * step


def test_measure_coordinates__leaves_full_rank_columns_as_they_are() -> None:
    x = np.random.default_rng(2).normal(3, 5, (200, 6))
    x[:, 2] = 7
    found = measure_coordinates(x)
    assert (found.rank, found.n_constant, found.n_features) == (None, 1, 6)
    expected = np.delete((x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-300), 2, axis=1)
    np.testing.assert_allclose(found.values, expected, atol=1e-12)


def test_measure_coordinates__of_a_constant_release_say_nothing() -> None:
    found = measure_coordinates(np.full((30, 4), 2.5))
    assert (found.n_constant, found.rank) == (4, 0)
    assert not found.values.any()


def test_measure_coordinates__are_single_precision_where_double_would_be_large() -> None:
    x = np.random.default_rng(2).normal(1e6, 1, (200, 6))
    small = measure_coordinates(x, max_bytes=1000).values
    assert small.dtype == np.float32
    np.testing.assert_allclose(small, measure_coordinates(x).values, atol=1e-6)


def test_measure_coordinates__refuses() -> None:
    with pytest.raises(InputError, match=r"raw has shape \(3,\)"):
        measure_coordinates(np.zeros(3), name="raw")
    with pytest.raises(InputError, match="holds 2 values that are not finite"):
        measure_coordinates(np.array([[1.0, np.nan], [np.inf, 2.0]]))
    with pytest.raises(InputError, match="dtype"):
        measure_coordinates(np.array([["a"], ["b"]]))
