"""What an epsilon means: how far the odds of any belief may change."""

from __future__ import annotations

import math

MEANINGLESS = math.log(1e6)
"""Epsilon from which on a guess of one in a million may become an even bet: that is no promise."""


def say_odds(epsilon: float) -> str:
    """What an epsilon means, in a sentence.

    >>> say_odds(10.0)
    'whatever somebody believes of a record, the release changes its odds at most 22,026-fold'
    >>> say_odds(100.0)
    'epsilon 100 lets the odds of any belief of a record change 3e+43-fold: nothing is promised'
    """
    if epsilon < MEANINGLESS:
        times = math.exp(epsilon)
        said = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
        return (
            "whatever somebody believes of a record, the release changes its odds at most "
            f"{said}-fold"
        )
    power = epsilon / math.log(10)
    fold = f"{math.exp(epsilon):.0e}" if power < 300 else f"10**{power:.0f}"
    return (
        f"epsilon {epsilon:g} lets the odds of any belief of a record change {fold}-fold: nothing "
        "is promised"
    )
