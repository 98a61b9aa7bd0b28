"""Sums that show how much each released column reveals in one place: a chunk, a partition, a group.

A contrast is a class of a confidential variable against the others, centred within the strata of
the desired variables. Of a number it is what is above a quartile of its place. Its scalar product
with a bounded function of a released column adds up over places. Columns of codes are counted by
category. Measured columns have two functions, that see a shift and a change of spread, of the
column in units of its own place. No scale is shared, and no tail is heavy.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.protocols import AnyArray, ArrayLike, BoolArray, Column, FloatArray, IntArray

MOST_CLASSES = 32
"""Contrasts of a variable; codes beyond are folded onto these."""

MOST_CODES = 63
"""Categories of a released column, missing ones apart; codes beyond are folded onto these."""

MOST_BINS = 16
"""Strata of a desired number, and bins of a released one."""

QUARTERS = (0.25, 0.5, 0.75)

SCALE_RECORDS = 64
"""Records of a place that give the middle and the spread of a measured column."""


@dataclass(frozen=True, eq=False)
class PlaceSums:
    """The sums of some places, one after the other; places are merged by adding theirs.

    Parameters
    ----------
    chunk, partition : (n_places,)
        Where; the partition is -1 where a chunk holds too many to be distinguished.
    information : (n_places, 2, n_contrasts)
        Sum of squares of each contrast, over the records whose measured columns were read and over
        all.
    proxy : (n_places, 2, n_contrasts)
        The same, times how often neighbouring records repeat one another's label: in the place of
        a variance.
    measured : (n_places, n_contrasts, 2, n_measured)
        Contrast times function of a measured column.
    coded : (n_places, n_contrasts, n_codes)
        Sum of each contrast over the records of each category of each column of codes.
    """

    chunk: IntArray
    partition: IntArray
    information: FloatArray
    proxy: FloatArray
    measured: FloatArray
    coded: FloatArray

    @classmethod
    def concatenate(cls, parts: "Sequence[PlaceSums]") -> "PlaceSums":
        """The places of all, in order."""
        names = [one.name for one in fields(cls)]
        return cls(*(np.concatenate([getattr(one, name) for one in parts]) for name in names))

    def take(self, places: BoolArray) -> "PlaceSums":
        """Some of the places."""
        return PlaceSums(*(getattr(self, one.name)[places] for one in fields(self)))

    def add_up(self, place: IntArray, n_places: int) -> "PlaceSums":
        """Sums of larger places, `place` being the larger one of each; -1 is of none."""
        mine = np.flatnonzero(place >= 0)
        totals = []
        for sums in (self.information, self.proxy, self.measured, self.coded):
            totals.append(np.zeros((n_places, *sums.shape[1:])))
            np.add.at(totals[-1], place[mine], sums[mine])
        return PlaceSums(np.arange(n_places), np.arange(n_places), *totals)


def list_contrasts(columns: Iterable[Column]) -> list[str]:
    """The variable of each contrast, in order.

    >>> list_contrasts([Column("sex", 2), Column("job", 3), Column("age")])
    ['sex', 'job', 'job', 'job', 'age', 'age', 'age']
    """
    return [column.name for column in columns for _ in range(_count_contrasts(column))]


def _count_contrasts(column: Column) -> int:
    if column.n_categories is None:
        return len(QUARTERS)
    return 1 if column.n_categories <= 2 else min(column.n_categories, MOST_CLASSES)


def count_codes(n_categories: int | None) -> int:
    """Codes of a released column that `code_column` makes, missing ones included."""
    return 1 + (MOST_BINS if n_categories is None else min(n_categories, MOST_CODES))


def code_column(values: AnyArray, n_categories: int | None) -> IntArray:
    """Codes ``0 .. count_codes - 1`` of a released column of one place, 0 where it is missing."""
    if n_categories is None:
        numbers = values.astype(np.float64)
        return np.where(np.isnan(numbers), 0, 1 + _cut(numbers, MOST_BINS))
    codes = values.astype(np.int64)
    return np.where(codes < 0, 0, 1 + codes % MOST_CODES)


def sum_place(
    contrasts: Sequence[tuple[Column, FloatArray]],
    desired: Sequence[tuple[Column, FloatArray]],
    measured: AnyArray,
    rows: IntArray,
    codes: Sequence[tuple[IntArray, int]],
    *,
    chunk: int = 0,
    partition: int = 0,
) -> PlaceSums:
    """The sums of one place.

    Parameters
    ----------
    contrasts, desired
        Confidential and desired variables, (n_records,) each; codes or numbers, NaN where missing.
    measured : (n_records, n_measured)
        Released measured columns, finite in the records `rows`.
    rows
        Numbers of the records whose measured columns are read, ascending.
    codes
        Codes of each other released column, (n_records,), and how many there may be.
    chunk, partition
        Where.
    """
    of_rows = rows
    if not codes:  # then the records that are read are all that counts
        contrasts, desired = (
            [(column, values[rows]) for column, values in some] for some in (contrasts, desired)
        )
        of_rows = np.arange(len(rows))
    strata = _find_strata(desired)
    classes = np.hstack([_split_classes(column, values) for column, values in contrasts])
    if not desired:
        strata = np.zeros(len(classes), np.int64)
    some = _centre(classes[of_rows], strata[of_rows])
    whole = _centre(classes, strata) if codes else some
    # Records in order may repeat one label in runs: counted one by one they would prove too much.
    proxy = _inflate(some)
    sums = [np.bincount(code, weights=one, minlength=n) for one in whole.T for code, n in codes]
    coded = np.concatenate(sums) if sums else np.empty(0)
    squares = np.array([[(some**2).sum(axis=0), (whole**2).sum(axis=0)]])
    proxies = np.array([[proxy, _inflate(whole) if codes else proxy]])
    table = coded.reshape(1, whole.shape[1], sum(n for _, n in codes)).astype(np.float32)
    scores = _score_measured(measured, rows, some)[None]
    return PlaceSums(np.array([chunk]), np.array([partition]), squares, proxies, scores, table)


def _split_classes(column: Column, values: FloatArray) -> FloatArray:
    """Contrasts of a variable as columns of 0 and 1, NaN where it is missing."""
    n = _count_contrasts(column)
    if column.n_categories is None:
        split = (values[:, None] > _find_quantiles(values, QUARTERS)).astype(np.float64)
    else:
        first = 1 if n == 1 else 0
        split = ((values % MOST_CLASSES)[:, None] == np.arange(first, first + n)).astype(np.float64)
    split[np.isnan(values)] = np.nan
    return split


def _find_strata(desired: Sequence[tuple[Column, FloatArray]]) -> IntArray:
    """One number per combination of desired values; numbers are cut at their quantiles."""
    n_bins = max(2, MOST_BINS // max(1, sum(column.n_categories is None for column, _ in desired)))
    strata: IntArray = np.zeros(len(desired[0][1]) if desired else 0, np.int64)
    for column, values in desired:
        missing = np.isnan(values)
        known = np.where(missing, 0, values)
        codes = known.astype(np.int64) if column.is_categorical else _cut(values, n_bins)
        # One more than the codes, for missing values are a stratum: combinations may not collide.
        strata = strata * (int(codes.max(initial=0)) + 2) + np.where(missing, 0, codes + 1)
        if strata.max(initial=0) > 2**16:
            # Numbered anew before products of many variables overflow.
            strata = np.unique(strata, return_inverse=True)[1]
    return strata


def _cut(values: FloatArray, n_bins: int) -> IntArray:
    """Bins of about equally many values."""
    shares = np.arange(1, n_bins) / n_bins
    return np.searchsorted(_find_quantiles(values, shares), values, side="left").clip(0, n_bins - 1)


def _find_quantiles(values: FloatArray, shares: ArrayLike) -> FloatArray:
    """Quantiles by an even choice of the values that are there; none where none is."""
    # A thousand values give quantiles as well; every place would sort all of its own otherwise.
    some = np.sort(values[:: max(1, len(values) // 1024)])
    some = some[~np.isnan(some)]
    if not len(some):
        return np.zeros(np.size(shares))
    return np.asarray(some[(np.asarray(shares) * len(some)).astype(np.int64)])


def _centre(classes: FloatArray, strata: IntArray) -> FloatArray:
    """Contrasts less their mean within the stratum; 0 where the class is missing."""
    centred = np.empty_like(classes)
    for k, values in enumerate(classes.T):
        missing = np.isnan(values)
        known = np.where(missing, 0.0, values)
        n = np.bincount(strata, weights=~missing, minlength=1)
        mean = np.bincount(strata, weights=known, minlength=1) / np.maximum(n, 1)
        centred[:, k] = np.where(missing, 0.0, known - mean[strata])
    return centred


def _inflate(centred: FloatArray) -> FloatArray:
    """Sum of squares, times (1 + r) / (1 - r) of their correlation with the record before.

    Records that follow one another with the same label may be much alike, and count as few.
    """
    squares = (centred**2).sum(axis=0)
    repeated = (centred[1:] * centred[:-1]).sum(axis=0) / np.maximum(squares, 1e-300)
    r = np.clip(repeated - 2 / np.sqrt(max(1, len(centred))), 0, 1 - 1 / (len(centred) + 1))
    return np.asarray(squares * (1 + r) / (1 - r))


def _score_measured(x: AnyArray, rows: IntArray, centred: FloatArray) -> FloatArray:
    """(n_contrasts, 2, n_measured): each contrast by two functions of each column, within -1 to 1.

    With z the column from its middle, in half distances of its quartiles: z within these limits,
    and ``abs(z) - 1`` within them.
    """
    n, d = len(rows), x.shape[1]
    scores = np.zeros((centred.shape[1], 2, d), np.float32)
    if not n or not d:
        return scores
    if x.dtype not in (np.float32, np.float64):
        x, rows = x[rows].astype(np.result_type(x, np.float32)), np.arange(n)
    some = np.sort(x[rows[:: -(-n // SCALE_RECORDS)]], axis=0)  # a partition takes eight times it
    low, high = some[len(some) // 4], some[3 * len(some) // 4]
    middle = low / 2 + high / 2
    # A column with one value in most records is cut into below, at and above it.
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.minimum(1 / (high / 2 - low / 2), np.finfo(x.dtype).max)
    _add_scores(x, rows, middle, inverse, centred.astype(np.float32), scores)
    return scores


# One pass over rows that lie far apart: NumPy took a copy of them and seven passes over that, two
# thirds of all that places cost. Reordered sums are no matter: nothing of them is released.
@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _add_scores(
    x: FloatArray, rows: IntArray, mid: FloatArray, scale: FloatArray, w: AnyArray, scores: AnyArray
) -> None:
    """Add each contrast times both functions of each column."""
    d = x.shape[1]
    shift, spread = np.empty(d, np.float32), np.empty(d, np.float32)
    for i in range(rows.size):
        row = rows[i]
        for j in range(d):
            z = (x[row, j] - mid[j]) * scale[j]
            # The size less 1, of which a centred contrast sees nothing.
            spread[j] = min(abs(z), 2.0)
            shift[j] = min(max(z, -1.0), 1.0)
        for k in range(w.shape[1]):
            weight = w[i, k]
            for j in range(d):
                scores[k, 0, j] += weight * shift[j]
                scores[k, 1, j] += weight * spread[j]


def add_total(sums: PlaceSums) -> PlaceSums:
    """All places as one."""
    return sums.add_up(np.zeros(len(sums.chunk), np.int64), 1)


@dataclass(frozen=True, eq=False)
class PlaceTest:
    """The test of places against the rest of a release.

    Parameters
    ----------
    total
        All places as one; see `add_total`.
    n_codes
        Codes of each column of codes.
    n_places
        How many places are tested in all, of every size.
    allowed
        Advantage beyond the rest that is allowed.
    level
        Confidence of all tests together.
    """

    total: PlaceSums
    n_codes: tuple[int, ...]
    n_places: int
    allowed: float
    level: float

    @property
    def n_columns(self) -> int:
        """Columns that are distinguished: two of each measured one, then those of codes."""
        return 2 * int(self.total.measured.shape[3]) + len(self.n_codes)

    @property
    def _log_tests(self) -> float:
        tests = 2 * self.n_places * self.total.measured.shape[1] * max(1, self.n_columns)
        return math.log(tests) - math.log1p(-self.level)

    @property
    def _sets(self) -> FloatArray:
        """Logarithm of the number of sets of categories among which the worst is chosen."""
        measured = np.zeros(2 * self.total.measured.shape[3])
        return np.concatenate([measured, np.log(2) * np.array(self.n_codes, float)])

    def find_excess(self, places: PlaceSums) -> tuple[FloatArray, FloatArray]:
        """Advantage of each place, and by how much that of the rest it surely exceeds.

        Returns
        -------
        advantage : (n_places, n_contrasts, n_columns)
            Estimate in the place.
        excess : (n_places, n_contrasts, n_columns)
            Lower limit of what it is beyond that of the rest; minus infinity where nothing is
            known of either. All limits hold together with the confidence `level`.
        """
        mine, others, radius = self._compare(places)
        with np.errstate(invalid="ignore"):
            excess = np.where(np.isfinite(radius), mine - others - radius, -np.inf)
        return mine, excess

    def finds_copies(self, places: PlaceSums) -> BoolArray:
        """Whether a column that equals the contrast in one place alone would be found.

        (n_places, n_contrasts). The column is one of codes or, where there is none, a measured
        one.
        """
        *_, radius = self._compare(places)
        columns = slice(None) if not self.n_codes else slice(-len(self.n_codes), None)
        return np.asarray((radius[:, :, columns] < 1 - self.allowed).all(axis=2))

    def _compare(self, places: PlaceSums) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Advantage in each place and in its rest, and how far their difference may be wrong."""
        rest = _subtract(self.total, places)
        mine, error = self._estimate(places)
        others, other_error = self._estimate(rest)
        # Hoeffding: exp(-r^2 / 2 error) for each of all tests, whose logarithms add up.
        return mine, others, np.sqrt(2 * (error + other_error) * (self._log_tests + self._sets))

    def _estimate(self, places: PlaceSums) -> tuple[FloatArray, FloatArray]:
        """Advantage by each column, and the proxy of its variance."""
        n, k, _, d = places.measured.shape
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1 / (2 * places.information)
            error = places.proxy * half**2
        error = np.where(places.information > 0, error, np.inf)
        half = np.where(places.information > 0, half, 0.0)
        measured = np.abs(places.measured).reshape(n, k, 2 * d) * half[:, 0, :, None]
        coded = np.zeros((n, k, 0))
        if self.n_codes:  # the worst set of categories is those of one sign: half of all sizes
            starts = np.cumsum([0, *self.n_codes[:-1]])
            coded = np.add.reduceat(np.abs(places.coded), starts, axis=2) * half[:, 1, :, None]
        errors = np.repeat(error, [2 * d, len(self.n_codes)], axis=1).swapaxes(1, 2)
        return np.concatenate([measured, coded], axis=2), errors


def _subtract(total: PlaceSums, places: PlaceSums) -> PlaceSums:
    """The rest of each place; never less information than none, whatever rounding leaves."""
    information = np.maximum(total.information - places.information, 0)
    proxy = np.maximum(total.proxy - places.proxy, 0)
    measured, coded = total.measured - places.measured, total.coded - places.coded
    return PlaceSums(places.chunk, places.partition, information, proxy, measured, coded)
