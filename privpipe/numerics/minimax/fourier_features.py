"""Random Fourier features of filtered records: what an adversary with a Gaussian kernel reads.

Rahimi and Recht 2007, Random Features for Large-Scale Kernel Machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.numerics.minimax.filters import Pullback
from privpipe.numerics.minimax.lifts import WIDTHS, OutputMoments, measure_distance
from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """``phi(z) = (cos(w F), sin(w F)) / sqrt(n_pairs)``, w the whitened outputs.

    The seed travels and frequencies are drawn where they are used. Whitening is decided once, by
    whoever draws: eigenvectors have signs that differ between machines.

    Parameters
    ----------
    outputs
        Moments of the filter's outputs.
    seed
        Of the frequencies.
    n_pairs
        Frequencies; each gives a cosine and a sine.
    """

    outputs: OutputMoments
    seed: int
    n_pairs: int

    @property
    def n_features(self) -> int:
        return 2 * self.n_pairs

    @property
    def n_bytes(self) -> int:
        return self.outputs.n_bytes + 16

    @property
    def frequencies(self) -> FloatArray:
        """Of the outputs as they are, (n_filtered, n_pairs)."""
        k = self.outputs.n_directions
        normal = np.random.default_rng(self.seed).standard_normal((k, self.n_pairs))
        widths = np.resize(np.array(WIDTHS), self.n_pairs) * measure_distance(k)
        return np.asarray(self.outputs.turn @ normal / widths)

    def map(self, z: FloatArray) -> tuple[FloatArray, Pullback]:
        """See `Lift.map`."""
        frequencies = self.frequencies
        angles = (z - self.outputs.centre) @ frequencies
        size = 1.0 / np.sqrt(self.n_pairs)
        cosine, sine = size * np.cos(angles), size * np.sin(angles)

        def pull(change: FloatArray) -> FloatArray:
            by_cosine, by_sine = np.hsplit(change, 2)
            return np.asarray((by_sine * cosine - by_cosine * sine) @ frequencies.T)

        return np.hstack([cosine, sine]), pull
