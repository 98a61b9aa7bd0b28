"""Nystroem features of filtered records: a Gaussian kernel as far as landmarks span it.

Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel Machines; landmarks by
k-means as in Zhang and Kwok 2010. A landmark is a mean of records, never a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sl

from privpipe.numerics.minimax.filters import Pullback
from privpipe.numerics.minimax.lifts import WIDTHS, OutputMoments, measure_distance
from privpipe.protocols import FloatArray

JITTER = 1e-8
"""Added to the landmarks' own kernel, whose diagonal is 1: near ones leave it singular."""


@dataclass(frozen=True, eq=False)
class NystroemFeatures:
    """``phi(z) = R^-1 K(L, w)``, whose inner products are the kernel on the span of the landmarks.

    The kernel is the mean of Gaussian kernels of three widths on whitened outputs w; R is the
    triangular root of the landmarks' own kernel.

    Parameters
    ----------
    outputs
        Moments of the filter's outputs.
    landmarks : (n_landmarks, n_directions)
        L, whitened.
    """

    outputs: OutputMoments
    landmarks: FloatArray

    @property
    def n_features(self) -> int:
        return len(self.landmarks)

    @property
    def n_bytes(self) -> int:
        return self.outputs.n_bytes + self.landmarks.nbytes

    @property
    def root(self) -> FloatArray:
        """R, lower triangular."""
        own = _add(self._kernels(self.landmarks))
        own[np.diag_indices_from(own)] += JITTER
        return np.asarray(sl.cholesky(own, lower=True))

    def _kernels(self, w: FloatArray) -> list[FloatArray]:
        """One kernel per width, each a share of the whole, (n_records, n_landmarks)."""
        products = w @ self.landmarks.T
        lengths = np.einsum("ij,ij->i", w, w)[:, None]
        distances = lengths - 2 * products + np.einsum("ij,ij->i", self.landmarks, self.landmarks)
        np.maximum(distances, 0.0, out=distances)
        return [np.exp(-0.5 * distances / width**2) / len(WIDTHS) for width in self._widths()]

    def _widths(self) -> list[float]:
        usual = measure_distance(self.outputs.n_directions)
        return [share * usual for share in WIDTHS]

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `Lift.map`."""
        w = self.outputs.whiten(z)
        kernels, root = self._kernels(w), self.root
        features = sl.solve_triangular(root, _add(kernels).T, lower=True).T

        def pull(change: FloatArray) -> FloatArray:
            by_kernel = sl.solve_triangular(root, change.T, lower=True, trans="T").T
            parts = zip(kernels, self._widths(), strict=True)
            pulls = by_kernel * _add([kernel / width**2 for kernel, width in parts])
            by_w = pulls @ self.landmarks - pulls.sum(axis=1)[:, None] * w
            return np.asarray(by_w @ self.outputs.turn.T)

        return np.asarray(features), pull


def _add(parts: Sequence[FloatArray]) -> FloatArray:
    return np.asarray(np.sum(parts, axis=0))


def sum_by_landmark(w: FloatArray, landmarks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Number and sum of the records nearest to each landmark: one step of k-means, summed.

    Parameters
    ----------
    w : (n_records, n_directions)
    landmarks : (n_landmarks, n_directions)

    Returns
    -------
    counts : (n_landmarks,)
    sums : (n_landmarks, n_directions)
    """
    halves = 0.5 * np.einsum("ij,ij->i", landmarks, landmarks)
    nearest = np.argmax(w @ landmarks.T - halves, axis=1)
    counts = np.bincount(nearest, minlength=len(landmarks)).astype(np.float64)
    sums = np.zeros_like(landmarks)
    np.add.at(sums, nearest, w)
    return counts, sums
