"""Random Fourier features of filtered records: what an adversary with a Gaussian kernel reads.

Rahimi and Recht 2007, Random Features for Large-Scale Kernel Machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import FloatArray

__all__ = ["FourierFeatures", "draw_features"]

WIDTHS = (0.35, 0.7, 1.4)
"""Widths of the kernels, as shares of the usual distance of two records."""

LEAST_VARIANCE = 1e-6
"""Of a direction, relative to the largest: others are noise to every reader."""


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """``phi(z) = (cos((z - m) F), sin((z - m) F)) / sqrt(n_pairs)``.

    Parameters
    ----------
    centre : (n_filtered,)
        m.
    frequencies : (n_filtered, n_pairs)
        F.
    """

    centre: FloatArray
    frequencies: FloatArray

    @property
    def n_features(self) -> int:
        return 2 * int(self.frequencies.shape[1])

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
        angles = (z - self.centre) @ self.frequencies
        size = 1.0 / np.sqrt(angles.shape[1])
        cosine, sine = size * np.cos(angles), size * np.sin(angles)

        def pull(change: FloatArray) -> FloatArray:
            by_cosine, by_sine = np.hsplit(change, 2)
            return np.asarray((by_sine * cosine - by_cosine * sine) @ self.frequencies.T)

        return np.hstack([cosine, sine]), pull


def draw_features(
    mean: FloatArray, covariance: FloatArray, n_pairs: int, rng: np.random.Generator
) -> FourierFeatures:
    """Draw frequencies of Gaussian kernels of three widths, on whitened outputs of a filter.

    They are drawn for the outputs as they are: a filter that makes its outputs small hides from
    nobody who standardises.

    Parameters
    ----------
    mean : (n_filtered,)
    covariance : (n_filtered, n_filtered)
        Of the filter's outputs.
    n_pairs
        Frequencies; each gives a cosine and a sine.
    """
    values, vectors = np.linalg.eigh(covariance)
    floor = LEAST_VARIANCE * max(float(values[-1]), 1e-300)
    kept = values > floor
    turn = vectors[:, kept] / np.sqrt(values[kept])
    normal = rng.standard_normal((turn.shape[1], n_pairs))
    usual = np.sqrt(2.0 * max(turn.shape[1], 1))  # distance of two whitened records
    widths = np.resize(np.array(WIDTHS), n_pairs) * usual
    return FourierFeatures(mean, turn @ normal / widths)
