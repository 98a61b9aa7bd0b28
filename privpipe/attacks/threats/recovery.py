"""How many records are recovered from a surrogate release, beside how many are met by chance.

Surrogates are signed sums of records, whose last column is a bias feature that is one in every
record. Directions are compared in coordinates that are centred and standardised by the second
moments of the surrogates themselves, which every outsider has.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from privpipe.attacks.statistics.intervals import Interval, measure_exact_interval
from privpipe.errors import InputError
from privpipe.protocols import FloatArray

RECOVERED = 0.97
"""Cosine from which a direction counts as a record: a relative error of a quarter."""


@dataclass(frozen=True)
class RecoveryReport:
    """How often a direction that an attack found is a record.

    Parameters
    ----------
    recovered
        Share of the attacked records that were found, with exact limits.
    by_chance
        The same for records that the surrogates were not made of.
    cosine
        Median over the attacked records of the largest cosine.
    n_attacked
    farthest
        Largest cosine of the record that lies farthest, where that is looked for by itself.
    farthest_by_chance
        Share of records in no surrogate that meet that one direction as well.
    """

    recovered: Interval
    by_chance: Interval
    cosine: float
    n_attacked: int
    farthest: float | None = None
    farthest_by_chance: float | None = None

    @property
    def succeeded(self) -> bool:
        """Whether more is recovered than chance explains."""
        return self.recovered.estimate > 2 * self.by_chance.estimate + 1e-9

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "succeeded": self.succeeded}, indent=1)


def count_needed_trials(limit: float, level: float) -> int:
    """Trials of which none may succeed, so that the upper limit of the share is below a limit.

    Four times as many as that takes, so that single successes by chance decide nothing.

    >>> count_needed_trials(0.01, 0.99)
    2112
    """
    alpha = (1 - level) / 2
    return 4 * math.ceil(math.log(alpha) / math.log1p(-min(max(limit, 1e-6), 1 - 1e-6)))


def find_frame(released: FloatArray) -> FloatArray:
    """Matrix that turns (x, 1) into ((x - mean) / deviation, 1), from surrogates with a bias.

    Parameters
    ----------
    released : (n_surrogates, n_features + 1)

    Raises
    ------
    InputError
        If the surrogates are fewer than the features, or their bias feature vanishes.
    """
    moments = released.T @ released
    if len(released) < released.shape[1] or moments[-1, -1] <= 0:
        raise InputError(
            f"{len(released)} surrogates of {released.shape[1]} features cannot be attacked.",
            remedy="Release at least as many surrogates as features, the last of them the bias.",
        )
    mean = moments[-1, :-1] / moments[-1, -1]
    variance = np.diag(moments)[:-1] / moments[-1, -1] - mean**2
    scale = np.sqrt(np.where(variance > 1e-12 * mean**2, variance, 1.0))
    frame = np.eye(released.shape[1])
    frame[:-1, :-1] /= scale[:, None]
    frame[:-1, -1] = -mean / scale
    return frame


def report_recovery(
    targets: FloatArray, others: FloatArray, guesses: FloatArray, *, level: float
) -> RecoveryReport:
    """Compare records with directions, one guess for all of them or one for each.

    Parameters
    ----------
    targets, others : (n, n_features + 1)
        Records in the frame of `find_frame`: attacked ones, and ones that are not in.
    guesses : (n_guesses, n_features + 1) or (n_targets, n_guesses, n_features + 1)
        Directions in the same frame; those of each target alone where there are three axes.
    level
    """
    mine = measure_cosines(targets, guesses)
    flat = guesses.reshape(-1, guesses.shape[-1])
    strange = measure_cosines(
        others, flat[np.linspace(0, len(flat) - 1, min(64, len(flat)), dtype=int)]
    )
    hits, alarms = int((mine >= RECOVERED).sum()), int((strange >= RECOVERED).sum())
    return RecoveryReport(
        measure_exact_interval(hits, len(mine), level=level),
        measure_exact_interval(alarms, len(strange), level=level),
        float(np.median(mine)),
        len(mine),
    )


def measure_cosines(records: FloatArray, guesses: FloatArray) -> FloatArray:
    """Largest cosine of each record with the guesses, whatever their sign; (n_records,)."""
    norms = np.linalg.norm(guesses, axis=-1, keepdims=True)
    unit = guesses / np.where(norms > 0, norms, 1.0)
    rows = records / np.linalg.norm(records, axis=1, keepdims=True)
    products = rows @ unit.T if unit.ndim == 2 else np.einsum("ij,ikj->ik", rows, unit)
    best: FloatArray = np.abs(products).max(axis=1)
    return best
