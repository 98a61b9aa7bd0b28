"""What attacks on single records of a surrogate release need: known from the options alone."""

from __future__ import annotations

import math

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.verdicts.record_decisions import share_level
from privpipe.attacks.statistics.uncertainty.intervals import measure_exact_interval


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
    0.041
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
