"""Logarithm, sine and cosine that give the same bits on every processor.

The vector paths of numpy and of C libraries differ in the last bit from one processor to the next;
these use only + - * / and sqrt, which IEEE 754 rounds correctly, in a fixed order, without fused
operations. Reduction and coefficients follow FDLIBM 5.3 (e_log.c, k_sin.c, k_cos.c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from privpipe.numerics.compiler import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile at first use, keep on disk, release the interpreter lock; never reorder floats."""
    return njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)


_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10


@compiled
def exponential_of(number: float, rest: float) -> float:
    """``-log(number / 2**64)``, for number + rest = 2**64, both at least 1/2.

    Off by at most 7 * 2**-53 of itself, the rounding of `number` to 53 bits included: proved by
    ball arithmetic over the whole range, in tests/numerics/random/test_elementary_proof.py.

    The number is cut into ``2**power * (1 + f)`` with 1 + f in [sqrt(1/2), sqrt(2)). From
    sqrt(1/2) * 2**64 upwards power is 64, the result is small, and f is taken from `rest`,
    which the caller knows exactly, where `number` is rounded to 53 bits.
    """
    bits = np.float64(number).view(np.int64)
    shifted = bits + (0x3FF0000000000000 - 0x3FE6A09E00000000)
    power = (shifted >> 52) - 1023
    mantissa = (shifted & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E00000000
    f = -rest * 2.0**-64 if power == 64 else np.int64(mantissa).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (
        3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
    )
    odd = z * (
        6.666666666666735130e-01
        + w
        * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half_square = 0.5 * f * f
    bent = half_square - s * (half_square + (even + odd))  # f - bent is log(1 + f)
    left = np.float64(64 - power)
    return left * _LN2_HIGH + ((left * _LN2_LOW + bent) - f)


@compiled
def sine_cosine_of(angle: float) -> tuple[float, float]:
    """Sine and cosine of an angle from 0 to pi/4, each within 2**-52; proved likewise."""
    z = angle * angle
    sine = angle + angle * z * (
        -1.66666666666666324348e-01
        + z
        * (
            8.33333333332248946124e-03
            + z
            * (
                -1.98412698298579493134e-04
                + z
                * (
                    2.75573137070700676789e-06
                    + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)
                )
            )
        )
    )
    tail = z * (
        4.16666666666666019037e-02
        + z
        * (
            -1.38888888888741095749e-03
            + z
            * (
                2.48015872894767294178e-05
                + z
                * (
                    -2.75573143513906633035e-07
                    + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)
                )
            )
        )
    )
    half = 0.5 * z
    one = 1.0 - half
    return sine, one + (((1.0 - one) - half) + z * tail)
