"""An adversary that reads the bits of released values: low-order digits, grids, exactness, codes.

Rounding, grids and margins can carry what the values themselves do not: a class in the lowest
mantissa bit, in the parity of a multiple of a step, in how many digits a value has. No adversary
that reads values as numbers sees that, so the bits that tell most are found on training records
first, and read as features of their own; so are parities of several bits, combs and digits of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol

import numpy as np
import scipy
from scipy import linalg
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.parities import (
    MOST_FACTORS,
    N_ITEMS,
    Digits,
    find_parities,
    item_of,
    measure_digits,
    sum_by_digit,
)
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

FINE, COARSE = 1 << 19, 1 << 15
"""Places along twice the range of a column, and of a sum of two; fewer beyond `MOST_PLACES`."""

MOST_PLACES = 1 << 11
"""Of all columns or sums and classes together, for each record: time grows with the records."""

MOST_SUMS = 1200
"""Sums and differences whose digits are read, times classes."""

FEW_TURNS = 8
"""Periods within the range that others see as well; longer ones are kept apart."""

MOST_PAIRED = 24
"""Columns whose sums and differences are read, from the first."""

MOST_COLUMNS = 300

STEPS = 60
"""Digits of a sum, counted from the smallest step that the larger column allows."""

Pair = tuple[int, int, int]
"""Two columns and the sign of the second; 0 for the first alone."""


def add_up(x: FloatArray, pair: Pair) -> FloatArray:
    """The column, sum or difference, (n_records,)."""
    one, other, sign = pair
    value = x[:, one].astype(np.float64)
    return value + sign * x[:, other] if sign else value


@dataclass(frozen=True)
class Comb:
    """Where in its period a value stands.

    Parameters
    ----------
    pair
        Of what columns.
    frequency
        Periods per unit.
    """

    pair: Pair
    frequency: float

    def read(self, x: FloatArray) -> FloatArray:
        """Cosine and sine of the place, (n_records, 2)."""
        turn = 2 * np.pi * ((add_up(x, self.pair) * self.frequency) % 1.0)
        return np.column_stack([np.cos(turn), np.sin(turn)])


@dataclass(frozen=True)
class SumDigit:
    """One binary digit of the exact sum of two columns.

    Parameters
    ----------
    pair
        Of what columns.
    exponent
        Of the larger one's largest value.
    place
        Of the digit, from the smallest.
    """

    pair: Pair
    exponent: int
    place: int

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, 1), 1 or -1."""
        words = _sum_exactly(x, self.pair, self.exponent)
        return 1.0 - 2.0 * ((words >> self.place) & 1).astype(np.float64)[:, None]


def find_combs(x: FloatArray, excess: FloatArray) -> Iterator[Comb]:
    """The combs that go with a class most.

    Parameters
    ----------
    x : (n_records, n_columns)
        Values as they are released.
    excess : (n_records, n_classes)
        One for a record's class, less what is expected of it.

    Notes
    -----
    Of 8,192 records, 20 columns and two classes steps down to about a 260,000th of a column's
    range, and a 16,000th of a sum's; coarser in proportion to `MOST_PLACES`.
    """
    n_paired = min(x.shape[1], MOST_PAIRED)
    columns: list[Pair] = [(j, j, 0) for j in range(min(x.shape[1], MOST_COLUMNS))]
    pairs = [(i, j, sign) for i, j in combinations(range(n_paired), 2) for sign in (1, -1)]
    found: list[list[tuple[float, Comb]]] = [[], []]
    n_classes = max(excess.shape[1] - 1, 1)
    for finest, chosen in ((FINE, columns), (COARSE, pairs)):
        n_places = finest
        while n_places * len(chosen) * n_classes > MOST_PLACES * len(x) and n_places > 1 << 10:
            n_places //= 2
        for pair in chosen:
            lines = _find_lines(add_up(x, pair), excess, n_places)
            for band, (size, frequency) in zip(found, lines, strict=False):
                band.append((size, Comb(pair, frequency)))
    for band in found:
        for _, one in sorted(band, key=lambda each: -each[0])[:MOST_CODES]:
            yield _sharpen(one, x, excess)


