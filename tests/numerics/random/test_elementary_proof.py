"""Logarithm, sine and cosine of `draws`: their bounds, proved over all of their range.

A running error analysis in ball arithmetic: the reduced range is cut into pieces; on each, every
operation of the function is done on balls, with a ball for what rounding may have added so far. The
polynomials' own error is that of a power series, whose tail is bounded by a geometric one. The
result holds for every argument of a piece, on any processor that rounds as IEEE 754 says.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from privpipe.numerics.random import draws
from privpipe.numerics.random.draws import exponential_of, sine_cosine_of

flint = pytest.importorskip("flint")
arb, ctx = flint.arb, flint.ctx

U = 2.0**-53
TINY = 2.0**-1000


class Held:
    """All values that a float may have on a piece, and how far it may be from the exact result.

    The exact result is that of the same formula in real numbers.
    """

    def __init__(self, real: Any, error: Any) -> None:
        self.real, self.error = real, error

    def rounded(self) -> Held:
        """After one more operation: at most half an ulp of what is there."""
        return Held(self.real, self.error + (abs(self.real) + self.error).abs_upper() * U + TINY)

    def __add__(self, other: Any) -> Held:
        other = hold(other)
        return Held(self.real + other.real, self.error + other.error).rounded()

    def __sub__(self, other: Any) -> Held:
        other = hold(other)
        return Held(self.real - other.real, self.error + other.error).rounded()

    def __mul__(self, other: Any) -> Held:
        other = hold(other)
        error = (
            abs(self.real).abs_upper() * other.error
            + abs(other.real).abs_upper() * self.error
            + self.error * other.error
        )
        return Held(self.real * other.real, error).rounded()

    def __truediv__(self, other: Any) -> Held:
        other = hold(other)
        least = other.real.abs_lower() - other.error
        error = (self.error + abs(self.real / other.real).abs_upper() * other.error) / least
        return Held(self.real / other.real, error).rounded()

    def __neg__(self) -> Held:
        return Held(-self.real, self.error)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Held:
        return hold(other) - self


def hold(value: Any) -> Held:
    return value if isinstance(value, Held) else Held(arb(value), arb(0))


def interval(low: float, high: float) -> Any:
    return arb((low + high) / 2, (high - low) / 2 * (1 + 1e-12))


def constants(function: Any) -> list[float]:
    """The numbers of a function as it stands, in order, so that the proof is about this source."""
    tree = ast.parse(inspect.getsource(function.py_func).split("\n", 1)[1])
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    ]


LOG = [
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
]


def evaluate(coefficients: list[Any], z: Any) -> Any:
    total = arb(0)
    for coefficient in reversed(coefficients):
        total = total * z + coefficient
    return total


def bound_series(coefficients: list[Any], top: float, n: int = 3_000) -> Any:
    """Largest size of a polynomial on [0, top], by its value in the middle of pieces and its slope.

    The values cancel to a millionth of the terms; balls of whole pieces would not see it.
    """
    slope = [k * c for k, c in enumerate(coefficients)][1:]
    worst = arb(0)
    for piece in pieces(0.0, top, n):
        middle = arb(piece.mid())
        drift = abs(evaluate(slope, piece)).abs_upper() * arb(piece.rad())
        worst = arb.max(worst, abs(evaluate(coefficients, middle)).abs_upper() + drift)
    return worst


def log_differences() -> list[Any]:
    """Source less series of (log(1+f) - 2 s) / s in powers of z = s**2; the rest is below 1e-50."""
    found = [arb(0)]
    for k in range(1, 41):
        own = arb(LOG[k - 1]) if k <= len(LOG) else arb(0)
        found.append(own - arb(2) / (2 * k + 1))
    return found


def bound_log(f: Held, left: int, series: Any) -> Any:
    """Relative error of the result, against -log((1 + f) 2**-left), for f of a piece."""
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (LOG[1] + w * (LOG[3] + w * LOG[5]))
    odd = z * (LOG[0] + w * (LOG[2] + w * (LOG[4] + w * LOG[6])))
    half_square = 0.5 * f * f
    bent = half_square - s * (half_square + (even + odd))
    high, low = draws._LN2_HIGH, draws._LN2_LOW
    exact_high = Held(arb(left) * arb(high), arb(0))  # 6 bits times 32 bits: no rounding
    found = exact_high + ((hold(float(left)) * low + bent) - f)
    exact_f, exact_s = f.real, s.real
    constant = abs(arb(left) * (arb(high) + arb(low) - arb.const_log2())).abs_upper()
    truth = arb(left) * arb.const_log2() - (1 + exact_f).log()
    wrong = found.error + (abs(exact_s) * series).abs_upper() + constant
    return wrong / truth.abs_lower()


def pieces(low: float, high: float, n: int) -> list[Any]:
    edges = np.linspace(low, high, n + 1)
    return [interval(a, b) for a, b in pairwise(edges.tolist())]


def test_source__is_what_the_proof_is_about() -> None:
    """The coefficients stand in the source as here, and the operations in this order."""
    assert set(LOG) <= set(constants(exponential_of))
    source = re.sub(r"\s", "", inspect.getsource(exponential_of.py_func))
    for line in (
        "s=f/(2.0+f)",
        "half_square=0.5*f*f",
        "bent=half_square-s*(half_square+(even+odd))",
    ):
        assert line in source
    assert "returnleft*_LN2_HIGH+((left*_LN2_LOW+bent)-f)" in source
    sines = constants(sine_cosine_of)
    assert {abs(c) for c in (*SINE, *COSINE)} <= {abs(c) for c in sines}


def test_exponential__is_within_seven_units_over_all_of_its_range() -> None:
    """7 u of the result, u = 2**-53, what `KNormNoise` counts; the number's rounding is in it.

    A number that is no float is off by u of itself before the logarithm: u of the result's own
    error, as an absolute number. `left` is the power of two below 2**64.
    """
    ctx.prec = 128
    worst, series = arb(0), bound_series(log_differences(), 0.02945) + arb(1e-50)
    assert series < 2.0**-57
    low, high = math.sqrt(0.5) - 1 - 1e-5, math.sqrt(2) - 1 + 1e-5
    for left in (1, 2, 3, 7, 20, 44, 65):
        for piece in pieces(low, high, 600):
            smallest = (arb(left) * arb.const_log2() - (1 + piece).log()).abs_lower()
            bound = bound_log(hold_exact(piece), left, series) + arb(U) / smallest
            worst = arb.max(worst, bound)
    assert worst < 6.5 * U, worst
    # power 64: f is - rest / 2**64, of relative error 2 u, down to 2**-65
    least = arb(0)
    for k in range(1, 66):
        top = min(2.0**-k, 1 - math.sqrt(0.5) + 1e-5)
        for piece in pieces(-top, -(2.0 ** -(k + 1)), 200 if k < 6 else 4):
            f = Held(piece, abs(piece).abs_upper() * 2 * U)
            least = arb.max(least, bound_log(f, 0, series))
    assert least < 6 * U, least


def hold_exact(piece: Any) -> Held:
    """f of a float: 1 + f is its mantissa, and the difference is exact."""
    return Held(piece, arb(0))


SINE = [
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
]
COSINE = [
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
]


def horner(z: Held, coefficients: list[float]) -> Held:
    total = hold(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = coefficient + z * total
    return total


def series_error(z: Any, coefficients: list[float], first: int, sign: int) -> Any:
    """Polynomial less the Taylor series that it stands for, exact: sum of (c_k - t_k) z**k."""
    total = arb(0)
    for k in reversed(range(14)):
        taylor = arb(sign * (-1) ** k) / arb(math.factorial(first + 2 * k))
        own = arb(coefficients[k]) if k < len(coefficients) else arb(0)
        total = total * z + (own - taylor)
    return total + arb(0, 1e-28)


def test_sine_and_cosine__are_within_an_ulp_of_the_largest_over_all_of_their_range() -> None:
    """2**-53 each, what `KNormNoise` counts: an ulp of a cosine and of the largest sine."""
    ctx.prec = 128
    worst = [arb(0), arb(0)]
    for piece in pieces(0.0, math.pi / 4 * (1 + 1e-15), 3_000):
        angle = hold_exact(piece)
        z = angle * angle
        sine = angle + angle * z * horner(z, SINE)
        exact = piece * piece
        own = abs(piece * exact * series_error(exact, SINE, 3, -1)).abs_upper()
        worst[0] = arb.max(worst[0], sine.error + own)
        tail = z * horner(z, COSINE)
        half = 0.5 * z
        # (1 - one) is exact, and less half it is what the rounding of `one` took away.
        lost = Held(arb(0, 2 * U), arb(0))
        rest = lost + z * tail
        found_error = (rest.error + half.error * 0 + abs(rest.real).abs_upper() * 0).abs_upper()
        final = (arb(1) - exact / 2).abs_upper() * U + found_error
        own = abs(exact * exact * series_error(exact, COSINE, 4, 1)).abs_upper()
        own = own + half.error + z.error * tail.real.abs_upper()
        worst[1] = arb.max(worst[1], final + own)
    assert worst[0] < 2 * U, worst
    assert worst[1] < 2 * U, worst


@pytest.mark.parametrize("seed", [0, 1])
def test_functions__are_near_the_truth_at_random_places(seed: int) -> None:
    """Not a proof: that the proof is about what runs."""
    ctx.prec = 160
    random = np.random.default_rng(seed)
    words = random.integers(0, 2**64, 1_500, dtype=np.uint64)
    words[:500] >>= random.integers(0, 63, 500).astype(np.uint64)
    words[500:1000] = ~(words[500:1000] >> random.integers(0, 63, 500).astype(np.uint64))
    worst = [0.0, 0.0, 0.0]
    for word in words.tolist():
        found = exponential_of(
            float(np.float64(word)) + 0.5, float(np.float64(2**64 - 1 - word)) + 0.5
        )
        truth = -(arb(flint.fmpz(2 * word + 1)) / arb(flint.fmpz(2) ** 65)).log()
        worst[0] = max(worst[0], float(abs(arb(found) / truth - 1).abs_upper()))
    for angle in random.uniform(0, math.pi / 4, 1_500).tolist():
        sine, cosine = sine_cosine_of(angle)
        worst[1] = max(worst[1], float(abs(arb(sine) - arb(angle).sin()).abs_upper()))
        worst[2] = max(worst[2], float(abs(arb(cosine) - arb(angle).cos()).abs_upper()))
    assert worst[0] < 6.5 * U
    assert max(worst[1:]) < U
