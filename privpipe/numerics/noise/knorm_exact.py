"""One record of the K-norm law to as many bits as it takes, by interval arithmetic.

An interval holds the truth whatever the bits that were not read; where both its ends round to the
same whole number, so does the truth. mpmath's intervals are rounded outwards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_int

SPARE = 64
"""Bits of working precision beyond those of the uniforms."""

_contexts = threading.local()
"""A context of intervals holds its precision, so each thread has its own."""


def round_exactly(
    words: Sequence[Sequence[int]], width: int, cells_per_scale: Fraction
) -> tuple[int, ...] | None:
    """Whole noise of one record from uniforms of as many words as were read.

    Parameters
    ----------
    words : (width + n_pairs, n_words)
        64-bit words of every uniform, most significant first; the first `width` make the
        exponentials, the rest the angles, as `privpipe.numerics.noise.knorm` says.
    width
        Coordinates.
    cells_per_scale
        Scale of the law in steps of the grid, exactly.

    Returns
    -------
    noise : (width,) or None
        None if these words do not decide every coordinate.
    """
    numbers = [_join(row) for row in words]
    if not all(numbers[:width]):
        return None  # a uniform that begins with zeros alone may be any smaller one
    n_bits = 64 * len(words[0])
    iv = _open_context(n_bits + SPARE)
    energies = [-iv.log(_interval(iv, number, n_bits)) for number in numbers[:width]]
    normals: list[Any] = []
    for energy, number in zip(energies, numbers[width:], strict=False):
        normals += _draw_pair(iv, energy, number, n_bits)
    normals = normals[:width]
    square = sum((g * g for g in normals), iv.mpf(0))
    if not square.a > 0:
        return None
    scale = iv.mpf(cells_per_scale.numerator) / iv.mpf(cells_per_scale.denominator)
    factor = scale * sum(energies, iv.mpf(0)) / iv.sqrt(square)
    cells = [(g * factor + iv.mpf(1) / 2)._mpi_ for g in normals]
    low, high = ([int(to_int(cell[end], "f")) for cell in cells] for end in (0, 1))
    return tuple(low) if low == high else None


def _open_context(bits: int) -> Any:
    found = getattr(_contexts, "held", None)
    if found is None:
        found = _contexts.held = MPIntervalContext()
    found.prec = bits
    return found


def _join(row: Sequence[int]) -> int:
    number = 0
    for word in row:
        number = number << 64 | int(word)
    return number


def _interval(iv: Any, number: int, n_bits: int) -> Any:
    """All numbers below 1 whose first bits are these."""
    return iv.mpf([number, number + 1]) / iv.mpf(2) ** n_bits


def _draw_pair(iv: Any, energy: Any, number: int, n_bits: int) -> list[Any]:
    """Both coordinates on the circle of radius sqrt(energy): signs, swap, angle below pi/4."""
    signs, swap = number >> (n_bits - 2), number >> (n_bits - 3) & 1
    turn = number & (1 << n_bits - 3) - 1
    angle = _interval(iv, turn, n_bits - 3) * iv.pi / 4
    sine, cosine, length = iv.sin(angle), iv.cos(angle), iv.sqrt(energy)
    first = length * (sine if swap else cosine) * (-1 if signs & 2 else 1)
    second = length * (cosine if swap else sine) * (-1 if signs & 1 else 1)
    return [first, second]
