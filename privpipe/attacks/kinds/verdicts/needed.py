"""How many held-out records a limit needs: known before a run, from the options alone.

A limit that is narrower than the intervals of so few records cannot be shown to hold, not even of
a release that tells nothing.
"""

from __future__ import annotations

import math

import scipy

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.verdicts.judgement import count_compared
from privpipe.attacks.kinds.verdicts.record_decisions import share_level
from privpipe.attacks.statistics.measures import EXPOSURES
from privpipe.attacks.statistics.uncertainty.exposure import plan_null_exposure
from privpipe.attacks.statistics.uncertainty.intervals import (
    measure_exact_interval,
    measure_wilson_interval,
)

__all__ = [
    "plan_membership_reach",
    "plan_needed_others",
    "plan_needed_records",
    "plan_reach",
    "plan_recovery_reach",
]


def plan_reach(
    options: AttackOptions,
    score: str,
    n_test: int,
    *,
    n_attacks: int,
    n_classes: int | None,
    n_variables: int,
) -> float:
    """Upper limit of the gain of an adversary that only guesses, of one score.

    Parameters
    ----------
    options
        Level and deciding scores.
    score
        One of the deciding scores.
    n_test
        Test records, of classes of one size.
    n_attacks, n_variables
        Attacks of each variable, and variables, that share the level.
    n_classes
        Classes of the variable; None for a number.
    """
    kind = "numbers" if n_classes is None else "classes"
    level = options.plan_level(count_compared(n_attacks, kind, options), n_variables)
    k, z = n_classes or 2, float(scipy.stats.norm.ppf(0.5 + level / 2))
    if score in EXPOSURES:
        return plan_null_exposure(n_test, k, EXPOSURES[score], level)
    if score == "auc":  # Mann and Whitney; the mean of k areas, which hardly depend on one another
        return 2 * z * k / (k - 1) * math.sqrt((n_test + 1) / (12 * n_test**2))
    if score == "r2":
        return z * z / n_test
    hits = round(n_test / k)
    upper = measure_wilson_interval(hits, n_test, level=level).upper
    return (upper - hits / n_test) / (1 - hits / n_test)


def plan_needed_records(
    options: AttackOptions, *, n_attacks: int, n_classes: int | None, n_variables: int
) -> dict[str, float]:
    """Held-out records with which a release that tells nothing would about be shown safe.

    Returns
    -------
    needed
        By deciding score; infinite where no number of test records is enough.

    Examples
    --------
    >>> options = AttackOptions(decides=("accuracy",))
    >>> plan_needed_records(options, n_attacks=14, n_classes=2, n_variables=1)
    {'accuracy': 2817}
    """
    kind = "numbers" if n_classes is None else "classes"

    def reaches(score: str, n_test: int) -> bool:
        reach = plan_reach(
            options,
            score,
            n_test,
            n_attacks=n_attacks,
            n_classes=n_classes,
            n_variables=n_variables,
        )
        return reach <= options.allowed(score)

    found: dict[str, float] = {}
    for score in options.deciding(kind):
        low, high = 20, 20
        while high < options.max_test and not reaches(score, high):
            low, high = high, min(2 * high, options.max_test)
        if not reaches(score, high):
            found[score] = math.inf
            continue
        while high - low > max(1, low // 100):
            middle = (low + high) // 2
            low, high = (low, middle) if reaches(score, middle) else (middle, high)
        found[score] = math.ceil(high / options.test_share)
    return found


def plan_membership_reach(options: AttackOptions, n_members: int, n_others: int) -> float:
    """Upper limit of the advantage of a mere guess at who is in a surrogate release.

    Parameters
    ----------
    options
        With the level that all attacks on single records share.
    n_members, n_others
        Records of the fit and held-out ones that the attack is given. Half of the first are
        judged by, and of the others a quarter: tracing takes every second for the population.

    Examples
    --------
    >>> round(plan_membership_reach(AttackOptions(), 20_000, 8_000), 3)
    0.042
    """
    level = share_level(options).level
    mine, others = (
        measure_exact_interval(n // 2, n, level=level)
        for n in (max(1, n_members // 2), max(1, n_others // 4))
    )
    return min(1.0, mine.upper - others.lower)


def plan_recovery_reach(options: AttackOptions, n_members: int) -> float:
    """Upper limit of the share of records recovered where none of so many attacked ones is."""
    return measure_exact_interval(0, max(1, n_members), level=share_level(options).level).upper


def plan_needed_others(options: AttackOptions, n_members: int, most: int) -> float:
    """Held-out records with which a guess at who is in would be within its limit.

    Infinite where not even `most` are enough.
    """
    low, high = 4, most
    if plan_membership_reach(options, n_members, high) > options.max_advantage:
        return math.inf
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        enough = plan_membership_reach(options, n_members, middle) <= options.max_advantage
        low, high = (low, middle) if enough else (middle, high)
    return high
