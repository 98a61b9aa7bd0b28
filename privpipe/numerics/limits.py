"""A figure with its limits, of which unknown is one no comparison lets through, and their digits.

Whoever holds a figure against what is allowed has three questions: does it lie within, is it
beyond, and how is it said. An upper limit is printed no smaller than it is, a lower one no larger.
Neither is printed on the other side of what is allowed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

MOST_DIGITS = 17
"""Significant digits that name a float64."""

MOST_FIXED = 1e9
"""From here on a number is shown with a power of ten, whatever decimals are requested."""


@dataclass(frozen=True)
class Figure:
    """An estimate with its limits; unknown unless estimate and upper limit are finite numbers.

    Parameters
    ----------
    estimate, lower, upper
        In the unit of what is allowed.
    reason
        Why it is unknown.

    Examples
    --------
    >>> Figure(0.1, 0.05, 0.15).within(0.2), Figure(0.1, 0.05, math.nan).within(0.2)
    (True, False)
    >>> Figure.unknown("it was not run").within(1.0)
    False
    """

    estimate: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    reason: str = ""

    @classmethod
    def unknown(cls, reason: str) -> "Figure":
        """A figure that lies within nothing and is beyond nothing."""
        return cls(reason=reason)

    @classmethod
    def read(cls, found: Mapping[str, Any] | None, name: str = "") -> "Figure":
        """From the JSON of any version: numbers, null, or nothing at all.

        Parameters
        ----------
        found
            With ``estimate``, ``lower``, ``upper``, or `name` and ``NAME_lower``, ``NAME_upper``.
        name
            Of the figure, where its limits bear it.
        """
        if not isinstance(found, Mapping):
            return cls.unknown("it was not measured")
        keys = (name, f"{name}_lower", f"{name}_upper") if name else ("estimate", "lower", "upper")
        estimate, lower, upper = (_read_number(found.get(key)) for key in keys)
        return cls(estimate, lower, upper)

    @property
    def is_known(self) -> bool:
        """Whether it can lie within anything."""
        return math.isfinite(self.estimate) and math.isfinite(self.upper)

    def within(self, allowed: float) -> bool:
        """Whether all of it, up to the upper limit, is allowed; what is unknown is not."""
        return self.is_known and max(self.estimate, self.upper) <= allowed

    def exceeds(self, allowed: float) -> bool:
        """Whether all of it, from the lower limit, is more than allowed: this is shown."""
        return math.isfinite(self.lower) and self.lower > allowed

    def over(self, allowed: float) -> float:
        """How far it reaches beyond what is allowed; infinite where that is unknown."""
        return max(self.estimate, self.upper) - allowed if self.is_known else math.inf

    def minus(self, other: "Figure") -> "Figure":
        """The difference, as far apart as both limits let it be; unknown with either."""
        lower, upper = self.lower - other.upper, self.upper - other.lower
        return Figure(self.estimate - other.estimate, lower, upper, self.reason or other.reason)

    def say(self, allowed: float = math.nan, digits: int = 3) -> str:
        """Estimate and limits in words; "unknown" with its reason.

        >>> Figure(0.2, 0.1234, 0.2501).say(0.25)
        '0.2 (0.123 to 0.251)'
        """
        if not self.is_known:
            return f"unknown ({self.reason})" if self.reason else "unknown"
        return f"{self.estimate:.{digits}g} ({say_limits(self.lower, self.upper, allowed, digits)})"


def say_upper(value: float, allowed: float = math.nan, digits: int = 3) -> str:
    """An upper limit with a few significant digits, rounded up.

    It takes more digits where it would otherwise be said to exceed what it lies within.

    >>> say_upper(0.2512, digits=2), say_upper(0.24991, allowed=0.24995), say_upper(math.nan)
    ('0.26', '0.24991', '-')
    """
    return _say(value, allowed, digits, ROUND_CEILING)


def say_lower(value: float, allowed: float = math.nan, digits: int = 3) -> str:
    """A lower limit with a few significant digits, rounded down.

    >>> say_lower(0.2519, digits=2), say_lower(0.25004, allowed=0.25)
    ('0.25', '0.25004')
    """
    return _say(value, allowed, digits, ROUND_FLOOR)


def say_limits(lower: float, upper: float, allowed: float = math.nan, digits: int = 3) -> str:
    """Both limits, rounded outwards.

    >>> say_limits(0.12345, 0.98765)
    '0.123 to 0.988'
    """
    return f"{say_lower(lower, allowed, digits)} to {say_upper(upper, allowed, digits)}"


def fix_limits(lower: float, upper: float, decimals: int, allowed: float = math.nan) -> str:
    """Both limits with so many decimals, rounded outwards; more where a digit would mislead.

    >>> fix_limits(0.0719, 0.29, 2), fix_limits(0.1, 0.2996, 2, allowed=0.2999)
    ('0.07 to 0.29', '0.10 to 0.2996')
    >>> fix_limits(-4.26e138, 1.0, 2)
    '-4.26e+138 to 1.00'
    """
    shown = []
    for value, way in ((lower, ROUND_FLOOR), (upper, ROUND_CEILING)):
        text = "-"
        if MOST_FIXED <= abs(value) < math.inf:
            shown.append(_say(value, allowed, 3, way))
            continue
        for n_decimals in range(decimals, decimals + MOST_DIGITS) if math.isfinite(value) else ():
            unit = Decimal(1).scaleb(-n_decimals)
            text = str(Decimal(repr(float(value))).quantize(unit, rounding=way))
            if not _misleads(value, float(text), allowed):
                break
        shown.append(text)
    return " to ".join(shown)


def _misleads(value: float, said: float, allowed: float) -> bool:
    """Whether what is said lies on another side of what is allowed."""
    return value <= allowed < said or said <= allowed < value


def step_up(value: float, n_steps: int) -> float:
    """The smallest of so many equal shares of one that is no smaller than a value.

    >>> step_up(0.251, 45) >= 0.251, step_up(0.5, 10)
    (True, 0.5)
    """
    step = math.ceil(value * n_steps - 1e-9)
    return step / n_steps if step / n_steps >= value else (step + 1) / n_steps


def _say(value: float, allowed: float, digits: int, way: str) -> str:
    if not math.isfinite(value):
        return "-"
    for n_digits in range(digits, MOST_DIGITS + 1):
        exact = Context(prec=n_digits, rounding=way).create_decimal(Decimal(repr(float(value))))
        said = float(exact)
        if not _misleads(value, said, allowed):
            break
    return f"{said:.{max(n_digits, 1)}g}"


def _read_number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan
