"""What an epsilon means: how far the odds of any belief may change."""

from __future__ import annotations

import math

MEANINGLESS = math.log(1e6)
"""Epsilon from which on a guess of one in a million may become an even bet: that is no promise."""


def say_odds(epsilon: float) -> str:
    r"""What an epsilon means, in a sentence.

    >>> print(say_odds(1.0).replace(": ", "\n"))
    whatever somebody believes of a record, the release changes its odds at most 2.72-fold
    half of all guesses of a yes or no right without it become at most 73.2 % with it
    >>> say_odds(10.0).partition(": ")[2]
    'half of all guesses of a yes or no right without it may become nearly all with it'
    >>> say_odds(100.0)
    'epsilon 100 lets the odds of any belief of a record change 3e+43-fold: nothing is promised'
    """
    if epsilon < MEANINGLESS:
        times = math.exp(epsilon)
        said = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
        right = math.ceil(1000 * times / (1 + times) - 1e-9) / 10  # rounded up: an upper limit
        become = f"become at most {right:g} %" if right < 100 else "may become nearly all"
        return (
            "whatever somebody believes of a record, the release changes its odds at most "
            f"{said}-fold: half of all guesses of a yes or no right without it {become} with it"
        )
    power = epsilon / math.log(10)
    fold = f"{math.exp(epsilon):.0e}" if power < 300 else f"10**{power:.0f}"
    return (
        f"epsilon {epsilon:g} lets the odds of any belief of a record change {fold}-fold: nothing "
        "is promised"
    )
