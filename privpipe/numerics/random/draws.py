"""Draws: from uniform 64-bit words to values of a law, a fixed number of words per record.

Each value is a fixed function of its words, by inversion, Box and Muller's transform or sums of
exponentials, never by rejection: so a draw depends on nothing but the place of its words.
`privpipe.numerics.random.categorical` holds the categorical draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import gammainccinv, gammaincinv

from privpipe.errors import OptionError
from privpipe.numerics.random.elementary import compiled, exponential_of, sine_cosine_of
from privpipe.numerics.random.streams import TILE_WORDS
from privpipe.protocols import FloatArray, IntArray, WordArray

_EIGHTH_TURN = math.pi / 4 * 2.0**-61
_RUN = 2048


@compiled
def _uniform(words: WordArray, out: FloatArray) -> None:
    for i in range(words.size):
        out[i] = np.float64(np.int64(words[i] >> np.uint64(12))) * 2.0**-52 + 2.0**-53


@compiled
def _exponential_of_word(word: Any) -> float:
    return exponential_of(np.float64(word) + 0.5, np.float64(~word) + 0.5)


@compiled
def _exponential(words: WordArray, out: FloatArray) -> None:
    for i in range(words.size):
        out[i] = _exponential_of_word(words[i])


@compiled
def _laplace(words: WordArray, out: FloatArray) -> None:
    for i in range(words.size):
        sign = 1.0 - 2.0 * np.float64(np.int64(words[i] & np.uint64(1)))
        number = np.float64(np.int64(words[i] >> np.uint64(1))) * 2.0 + 1.0
        rest = np.float64(np.int64(~words[i] >> np.uint64(1))) * 2.0 + 1.0
        out[i] = sign * exponential_of(number, rest)


@compiled
def _normal(words: WordArray, out: FloatArray) -> None:
    """Box and Muller in pairs: the first word is the radius, the second signs, swap and angle."""
    for pair in range(words.size // 2):
        i = 2 * pair  # a step of 2 in the range itself costs the vector instructions: 7 times
        radius = math.sqrt(2.0 * _exponential_of_word(words[i]))
        turn = words[i + 1]
        angle = (np.float64(np.int64(turn & np.uint64(2**61 - 1))) + 0.5) * _EIGHTH_TURN
        sine, cosine = sine_cosine_of(angle)
        swap = (turn >> np.uint64(61)) & np.uint64(1) == np.uint64(1)
        first = radius * (1.0 - 2.0 * np.float64(np.int64((turn >> np.uint64(63)) & np.uint64(1))))
        second = radius * (1.0 - 2.0 * np.float64(np.int64((turn >> np.uint64(62)) & np.uint64(1))))
        out[i] = first * (sine if swap else cosine)
        out[i + 1] = second * (cosine if swap else sine)


@compiled
def _sums_of_exponentials(words: WordArray, shape: int, out: FloatArray) -> None:
    """Exponentials of a run of words, by vector instructions; then their sums, in order."""
    held = np.empty(_RUN)
    at, left, total = 0, shape, 0.0
    for start in range(0, words.size, _RUN):
        count = min(_RUN, words.size - start)
        for k in range(count):
            held[k] = _exponential_of_word(words[start + k])
        for k in range(count):
            total += held[k]
            left -= 1
            if left == 0:
                out[at] = total
                at, left, total = at + 1, shape, 0.0


def draw_uniform(words: WordArray, out: FloatArray | None = None) -> FloatArray:
    """Draw uniform values in (0, 1), one word each.

    Parameters
    ----------
    words : (n_records, n_values)
        Uniform words of a stream.
    out : (n_records, n_values), float64, optional
        Where to write; may not overlap `words`.

    Returns
    -------
    uniform : (n_records, n_values)
        Midpoints ``(k + 1/2) 2**-52`` of 2**52 equal cells, exactly: never 0 nor 1, and
        symmetric about 1/2.

    Raises
    ------
    OptionError
        If `words` or `out` has another shape, dtype or memory order.

    Examples
    --------
    >>> draw_uniform(np.array([[2**62, 2**63]], np.uint64)).round(12)
    array([[0.25, 0.5 ]])
    """
    out = _output(words, words.shape, out)
    _uniform(words.reshape(-1), out.reshape(-1))
    return out


def draw_exponential(words: WordArray, out: FloatArray | None = None) -> FloatArray:
    """Draw standard exponential values, one word each; parameters as in `draw_uniform`.

    Returns
    -------
    exponential : (n_records, n_values)
        ``-log((word + 1/2) 2**-64)`` within 7 * 2**-53 of itself: mean 1, from 2.7e-20 to 45.05,
        the same bits on every processor.
    """
    out = _output(words, words.shape, out)
    _exponential(words.reshape(-1), out.reshape(-1))
    return out


def draw_laplace(words: WordArray, out: FloatArray | None = None) -> FloatArray:
    """Draw standard Laplace values (mean 0, scale 1), one word each, as in `draw_uniform`.

    The lowest bit is the sign, the other 63 make an exponential with the error stated at
    `draw_exponential`.

    Notes
    -----
    Guarantee: none of differential privacy. The sum of a record and such a value betrays the
    record by its low bits; a private mechanism adds whole numbers on a grid.
    """
    out = _output(words, words.shape, out)
    _laplace(words.reshape(-1), out.reshape(-1))
    return out


def normal_words(n_values: int) -> int:
    """Words per record that `draw_normal` consumes: the next even number.

    >>> normal_words(5)
    6
    """
    return n_values + n_values % 2


def draw_normal(
    words: WordArray, n_values: int | None = None, out: FloatArray | None = None
) -> FloatArray:
    """Draw standard normal values, two words for two.

    Parameters
    ----------
    words : (n_records, normal_words(n_values))
        Uniform words of a stream.
    n_values
        Values per record; the number of words when not given. Of an odd number the last
        value's partner is drawn and dropped.
    out : (n_records, normal_words(n_values)), float64, optional
        Where to write; the result is a view of it.

    Returns
    -------
    normal : (n_records, n_values)
        Within 5 ulp of the exact transform of the words; at most 9.5 in size (true
        probability beyond: 2e-21); the same bits on every processor.

    Raises
    ------
    OptionError
        If the number of words is not ``normal_words(n_values)``, or as in `draw_uniform`.

    References
    ----------
    Box and Muller 1958, A note on the generation of random normal deviates.
    """
    count = words.shape[-1] if n_values is None else n_values
    _check_width(words, normal_words(count), f"{count} normal values")
    out = _output(words, words.shape, out)
    _normal(words.reshape(-1), out.reshape(-1))
    return out[:, :count]


def gamma_words(shape: float, n_values: int = 1) -> int:
    """Words per record that `draw_gamma` consumes: `shape` per value if whole, else one.

    >>> gamma_words(3.0, n_values=2), gamma_words(2.5, n_values=2)
    (6, 2)
    """
    if not (math.isfinite(shape) and 1e-3 <= shape <= 1e6):
        raise OptionError(f"The gamma shape is {shape}.", remedy="Use 0.001 to 1e6.")
    return n_values * (int(shape) if float(shape).is_integer() else 1)


def draw_gamma(
    words: WordArray, shape: float, n_values: int = 1, out: FloatArray | None = None
) -> FloatArray:
    """Draw gamma values of scale 1.

    A whole shape is a sum of as many exponentials, each from a word of its own. Any other is
    drawn by inversion from one word, from the lower tail for one half of the words and from
    the upper for the other, so that both tails have steps of 2**-64.

    Parameters
    ----------
    words : (n_records, gamma_words(shape, n_values))
        Uniform words of a stream.
    shape
        Shape of the law, which is its mean: 0.001 to 1e6.
    n_values
        Values per record.
    out : (n_records, n_values), float64, optional
        Where to write.

    Returns
    -------
    gamma : (n_records, n_values)
        Whole shapes: relative error below ``(shape + 3) * 2**-52``, the same bits on every
        processor. Others: relative error of the
        tail probability below 1e-10 (scipy's inverse; its last bits may differ from one build
        of scipy to another); a value below the smallest number is 0.

    Raises
    ------
    OptionError
        If the shape is out of range, the number of words does not fit, or as in
        `draw_uniform`.
    """
    _check_width(words, gamma_words(shape, n_values), f"{n_values} gamma values")
    out = _output(words, (len(words), n_values), out)
    flat, values = words.reshape(-1), out.reshape(-1)
    if float(shape).is_integer():
        _sums_of_exponentials(flat, int(shape), values)
        return out
    for tile in _tiles(values.size):
        values[tile] = _inverse_gamma(flat[tile], shape)
    return out


def _inverse_gamma(words: WordArray, shape: float) -> FloatArray:
    tail = ((words & np.uint64(2**63 - 1)).astype(np.float64) + 0.5) * 2.0**-64
    upper = words >> np.uint64(63) == 1
    value = np.empty(len(words))
    value[upper] = gammainccinv(shape, tail[upper])
    value[~upper] = gammaincinv(shape, tail[~upper])
    return value


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
        -1 and 1; sign i is bit ``i % 64`` of word ``i // 64``, 1 where the bit is set.

    Raises
    ------
    OptionError
        If the number of words is not ``sign_words(n_signs)``.

    Examples
    --------
    >>> draw_signs(np.array([[5]], np.uint64), 4)
    array([[ 1, -1,  1, -1]], dtype=int8)
    """
    _check_width(words, sign_words(n_signs), f"{n_signs} signs")
    octets = np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)
    signs = np.unpackbits(octets, axis=1, count=n_signs, bitorder="little").view(np.int8)
    np.multiply(signs, 2, out=signs)
    np.subtract(signs, 1, out=signs)
    return signs


def _tiles(count: int) -> Iterator[slice]:
    for start in range(0, count, TILE_WORDS):
        yield slice(start, min(start + TILE_WORDS, count))


def _check_width(words: WordArray, expected: int, purpose: str) -> None:
    if words.ndim != 2 or words.shape[1] != expected or expected < 1:
        raise OptionError(
            f"words has shape {words.shape}; {purpose} per record take {expected} words.",
            remedy="Ask the stream for as many words per record, at least one.",
        )


def _output(words: WordArray, shape: tuple[int, ...], out: FloatArray | None) -> FloatArray:
    """`out` or fresh memory, once words and it are what the kernels read and write."""
    if words.ndim != 2 or words.dtype != np.uint64 or not words.flags.c_contiguous:
        raise OptionError(
            f"words has {words.ndim} dimensions and dtype {words.dtype}.",
            remedy="Give a C-contiguous uint64 array (n_records, words_per_record).",
        )
    if out is None:
        return np.empty(shape)
    if out.shape != shape or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise OptionError(
            f"out has shape {out.shape} and dtype {out.dtype}, not {shape} and float64.",
            remedy="Give C-contiguous memory of the result's shape.",
        )
    return out
