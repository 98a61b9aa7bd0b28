"""Families of differentiable filters: what the minimax objective needs of one, linear, sigmoid.

A family is a small picklable value: it holds sizes and constants, never the parameters, which
travel as one flat vector. Bring another by writing `map_records` (see `DifferentiableFilter`).
The networks are those of Hamm, JMLR 2017, section 6.1 (Minimax 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit

from privpipe.protocols import FloatArray

Pullback = Callable[[FloatArray], FloatArray]
Layer = tuple[FloatArray, FloatArray]


class DifferentiableFilter(Protocol):
    """A family of filters ``z = g(x; u)`` that the minimax objective can be taken over.

    Examples
    --------
    A filter of the user's own: a rectified linear layer of four outputs, whose derivative is
    the step function.

    >>> @dataclass(frozen=True)
    ... class Rectified:
    ...     n_features_in: int
    ...     n_features_out: int
    ...
    ...     @property
    ...     def n_parameters(self):
    ...         return self.n_features_in * self.n_features_out
    ...
    ...     def map_records(self, parameters, x):
    ...         weights = parameters.reshape(self.n_features_in, self.n_features_out)
    ...         z = np.maximum(x @ weights, 0.0)
    ...         return z, lambda dz: (x.T @ (dz * (z > 0))).ravel()
    >>> z, pullback = Rectified(2, 1).map_records(np.array([1.0, 2.0]), np.eye(2))
    >>> z.tolist(), pullback(np.ones((2, 1))).tolist()
    ([[1.0], [2.0]], [1.0, 1.0])

    `train_family` of the neural filters trains it; configurations name a custom filter instead.
    """

    @property
    def n_features_in(self) -> int: ...

    @property
    def n_features_out(self) -> int: ...

    @property
    def n_parameters(self) -> int: ...

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records, and say how a change of the outputs comes from the parameters.

        Parameters
        ----------
        parameters : (n_parameters,)
        x : (n_records, n_features_in), float64

        Returns
        -------
        z : (n_records, n_features_out)
        pullback
            Vector-Jacobian product: takes ``dz`` of the shape of z, returns the gradient of
            ``sum(dz * z)`` by the parameters, shape (n_parameters,).
        """
        ...


@dataclass(frozen=True, eq=False)
class LinearFamily:
    """Linear filters ``z = (x - centre) U + offset``.

    Parameters
    ----------
    centre : (n_features_in,)
        Subtracted from every record; zeros for the paper's filters.
    n_features_out
    with_offset
        Whether the offset is a parameter (it follows U in the vector) or zero.
    """

    centre: FloatArray
    n_features_out: int
    with_offset: bool

    @property
    def n_features_in(self) -> int:
        return len(self.centre)

    @property
    def n_weights(self) -> int:
        return self.n_features_in * self.n_features_out

    @property
    def n_parameters(self) -> int:
        return self.n_weights + self.with_offset * self.n_features_out

    def split(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """U of shape (n_features_in, n_features_out) and the offset (n_features_out,)."""
        weights = parameters[: self.n_weights].reshape(self.n_features_in, self.n_features_out)
        offset = parameters[self.n_weights :] if self.with_offset else np.zeros(weights.shape[1])
        return weights, offset

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; see `DifferentiableFilter.map_records`."""
        weights, offset = self.split(parameters)

        def pull(dz: FloatArray) -> FloatArray:
            total = dz.sum(axis=0)
            # Likewise: the product of centred records, from those as they are.
            by_weights = x.T @ dz - np.outer(self.centre, total)
            return np.concatenate([by_weights.ravel(), total if self.with_offset else total[:0]])

        # The centre goes into the offset: records are not copied to be centred.
        return x @ weights + (offset - self.centre @ weights), pull


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
        sizes = [size for rows, columns in self.shapes for size in (rows * columns, columns)]
        parts = np.split(parameters, np.cumsum(sizes)[:-1])
        pairs = zip(parts[::2], parts[1::2], self.shapes, strict=True)
        return [(weights.reshape(shape), bias) for weights, bias, shape in pairs]

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; see `DifferentiableFilter.map_records`."""
        # Views of one vector: the optimiser knows no layers.
        layers = self.split(parameters)
        values = [x - self.centre]
        for weights, bias in layers:
            values.append(expit(values[-1] @ weights + bias))

        def pull(dz: FloatArray) -> FloatArray:
            parts: list[FloatArray] = []
            for (weights, _), inputs, outputs in zip(
                reversed(layers), values[-2::-1], values[:0:-1], strict=True
            ):
                # The sigmoid's derivative by its own output.
                dz = dz * outputs * (1.0 - outputs)
                parts[:0] = [(inputs.T @ dz).ravel(), dz.sum(axis=0)]
                # Nothing needs the derivative by the records.
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
        # Small on whitened features, so that sigmoids begin where they are nearly linear.
        scale = first if layer == 0 else rest
        parts += [scale * rng.standard_normal(rows * columns), np.zeros(columns)]
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class InputScaling:
    """Optimise in whitened inputs while records stay as they are.

    A layer U on x equals a layer Q on whitened x when ``U = T Q``. Only the leading
    (n_features_in, width) block of the parameters changes.

    Parameters
    ----------
    transform : (n_features_in, n_features_in)
        T, which must not be singular; None for no change.
    width
        Number of columns of the leading block.
    """

    transform: FloatArray | None = None
    width: int = 0

    def to_filter(self, scaled: FloatArray) -> FloatArray:
        """Parameters of the filter from the optimiser's."""
        return scaled if self.transform is None else self._change(scaled, self.transform)

    def to_optimiser(self, gradient: FloatArray) -> FloatArray:
        """Gradient by the optimiser's parameters from the one by the filter's."""
        return gradient if self.transform is None else self._change(gradient, self.transform.T)

    def invert(self, parameters: FloatArray) -> FloatArray:
        """Optimiser's parameters of the filter's."""
        if self.transform is None:
            return parameters
        return self._change(parameters, np.linalg.inv(self.transform))

    def _change(self, vector: FloatArray, matrix: FloatArray) -> FloatArray:
        size = len(matrix) * self.width
        # Only the first layer meets features: the others' inputs are outputs of sigmoids.
        block = matrix @ vector[:size].reshape(len(matrix), self.width)
        return np.concatenate([block.ravel(), vector[size:]])
