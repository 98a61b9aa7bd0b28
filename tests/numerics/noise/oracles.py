"""Slow, obvious versions of what the noise wing does: NumPy, Python's integers, ball arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from privpipe.numerics.noise.discrete import (
    HEAD_BITS,
    LANES,
    TAIL_BITS,
    TAIL_WORDS,
    DiscreteLaplaceNoise,
)
from privpipe.numerics.noise.knorm import KNormNoise
from privpipe.numerics.random.streams import KeyedStream


def stream(n: int, first: int = 0, key: int = 1, partition: str = "p") -> KeyedStream:
    """Words of a run of records."""
    return KeyedStream(
        key.to_bytes(32, "big"), partition=partition, first_record=first, n_records=n
    )


def bound_slowly(x: Any, kind: str, norm: str, threshold: float) -> Any:
    """The bounding functions as the paper has them, the soft one mended."""
    size = np.linalg.norm(x, 1 if norm == "l1" else 2, axis=1, keepdims=True)
    if kind == "hard":
        return x / np.maximum(threshold, size)
    direction = np.divide(x, size, out=np.zeros_like(x), where=size > 0)
    return direction * (np.tanh(size / threshold) if kind == "soft" else 1.0)


def draw_discrete_slowly(noise: DiscreteLaplaceNoise, words: Any, further: Any) -> Any:
    """Every lane compares all of its 264 bits at once, in Python's whole numbers.

    words : (n, width * value_words), further : (n, width * 32 * 4)
    """
    out = np.zeros((len(words), noise.width), np.int64)
    for i in range(len(words)):
        octets = words[i].astype("<u8").tobytes()
        for j in range(noise.width):
            own = octets[j * 8 * noise.value_words :]
            bits = []
            for lane, threshold in enumerate(noise.thresholds):
                number = own[lane]
                at = (j * LANES + lane) * TAIL_WORDS
                for word in further[i, at : at + TAIL_WORDS].tolist():
                    number = number << 64 | word
                bits.append(number < threshold)
            *digits, overflow, some, negative = bits
            size = 1 + sum(1 << k for k, bit in enumerate(digits) if bit)
            size = (1 << noise.n_digits) + 1 if overflow else size
            out[i, j] = (-size if negative else size) if some else 0
    return out


def round_by_balls(noise: KNormNoise, head: Any, tail: Any) -> tuple[int, ...]:
    """Arb decides the record from all words, asking itself for as many bits as it needs."""
    from flint import arb, ctx, fmpz

    width, n_bits = noise.width, 64 * (1 + tail.shape[1])
    numbers = []
    for word, rest in zip(head.tolist(), tail.tolist(), strict=True):
        for more in rest:
            word = word << 64 | more
        numbers.append(word)
    ctx.prec = n_bits + 128
    scale = Fraction(noise.scale) / Fraction(noise.grid)
    uniform = [arb(fmpz(2 * n + 1)) / arb(fmpz(1) << (n_bits + 1)) for n in numbers[:width]]
    energies = [-u.log() for u in uniform]
    normals = []
    for energy, number in zip(energies, numbers[width:], strict=False):
        turn = number & (1 << (n_bits - 3)) - 1
        share = arb(fmpz(2 * turn + 1)) / arb(fmpz(1) << (n_bits - 2))
        sine, cosine = (share / 4).sin_cos_pi()
        swap = number >> (n_bits - 3) & 1
        length = energy.sqrt()
        first = length * (sine if swap else cosine)
        second = length * (cosine if swap else sine)
        normals.append(-first if number >> (n_bits - 1) & 1 else first)
        normals.append(-second if number >> (n_bits - 2) & 1 else second)
    normals = normals[:width]
    square = sum((g * g for g in normals), arb(0))
    factor = arb(fmpz(scale.numerator)) / arb(fmpz(scale.denominator))
    factor = factor * sum(energies, arb(0)) / square.sqrt()
    cells = [(g * factor + arb("0.5")).floor().unique_fmpz() for g in normals]
    assert all(cell is not None for cell in cells), "balls leave it open"
    return tuple(int(cell) for cell in cells)


def find_probability(noise: DiscreteLaplaceNoise, n: int) -> Fraction:
    """Exact probability of one value under the stored thresholds."""
    one = 1 << (HEAD_BITS + TAIL_BITS)
    *digits, overflow, some, negative = [Fraction(t, one) for t in noise.thresholds]
    if n == 0:
        return 1 - some
    chance = some * (negative if n < 0 else 1 - negative)
    rest = abs(n) - 1
    if rest >= 1 << noise.n_digits:
        return chance * overflow if rest == 1 << noise.n_digits else Fraction(0)
    chance *= 1 - overflow
    for j, p in enumerate(digits):
        chance *= p if rest >> j & 1 else 1 - p
    return chance
