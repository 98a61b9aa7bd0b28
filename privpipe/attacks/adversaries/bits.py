"""An adversary that reads the bits of released values: low-order digits, grids, exactness, codes.

Rounding, grids and margins can carry what the values themselves do not: a class in the lowest
mantissa bit, in the parity of a multiple of a step, in how many digits a value has. No adversary
that reads values as numbers sees that, so the bits that tell most are found on training records
first, and read as features of their own; so are parities of several bits, combs and digits of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.digits import N_ITEMS, Digits, item_of, measure_digits
from privpipe.attacks.adversaries.hidden_codes import Code, find_codes
from privpipe.attacks.adversaries.parities import MOST_FACTORS
from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    choose_best,
    decide_with,
    measure_tuning,
    one_hot,
)
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.protocols import FloatArray, IntArray

KEPT = 32
"""Bits that become features."""

SCREENED = 8192
"""Training records that choose them."""

ROUNDS, LEAST_ROUNDS, LEAVES = 25, 10, 8
"""Few rounds of large steps, of many classes fewer: a round of ten classes grows ten trees, and
inputs are mostly bits."""

PACE = 5.0
"""Rounds times their rate."""


def fit_bit_reader(problem: Problem) -> Fitted:
    """Linear and boosted predictions from the bits and codes that tell most on training records.

    Parameters
    ----------
    problem
        Its inputs are released values as they are, not standardised, (n_records, n_columns).

    Notes
    -----
    Read are the mantissa's bits (relative to each value's own size), the bits of the value as a
    multiple of a fixed step (parities of grids, values modulo powers of two), how many trailing
    zeros either has, the values of the columns concerned, and the codes of `find_codes`.
    """
    return _fit(problem, MOST_FACTORS)


def fit_surroundings_reader(problem: Problem) -> Fitted:
    """The same from what stands around records, with parities of two bits and no sums.

    Parameters
    ----------
    problem
        Its inputs are those of `expand_surroundings`.
    """
    return _fit(problem, 2)


def _fit(problem: Problem, most_factors: int) -> Fitted:
    digits = measure_digits(problem.x_train)
    codes = find_codes(problem, digits, most_factors)
    return choose_best(problem, _train_readers(problem, _choose_bits(problem, digits), codes))


def _train_readers(problem: Problem, reader: _Reader, codes: list[Code]) -> Iterator[Fitted]:
    """Linear predictions from bits and codes and from codes alone; the better one's are boosted."""
    both = replace(reader, codes=tuple(codes))
    readers = [both, replace(both, bare=True)] if codes else [both]
    inner = [
        replace(problem, x_train=one.read(problem.x_train), x_tune=one.read(problem.x_tune))
        for one in readers
    ]
    linear = [fit_least_squares(one) for one in inner]
    yield from map(lambda one, fitted: one.compose(fitted), readers, linear)
    scores = map(lambda one, fitted: measure_tuning(one, fitted.decide(one.x_tune)), inner, linear)
    best = int(np.argmax(list(scores)))
    yield readers[best].compose(_boost(inner[best]))


def _boost(problem: Problem) -> Fitted:
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    rounds = max(LEAST_ROUNDS, 2 * ROUNDS // max(problem.n_classes or 2, 2))
    model = kind(
        max_iter=rounds,
        learning_rate=PACE / rounds,
        max_leaf_nodes=LEAVES,
        early_stopping=False,
        random_state=problem.seed,
    ).fit(problem.x_train, problem.y_train)
    return Fitted(decide_with(model, problem), f"{rounds} rounds")


@dataclass(frozen=True, eq=False)
class _Reader:
    """Which columns, bits and codes become features.

    Parameters
    ----------
    places : (n_chosen, 2)
        Column and item.
    digits
        How values are cut.
    centre, spread : (n_columns,)
        Of the values, to standardise them.
    codes
        What else is read.
    bare
        Whether codes alone are read.
    """

    places: IntArray
    digits: Digits
    centre: FloatArray
    spread: FloatArray
    codes: tuple[Code, ...] = ()
    bare: bool = False

    def read(self, x: FloatArray) -> FloatArray:
        """Features (n_records, n_chosen + n_columns_concerned + columns of the codes)."""
        found = [code.read(x) for code in self.codes]
        if not self.bare:
            columns = np.unique(self.places[:, 0])
            scaled = (x[:, columns].astype(np.float64) - self.centre[columns]) / self.spread[
                columns
            ]
            found += [self.digits.read(x, self.places), scaled]
        return np.hstack(found).astype(np.float64)

    def compose(self, fitted: Fitted) -> Fitted:
        """The decision about records as they are."""
        bits = "" if self.bare else f"{len(self.places)} bits, "
        codes = f"{len(self.codes)} codes, " if self.codes else ""
        return Fitted(lambda x: fitted.decide(self.read(x)), f"{bits}{codes}{fitted.settings}")


def _choose_bits(problem: Problem, digits: Digits) -> _Reader:
    """The items that go with the target most, on training records."""
    x = problem.x_train[:SCREENED].astype(np.float64)
    y = problem.y_train[:SCREENED]
    target = y[:, None] if problem.n_classes is None else one_hot(y, problem.n_classes)
    target = target - target.mean(axis=0)
    spread = np.sqrt((target**2).mean(axis=0))
    target = target[:, spread > 0] / spread[spread > 0]
    words = digits.split(x, np.arange(x.shape[1]))
    told = np.zeros((x.shape[1], N_ITEMS))
    for item in range(N_ITEMS):
        values = item_of(words, item)
        values = values - values.mean(axis=0, dtype=np.float32)
        size = np.sqrt((values**2).mean(axis=0))
        goes = np.abs(values.T @ target.astype(np.float32)).max(axis=1, initial=0.0) / len(x)
        told[:, item] = np.divide(goes, size, out=np.zeros_like(goes), where=size > 0)
    best = np.argsort(told, axis=None, kind="stable")[::-1][:KEPT]
    scale = problem.x_train.std(axis=0, dtype=np.float64)
    return _Reader(
        np.column_stack(np.unravel_index(best, told.shape)).astype(np.int64),
        digits,
        problem.x_train.mean(axis=0, dtype=np.float64),
        np.where(scale > 0, scale, 1.0),
    )
