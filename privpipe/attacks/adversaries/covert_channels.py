"""Covert channels: an adversary that reads the bits of released values, and codes of several.

Rounding, grids and margins can carry what the values themselves do not. A class may show in the
lowest mantissa bit, in the parity of a multiple of a step, or in the number of digits. No adversary
that reads values as numbers sees that. So the bits that go with the target most are found on
training records first, and read as features. So are parities of several bits, combs, digits of sums
and values of columns that have few.

Millions of parities, combs and digits are tried, so the best of them always looks good where it was
found. Codes are searched for on half of the training records and tried on the other: only those
that hold there become features. What they reveal in the end is judged, like every adversary, by
records that neither half holds.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import scipy
from scipy import linalg
from sklearn.ensemble import HistGradientBoostingClassifier

from privpipe.attacks.adversaries import parities
from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.estimators import boost_briefly
from privpipe.attacks.adversaries.problem import Features, Fitted, Problem
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.protocols import FloatArray, IntArray

MOST_BITS = 32
"""Bits that become features."""

SCREENED = 8192
"""Training records that choose them."""

ROUNDS, LEAST_ROUNDS, LEAVES = 25, 10, 8
"""Few rounds of large steps, of many classes fewer: a round of ten classes grows ten trees, and
inputs are mostly bits."""

PACE = 5.0
"""Rounds times their rate."""

SEARCHED = 8192
"""Records that codes are found on, and at most as many as half of those given."""

MOST_CLASSES = 8
"""Groups of classes that codes are searched for; more classes share groups, the largest first."""

N_STRATA = 3
"""Strata of records that look alike to a few trees."""

EXPECTED_ROUNDS, TREE_COLUMNS = 20, 64
"""Of these trees: rounds, and columns that they read."""

LEAST = 3.0
"""Standard errors by which a code must go with the classes of the other half."""

MOST_CODES = 12
"""Codes that become features, and candidates that each search of combs and sums gives."""

FINE, COARSE = 1 << 19, 1 << 15
"""Places along twice the range of a column, and of a sum of two; fewer beyond `MOST_PLACES`."""

MOST_PLACES = 1 << 11
"""Of all columns or sums and classes together, for each record: time grows with the records."""

MOST_SUMS = 1200
"""Sums and differences whose digits are read, times classes."""

FEW_TURNS = 8
"""Periods within the range that others see as well; longer ones are ranked apart."""

MOST_PAIRED = 24
"""Columns whose sums and differences are read, from the first."""

MOST_COMBED = 300
"""Columns whose combs are searched for, from the first."""

STEPS = 60
"""Digits of a sum, counted from the smallest step that the larger column allows."""

MOST_VALUES = 4096
"""Different values of a column that is read value by value."""

BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""The digits of every byte, (256, 8), lowest first."""


def fit_bit_reader(problem: Problem) -> Fitted:
    """Linear and boosted predictions from the bits and codes that go with the target most.

    Parameters
    ----------
    problem
        Its inputs are released values as they are, not standardised, (n_records, n_columns).

    Notes
    -----
    Read are the mantissa's bits, relative to each value's size, and the bits of the value as a
    multiple of a fixed step. The latter are parities of grids, and values modulo powers of two.
    Read as well are how many trailing zeros either has, the values of the columns concerned, and
    the codes of `find_codes`.
    """
    return _fit(problem, parities.MOST_FACTORS)


def fit_surroundings_reader(problem: Problem) -> Fitted:
    """The same from the surroundings of records, with parities of two bits and no sums.

    Parameters
    ----------
    problem
        Its inputs are those of `expand_surroundings`.
    """
    return _fit(problem, 2)


def _fit(problem: Problem, most_factors: int) -> Fitted:
    # What to read is searched once for all folds that share it: the search takes longest.
    trial = problem.trial or problems.Trial(problem)
    if trial.best is None:
        # What the target says is read as it is: its bits would take the place of others.
        released = trial.problem.read(lambda x: x[:, : x.shape[1] - problem.n_known])
        digits = parities.measure_digits(released.x_train)
        trial.best = _choose_bits(released, digits), find_codes(released, digits, most_factors)
    return problems.choose_best(problem, _train(problem, *trial.best))


