"""What an adversary reads of filtered records: the features that its head is convex in.

A lift is a small picklable value, drawn for the outputs of a filter as they are. It maps filtered
records to features and takes changes of the features back. Nystroem features are a Gaussian kernel
as far as landmarks span it (Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel
Machines). Landmarks are found by k-means as in Zhang and Kwok 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sl

from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import FloatArray

# Three, so that neither fine nor coarse structure is invisible to the adversary.
WIDTHS = (0.35, 0.7, 1.4)
"""Widths of the kernels, as shares of the usual distance of two records."""

LEAST_VARIANCE = 1e-13
"""Of a direction, relative to the largest: others are rounding. At 1e-6 a copy of the secret of a
thousandth of the largest output was certified as hardly anything."""

JITTER = 1e-8
"""Added to the landmarks' own kernel, whose diagonal is 1: near ones leave it singular."""


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
        # Whitened, so that a filter gains nothing by making its outputs small; decided once and
        # sent, for eigenvectors have signs of their own on every machine.
        values, vectors = np.linalg.eigh(covariance)
        significant = values > LEAST_VARIANCE * max(float(values[-1]), 1e-300)
        return cls(mean, np.asarray(vectors[:, significant] / np.sqrt(values[significant])))

    @property
    def n_directions(self) -> int:
        return int(self.turn.shape[1])

    @property
    def is_constant(self) -> bool:
        """Whether no direction varies by more than rounding of the outputs' size."""
        sizes = np.linalg.norm(self.turn, axis=0)
        return bool((sizes * max(float(np.abs(self.centre).max(initial=0)), 1e-150) > 1e12).all())

    @property
    def n_bytes(self) -> int:
        return self.centre.nbytes + self.turn.nbytes

    def whiten(self, z: FloatArray) -> FloatArray:
        """Whitened outputs, (n_records, n_directions)."""
        return np.asarray((z - self.centre) @ self.turn)


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
        L, whitened. A landmark is a mean of records, never a record.
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
        gram = np.sum(self._kernels(self.landmarks), axis=0)
        # Landmarks that k-means moved onto one another leave the kernel singular.
        gram[np.diag_indices_from(gram)] += JITTER
        return np.asarray(sl.cholesky(gram, lower=True))

    def _kernels(self, w: FloatArray) -> list[FloatArray]:
        """One kernel per width, each a share of the whole, (n_records, n_landmarks)."""
        products = w @ self.landmarks.T
        lengths = np.einsum("ij,ij->i", w, w)[:, None]
        distances = lengths - 2 * products + np.einsum("ij,ij->i", self.landmarks, self.landmarks)
        # Rounding of the difference: a squared distance is not negative.
        np.maximum(distances, 0.0, out=distances)
        return [np.exp(-0.5 * distances / width**2) / len(WIDTHS) for width in self._widths()]

    def _widths(self) -> list[float]:
        # Two whitened records lie this far apart, in the root of the mean square.
        return [share * float(np.sqrt(2.0 * max(self.outputs.n_directions, 1))) for share in WIDTHS]

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
        w = self.outputs.whiten(z)
        kernels, root = self._kernels(w), self.root
        features = sl.solve_triangular(root, np.sum(kernels, axis=0).T, lower=True).T

        def pull(change: FloatArray) -> FloatArray:
            by_kernel = sl.solve_triangular(root, change.T, lower=True, trans="T").T
            parts = zip(kernels, self._widths(), strict=True)
            pulls = by_kernel * np.sum([kernel / width**2 for kernel, width in parts], axis=0)
            by_w = pulls @ self.landmarks - pulls.sum(axis=1)[:, None] * w
            return np.asarray(by_w @ self.outputs.turn.T)

        return np.asarray(features), pull


@dataclass(frozen=True, eq=False)
class SetFeatures:
    """What adds up over a set of records: whitened outputs, their products, and kernel features.

    Parameters
    ----------
    kernel
        Embeds records; the mean over a set embeds the set.

    Notes
    -----
    Scaled so that outputs and products of a usual record have length one.
    """

    kernel: NystroemFeatures

    @property
    def n_features(self) -> int:
        return self._n_moments + self.kernel.n_features

    @property
    def n_bytes(self) -> int:
        return self.kernel.n_bytes

    @property
    def _n_moments(self) -> int:
        k = self.kernel.outputs.n_directions
        return k + k * (k + 1) // 2

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `NystroemFeatures.map`."""
        outputs = self.kernel.outputs
        w, (embedded, pull_kernel) = outputs.whiten(z), self.kernel.map(z)
        k, size = w.shape[1], 1.0 / np.sqrt(max(self._n_moments, 1))
        left, right = np.triu_indices(k)

        def pull(change: FloatArray) -> FloatArray:
            by_w, products, by_kernel = np.split(change, [k, self._n_moments], axis=1)
            by_w = by_w.copy()
            # A product w_i w_j depends on both; on the diagonal both terms fall on one, which is
            # its derivative.
            for column, (i, j) in enumerate(zip(left, right, strict=True)):
                by_w[:, i] += products[:, column] * w[:, j]
                by_w[:, j] += products[:, column] * w[:, i]
            return np.asarray(size * by_w @ outputs.turn.T + pull_kernel(by_kernel))

        return np.hstack([size * w, size * w[:, left] * w[:, right], embedded]), pull


Lift = NystroemFeatures | SetFeatures
"""Features of filtered records; `n_bytes` of it travel in a round."""


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
    # Nearest means largest inner product less half the squared length: no table of differences.
    nearest = np.argmax(w @ landmarks.T - 0.5 * np.einsum("ij,ij->i", landmarks, landmarks), axis=1)
    counts = np.bincount(nearest, minlength=len(landmarks)).astype(np.float64)
    sums = np.zeros_like(landmarks)
    np.add.at(sums, nearest, w)
    return counts, sums
