"""An adversary that reads the bits of released values: low-order digits, grids, exactness.

Rounding, grids and margins can carry what the values themselves do not: a class in the lowest
mantissa bit, in the parity of a multiple of a step, in how many digits a value has. No adversary
that reads values as numbers sees that, so the bits that tell most are found on training records
first, and read as features of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.problem import Fitted, Problem, choose_best, one_hot
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.protocols import FloatArray, WordArray

__all__ = ["MANTISSA", "fit_bit_reader"]

MANTISSA = 52
"""Bits of a mantissa in double precision; released values of less are exact in it."""

FIXED = 62
"""Bits of a value as a multiple of the smallest step that its column's largest one allows."""

KEPT = 32
"""Bits that become features."""

SCREENED = 8192
"""Training records that choose them."""

ROUNDS, LEAVES = 50, 8


def fit_bit_reader(problem: Problem) -> Fitted:
    """Linear and boosted predictions from the bits that tell most on training records.

    Parameters
    ----------
    problem
        Its inputs are released values as they are, not standardised, (n_records, n_columns).

    Notes
    -----
    Read are the mantissa's bits (relative to each value's own size), the bits of the value as a
    multiple of a fixed step (parities of grids, values modulo powers of two), how many trailing
    zeros either has, and the values of the columns concerned.
    """
    reader = _choose_bits(problem)
    inner = replace(
        problem, x_train=reader.read(problem.x_train), x_tune=reader.read(problem.x_tune)
    )
    fitted = choose_best(inner, _train(inner))
    return Fitted(
        lambda x: fitted.decide(reader.read(x)), f"{reader.n_bits} bits, {fitted.settings}"
    )


def _train(problem: Problem) -> Iterator[Fitted]:
    yield fit_least_squares(problem)
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    model = kind(
        max_iter=ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False, random_state=problem.seed
    ).fit(problem.x_train, problem.y_train)
    decide = model.predict if regress else model.predict_proba
    yield Fitted(lambda x: np.asarray(decide(x), np.float64), f"{ROUNDS} rounds")


@dataclass(frozen=True, eq=False)
class _Reader:
    """Which columns and bits become features.

    Parameters
    ----------
    places : (n_chosen, 2)
        Column and item: bits of the mantissa, then of the multiple, then both numbers of
        trailing zeros.
    exponents : (n_columns,)
        Of the largest value of each column.
    centre, spread : (n_columns,)
        Of the values, to standardise them.
    """

    places: npt.NDArray[np.int64]
    exponents: npt.NDArray[np.int64]
    centre: FloatArray
    spread: FloatArray

    @property
    def n_bits(self) -> int:
        return len(self.places)

    def read(self, x: FloatArray) -> FloatArray:
        """Features (n_records, n_chosen + n_columns_concerned)."""
        columns = np.unique(self.places[:, 0])
        values = x[:, columns].astype(np.float64)
        words = _as_words(values, self.exponents[columns])
        at = np.searchsorted(columns, self.places[:, 0])
        found = [
            _item(words, int(item))[:, j] for j, item in zip(at, self.places[:, 1], strict=True)
        ]
        scaled = (values - self.centre[columns]) / self.spread[columns]
        return np.column_stack([*found, scaled]).astype(np.float64)


_Words = tuple[WordArray, WordArray]


def _choose_bits(problem: Problem) -> _Reader:
    """The items that go with the target most, on training records."""
    x = problem.x_train[:SCREENED].astype(np.float64)
    y = problem.y_train[:SCREENED]
    target = y[:, None] if problem.n_classes is None else one_hot(y, problem.n_classes)
    target = target - target.mean(axis=0)
    spread = np.sqrt((target**2).mean(axis=0))
    target = target[:, spread > 0] / spread[spread > 0]
    exponents = np.frexp(np.abs(problem.x_train).max(axis=0).astype(np.float64))[1].astype(np.int64)
    words = _as_words(x, exponents)
    n_items = MANTISSA + FIXED + 2
    told = np.zeros((x.shape[1], n_items))
    for item in range(n_items):
        values = _item(words, item)
        values = values - values.mean(axis=0, dtype=np.float32)
        size = np.sqrt((values**2).mean(axis=0))
        goes = np.abs(values.T @ target.astype(np.float32)).max(axis=1, initial=0.0) / len(x)
        told[:, item] = np.divide(goes, size, out=np.zeros_like(goes), where=size > 0)
    best = np.argsort(told, axis=None, kind="stable")[::-1][:KEPT]
    scale = problem.x_train.std(axis=0, dtype=np.float64)
    return _Reader(
        np.column_stack(np.unravel_index(best, told.shape)).astype(np.int64),
        exponents,
        problem.x_train.mean(axis=0, dtype=np.float64),
        np.where(scale > 0, scale, 1.0),
    )


def _as_words(x: FloatArray, exponents: npt.NDArray[np.int64]) -> _Words:
    """Mantissa with its leading one, and magnitude as a multiple of each column's step."""
    size = np.abs(x) + 0.0
    mantissa = (size.view(np.uint64) & np.uint64(2**MANTISSA - 1)) | np.uint64(2**MANTISSA)
    with np.errstate(over="ignore"):
        multiple = np.ldexp(size, (FIXED - exponents).astype(np.int32))
    return mantissa, np.minimum(multiple, 2.0**63).astype(np.uint64)


def _item(words: _Words, item: int) -> npt.NDArray[np.float32]:
    """One bit of every value, or its trailing zeros, (n_records, n_columns)."""
    mantissa, multiple = words
    if item < MANTISSA:
        return _bit(mantissa, item)
    if item < MANTISSA + FIXED:
        return _bit(multiple, item - MANTISSA)
    word = mantissa if item == MANTISSA + FIXED else multiple
    lowest = word & (~word + np.uint64(1))  # a power of two, or 0
    return np.log2(np.maximum(lowest, np.uint64(1)).astype(np.float64)).astype(np.float32)


def _bit(word: WordArray, place: int) -> npt.NDArray[np.float32]:
    return ((word >> np.uint64(place)) & np.uint64(1)).astype(np.float32)
