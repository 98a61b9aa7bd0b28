"""Families of differentiable filters: what the minimax objective asks of one, and the linear one.

A family is a small picklable value: it holds sizes and constants, never the parameters, which
travel as one flat vector. Bring another by writing `map_records` (see `DifferentiableFilter`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privpipe.protocols import FloatArray

Pullback = Callable[[FloatArray], FloatArray]


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

    ``fit_minimax_family(shards, Rectified(2, 4), start, options)`` trains it.
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
            by_weights = x.T @ dz - np.outer(self.centre, total)
            tail = total if self.with_offset else total[:0]
            return np.concatenate([by_weights.ravel(), tail])

        return x @ weights + (offset - self.centre @ weights), pull


@dataclass(frozen=True, eq=False)
class InputScaling:
    """Optimise in whitened inputs while records stay as they are.

    A layer U on x equals a layer Q on whitened x when ``U = T Q``. Only the leading
    (n_features_in, width) block of the parameters changes.

    Parameters
    ----------
    transform : (n_features_in, n_features_in)
        T, or shape (0, 0) for no change.
    width
        Number of columns of the leading block.
    """

    transform: FloatArray
    width: int

    def to_filter(self, scaled: FloatArray) -> FloatArray:
        """Parameters of the filter from the optimiser's."""
        return self._change(scaled, self.transform)

    def to_optimiser(self, gradient: FloatArray) -> FloatArray:
        """Gradient by the optimiser's parameters from the one by the filter's."""
        return self._change(gradient, self.transform.T)

    def invert(self, parameters: FloatArray) -> FloatArray:
        """Optimiser's parameters of the filter's; the transform must not be singular."""
        if self.transform.size == 0:
            return parameters
        return self._change(parameters, np.linalg.inv(self.transform))

    def _change(self, vector: FloatArray, matrix: FloatArray) -> FloatArray:
        if matrix.size == 0:
            return vector
        size = matrix.shape[1] * self.width
        block = matrix @ vector[:size].reshape(matrix.shape[1], self.width)
        return np.concatenate([block.ravel(), vector[size:]])
