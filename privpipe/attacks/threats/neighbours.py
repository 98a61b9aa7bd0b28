"""A distinguishing test: two neighbouring records released many times, and told apart.

Differential privacy says what no test may reach; this one finds a lower limit of epsilon from
what it does reach (Jagielski, Ullman and Oprea 2020; the events beside thresholds are those of
Mironov 2012, who read records off the low bits of noise). An event is chosen on one half of the
releases and counted on the other, so that choosing it costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import scipy

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.threats.attack_table import Sample
from privpipe.attacks.threats.membership import measure_epsilon_floor
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, FloatArray

LEAST_RELEASES = 200
_QUANTILES = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_LOW_BITS = 6


@dataclass(frozen=True)
class EventFloor:
    """What one event shows.

    Parameters
    ----------
    event
        Which.
    share, other_share
        How often it happens for either neighbour.
    epsilon_floor
        Least epsilon consistent with both counts, in nats.
    """

    event: str
    share: float
    other_share: float
    epsilon_floor: float


@dataclass(frozen=True)
class NeighbourReport:
    """Lower limit of the privacy loss of two neighbours.

    Parameters
    ----------
    n_releases
        Of each neighbour.
    level
        Confidence of all events together.
    epsilon_floor
        Largest of the events.
    events
        Each of them.
    """

    n_releases: int
    level: float
    epsilon_floor: float
    events: tuple[EventFloor, ...]

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self))


def attack(sample: Sample, options: AttackOptions) -> NeighbourReport:
    """`distinguish_neighbours` of a sample whose `neighbours` are two arrays of releases."""
    assert sample.neighbours is not None, "the table says what is needed"
    return distinguish_neighbours(*sample.neighbours, level=options.level)


def distinguish_neighbours(
    released: FloatArray, other: FloatArray, *, level: float = 0.95
) -> NeighbourReport:
    """Find how well the releases of one record are told from those of another.

    Parameters
    ----------
    released, other : (n_releases, n_released)
        Independent releases of either record.
    level
        Confidence of all limits together: a mechanism of loss epsilon has a floor above epsilon
        with probability at most ``1 - level``.

    Raises
    ------
    InputError
        If the shapes differ, or there are fewer than 200 releases.
    """
    if released.shape != other.shape or len(released) < LEAST_RELEASES:
        raise InputError(
            f"Releases of neighbours have shapes {released.shape} and {other.shape}.",
            remedy=f"Give the same number of each, at least {LEAST_RELEASES}.",
            code="shape",
        )
    half = len(released) // 2
    learned, judged = (released[:half], other[:half]), (released[half:], other[half:])
    events = list(_choose_events(learned, judged))
    floors = [_measure(name, *held, level, len(events)) for name, held in events]
    best = max(floor.epsilon_floor for floor in floors)
    return NeighbourReport(len(released), level, best, tuple(floors))


Pair = tuple[FloatArray, FloatArray]


def _choose_events(
    learned: Pair, judged: Pair
) -> Iterator[tuple[str, tuple[BoolArray, BoolArray]]]:
    """Events chosen on the first half, and where they happen in the second."""
    direction = learned[0].mean(axis=0) - learned[1].mean(axis=0)
    for name, weights in (("mean difference", direction), *_single(direction)):
        scores = tuple(_project(x, weights) for x in (*learned, *judged))
        cut = _best_cut(scores[0], scores[1])
        yield f"{name}, threshold", (scores[2] >= cut, scores[3] >= cut)
    fine = tuple(_is_fine(x) for x in (*learned, *judged))
    own = int(np.argmax(np.abs(fine[0].mean(axis=0) - fine[1].mean(axis=0))))
    yield "finer than 2**-53", (fine[2][:, own], fine[3][:, own])
    codes = tuple(_low_bits(x) for x in (*learned, *judged))
    size = 2**_LOW_BITS
    counts = [np.bincount(code[:, own], minlength=size) for code in codes[:2]]
    chosen = counts[0] > counts[1]
    yield "low bits", (chosen[codes[2][:, own]], chosen[codes[3][:, own]])


def _single(direction: FloatArray) -> Iterator[tuple[str, FloatArray]]:
    """The one coordinate that differs most."""
    weights = np.zeros_like(direction)
    weights[int(np.argmax(np.abs(direction)))] = 1.0
    yield "one coordinate", weights


def _project(x: FloatArray, weights: FloatArray) -> FloatArray:
    found: FloatArray = x @ weights
    return found


def _best_cut(scores: FloatArray, others: FloatArray) -> float:
    """Threshold of the largest floor on the half that it is chosen on."""
    cuts = np.unique(np.quantile(np.concatenate([scores, others]), _QUANTILES))
    floors = [_measure("", scores >= cut, others >= cut, 0.9, 1).epsilon_floor for cut in cuts]
    return float(cuts[int(np.argmax(floors))])


def _is_fine(x: FloatArray) -> BoolArray:
    """Which released numbers are no multiple of 2**-53: what floating noise leaves near zero."""
    scaled = x.astype(np.float64) * 2.0**53
    fine: BoolArray = np.floor(scaled) != scaled
    return fine


def _low_bits(x: FloatArray) -> FloatArray:
    """Last bits of the mantissas that are not all zero."""
    mantissas = np.ascontiguousarray(x, np.float64).view(np.int64)
    shift = 0
    used = np.bitwise_or.reduce(mantissas.reshape(-1))
    while shift < 46 and not (used >> shift) & 1:
        shift += 1
    low: FloatArray = (mantissas >> shift) & (2**_LOW_BITS - 1)
    return low


def _measure(
    name: str, here: BoolArray, there: BoolArray, level: float, n_events: int
) -> EventFloor:
    """Both one-sided limits of an event, at their share of the error of all."""
    risk = (1 - level) / (2 * n_events)
    intervals = [_find_limits(int(held.sum()), len(held), risk, level) for held in (here, there)]
    floors = (measure_epsilon_floor(*intervals), measure_epsilon_floor(*reversed(intervals)))
    return EventFloor(name, float(here.mean()), float(there.mean()), max(floors))


def _find_limits(hits: int, n: int, risk: float, level: float) -> Interval:
    """Clopper and Pearson's limits, each wrong with probability at most `risk` / 2.

    An event and its complement, for either neighbour, use all four of them.
    """
    low = float(scipy.stats.beta.ppf(risk / 2, hits, n - hits + 1)) if hits else 0.0
    high = float(scipy.stats.beta.ppf(1 - risk / 2, hits + 1, n - hits)) if hits < n else 1.0
    return Interval(hits / n, low, high, level, "exact")