def _find_lines(
    values: FloatArray, excess: FloatArray, n_places: int
) -> Iterator[tuple[float, float]]:
    """Size and frequency of the largest line of many periods, and of that of few."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return
    length = 2 * (high - low)
    places = np.minimum(((values - low) / length * n_places).astype(np.int64), n_places - 1)
    power = np.zeros(n_places // 2 + 1, np.float32)
    for column in excess.T[1:] if excess.shape[1] == 2 else excess.T:  # two classes are one
        counts = np.bincount(places, column, n_places).astype(np.float32)
        line = scipy.fft.rfft(counts)
        power += line.real**2 + line.imag**2
    many = 2 * FEW_TURNS
    for first, last in ((many, n_places // 2), (1, many)):
        best = first + int(np.argmax(power[first:last]))
        yield float(power[best]), best / length


def _sharpen(one: Comb, x: FloatArray, excess: FloatArray) -> Comb:
    """The best of frequencies between two lines of the spectrum."""
    values = add_up(x, one.pair)
    step = 0.5 / float(np.ptp(values))
    near = [Comb(one.pair, one.frequency + share * step) for share in np.linspace(-0.75, 0.75, 7)]
    return max(near, key=lambda each: float(((each.read(x).T @ excess) ** 2).sum()))


def find_sum_digits(x: FloatArray, excess: FloatArray) -> Iterator[SumDigit]:
    """The digits of exact sums and differences of two columns that go with a class most.

    Parameters as in `find_combs`.
    """
    most = int(np.sqrt(MOST_SUMS / max(excess.shape[1] - 1, 1)))
    n_paired = min(x.shape[1], MOST_PAIRED, most)
    largest = np.abs(x[:, :n_paired]).max(axis=0).astype(np.float64)
    exponents = np.frexp(largest)[1]
    side = np.column_stack([excess, np.ones(len(x))]).astype(np.float32)
    found: list[tuple[float, SumDigit]] = []
    for i, j in combinations(range(n_paired), 2):
        exponent = int(max(exponents[i], exponents[j]))
        for sign in (1, -1):
            words = _sum_exactly(x, (i, j, sign), exponent)
            sums = sum_by_digit(words.view(np.uint64), side)
            share = sums[:, -1] / len(x)
            size = (sums[:, :-1] ** 2).sum(axis=1) / np.maximum(share * (1 - share), 1e-3)
            best = np.argsort(-size, kind="stable")[:2].tolist()
            found += [(float(size[k]), SumDigit((i, j, sign), exponent, k)) for k in best]
    for _, one in sorted(found, key=lambda each: -each[0])[:MOST_CODES]:
        yield one


def _sum_exactly(x: FloatArray, pair: Pair, exponent: int) -> IntArray:
    """Sums of multiples of a step, modulo 2^64."""
    one, other, sign = pair
    parts = [np.ldexp(x[:, j].astype(np.float64), STEPS - exponent) for j in (one, other)]
    whole = [np.rint(np.clip(part, -(2.0**62), 2.0**62)).astype(np.int64) for part in parts]
    total: IntArray = whole[0] + sign * whole[1]
    return total


SEARCHED = 8192
"""Records that codes are found on, and at most as many as half of those given."""

MOST_CLASSES = 8
"""Groups of classes that codes are searched for; more classes share groups, the largest first."""

N_STRATA = 3
"""Strata of records that look alike to a few trees."""

EXPECTED_ROUNDS, TREE_COLUMNS = 20, 64

MOST_VALUES = 4096
"""Different values of a column that is read value by value."""

LEAST = 3.0
"""Standard errors by which a code must tell something of the other half."""

MOST_CODES = 12
"""Codes that become features, and candidates that each search of combs and sums gives."""


class Code(Protocol):
    """What is read of records beyond their values."""

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, n_columns) of released values as columns of about one unit."""
        ...


