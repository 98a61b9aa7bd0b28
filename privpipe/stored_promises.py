"""Promises that are stored with a map, not derived from it: no stranger may write a better one."""

from __future__ import annotations

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
    lowest = least.get(promise.kind, math.inf)
    holds = number >= lowest - ROUNDING * max(1.0, abs(lowest))
    if holds and math.isfinite(number) and delta <= promise.delta < 1:
        return
    allowed = ", ".join(f"{kind} of {low:.6g} or more" for kind, low in least.items())
    raise GuaranteeError(
        f"A map promises {promise.kind!r} of {number:g} with delta {promise.delta:g}; it can "
        f"promise {allowed or 'nothing'}.",
        remedy="It was changed by somebody: get it from where it came, or train it again.",
        code="promise",
    )
