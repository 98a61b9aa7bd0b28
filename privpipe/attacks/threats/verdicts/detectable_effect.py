"""The smallest effect that an audit detects: what records or groups a verdict needs.

Known before a run, from the options alone. An allowance that is narrower than the intervals of so
few records cannot be shown to hold. That is so even of a release from which nothing can be learned.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
import scipy

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics import exposure, intervals, scores
from privpipe.protocols import IntArray

ROOM = 1.5
"""An allowance is so many times what a mere guess comes to, so that not chance alone decides."""

LIKELY = 0.8
"""How surely a mere guess is to be shown safe by what is planned."""

POWER_ROOM = 1.25
"""The same of leaks that are planted, whose limits are means of four draws."""

MOST_GROUPS = 1 << 20
"""Test groups beyond which none are enough."""


def count_compared(n_attacks: int, kind: str, options: AttackOptions) -> int:
    """Number of intervals of one variable that must hold jointly."""
    return n_attacks * len(options.deciding(kind))


class Evenness(NamedTuple):
    """What a record counts as, beside one of classes alike of which the target says nothing.

    Parameters
    ----------
    areas
        For areas under the ROC curve.
    claims
        For the wrong claims that true-positive rates are held against.
    """

    areas: float = 1.0
    claims: float = 1.0


def measure_evenness(cells: IntArray, classes: IntArray) -> Evenness:
    """Of records in cells of equal target, within which alone adversaries are compared.

    Parameters
    ----------
    cells, classes : (n_records,)
        Codes.

    Notes
    -----
    Where one class is the share `a` of a cell, the area of random ranks has the variance `(n + 1) /
    (12 n^2 a (1 - a))`. By its inverse cells count (`roc.average_areas`). A wrong claim weighs `a /
    (1 - a)`. Where the target reveals nearly all, few pairs are left to compare.

    Examples
    --------
    >>> cells, classes = np.arange(2000) // 1000, np.arange(2000) % 2
    >>> measure_evenness(cells, classes)
    Evenness(areas=1.0, claims=1.0)
    >>> classes[:1000] = np.arange(1000) < 10
    >>> f"{measure_evenness(cells, classes).areas:.2f}"
    '0.52'
    """
    counts = np.zeros((cells.max(initial=0) + 1, classes.max(initial=0) + 1))
    np.add.at(counts, (cells, classes), 1.0)
    sizes = np.maximum(1.0, counts.sum(axis=1, keepdims=True))
    # What a cell holds none or nothing but of is compared with no one.
    mixed = (counts > 0) & (counts < sizes)
    if not mixed.any():
        return Evenness(0.0, 0.0)
    held, share = mixed.any(axis=0), np.where(mixed, counts / sizes, 0.5)
    k, weights = int(counts.any(axis=0).sum()), (mixed * sizes / sizes.sum())
    spread = 1 / (weights * share * (1 - share)).sum(axis=0)[held]
    areas = held.sum() ** 2 / spread.sum() * k / (k - 1)
    return Evenness(float(areas), float(1 / (weights * share**2 / (1 - share)).sum() / (k - 1)))


class Tried(TypedDict):
    """How often a variable is tried.

    Parameters
    ----------
    n_attacks, n_variables
        Attacks of each variable, and variables, that share the level.
    n_classes
        Classes of the variable; None for a number.
    even
        See `measure_evenness`.
    """

    n_attacks: int
    n_classes: int | None
    n_variables: int
    even: NotRequired[Evenness]


def plan_guess_limit(
    options: AttackOptions,
    score: str,
    n_test: int,
    *,
    shares: Sequence[float] = (),
    grouped: bool = False,
    **tried: Unpack[Tried],
) -> float:
    """Upper limit of the gain of an adversary that only guesses, of one score.

    Parameters
    ----------
    options
        Level and deciding scores.
    score
        One of the deciding scores.
    n_test
        Test records, or groups of records that are alike.
    shares : (n_classes,)
        Of the classes among what is tested; without them they are of one size.
    grouped
        Whether these are groups, whose limits are Student's.
    tried
        See `Tried`.
    """
    # All upper limits are to be within, each at the whole level: of so many guesses the luckiest is
    # so far above nothing, four times in five at most.
    n_tries = max(1, tried["n_attacks"] * tried["n_variables"])
    luck = scipy.stats.norm.ppf(LIKELY ** (1 / n_tries)) - scipy.stats.norm.ppf(1 - options.level)
    level = float(1 - 2 * scipy.stats.norm.sf(luck))
    if grouped:  # of few groups planted leaks must be found, too: by limits that share the level
        n_compared = count_compared(tried["n_attacks"], _kind(tried["n_classes"]), options)
        level = options.plan_level(n_compared, tried["n_variables"])
    k, tail = tried["n_classes"] or 2, (1 - level) / 2
    z = float(scipy.stats.t.isf(tail, n_test - 1) if grouped else scipy.stats.norm.isf(tail))
    # The rarest class decides how far a score of ranks spreads; at least two of it must judge.
    n_even = max(2, round(n_test * k * min(shares, default=1 / k)))
    areas, claims = tried.get("even", Evenness())
    if score in scores.EXPOSURES:
        return exposure.plan_null_exposure(n_even, k, scores.EXPOSURES[score], level, claims)
    n_counted = max(2.0, n_even * areas)
    if score == "auc":  # Mann and Whitney; the mean of k areas, which hardly depend on one another
        spread = 2 * z * k / (k - 1) * math.sqrt((n_counted + 1) / (12 * n_counted**2))
        # Of few records the second is larger: the chance that all rank rightly by luck.
        return min(1.0, max(spread, float(1 - 2 * tail ** (k / n_counted))))
    if score == "r2":
        return min(1.0, z * z / n_test)
    guessed = max(shares, default=round(n_test / k) / n_test)
    return float((intervals.limit_wilson(guessed, n_test, z)[1] - guessed) / (1 - guessed))


def plan_needed_records(options: AttackOptions, **tried: Unpack[Tried]) -> dict[str, float]:
    """Held-out records with which a release from which nothing is learned would be shown safe.

    Returns
    -------
    needed
        By deciding score; infinite where no number of test records is enough.

    Examples
    --------
    >>> options = AttackOptions(decides=("accuracy",))
    >>> plan_needed_records(options, n_attacks=14, n_classes=2, n_variables=1)
    {'accuracy': 1430}
    """

    def is_shown(score: str, n_test: int) -> bool:
        return plan_guess_limit(options, score, n_test, **tried) <= options.allowed(score)

    deciding = options.deciding(_kind(tried["n_classes"]))
    return {score: _search(is_shown, score, 20, options.max_test) for score in deciding}


def plan_needed_groups(
    options: AttackOptions, *, shares: Sequence[float] = (), **tried: Unpack[Tried]
) -> dict[str, float]:
    """Held-out groups with which a release that reveals nothing is shown safe, with `ROOM`.

    The records of a group are alike, so that a group counts as one record. Planted leaks must be
    found, too: with fewer groups an audit that finds nothing is no proof.

    Parameters
    ----------
    options, shares, tried
        As of `plan_guess_limit`.

    Returns
    -------
    needed
        By deciding score; infinite where no number of groups is enough.

    Examples
    --------
    >>> options = AttackOptions(decides=("accuracy",), max_advantage=0.5)
    >>> plan_needed_groups(options, n_attacks=14, n_classes=2, n_variables=1)
    {'accuracy': 328}
    """
    guess_limit = partial(plan_guess_limit, options, shares=shares, grouped=True, **tried)

    def is_shown(score: str, n_test: int) -> bool:
        return ROOM * guess_limit(score, n_test) <= options.allowed(score)

    def is_found(score: str, n_test: int) -> bool:
        return POWER_ROOM * guess_limit(score, n_test) <= options.must_find

    deciding = options.deciding(_kind(tried["n_classes"]))
    # What every record reveals a little shows in means, not in the most exposed records.
    means = [score for score in deciding if score not in scores.EXPOSURES] or deciding
    least = min(_search(is_found, score, 4, MOST_GROUPS) for score in means)
    return {score: max(_search(is_shown, score, 4, MOST_GROUPS), least) for score in deciding}


def _kind(n_classes: int | None) -> str:
    return "numbers" if n_classes is None else "classes"


def _search(holds: Callable[[str, int], bool], score: str, least: int, most: int) -> float:
    """Smallest number of test records within a percent that is enough; infinite where none is."""
    low = high = least
    while high < most and not holds(score, high):
        low, high = high, min(2 * high, most)
    if not holds(score, high):
        return math.inf
    # To a percent, since each step evaluates quantiles, and no one holds out records to the last.
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(score, middle) else (middle, high)
    return high