def find_codes(problem: Problem, digits: Digits, most_factors: int = MOST_FACTORS) -> list[Code]:
    """Codes that go with the target on both halves of the training records, the clearest first.

    Parameters
    ----------
    problem
        Its inputs are released values as they are, not standardised.
    digits
        How they are cut.
    most_factors
        Bits of a parity; of fewer than `MOST_FACTORS` neither combs nor sums are searched.

    Notes
    -----
    What a few trees predict from the values is deducted, so that a code is what they miss. Time
    and memory are bounded by those of the searches: 4 seconds and 200 MB for 20 columns and two
    classes on a free core.
    """
    classes = _group_classes(problem)
    order = np.random.default_rng(problem.seed).permutation(len(classes))
    n_searched = min(SEARCHED, len(order) // 2)
    found, tried = order[:n_searched], order[n_searched:]
    if len(np.unique(classes[found])) < 2:
        return []
    x, excess, strata = _deduct(problem.x_train, classes, found)
    codes: list[Code] = [
        *find_parities(x[found], classes[found], strata[found], digits, most_factors),
        *_tabulate(x[found], excess[found]),
    ]
    if most_factors == MOST_FACTORS:
        codes += [*find_combs(x[found], excess[found]), *find_sum_digits(x[found], excess[found])]
    sizes = np.array([_try(code, x, excess, found, tried) for code in codes])
    best = np.argsort(-sizes, kind="stable")[:MOST_CODES]
    return [codes[i] for i in best if sizes[i] > LEAST]


def _group_classes(problem: Problem) -> IntArray:
    """Classes, or quarters of a number; many classes share `MOST_CLASSES` groups."""
    y = problem.y_train
    if problem.n_classes is None:
        codes = np.searchsorted(np.unique(np.quantile(y, [0.25, 0.5, 0.75])), y)
    else:
        sizes = np.bincount(y.astype(np.int64), minlength=problem.n_classes)
        codes = np.argsort(np.argsort(-sizes, kind="stable"))[y.astype(np.int64)]
    return np.asarray(np.unique(codes % MOST_CLASSES, return_inverse=True)[1], np.int64)


def _deduct(
    values: FloatArray, classes: IntArray, found: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Values in double precision, classes beyond what trees predict, and strata of predictions."""
    x = values.astype(np.float64)
    trees = HistGradientBoostingClassifier(
        max_iter=EXPECTED_ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False
    ).fit(x[found, :TREE_COLUMNS], classes[found])
    share = np.zeros((len(x), int(classes.max()) + 1))
    share[:, trees.classes_] = trees.predict_proba(x[:, :TREE_COLUMNS])
    if share.shape[1] == 2:
        cuts = np.unique(np.quantile(share[found, 1], np.arange(1, N_STRATA) / N_STRATA))
        strata = np.searchsorted(cuts, share[:, 1])
    else:
        strata = share.argmax(axis=1)
    return x, one_hot(classes.astype(np.float64), share.shape[1]) - share, strata


def _try(code: Code, x: FloatArray, excess: FloatArray, found: IntArray, tried: IntArray) -> float:
    """What a code tells of records that it was not found on, in standard errors."""
    columns = code.read(x)
    columns = columns - columns[found].mean(axis=0)
    gram = columns[found].T @ columns[found]
    gram.flat[:: len(gram) + 1] += 1e-6 * max(float(np.trace(gram)), 1e-300)
    slope = linalg.solve(gram, columns[found].T @ excess[found], assume_a="pos")
    guess = columns[tried] @ slope
    won = ((guess - guess.mean(axis=0)) * excess[tried]).sum(axis=1)
    return float(won.sum() / max(np.sqrt((won**2).sum()), 1e-300))


@dataclass(frozen=True, eq=False)
class _Table:
    """What every value of a column of few values says of the classes.

    Parameters
    ----------
    column
    values : (n_values,)
        In order.
    shares : (n_values + 1, n_classes)
        Mean excess of each, the last of values that were not there.
    """

    column: int
    values: FloatArray
    shares: FloatArray

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, n_classes)."""
        mine = x[:, self.column].astype(np.float64)
        at = np.minimum(np.searchsorted(self.values, mine), len(self.values) - 1)
        known = self.values[at] == mine
        return np.asarray(self.shares[np.where(known, at, len(self.values))])


def _tabulate(x: FloatArray, excess: FloatArray) -> Iterator[_Table]:
    """Columns of few values, value by value."""
    for j in range(x.shape[1]):
        values, at = np.unique(x[:, j], return_inverse=True)
        if not 2 < len(values) <= min(MOST_VALUES, len(x) // 4):
            continue
        sums = np.zeros((len(values) + 1, excess.shape[1]))
        np.add.at(sums, at, excess)
        sizes = np.bincount(at, minlength=len(values) + 1)[:, None]
        yield _Table(j, values, sums / (sizes + 1))


MOST_BITS = 32
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
    best = np.argsort(told, axis=None, kind="stable")[::-1][:MOST_BITS]
    scale = problem.x_train.std(axis=0, dtype=np.float64)
    return _Reader(
        np.column_stack(np.unravel_index(best, told.shape)).astype(np.int64),
        digits,
        problem.x_train.mean(axis=0, dtype=np.float64),
        np.where(scale > 0, scale, 1.0),
    )
