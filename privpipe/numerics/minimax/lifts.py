"""What an adversary reads of filtered records: the features that its head is convex in.

A lift is a small picklable value, drawn or trained for the outputs of a filter as they are. It maps
filtered records to features and takes changes of the features back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import FloatArray

WIDTHS = (0.35, 0.7, 1.4)
"""Widths of the kernels, as shares of the usual distance of two records."""

LEAST_VARIANCE = 1e-6
"""Of a direction, relative to the largest: others are noise to every reader."""


class Lift(Protocol):
    """Features of filtered records."""

    @property
    def n_features(self) -> int: ...

    @property
    def n_bytes(self) -> int:
        """What travels in a round."""
        ...

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """Features of filtered records, and the vector-Jacobian product by these.

        Parameters
        ----------
        z : (n_records, n_filtered)

        Returns
        -------
        features : (n_records, n_features)
        pullback
            Takes a change of the features, (n_records, n_features), to one of z.
        """
        ...


@dataclass(frozen=True, eq=False)
class OutputMoments:
    """Outputs of a filter as every reader standardises them: ``w = (z - centre) turn``.

    Parameters
    ----------
    centre : (n_filtered,)
        Their mean.
    turn : (n_filtered, n_directions)
        Whitens; directions of next to no variance are left out.
    """

    centre: FloatArray
    turn: FloatArray

    @classmethod
    def of(cls, mean: FloatArray, covariance: FloatArray) -> OutputMoments:
        """From mean and covariance of the outputs."""
        return cls(mean, find_turn(covariance))

    @property
    def n_directions(self) -> int:
        return int(self.turn.shape[1])

    @property
    def n_bytes(self) -> int:
        return self.centre.nbytes + self.turn.nbytes

    def whiten(self, z: FloatArray) -> FloatArray:
        """Whitened outputs, (n_records, n_directions)."""
        return np.asarray((z - self.centre) @ self.turn)


def find_turn(covariance: FloatArray) -> FloatArray:
    """Directions that whiten outputs of this covariance, (n_filtered, n_directions)."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > LEAST_VARIANCE * max(float(values[-1]), 1e-300)
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


@dataclass(frozen=True, eq=False)
class RecordStatistics:
    """Whitened outputs and their products: what adds up to means and covariances of a set.

    Parameters
    ----------
    outputs
        Moments of the filter's outputs.

    Notes
    -----
    Scaled so that a usual record has features of length one.
    """

    outputs: OutputMoments

    @property
    def n_features(self) -> int:
        k = self.outputs.n_directions
        return k + k * (k + 1) // 2

    @property
    def n_bytes(self) -> int:
        return self.outputs.n_bytes

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `Lift.map`."""
        w = self.outputs.whiten(z)
        k = w.shape[1]
        left, right = np.triu_indices(k)
        size = 1.0 / np.sqrt(max(self.n_features, 1))

        def pull(change: FloatArray) -> FloatArray:
            by_w = change[:, :k].copy()
            products = change[:, k:]
            for column, (i, j) in enumerate(zip(left, right, strict=True)):
                by_w[:, i] += products[:, column] * w[:, j]
                by_w[:, j] += products[:, column] * w[:, i]
            return np.asarray(size * by_w @ self.outputs.turn.T)

        return size * np.hstack([w, w[:, left] * w[:, right]]), pull


@dataclass(frozen=True, eq=False)
class StackedFeatures:
    """Features of several lifts side by side."""

    parts: tuple[Lift, ...]

    @property
    def n_features(self) -> int:
        return sum(part.n_features for part in self.parts)

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `Lift.map`."""
        found = [part.map(z) for part in self.parts]
        edges = np.cumsum([part.n_features for part in self.parts])[:-1]

        def pull(change: FloatArray) -> FloatArray:
            changes = np.split(change, edges, axis=1)
            pairs = zip(found, changes, strict=True)
            return _add([lower(part) for (_, lower), part in pairs])

        return np.hstack([features for features, _ in found]), pull


def _add(parts: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(np.sum(parts, axis=0))


def measure_distance(n_directions: int) -> float:
    """Usual distance of two whitened records.

    >>> measure_distance(2)
    2.0
    """
    return float(np.sqrt(2.0 * max(n_directions, 1)))


@dataclass(frozen=True)
class Pool:
    """Records of one group that an adversary reads together.

    Parameters
    ----------
    size
        Records of a set, at least.
    deals
        Times that the records of a group are dealt into sets.
    seed
        Of the deals.
    """

    size: int
    deals: int
    seed: int = 0