def _train(problem: Problem, bits: Features, codes: list[Features]) -> Iterator[Fitted]:
    """Linear predictions from bits and codes and from codes alone; the better one's are boosted."""
    said = f"{len(codes)} codes, " if codes else ""
    known: Features = partial(_read_last, problem.n_known)
    found: list[tuple[float, Problem, str, Features]] = []
    for name, parts in ((f"{MOST_BITS} bits, {said}", [bits, *codes]), (said, codes)):
        if parts:
            read: Features = partial(_read, [*parts, known])
            part = problem.read(read)
            fit = fit_least_squares(part)
            found.append((problems.measure_tuning(part, fit.decide(part.x_tune)), part, name, read))
            yield fit.after(read, name)
    _, part, name, read = max(found, key=lambda one: one[0])
    # Of many classes fewer rounds of larger steps, so that as many trees grow.
    rounds = max(LEAST_ROUNDS, 2 * ROUNDS // max(problem.n_classes or 2, 2))
    yield boost_briefly(part, rounds, LEAVES, learning_rate=PACE / rounds).after(read, name)


def _read(parts: Sequence[Features], x: FloatArray) -> FloatArray:
    return np.hstack([read(x) for read in parts]).astype(np.float64)


def _read_last(n_columns: int, x: FloatArray) -> FloatArray:
    return x[:, x.shape[1] - n_columns :]


def _choose_bits(problem: Problem, digits: parities.Digits) -> Features:
    """What reads the items that go with the target most, and the values of their columns."""
    x, y = problem.x_train[:SCREENED].astype(np.float64), problem.y_train[:SCREENED]
    target = y[:, None] if problem.n_classes is None else problems.one_hot(y, problem.n_classes)
    target = target - target.mean(axis=0)
    spread = np.sqrt((target**2).mean(axis=0))
    target = (target[:, spread > 0] / spread[spread > 0]).astype(np.float32)
    words = digits.split(x, np.arange(x.shape[1]))
    correlation = np.zeros((x.shape[1], parities.N_ITEMS))
    for item in range(parities.N_ITEMS):
        values = parities.item_of(words, item).astype(np.float32)
        mean = values.mean(axis=0, dtype=np.float32)
        if item < parities.BINARY:  # the target's mean is 0: that of a bit takes no part
            size = np.sqrt(mean * (1 - mean))
        else:
            values -= mean
            size = np.sqrt((values**2).mean(axis=0))
        goes = np.abs(values.T @ target).max(axis=1, initial=0.0) / len(x)
        correlation[:, item] = np.divide(goes, size, out=np.zeros_like(goes), where=size > 0)
    best = np.argsort(correlation, axis=None, kind="stable")[::-1][:MOST_BITS]
    places = np.column_stack(np.unravel_index(best, correlation.shape)).astype(np.int64)
    columns = np.unique(places[:, 0])
    scale = problem.x_train[:, columns].std(axis=0, dtype=np.float64)
    centre = problem.x_train[:, columns].mean(axis=0, dtype=np.float64)

    def read(x: FloatArray) -> FloatArray:
        values = x[:, columns].astype(np.float64) - centre
        return np.hstack([digits.read(x, places), values / np.where(scale > 0, scale, 1.0)])

    return read


def find_codes(
    problem: Problem, digits: parities.Digits, most_factors: int = parities.MOST_FACTORS
) -> list[Features]:
    """What reads the codes that hold on both halves of the training records, the clearest first.

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
    x = problem.x_train.astype(np.float64)
    excess, strata = _deduct(x, classes, found)
    codes: list[Features] = [
        *parities.find_parities(x[found], classes[found], strata[found], digits, most_factors),
        *_tabulate(x[found], excess[found]),
    ]
    if most_factors == parities.MOST_FACTORS:
        codes += [*find_combs(x[found], excess[found]), *find_sum_digits(x[found], excess[found])]
    sizes = np.array([_try(code, x, excess, found, tried) for code in codes])
    return [codes[i] for i in np.argsort(-sizes, kind="stable")[:MOST_CODES] if sizes[i] > LEAST]


def _group_classes(problem: Problem) -> IntArray:
    """Classes, or quarters of a number; many classes share `MOST_CLASSES` groups."""
    y = problem.y_train
    if problem.n_classes is None:
        codes = np.searchsorted(np.unique(np.quantile(y, [0.25, 0.5, 0.75])), y)
    else:
        sizes = np.bincount(y.astype(np.int64), minlength=problem.n_classes)
        codes = np.argsort(np.argsort(-sizes, kind="stable"))[y.astype(np.int64)]
    return np.asarray(np.unique(codes % MOST_CLASSES, return_inverse=True)[1], np.int64)


def _deduct(x: FloatArray, classes: IntArray, found: IntArray) -> tuple[FloatArray, IntArray]:
    """Classes beyond what trees predict, (n_records, n_classes), and strata of predictions."""
    trees = HistGradientBoostingClassifier(
        max_iter=EXPECTED_ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False
    ).fit(x[found, :TREE_COLUMNS], classes[found])
    share = np.zeros((len(x), int(classes.max()) + 1))
    # Trees know the classes of the half that they learned from.
    share[:, trees.classes_] = trees.predict_proba(x[:, :TREE_COLUMNS])
    if share.shape[1] == 2:
        cuts = np.unique(np.quantile(share[found, 1], np.arange(1, N_STRATA) / N_STRATA))
        strata = np.searchsorted(cuts, share[:, 1])
    else:
        strata = share.argmax(axis=1)
    return problems.one_hot(classes.astype(np.float64), share.shape[1]) - share, strata


def _try(code: Features, x: FloatArray, over: FloatArray, found: IntArray, test: IntArray) -> float:
    """How surely a code goes with classes of records that it was not found on, in errors."""
    columns = code(x)
    columns = columns - columns[found].mean(axis=0)
    gram = columns[found].T @ columns[found]
    # Columns of a code may be equal or constant: a sine and a cosine of one value, say.
    gram.flat[:: len(gram) + 1] += 1e-6 * max(float(np.trace(gram)), 1e-300)
    guess = columns[test] @ linalg.solve(gram, columns[found].T @ over[found], assume_a="pos")
    won = ((guess - guess.mean(axis=0)) * over[test]).sum(axis=1)
    return float(won.sum() / max(np.sqrt((won**2).sum()), 1e-300))


def _tabulate(x: FloatArray, excess: FloatArray) -> Iterator[Features]:
    """What reads columns of few values, value by value."""
    for j in range(x.shape[1]):
        values, at = np.unique(x[:, j], return_inverse=True)
        # Two values are a bit, which is searched for; of many each has a few records.
        if 2 < len(values) <= min(MOST_VALUES, len(x) // 4):
            sums = np.zeros((len(values) + 1, excess.shape[1]))
            np.add.at(sums, at, excess)
            sizes = np.bincount(at, minlength=len(values) + 1)[:, None]
            # Rare values are not believed, and one that was not there says nothing.
            yield partial(read_table, j, values, sums / (sizes + 1))


def read_table(column: int, values: FloatArray, shares: FloatArray, x: FloatArray) -> FloatArray:
    """Mean excess of the value of each record, (n_records, n_classes).

    Parameters
    ----------
    column
    values : (n_values,)
        In order.
    shares : (n_values + 1, n_classes)
        Of each, the last of values that were not there.
    x : (n_records, n_columns)
    """
    mine = x[:, column].astype(np.float64)
    at = np.minimum(np.searchsorted(values, mine), len(values) - 1)
    return np.asarray(shares[np.where(values[at] == mine, at, len(values))])


Pair = tuple[int, int, int]
"""Two columns and the sign of the second; 0 for the first alone."""


def add_up(x: FloatArray, pair: Pair) -> FloatArray:
    """The column, sum or difference, (n_records,)."""
    one, other, sign = pair
    value = x[:, one].astype(np.float64)
    return value + sign * x[:, other] if sign else value


def _list_pairs(n_columns: int) -> list[Pair]:
    """Sums and differences of all pairs of the first columns."""
    return [(i, j, sign) for i, j in combinations(range(n_columns), 2) for sign in (1, -1)]


def read_comb(pair: Pair, frequency: float, x: FloatArray) -> FloatArray:
    """Where in its period a value lies: cosine and sine of the place, (n_records, 2)."""
    turn = 2 * np.pi * ((add_up(x, pair) * frequency) % 1.0)
    return np.column_stack([np.cos(turn), np.sin(turn)])


def read_sum_digit(pair: Pair, exponent: int, place: int, x: FloatArray) -> FloatArray:
    """One binary digit of the exact sum of two columns, (n_records, 1), 1 or -1.

    Parameters
    ----------
    pair
        Of what columns.
    exponent
        Of the larger one's largest value.
    place
        Of the digit, from the smallest.
    x : (n_records, n_columns)
    """
    return 1.0 - 2.0 * ((_sum_exactly(x, pair, exponent) >> place) & 1).astype(np.float64)[:, None]


def _list_largest(found: Iterable[tuple[float, Any]]) -> list[Any]:
    return [one for _, one in sorted(found, key=lambda each: -each[0])[:MOST_CODES]]


def find_combs(x: FloatArray, excess: FloatArray) -> Iterator[Features]:
    """What reads the combs that go with a class most.

    Parameters
    ----------
    x : (n_records, n_columns)
        Values as they are released.
    excess : (n_records, n_classes)
        One for a record's class, less what is expected of it.

    Notes
    -----
    Of 8,192 records, 20 columns and two classes it reads steps down to about a 260,000th of a
    column's range. Of a sum's range it is a 16,000th. Beyond `MOST_PLACES` steps are coarser in
    proportion.
    """
    columns: list[Pair] = [(j, j, 0) for j in range(min(x.shape[1], MOST_COMBED))]
    pairs = _list_pairs(min(x.shape[1], MOST_PAIRED))
    bands: tuple[list[tuple[float, tuple[Pair, float]]], ...] = ([], [])
    n_classes = max(excess.shape[1] - 1, 1)
    for n_places, chosen in ((FINE, columns), (COARSE, pairs)):
        while n_places * len(chosen) * n_classes > MOST_PLACES * len(x) and n_places > 1 << 10:
            n_places //= 2
        for pair in chosen:
            peaks = _find_peaks(add_up(x, pair), excess, n_places)
            for band, (size, frequency) in zip(bands, peaks, strict=False):
                band.append((size, (pair, frequency)))
    for band in bands:
        for pair, frequency in _list_largest(band):
            yield _sharpen(pair, frequency, x, excess)


def _find_peaks(values: FloatArray, excess: FloatArray, bins: int) -> Iterator[tuple[float, float]]:
    """Size and frequency of the largest peak of many periods, and of that of few."""
    low, high = float(values.min()), float(values.max())
    # Twice the range: a spectrum of the range alone has no period between two of its own.
    length = 2 * (high - low)
    if not length * sys.float_info.max > bins:  # constant, or no frequency is a number
        return
    places = np.minimum(((values - low) / length * bins).astype(np.int64), bins - 1)
    power = np.zeros(bins // 2 + 1, np.float32)
    for column in excess.T[1:] if excess.shape[1] == 2 else excess.T:  # two classes are one
        spectrum = scipy.fft.rfft(np.bincount(places, column, bins).astype(np.float32))
        power += spectrum.real**2 + spectrum.imag**2
    many = 2 * FEW_TURNS
    for first, last in ((many, bins // 2), (1, many)):
        best = first + int(np.argmax(power[first:last]))
        yield float(power[best]), best / length


def _sharpen(pair: Pair, frequency: float, x: FloatArray, excess: FloatArray) -> Features:
    """The best of frequencies between two steps of the spectrum."""
    step = 0.5 / float(np.ptp(add_up(x, pair)))
    near = [frequency + share * step for share in np.linspace(-0.75, 0.75, 7)]
    combs = [partial(read_comb, pair, one) for one in near]
    return max(combs, key=lambda read: float(((read(x).T @ excess) ** 2).sum()))


def find_sum_digits(x: FloatArray, excess: FloatArray) -> list[Features]:
    """What reads the digits of exact sums and differences of two columns that go with a class most.

    Parameters as in `find_combs`.
    """
    n_paired = min(x.shape[1], MOST_PAIRED, int(np.sqrt(MOST_SUMS / max(excess.shape[1] - 1, 1))))
    exponents = np.frexp(np.abs(x[:, :n_paired]).max(axis=0).astype(np.float64))[1]
    weights = np.column_stack([excess, np.ones(len(x))])
    found: list[tuple[float, Features]] = []
    for pair in _list_pairs(n_paired):
        exponent = int(max(exponents[pair[0]], exponents[pair[1]]))
        sums = sum_by_digit(_sum_exactly(x, pair, exponent), weights)
        share = sums[:, -1] / len(x)
        size = (sums[:, :-1] ** 2).sum(axis=1) / np.maximum(share * (1 - share), 1e-3)
        best = np.argsort(-size, kind="stable")[:2].tolist()
        found += [(size[k], partial(read_sum_digit, pair, exponent, k)) for k in best]
    return _list_largest(found)


def _sum_exactly(x: FloatArray, pair: Pair, exponent: int) -> IntArray:
    """Sums of multiples of a step, modulo 2^64."""
    one, other, sign = pair
    parts = [np.ldexp(x[:, j].astype(np.float64), STEPS - exponent) for j in (one, other)]
    whole = [np.rint(np.clip(part, -(2.0**62), 2.0**62)).astype(np.int64) for part in parts]
    return np.asarray(whole[0] + sign * whole[1])


def sum_by_digit(words: IntArray, weights: FloatArray) -> FloatArray:
    """Sum of the weights of the words that have each digit, (64, n_weights), lowest first.

    Parameters
    ----------
    words : (n_records,)
    weights : (n_records, n_weights)
    """
    # By the values of each byte first: eight counts of 256 instead of 64 bits of every word.
    values = words.astype("<i8").view(np.uint8).reshape(-1, 8)
    sums = [[np.bincount(byte, one, minlength=256) for one in weights.T] for byte in values.T]
    return np.concatenate([(np.array(of_byte) @ BYTES).T for of_byte in sums])
