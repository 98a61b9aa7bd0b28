"""Stacked denoising autoencoders over sharded records, one layer after the other.

Vincent et al. 2008, as used for Minimax 2 in Hamm, JMLR 2017. Which entries are erased depends on
the record, so the result does not depend on the sharding.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize as so
from scipy.special import expit

from privpipe.numerics.minimax.network import SigmoidFamily, measure_autoencoder
from privpipe.numerics.random.record_hash import choose_mask
from privpipe.protocols import FloatArray, Oracle, Shard, Shards, Sums
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments

ROWS = 2048


def pretrain_layers(
    shards: Shards,
    family: SigmoidFamily,
    moments: LabelledMoments,
    *,
    erase: float,
    ridge: float,
    max_iterations: int,
    seed: int,
) -> FloatArray:
    """Train each layer to restore its inputs from partly erased ones.

    Parameters
    ----------
    family
        Its centre is subtracted; features are then divided by their standard deviations.
    erase
        Share of the entries erased.
    ridge
        Of the weights.
    max_iterations
        Most L-BFGS iterations per layer.
    seed
        Of starting weights and erasures.

    Returns
    -------
    parameters : (family.n_parameters,)

    Notes
    -----
    Departure: the decoder is affine, for real features, where the original code's is a sigmoid
    and expects features in [0, 1].
    """
    spread = np.sqrt(np.diag(moments.covariance))
    floor = 1e-6 * float(np.sqrt(np.mean(spread**2))) + 1e-300
    scale = np.where(spread > floor, spread, np.inf)  # a constant feature is silent
    rng = np.random.default_rng(seed)
    layers: list[FloatArray] = []
    for depth, (n_inputs, n_hidden) in enumerate(family.shapes):
        oracle = shards.oracle(
            _ask_autoencoder,
            centre=family.centre,
            scale=scale,
            below=tuple(layers),
            n_hidden=n_hidden,
            erase=erase,
            seed=seed + depth,
        )
        reach = np.sqrt(6.0 / (n_inputs + n_hidden + 1))
        start = [
            *(rng.uniform(-reach, reach, n_inputs * n_hidden), np.zeros(n_hidden)),
            *(rng.uniform(-reach, reach, n_inputs * n_hidden), np.zeros(n_inputs)),
        ]
        found = so.minimize(
            _Mean(oracle, shards.n_records, ridge),
            np.concatenate(start),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": max_iterations},
        )
        layers.append(np.asarray(found.x[: (n_inputs + 1) * n_hidden]))
    first = layers[0].copy()
    width = family.widths[0]
    first[: len(scale) * width] /= np.repeat(scale, width)
    return np.concatenate([first, *layers[1:]])


class _Mean:
    """Mean loss with a ridge, as scipy wants it."""

    def __init__(self, oracle: Oracle[FloatArray, Sums], n_records: int, ridge: float) -> None:
        self.oracle, self.n, self.ridge = oracle, n_records, ridge

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        loss, gradient = self.oracle(parameters)
        value = loss / self.n + 0.5 * self.ridge * float(parameters @ parameters)
        return value, gradient / self.n + self.ridge * parameters


def _ask_autoencoder(
    shard: Shard,
    parameters: FloatArray,
    *,
    centre: FloatArray,
    scale: FloatArray,
    below: tuple[FloatArray, ...],
    n_hidden: int,
    erase: float,
    seed: int,
) -> Sums:
    loss, gradient = 0.0, np.zeros(len(parameters))
    for first in range(0, len(shard.features), ROWS):
        x = np.array(shard.features[first : first + ROWS], np.float64)
        values = (x - centre) / scale
        for layer in below:
            width = len(layer) // (values.shape[1] + 1)
            weights = layer[:-width].reshape(values.shape[1], width)
            values = expit(values @ weights + layer[-width:])
        erased = choose_mask(x, values.shape[1], erase, seed=seed)
        part, slope = measure_autoencoder(parameters, values, erased, n_hidden)
        loss, gradient = loss + part, gradient + slope
    return loss, gradient
