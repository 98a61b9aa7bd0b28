"""The sums of e_privacy and complete privacy, against each record looked at by itself."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.statistics.privacy import PARTS, sum_privacy
from privpipe.numerics.moments import LeastSquares
from privpipe.numerics.rounding import exceeds
from privpipe.protocols import FloatArray


def _scene(seed: int) -> tuple[LeastSquares, LeastSquares, FloatArray, FloatArray, FloatArray]:
    """Predictors, mean, records of which a third is the mean, true values some of them unknown."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=7) * 10.0 ** rng.integers(-6, 7, 7)
    x = mean + rng.normal(size=(500, 7))
    x[::3] = mean
    x[1::9] *= 1e9  # a record that makes the common bound useless for all others
    raw, adversary = (
        LeastSquares(rng.normal(size=(7, 3)), rng.normal(size=3), 1.0) for _ in range(2)
    )
    if seed % 2:
        adversary = raw
    truth = rng.integers(0, 2, (500, 3)).astype(np.float64)
    truth[rng.random(truth.shape) < 0.1] = np.nan
    return adversary, raw, mean, x, truth


@pytest.mark.parametrize("seed", range(6))
def test_sum_privacy__decides_each_pair_as_if_it_were_alone(seed: int) -> None:
    adversary, raw, mean, x, truth = _scene(seed)
    parts = np.random.default_rng(seed).integers(0, PARTS, len(x))
    expected = raw.predict(x)
    predicted = adversary.predict(x)
    found = sum_privacy(adversary, x, expected, truth, raw, mean, predicted, parts)
    terms = adversary.sum_terms(x) + raw.sum_terms(mean[None, :]) + 2 * np.abs(truth)
    without = np.abs(raw.predict(mean[None, :]) - truth)
    private = exceeds(np.abs(predicted - truth), without, terms, 7)
    assert seed % 2 == 0 or not private[::3].any()  # released as the mean: no better, no worse
    for part in range(PARTS):
        mine = parts == part
        np.testing.assert_array_equal(found[part, 1], mine.sum())
        np.testing.assert_array_equal(found[part, 2], private[mine].sum(axis=0))
        np.testing.assert_array_equal(found[part, 3], (~np.isnan(truth[mine])).sum(axis=0))
    whole = found.sum(axis=0)
    np.testing.assert_allclose(whole[0], ((predicted - expected) ** 2).sum(axis=0), rtol=1e-12)
