"""Sigmoid networks as filters, and the denoising autoencoders that pre-train their layers.

Hamm, JMLR 2017, section 6.1 (Minimax 2); Vincent et al. 2008 for the autoencoder. Parameters are
one flat vector: weights (n_in, n_out) and biases (n_out,) of each layer in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import BoolArray, FloatArray

Layer = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class SigmoidFamily:
    """Networks ``z = s(... s((x - centre) W_1 + b_1) ... W_k + b_k)`` with s the logistic sigmoid.

    Parameters
    ----------
    centre : (n_features_in,)
        Subtracted from every record, for the conditioning of the first layer.
    widths
        Outputs of each layer; the last is what the filter releases.
    """

    centre: FloatArray
    widths: tuple[int, ...]

    @property
    def n_features_in(self) -> int:
        return len(self.centre)

    @property
    def n_features_out(self) -> int:
        return self.widths[-1]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(n_in, n_out) of each layer."""
        return tuple(zip((self.n_features_in, *self.widths[:-1]), self.widths, strict=True))

    @property
    def n_parameters(self) -> int:
        return sum((rows + 1) * columns for rows, columns in self.shapes)

    def split(self, parameters: FloatArray) -> list[Layer]:
        """Weights (n_in, n_out) and biases (n_out,) of each layer, as views."""
        layers, first = [], 0
        for rows, columns in self.shapes:
            middle, last = first + rows * columns, first + (rows + 1) * columns
            layers.append(
                (parameters[first:middle].reshape(rows, columns), parameters[middle:last])
            )
            first = last
        return layers

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; see `DifferentiableFilter.map_records`."""
        layers = self.split(parameters)
        values = [x - self.centre]
        for weights, bias in layers:
            values.append(expit(values[-1] @ weights + bias))

        def pull(dz: FloatArray) -> FloatArray:
            parts: list[FloatArray] = []
            for (weights, _), inputs, outputs in zip(
                reversed(layers), values[-2::-1], values[:0:-1], strict=True
            ):
                dz = dz * outputs * (1.0 - outputs)
                parts[:0] = [(inputs.T @ dz).ravel(), dz.sum(axis=0)]
                if inputs is not values[0]:
                    dz = dz @ weights.T
            return np.concatenate(parts)

        return values[-1], pull


def draw_layers(family: SigmoidFamily, seed: int, *, first: float, rest: float) -> FloatArray:
    """Random parameters: Gaussian weights of two scales, no biases.

    Parameters
    ----------
    first, rest
        Standard deviation of the first layer's weights (on whitened inputs) and of the others'.
    """
    rng = np.random.default_rng(seed)
    parts: list[FloatArray] = []
    for layer, (rows, columns) in enumerate(family.shapes):
        scale = first if layer == 0 else rest
        parts += [scale * rng.standard_normal(rows * columns), np.zeros(columns)]
    return np.concatenate(parts)


def measure_autoencoder(
    parameters: FloatArray, inputs: FloatArray, erased: BoolArray, n_hidden: int
) -> tuple[float, FloatArray]:
    """Summed squared error of restoring inputs from a code of erased ones, with its gradient.

    The code is ``h = s(x~ W + b)`` with erased entries set to zero, the decoder is affine:
    ``x^ = h V + c``.

    Parameters
    ----------
    parameters
        W (n_inputs, n_hidden), b, V (n_hidden, n_inputs), c, flat.
    inputs : (n_records, n_inputs)
        Centred, so that an erased entry is an average one.
    erased : (n_records, n_inputs)

    Returns
    -------
    loss
        Sum over records of half the squared error.
    gradient
        By the parameters.
    """
    n = inputs.shape[1]
    split = np.cumsum([n * n_hidden, n_hidden, n_hidden * n])
    w, b, v, c = np.split(parameters, split)
    w, v = w.reshape(n, n_hidden), v.reshape(n_hidden, n)
    kept = np.where(erased, 0.0, inputs)
    h = expit(kept @ w + b)
    error = h @ v + c - inputs
    back = (error @ v.T) * h * (1.0 - h)
    parts = [(kept.T @ back).ravel(), back.sum(0), (h.T @ error).ravel(), error.sum(0)]
    return 0.5 * float(np.einsum("ij,ij->", error, error)), np.concatenate(parts)
