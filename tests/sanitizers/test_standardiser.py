"""Standardisation: fitted on training records alone, stored with the model, units cancel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.chain import Chain, Standardiser, fit_standardised, fit_standardiser
from privpipe.sanitizers.options import make_options
from privpipe.store.models import open_model, write_model

GIVEN = {
    "minimax": {"n_filtered": 1, "max_iterations": 3},
    "minimax_least_squares": {"n_filtered": 1},
    "pca": {"n_filtered": 2},
    "privacy_lds": {"n_filtered": 1},
}


def make(n: int = 600) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Features, a wanted and a confidential class, (n, 5), (n,), (n,)."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 5))
    wanted = (x[:, 0] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(int)
    hidden = (x[:, 2] - x[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(int)
    return x, wanted, hidden


def learn(name: str, x: FloatArray, standardised: bool = True) -> Chain:
    _, wanted, hidden = make(len(x))
    records = Records(x, desired=wanted, confidential=hidden)
    method = METHODS[name]
    options = make_options(method.options, {"name": name, **GIVEN[name]}, name)
    fit = fit_standardised(method, records, options) if standardised else None
    found = fit if fit is not None else method.fit(records, options)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", GIVEN)
def test_fit_standardised__units_of_the_features_change_nothing(name: str) -> None:
    x, *_ = make()
    units = np.array([1e4, 1.0, 1e-3, 30.0, 7.0])
    zero = np.array([273.15, 0.0, -5.0, 1e3, 1.0])
    plain, other = learn(name, x), learn(name, x * units + zero)
    np.testing.assert_allclose(
        np.abs(plain.apply(x)), np.abs(other.apply(x * units + zero)), atol=2e-5
    )


def test_fit__without_it_the_feature_of_the_largest_unit_is_all_that_counts() -> None:
    """What the test above would not see if methods standardised by themselves."""
    x, *_ = make()
    units = np.array([1e4, 1.0, 1.0, 1.0, 1.0])
    plain, other = learn("pca", x, False).apply(x), learn("pca", x * units, False).apply(x * units)
    shared = np.corrcoef(plain[:, 0], other[:, 0])[0, 1]
    assert abs(shared) < 0.99


def test_fit_standardised__is_stored_with_the_model(tmp_path: Path) -> None:
    x, *_ = make()
    fitted = learn("pca", x * 50 + 3)
    write_model(fitted, tmp_path / "model.zarr")
    opened = open_model(tmp_path / "model.zarr")
    assert isinstance(opened, Chain)
    assert isinstance(opened.maps[0], Standardiser)
    np.testing.assert_array_equal(opened.maps[0].centre, fitted.maps[0].centre)  # type: ignore[attr-defined]
    assert opened.guarantee == fitted.maps[1].guarantee


def test_apply__standardises_records_to_come_by_the_training_records() -> None:
    """One record has no deviation of its own."""
    x, *_ = make()
    fitted = learn("pca", x * 50 + 3)
    later = 50 * np.random.default_rng(9).normal(2, 3, size=(40, 5)) + 3
    one_by_one = np.vstack([fitted.apply(row[None]) for row in later])
    np.testing.assert_allclose(fitted.apply(later), one_by_one, rtol=1e-12)
    standardised = fitted.maps[0].apply(later)
    assert abs(standardised.mean()) > 1  # by another mean it would be 0
    np.testing.assert_array_equal(
        fitted.maps[0].apply(later[:7]), np.asarray(standardised[:7])
    )  # the same bits in any block


def test_fit_standardiser__agrees_with_numpy_in_any_shards() -> None:
    x, *_ = make()
    x = np.column_stack([x * 1e3 + 1e6, np.full(len(x), 4.0)])
    whole = fit_standardiser(Records(x))
    np.testing.assert_allclose(whole.centre, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(whole.scale[:5], x.std(axis=0)[:5], rtol=1e-9)
    assert whole.scale[5] == 1.0  # a feature that does not vary


def test_fit_standardiser__refuses_gaps_by_their_number() -> None:
    x, *_ = make()
    x[3, 1] = np.nan
    with pytest.raises(InputError, match="1 of 600 training records") as caught:
        fit_standardiser(Records(x))
    assert "nonfinite" in caught.value.remedy
    with pytest.raises(OptionError, match="scale is not positive"):
        Standardiser(np.zeros(2), np.array([1.0, 0.0]))
