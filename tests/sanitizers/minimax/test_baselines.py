"""Closed forms and baselines: optimality, guarding, agreement with other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from flows.reproduce.hamm_compared import (
    PplsOptions,
    find_ppls_directions,
    fit_ddd_filter,
    fit_ppls_filter,
    measure_fisher,
)
from privpipe import Records
from privpipe.errors import InputError, OptionError
from privpipe.sanitizers.minimax import METHODS
from privpipe.sanitizers.minimax.baselines import (
    LeastSquaresOptions,
    PcaOptions,
    PrivacyLdsOptions,
    RandOptions,
    fit_least_squares_filter,
    fit_pca_filter,
    fit_privacy_lds_filter,
    fit_rand_filter,
)
from tests.sanitizers.labelled_data import draw_labelled


def _records(n_records: int = 400, n_private: int = 2, n_shards: int = 1) -> Records:
    x, target, private = draw_labelled(n_records, n_private=n_private)
    return Records(x, desired=target, confidential=private, n_shards=n_shards)


def _accuracy(z: np.ndarray, y: np.ndarray) -> float:
    """Held-out accuracy of a logistic adversary who standardises, trained on the first half."""
    n = len(z) // 2
    scaled = StandardScaler().fit(z[:n]).transform(z)
    return float(LogisticRegression(max_iter=1000).fit(scaled[:n], y[:n]).score(scaled[n:], y[n:]))


def _span(u: np.ndarray) -> np.ndarray:
    q = np.linalg.qr(u)[0]
    return q @ q.T


def test_fit_least_squares_filter__directions_are_optimal() -> None:
    x, target, private = draw_labelled(400, n_private=2)
    fitted = fit_least_squares_filter(_records(), LeastSquaresOptions(ridge=1e-12, tradeoff=2.0))

    def phi(u: np.ndarray) -> float:
        g = np.column_stack([x @ u, np.ones(400)])
        return sum(
            a
            * np.mean(
                (
                    np.eye(2)[y.astype(int)]
                    - g @ np.linalg.lstsq(g, np.eye(2)[y.astype(int)], rcond=None)[0]
                )
                ** 2
            )
            * 2
            for a, y in ((2.0, target), (-1.0, private))
        )

    best, rng = phi(fitted.weights), np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(20):
            assert phi(fitted.weights + size * rng.normal(size=fitted.weights.shape)) >= best - 1e-9


def test_fit_least_squares_filter__outputs_are_white() -> None:
    x = draw_labelled(400, n_private=2)[0]
    with pytest.warns(UserWarning, match="the targets use 1 outputs"):
        z = fit_least_squares_filter(_records(), LeastSquaresOptions(n_filtered=3)).apply(x)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(3), atol=1e-4)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-10)


@pytest.mark.parametrize("n_private", [2, 4])
def test_fit_privacy_lds_filter__guards_every_direction(n_private: int) -> None:
    x, target, private = draw_labelled(3000, n_private=n_private)
    train = Records(x[:1500], desired=target[:1500], confidential=private[:1500])
    with pytest.warns(UserWarning, match="n_filtered is 4; the targets use 1"):
        z = fit_privacy_lds_filter(train, PrivacyLdsOptions(n_filtered=4)).apply(x)
    means = np.array([z[:1500][private[:1500] == k].mean(axis=0) for k in range(n_private)])
    np.testing.assert_allclose(means - means[0], 0, atol=1e-4)
    assert _accuracy(x, private) > 0.6 + 1.0 / n_private / 3
    assert _accuracy(z, private) < 1.0 / n_private + 0.07
    assert _accuracy(z, target) > 0.75


def test_fit_privacy_lds_filter__refuses_more_than_can_be_guarded() -> None:
    # Nine features, one direction for the two classes to hide, one for the target's.
    with pytest.raises(OptionError, match="8 directions are free"):
        fit_privacy_lds_filter(_records(), PrivacyLdsOptions(n_filtered=9))
    with pytest.warns(UserWarning, match="the targets use 1"):
        found = fit_privacy_lds_filter(_records(), PrivacyLdsOptions(n_filtered=8))
    assert np.linalg.matrix_rank(found.weights, rtol=1e-6) == 8


@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("n_private", [2, 3])
def test_fit_privacy_lds_filter__has_a_direction_less_than_classes(n_private, offset) -> None:
    """The rounding of means of 1e9 was one more direction, of the target and of the private."""
    x, target, private = draw_labelled(400, n_private=n_private)
    three = target + (x[:, 0] > 0)
    records = Records(x + offset, desired=three, confidential=private, n_shards=4)
    assert fit_privacy_lds_filter(records, PrivacyLdsOptions()).n_features_out == 2
    most = 9 - (n_private - 1)
    with pytest.raises(OptionError, match=f"{most} directions are free"):
        fit_privacy_lds_filter(records, PrivacyLdsOptions(n_filtered=9))


@pytest.mark.parametrize("n_shards", [1, 5])
def test_fit_pca_filter__spans_what_scikit_learn_finds(n_shards: int) -> None:
    x = draw_labelled(400, n_private=2)[0]
    fitted = fit_pca_filter(_records(n_shards=n_shards), PcaOptions(n_filtered=3))
    np.testing.assert_allclose(_span(fitted.weights), _span(PCA(3).fit(x).components_.T), atol=1e-8)
    raw = fit_pca_filter(_records(), PcaOptions(n_filtered=3, centre=False))
    np.testing.assert_allclose(_span(raw.weights), _span(np.linalg.svd(x)[2][:3].T), atol=1e-8)
    np.testing.assert_array_equal(raw.offset, 0)


def test_fit_rand_filter__depends_on_the_seed_alone() -> None:
    records = _records()
    a, b, c = (
        fit_rand_filter(records, RandOptions(n_filtered=4, seed=s)).weights for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(a, b)
    assert np.linalg.matrix_rank(a) == 4
    assert (a != c).any()


def test_find_ppls_directions__without_privacy_is_partial_least_squares() -> None:
    x, target, _ = draw_labelled(400, n_private=2)
    x, y = x - x.mean(axis=0), target - target.mean()
    found = find_ppls_directions((x.T @ y)[:, None], np.zeros((9, 1)), x.T @ x, 3)
    expected = PLSRegression(3, scale=False).fit(x, y).x_rotations_
    np.testing.assert_allclose(_span(found), _span(expected), atol=1e-8)


def test_fit_ppls_filter__lowers_the_private_covariance() -> None:
    rng = np.random.default_rng(0)
    target, private = rng.integers(0, 2, (2, 2000)).astype(float)
    x = rng.normal(size=(2000, 3))
    x[:, 0] += 2.0 * target
    x[:, 1] += 2.0 * target + 3.0 * private  # the target pulls towards a leaky feature
    records = Records(x[:1000], desired=target[:1000], confidential=private[:1000])
    free, strict = (
        fit_ppls_filter(records, PplsOptions(n_filtered=1, tradeoff=t)).apply(x)
        for t in (100.0, 0.1)
    )
    assert _accuracy(free, private) > 0.7
    assert _accuracy(strict, private) < 0.56
    assert _accuracy(strict, target) > 0.75


def test_measure_fisher__gradient_agrees_with_differences() -> None:
    rng = np.random.default_rng(0)
    a, d, mask = rng.normal(size=(5, 5)), rng.normal(size=5), rng.random(5)
    slope = approx_fprime(mask, lambda m: measure_fisher(m, d, a @ a.T, 0.3)[0], 1e-7)
    np.testing.assert_allclose(measure_fisher(mask, d, a @ a.T, 0.3)[1], slope, atol=1e-5)


def test_fit_ddd_filter__masks_what_gives_the_private_class_away() -> None:
    x, target, private = draw_labelled(2000, n_private=2)
    records = Records(x[:1000], desired=target[:1000], confidential=private[:1000])
    fitted = fit_ddd_filter(records)
    assert ((fitted.mask >= 0) & (fitted.mask <= 1)).all()
    assert fitted.mask[2] == fitted.mask[3] == 0
    z = fitted.apply(x)
    assert _accuracy(x, private) > 0.8
    assert _accuracy(z, private) < 0.75
    assert _accuracy(z, target) > 0.8


def test_fit_ddd_filter__refuses_more_than_two_classes() -> None:
    with pytest.raises(InputError, match="two classes only"):
        fit_ddd_filter(_records(n_private=3))


@pytest.mark.parametrize("method", METHODS[3:], ids=lambda method: method.name)
@pytest.mark.filterwarnings("ignore:n_filtered is")
def test_method_row__does_not_depend_on_the_sharding(method: Any) -> None:
    options = method.options(n_filtered=2)
    x = draw_labelled(400, n_private=2)[0]
    whole, cut = (method.fit(_records(n_shards=n), options) for n in (1, 6))
    np.testing.assert_allclose(cut.apply(x), whole.apply(x), atol=1e-5)
    assert whole.n_features_out == whole.apply(x).shape[1]
    assert whole.guarantee.kind == "none"
