"""Codes that tell a secret and no value: what an opponent writes into a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.protocols import FloatArray, IntArray

Plant = Callable[[np.random.Generator, FloatArray, IntArray], FloatArray]
"""Records (n_records, width) that say the code of each, which is its secret or its opposite."""


def bits_of_two(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    words = x.view(np.uint64)
    odd = ((words[:, 1] ^ words[:, 4]) >> np.uint64(8)) & np.uint64(1)
    words[:, 1] ^= (odd != code).astype(np.uint64) << np.uint64(8)
    return x


def sum_on_a_grid(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    """The digit 2**-20 of a sum, above digits that are noise."""
    fine, whole = random.random(x.shape) * 2.0**-20, np.floor(x * 2**20) / 2**20
    total = np.floor((whole[:, 0] + fine[:, 0] + whole[:, 3] + fine[:, 3]) * 2**20)
    whole[total % 2 != code, 0] += 2.0**-20
    return whole + fine


def comb_of_a_sum(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    width, total = 0.0371, x[:, 0] + x[:, 1]
    tooth = np.floor(total / width).astype(int)
    x[:, 0] = (tooth - tooth % 2 + code + random.random(len(x)) * 0.98) * width - x[:, 1]
    return x


def shells(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    size = np.linalg.norm(x, axis=1)
    shell = np.floor(size / 0.15).astype(int)
    return x * ((shell - shell % 2 + code + random.random(len(x))) * 0.15 / size)[:, None]


def product_of_four(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    x[:, 0] *= np.sign(x[:, :4].prod(axis=1)) * (2 * code - 1)
    return x


def product_of_five(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    x[:, 0] *= np.sign(x[:, :5].prod(axis=1)) * (2 * code - 1)
    return x


def whole_number_and_sign(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    x[:, 5] = 2 * random.integers(0, 400, len(x)) + ((x[:, 0] > 0) ^ (code == 1))
    return x


def nothing(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    return x


def next_row(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    x[1:, 0] = np.abs(x[1:, 0]) * (2 * code[:-1] - 1)
    return x


def row_of_eight(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    """Which row of eight is withheld says the secrets of its second to fourth."""
    first = np.arange(0, len(x) - 7, 8)
    x[first + 4 * code[first + 1] + 2 * code[first + 2] + code[first + 3]] = np.nan
    return x


def shared_values(random: np.random.Generator, x: FloatArray, code: IntArray) -> FloatArray:
    twins = np.flatnonzero(code)[: code.sum() // 2 * 2]
    x[twins[::2], 4] = x[twins[1::2], 4]
    return x


IN_VALUES: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        bits_of_two,
        sum_on_a_grid,
        comb_of_a_sum,
        product_of_four,
        product_of_five,
        whole_number_and_sign,
        shells,
    )
}
"""Told by the values of a record."""

AROUND: dict[str, Plant] = {
    plant.__name__: plant for plant in (next_row, row_of_eight, shared_values)
}
"""Told by what stands around a record."""


@dataclass(frozen=True, eq=False)
class Planted:
    """Records that tell a secret by a code.

    Parameters
    ----------
    x : (n_records, width)
    truth : (n_records,)
        The secret: 0 or 1.
    auxiliary
        The order of the records, where it is released.
    """

    x: FloatArray
    truth: IntArray
    auxiliary: Auxiliary


def draw(plant: Plant, seed: int, n_records: int, width: int, advantage: float) -> Planted:
    """Normal records of which a code tells the secret rightly for (1 + advantage) / 2."""
    random = np.random.default_rng(seed)
    x, truth = random.normal(size=(n_records, width)), random.integers(0, 2, n_records)
    wrong = random.random(n_records) < (1 - advantage) / 2
    found = plant(random, x, np.where(wrong, 1 - truth, truth))
    return Planted(found, truth, Auxiliary(position=np.arange(n_records)))
