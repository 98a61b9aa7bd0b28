"""Neural minimax filters, and families of the user's."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from privpipe import Records
from privpipe.errors import InputError, OptionError
from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import FloatArray
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.minimax import neural_minimax
from privpipe.sanitizers.minimax.neural_minimax import (
    FamilyOptions,
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
    train_family,
)
from tests.sanitizers.labelled_data import draw_labelled


def _exclusive(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A target no linear filter sees, whether two signs agree, and a shift to hide."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    target = (x[:, 0] * x[:, 1] > 0).astype(float)
    private = rng.integers(0, 2, n).astype(float)
    x[:, 2] += 2.0 * private
    return x + 3.0, target, private


def _records(n_shards: int = 1) -> Records:
    x, target, private = draw_labelled(300)
    return Records(x, desired=target, confidential=private, n_shards=n_shards)


def _accuracy(z: np.ndarray, y: np.ndarray) -> float:
    n = len(z) // 2
    return float(LogisticRegression(C=100, max_iter=2000).fit(z[:n], y[:n]).score(z[n:], y[n:]))


def test_fit_minimax_neural_filter__learns_what_no_linear_filter_can() -> None:
    x, target, private = _exclusive(3000)
    train = Records(x[:1500], desired=target[:1500], confidential=private[:1500])
    fitted = fit_minimax_neural_filter(
        train, MinimaxNeuralOptions(n_hidden=(20, 4), max_iterations=60)
    )
    z = fitted.apply(x)
    assert _accuracy(x, private) > 0.8
    assert _accuracy(z, private) < 0.57
    assert _accuracy(x, target) < 0.56
    assert _accuracy(z, target) > 0.8


def test_fit_minimax_neural_filter__returns_the_best_held_out_iterate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neural_minimax, "EARLY_STOPPING", 3)
    fitted = fit_minimax_neural_filter(_records(), MinimaxNeuralOptions(n_hidden=(20, 9)))
    held = fitted.history[:, fitted.history_columns.index("held_out_phi")]
    phi = fitted.history[:, fitted.history_columns.index("phi")]
    assert fitted.stopped == "held_out"
    assert held.argmin() < len(held) - 1
    assert (np.diff(phi) <= 1e-8).all()
    stop = int(held.argmin())
    monkeypatch.setattr(neural_minimax, "EARLY_STOPPING", 99)
    short = fit_minimax_neural_filter(
        _records(), MinimaxNeuralOptions(n_hidden=(20, 9), max_iterations=stop)
    )
    np.testing.assert_array_equal(short.parameters, fitted.parameters)


def test_fit_minimax_neural_filter__does_not_depend_on_the_sharding() -> None:
    options = MinimaxNeuralOptions(n_hidden=(5, 3), max_iterations=4)
    whole, cut = (fit_minimax_neural_filter(_records(n), options) for n in (1, 6))
    np.testing.assert_allclose(cut.history[:, 1], whole.history[:, 1], atol=1e-9)
    x = draw_labelled(20)[0]
    np.testing.assert_allclose(cut.apply(x), whole.apply(x), atol=1e-7)


def test_neural_filter__is_a_record_map() -> None:
    fitted = fit_minimax_neural_filter(
        _records(), MinimaxNeuralOptions(n_hidden=(20, 9), max_iterations=2)
    )
    x = draw_labelled(30)[0]
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.apply(x), fitted.apply(x))
    assert (fitted.n_features_in, fitted.n_features_out) == (9, 9)
    assert fitted.apply(x.astype(np.float32)).dtype == np.float32
    assert ((fitted.apply(x) > 0) & (fitted.apply(x) < 1)).all()
    with pytest.raises(InputError, match="do not fit a map of 9 features"):
        fitted.apply(x[:, :2])


@dataclass(frozen=True)
class Rectified:
    """A user's own family: rectified linear outputs."""

    n_features_in: int
    n_features_out: int

    @property
    def n_parameters(self) -> int:
        return self.n_features_in * self.n_features_out

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        weights = parameters.reshape(self.n_features_in, self.n_features_out)
        z = np.maximum(x @ weights, 0.0)
        return z, lambda dz: (x.T @ (dz * (z > 0))).ravel()


def test_train_family__trains_a_users_own_filter() -> None:
    x, target, private = _exclusive(1500)
    x = x - 3.0
    records = Records(x, desired=target, confidential=private, n_shards=3)
    family = Rectified(4, 8)
    start = np.random.default_rng(0).normal(size=32)
    options = FamilyOptions(tradeoff=1.0)
    fit = train_family(records, options.measure_tasks(records)[1], family, start, options)
    z = family.map_records(fit.parameters, x)[0]
    assert _accuracy(z, target) > 0.8
    assert _accuracy(z, private) < 0.6


def test_fit_minimax_neural_filter__refuses_layers_without_outputs() -> None:
    with pytest.raises(OptionError, match="layer without outputs"):
        fit_minimax_neural_filter(_records(), MinimaxNeuralOptions(n_hidden=(5, 0)))


def test_method_row__fits_from_options() -> None:
    method = METHODS["minimax_neural"]
    fitted = method.fit(
        _records(), method.options(name="minimax_neural", n_hidden=(4,), max_iterations=1)
    )
    assert fitted.kind == "neural_filter"
