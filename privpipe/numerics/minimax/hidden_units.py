"""A trained hidden layer of an adversary's network: its output layer is a convex head on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privpipe.numerics.minimax.filters import Pullback
from privpipe.numerics.minimax.lifts import OutputMoments
from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    """``phi(z) = tanh(w A + b) / sqrt(n_units)``, w the whitened outputs.

    Parameters
    ----------
    outputs
        Moments of the filter's outputs.
    weights : (n_directions, n_units)
        A.
    bias : (n_units,)
    """

    outputs: OutputMoments
    weights: FloatArray
    bias: FloatArray

    @property
    def n_features(self) -> int:
        return len(self.bias)

    @property
    def n_bytes(self) -> int:
        return self.outputs.n_bytes + self.weights.nbytes + self.bias.nbytes

    @property
    def parameters(self) -> FloatArray:
        """Weights and bias as one vector."""
        return np.concatenate([self.weights.ravel(), self.bias])

    def holding(self, parameters: FloatArray) -> HiddenUnits:
        """The same layer with other weights."""
        weights, bias = np.split(parameters, [self.weights.size])
        return replace(self, weights=weights.reshape(self.weights.shape), bias=bias)

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `Lift.map`."""
        features, bend = self._answer(self.outputs.whiten(z))

        def pull(change: FloatArray) -> FloatArray:
            return np.asarray((change * bend) @ self.weights.T @ self.outputs.turn.T)

        return features, pull

    def slope(self, z: FloatArray, change: FloatArray) -> FloatArray:
        """Gradient of ``sum(change * features)`` by `parameters`."""
        w = self.outputs.whiten(z)
        _, bend = self._answer(w)
        back = change * bend
        return np.concatenate([(w.T @ back).ravel(), back.sum(axis=0)])

    def _answer(self, w: FloatArray) -> tuple[FloatArray, FloatArray]:
        size = 1.0 / np.sqrt(self.n_features)
        answers = np.tanh(w @ self.weights + self.bias)
        return size * answers, size * (1.0 - answers**2)


def draw_units(outputs: OutputMoments, n_units: int, rng: np.random.Generator) -> HiddenUnits:
    """Units to begin with: they turn within the records, each somewhere else."""
    k = outputs.n_directions
    weights = rng.standard_normal((k, n_units)) * (1.5 / np.sqrt(max(k, 1)))
    return HiddenUnits(outputs, weights, rng.standard_normal(n_units))
