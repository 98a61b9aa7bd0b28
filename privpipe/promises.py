"""What an epsilon means in odds, and which stored promise a map can keep.

Some promises are stored with a map, not derived from it: no stranger may write a better one.
"""

import math
from collections.abc import Mapping

from privpipe.errors import GuaranteeError
from privpipe.protocols import Guarantee

ROUNDING = 1e-9
"""Relative, and absolute below 1: what computing a number in another order may change."""


def check_promise(promise: Guarantee, least: Mapping[str, float], *, delta: float = 0.0) -> None:
    """Refuse a promise that a map cannot make.

    Parameters
    ----------
    promise
        As it is stored.
    least
        Least number that the map can promise, by kind, in the unit of the kind; "none", which is
        no promise, needs none.
    delta
        Least delta of what it can promise.

    Raises
    ------
    GuaranteeError
        With kind and number.
    """
    if promise.kind == "none" and promise.number is None:
        return
    number = math.nan if promise.number is None else float(promise.number)
    # A kind that the map cannot promise at all needs an infinite number.
    lowest = least.get(promise.kind, math.inf)
    # Computed again here, in another order than where it was made.
    holds = number >= lowest - ROUNDING * max(1.0, abs(lowest))
    if holds and math.isfinite(number) and delta <= promise.delta < 1:
        return
    allowed = ", ".join(f"{kind} of {low:.6g} or more" for kind, low in least.items())
    raise GuaranteeError(
        f"It promises {promise.kind!r} of {number:g} with delta {promise.delta:g}, not {allowed}.",
        remedy="It was changed by somebody: get it from where it came, or train it again.",
        code="promise",
    )


CHARGED = ("local_dp", "central_dp")
"""Kinds of promises that are differential privacy, and that an account is charged."""

RECORDS_OF_ONE = "records of one subject, at most"
"""A parameter of a promise that is about subjects."""

SHUFFLED_EPSILON = "epsilon of the whole release, to whoever does not know the order"
SHUFFLED_DELTA = "delta of that epsilon"
"""Parameters of a promise about shuffled records; see `amplify_by_shuffling`."""

MEANINGLESS = math.log(1e6)
"""Epsilon from which on a guess of one in a million may become an even bet: that is no promise."""


def say_odds(epsilon: float) -> str:
    r"""What an epsilon means, in a sentence.

    >>> print(say_odds(1.0).replace(": ", "\n"))
    the odds of any belief about a record change at most 2.72-fold
    guesses of yes or no, half right without it, become at most 73.2 %
    >>> say_odds(10.0).partition(": ")[2]
    'guesses of yes or no, half right without it, may become nearly all right'
    >>> say_odds(100.0)
    'epsilon 100 lets the odds of any belief of a record change 3e+43-fold: nothing is promised'
    """
    if epsilon < MEANINGLESS:
        times = math.exp(epsilon)
        said = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
        right = math.ceil(1000 * times / (1 + times) - 1e-9) / 10  # rounded up: an upper limit
        become = f"become at most {right:g} %" if right < 100 else "may become nearly all right"
        odds = f"the odds of any belief about a record change at most {said}-fold"
        return f"{odds}: guesses of yes or no, half right without it, {become}"
    power = epsilon / math.log(10)
    # Beyond 300 decimal places exp is too large for a float64.
    fold = f"{math.exp(epsilon):.0e}" if power < 300 else f"10**{power:.0f}"
    odds = f"epsilon {epsilon:g} lets the odds of any belief of a record change {fold}-fold"
    return f"{odds}: nothing is promised"


def say_nats(nats: float) -> str:
    """What a bound on mutual information means for guesses, in a sentence.

    Notes
    -----
    The best guess is right with probability at most that without the release plus the expected
    distance in total variation. That distance is at most ``sqrt(nats / 2)`` (Pinsker; Jensen).

    Examples
    --------
    >>> say_nats(0.0072)
    'on average at most 6 more guesses in 100 are right with the release than without it'
    >>> say_nats(3.0)
    '3 nats allow every guess to be right: nothing is promised'
    """
    more = math.ceil(100 * math.sqrt(max(nats, 0.0) / 2) - 1e-9)
    if more >= 100:
        return f"{nats:g} nats allow every guess to be right: nothing is promised"
    return (
        f"on average at most {more} more guesses in 100 are right with the release than without it"
    )
