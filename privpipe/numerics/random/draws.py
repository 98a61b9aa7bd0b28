"""Draws: from uniform 64-bit words to values of a law, a fixed number of words per record.

Each value is a fixed function of its words, never by rejection: so a draw depends on nothing but
the place of its words. The vector paths of numpy and of C libraries differ in the last bit from one
processor to the next. Logarithm, sine and cosine here use only + - * / and sqrt, in a fixed order,
without fused operations. IEEE 754 rounds each of these correctly. Reduction and coefficients
follow FDLIBM 5.3 (e_log.c, k_sin.c, k_cos.c).
"""

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.compiler import compiled
from privpipe.protocols import FloatArray, IntArray, WordArray

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10


@compiled
def exponential_of(number: float, rest: float) -> float:
    """``-log(number / n)``, for number + rest = n = 2**64, both at least a half.

    Off by at most seven times 2**-53 of itself, the rounding of `number` to 53 bits included. That
    is proved by ball arithmetic over the whole range, in
    tests/numerics/random/test_elementary_proof.py.

    The number is cut into ``2**power * m``, and f is m - 1. There m is at least c = sqrt(1/2) and
    below 2 c. From c * 2**64 upwards power is 64, the result is small, and f is taken from `rest`.
    The caller knows `rest` exactly, where `number` is rounded to 53 bits.
    """
    shifted = np.float64(number).view(np.int64) + (0x3FF0000000000000 - 0x3FE6A09E00000000)
    power = (shifted >> 52) - 1023
    mantissa = (shifted & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E00000000
    f = -rest * 2.0**-64 if power == 64 else np.int64(mantissa).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    # Polynomials are written as Horner's rule takes their steps: the order is part of the value.
    even = 2.222219843214978396e-01 + w * 1.531383769920937332e-01
    even = w * (3.999999999940941908e-01 + w * even)
    odd = 1.818357216161805012e-01 + w * 1.479819860511658591e-01
    odd = 2.857142874366239149e-01 + w * odd
    odd = z * (6.666666666666735130e-01 + w * odd)
    half_square = 0.5 * f * f
    bent = half_square - s * (half_square + (even + odd))  # f - bent is log(1 + f)
    left = np.float64(64 - power)
    return left * _LN2_HIGH + ((left * _LN2_LOW + bent) - f)


@compiled
def sine_cosine_of(angle: float) -> tuple[float, float]:
    """Sine and cosine of an angle from 0 to pi/4. Each is within 2**-52, proved likewise."""
    z = angle * angle
    odd = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10
    odd = 2.75573137070700676789e-06 + z * odd
    odd = -1.98412698298579493134e-04 + z * odd
    odd = 8.33333333332248946124e-03 + z * odd
    odd = -1.66666666666666324348e-01 + z * odd
    even = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11
    even = -2.75573143513906633035e-07 + z * even
    even = 2.48015872894767294178e-05 + z * even
    even = -1.38888888888741095749e-03 + z * even
    even = z * (4.16666666666666019037e-02 + z * even)
    half = 0.5 * z
    one = 1.0 - half
    return angle + angle * z * odd, one + (((1.0 - one) - half) + z * even)


@compiled
def _uniform(words: WordArray, out: FloatArray) -> None:
    for i in range(words.size):
        out[i] = np.float64(np.int64(words[i] >> np.uint64(12))) * 2.0**-52 + 2.0**-53


def draw_uniform(words: WordArray) -> FloatArray:
    """Draw uniform values in (0, 1), one word each.

    Parameters
    ----------
    words : (n_records, n_values)
        Uniform words of a stream.

    Returns
    -------
    uniform : (n_records, n_values)
        Midpoints ``(k + 0.5) / n`` of n = 2**52 equal cells, exactly. They are never 0 nor 1, and
        symmetric about 0.5.

    Examples
    --------
    >>> draw_uniform(np.array([[2**62, 2**63]], np.uint64)).round(12)
    array([[0.25, 0.5 ]])
    """
    out = np.empty(words.shape)
    _uniform(words.reshape(-1), out.reshape(-1))
    return out


def sign_words(n_signs: int) -> int:
    """Words per record that `draw_signs` consumes: one for 64.

    >>> sign_words(65)
    2
    """
    return -(-n_signs // 64)


def draw_signs(words: WordArray, n_signs: int) -> IntArray:
    """Draw signs, one bit each, exactly even.

    Parameters
    ----------
    words : (n_records, sign_words(n_signs))
        Uniform words of a stream.
    n_signs
        Signs per record.

    Returns
    -------
    signs : (n_records, n_signs), int8
        -1 and 1. Sign i is bit ``i % 64`` of word ``i // 64``, 1 where the bit is set.

    Raises
    ------
    OptionError
        If the number of words is not ``sign_words(n_signs)``.

    Examples
    --------
    >>> draw_signs(np.array([[5]], np.uint64), 4)
    array([[ 1, -1,  1, -1]], dtype=int8)
    """
    if words.ndim != 2 or words.shape[1] != sign_words(n_signs) or n_signs < 1:
        raise OptionError(
            f"words has shape {words.shape}; {n_signs} signs take {sign_words(n_signs)} words.",
            remedy="Read as many words per record from the stream, at least one.",
        )
    octets = np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)
    signs = np.unpackbits(octets, axis=1, count=n_signs, bitorder="little").view(np.int8)
    np.multiply(signs, 2, out=signs)
    np.subtract(signs, 1, out=signs)
    return signs
