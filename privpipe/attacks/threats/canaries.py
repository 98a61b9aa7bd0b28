"""Canaries: records by chance of one kind or another are released once, and their kinds guessed.

How many guesses are right bounds epsilon from below (Steinke, Nasr and Jagielski 2023, Privacy
Auditing with One Training Run, theorem 5.2). Kinds of a quarter are known: from them is learned how
to guess, and when not to, so that this costs nothing. Beside a direction, what is read are released
numbers that occur again, and low bits (Mironov 2012). Of Gaussian noise that guess of all is no
tighter than a third (Mahloujifar, Melis and Chaudhuri 2025, Auditing f-Differential Privacy in One
Run). Canaries of one sum may be right together, so there are many sums, and a bet on each.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.spatial import distance

from privpipe.attacks.statistics.intervals import limit_exactly
from privpipe.errors import InputError
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import BoolArray, FloatArray, IntArray

SURE = 1 - 1e-6
"""Confidence at which a promise is called broken: one sound release of a million is stopped."""

STAKES = np.linspace(0.05, 0.95, 19)
"""Of a fortune, what is bet on a sum; the mean of all is one bet."""

ERRORS = 6.0
"""Standard errors by which noise has to be too small: one sound audit of a million at most."""

LEAST_CANARIES = 200

KNOWN = 0.25
"""Of the canaries, the share whose kinds are known."""

SHARES = (1.0, 0.6, 0.4, 0.25, 0.1, 0.03, 0.01)
"""Of the canaries, those that show most, of which guesses are tried."""

_LOW_BITS, _ROWS = 6, 1 << 15


@dataclass(frozen=True)
class CanaryReport:
    """Lower limit of a privacy loss.

    Parameters
    ----------
    n_canaries, n_guessed, n_right
        Released ones whose kind was not known, guesses at it, and how many were right.
    reading
        What was read of the release.
    level
        One-sided confidence: a loss of epsilon has a floor above it by at most the rest.
    epsilon_floor
        Least loss consistent with so many right guesses; of Gaussian noise, its mu.
    sure_floor
        The same at the level `SURE`.
    noise_upper
        See `limit_noise`; NaN where the size of the noise is not known.
    """

    n_canaries: int
    n_guessed: int
    n_right: int
    reading: str
    level: float
    epsilon_floor: float
    sure_floor: float
    noise_upper: float = math.nan


def limit_pure(n_right: int, n_guessed: int, level: float) -> float:
    """Least epsilon: right guesses are at most binomial, of ``1 / (1 + exp(-epsilon))``.

    >>> round(limit_pure(900, 1000, 0.95), 2), limit_pure(500, 1000, 0.95)
    (2.02, 0.0)
    """
    lower = limit_exactly(n_right, n_guessed, 2 * level - 1)[0]
    return max(0.0, math.log(lower / (1 - lower))) if lower > 0 else 0.0


def limit_gaussian(shares: FloatArray, level: float) -> float:
    """Least mu of Gaussian noise, of the share of right guesses in each of independent sums.

    Of a canary that is guessed no mean share is above ``Phi(mu / 2)``, however the canaries of a
    sum hang together. Whoever bets on more has a fortune whose mean is at most 1. So the chance
    that it comes to ``1 / (1 - level)`` is at most the inverse of that (Waudby-Smith and Ramdas
    2024).

    Examples
    --------
    >>> round(limit_gaussian(np.full(300, 0.7), 0.95), 2), limit_gaussian(np.full(300, 0.5), 0.95)
    (0.99, 0.0)
    """
    low, high = 0.0, 16.0

    def is_refuted(mu: float) -> bool:
        share = float(special.ndtr(mu / 2))
        fortunes = np.log1p(np.outer(STAKES / share, shares - share)).sum(axis=1)
        return bool(special.logsumexp(fortunes) - math.log(len(STAKES)) > -math.log1p(-level))

    if not is_refuted(low):
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def limit_noise(released: FloatArray, kinds: BoolArray, deviation: float) -> float:
    """Upper limit, at about `SURE`, of the mean square of the noise over that of its law.

    Guesses of few records show little of a law in many coordinates; its size shows at once.

    Parameters
    ----------
    released : (n_canaries, n_coordinates)
    kinds : (n_canaries,)
    deviation
        Root mean square of a coordinate of the noise, as promised.

    Examples
    --------
    >>> kinds, noise = np.arange(400) % 2 == 0, np.random.default_rng(0).normal(size=(400, 20))
    >>> round(limit_noise(noise + kinds[:, None], kinds, 1.0), 1), limit_noise(noise, kinds, 2) < 1
    (1.1, True)
    """
    left = np.array(released)
    for kind in (kinds, ~kinds):
        left[kind] -= left[kind].mean(axis=0)
    # Two means are estimated, so that so much of the noise is lost.
    sizes = (left**2).mean(axis=1) * len(left) / (len(left) - 2) / deviation**2
    return float(sizes.mean() + ERRORS * sizes.std(ddof=1) / math.sqrt(len(sizes)))


def guess_canaries(
    released: FloatArray,
    kinds: BoolArray,
    sums: IntArray | None = None,
    *,
    level: float = 0.999,
    seed: int = 0,
) -> CanaryReport:
    """Guess of which kind canaries are, by how those look whose kind is known.

    Parameters
    ----------
    released : (n_canaries, any)
        What is seen of each.
    kinds : (n_canaries,)
        Drawn independently, each with a chance of one half.
    sums : (n_canaries,), optional
        Of Gaussian noise, in which of the independent sums each is.
    level
        Of the floor.
    seed
        Chooses whose kinds are known.

    Raises
    ------
    InputError
        If there are fewer than 200 canaries, or shapes differ.
    """
    if len(released) != len(kinds) or len(kinds) < LEAST_CANARIES:
        problem = f"There are {len(released)} releases of {len(kinds)} canaries."
        remedy = f"Give one of each, and at least {LEAST_CANARIES}."
        raise InputError(problem, remedy=remedy, code="shape")
    # At random, since noise that is repeated may be so in any rhythm; and not as kinds are drawn of
    # a generator with the same seed, of which all known ones would be of one kind.
    known = np.random.default_rng([seed, 7]).random(len(kinds)) < KNOWN
    readings = _read(np.asarray(released, np.float64), kinds, known)
    n = int(np.count_nonzero(~known))
    if sums is not None:
        reading, scores = next(readings)
        right, which = (scores > 0)[~known] == kinds[~known], sums[~known]
        sizes = np.bincount(which)
        shares = (np.bincount(which, right) / np.maximum(sizes, 1))[sizes > 0]
        floors = (limit_gaussian(shares, one) for one in (level, SURE))
        return CanaryReport(n, n, int(right.sum()), reading, level, *floors)
    best: tuple[float, str, FloatArray, float] = (-1.0, "", np.zeros(len(kinds)), 0.0)
    for reading, scores in readings:
        # At a level for sure: a high share of few right guesses would often be luck.
        for cut in np.quantile(np.abs(scores[known]), 1 - np.array(SHARES)).tolist():
            found = limit_pure(*_count(scores[known], kinds[known], cut), SURE)
            if found > best[0]:
                best = (found, reading, scores, cut)
    _, reading, scores, cut = best
    n_right, n_guessed = _count(scores[~known], kinds[~known], cut)
    floors = (limit_pure(n_right, n_guessed, one) for one in (level, SURE))
    return CanaryReport(n, n_guessed, n_right, reading, level, *floors)


def _count(scores: FloatArray, kinds: BoolArray, cut: float) -> tuple[int, int]:
    """Guesses that are right, and guesses: of scores that are not 0 and reach a size."""
    made = (np.abs(scores) >= cut) & (scores != 0)
    return int(np.count_nonzero(made & ((scores > 0) == kinds))), int(np.count_nonzero(made))


def _read(x: FloatArray, kinds: BoolArray, known: BoolArray) -> Iterator[tuple[str, FloatArray]]:
    """Scores of all canaries, above 0 for the first kind, by what is read."""
    one, other = x[known & kinds], x[known & ~kinds]
    ends = one.mean(axis=0), other.mean(axis=0)
    apart = ends[0] - ends[1]
    scatter = np.atleast_2d(np.cov(one, rowvar=False) + np.cov(other, rowvar=False))
    # Noise that coordinates share is none in the right direction: so little ridge.
    scatter += np.eye(len(scatter)) * (1e-12 * np.trace(scatter) + 1e-300)
    middle, low, high = sum(ends) / 2, np.minimum(*ends), np.maximum(*ends)
    direction = np.linalg.solve(scatter, apart)
    yield "direction", _score_rows(x, lambda rows: (rows - middle) @ direction)
    yield "distance", _score_rows(x, lambda rows: np.diff(distance.cdist(rows, ends))[:, 0])
    yield "clipped", _score_rows(x, lambda rows: (np.clip(rows, low, high) - middle) @ apart)
    column = x[:, int(np.argmax(np.abs(apart)))]
    yield "finer than 2**-53", _score_codes(_is_fine(column), kinds, known)
    yield "low bits", _score_codes(_low_bits(column), kinds, known)
    equal = np.unique(identify_records(x), return_inverse=True)[1]
    yield "equal releases", _score_codes(equal, kinds, known)


def _score_rows(x: FloatArray, score: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """A few rows at a time: of a million canaries copies would be most of an audit's memory."""
    return np.concatenate([score(x[k : k + _ROWS]) for k in range(0, len(x), _ROWS)])


def _score_codes(codes: IntArray, kinds: BoolArray, known: BoolArray) -> FloatArray:
    """Log of the odds of the first kind where others of known kind have the same code."""
    yes, no = (np.bincount(codes, side)[codes] - side for side in (known & kinds, known & ~kinds))
    return np.asarray(np.log((yes + 0.5) / (no + 0.5)))


def _is_fine(x: FloatArray) -> IntArray:
    """Which released numbers are no multiple of 2**-53: what floating noise leaves near zero."""
    # Textbook inversion gives values on no grid near zero, and which values occur reveals the input
    # (Mironov 2012).
    scaled = x * 2.0**53
    return np.asarray(np.floor(scaled) != scaled, np.int64)


def _low_bits(x: FloatArray) -> IntArray:
    """Last bits of the mantissas that are not all zero."""
    mantissas = np.ascontiguousarray(x).view(np.int64)
    # Numbers on a grid end in zeros, which reveal nothing: the six bits above them are read.
    used = int(np.bitwise_or.reduce(mantissas))
    shift = min(46, (used & -used).bit_length() - 1) if used else 46
    return np.asarray((mantissas >> shift) & (2**_LOW_BITS - 1))
