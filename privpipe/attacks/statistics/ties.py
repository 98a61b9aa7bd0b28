"""Records that are equal, and so no two witnesses: they stay on one side of every split.

Whoever saw one of two equal records when training knows the other's label by heart. They count as
often as they occur, and as one unit of an interval. Where a table has no more profiles than
records, equal rows are no repeats but what such a table is made of: there each counts for itself.
"""

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import IntArray


def find_ties(
    released: npt.NDArray[np.generic], raw: npt.NDArray[np.generic] | None = None
) -> IntArray | None:
    """Number the sets of records that are equal, raw or released, directly or by others.

    Parameters
    ----------
    released, raw : (n_records, any)
        Numbers; rows that are not finite are equal to no other. Of raw records of few profiles
        no two are tied, whatever is released of them.

    Returns
    -------
    ties : (n_records,), optional
        None where no two records are tied.

    Examples
    --------
    >>> find_ties(np.array([[.1, 7.0], [.3, 5.0], [.1, 7.0], [.6, 1.0]]))
    array([0, 1, 0, 2])
    """
    given = [released] if raw is None else [raw, released]
    found = list[IntArray]()
    for table in given:
        if (codes := _number_equal(table)) is None:
            continue
        if not has_few_profiles(table[find_finite_rows(table)]):
            found.append(codes)
        # Of few profiles equal raw records are other people: released ones are equal for that
        # reason.
        elif table is raw:
            return None
    if not found:
        return None
    n = len(released)
    rows = np.tile(np.arange(n), len(found))
    columns = np.concatenate([n + i * n + codes for i, codes in enumerate(found)])
    size = n * (1 + len(found))
    # Records and profiles as a graph: who is equal raw to one and released to another ties both.
    links = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(size, size))
    codes = connected_components(links, directed=False)[1][:n]
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def has_few_profiles(table: npt.NDArray[np.generic]) -> bool:
    """Whether columns that had nothing to do with one another would have equal rows as well.

    Their typical rows are ``exp`` of the sum of the columns' entropies; of no more of these than
    there are records, some come twice whoever the records are.

    >>> random = np.random.default_rng(0)
    >>> has_few_profiles(random.integers(0, 2, (2000, 10)))
    True
    >>> has_few_profiles(np.repeat(random.normal(size=(20, 10)), 100, axis=0))
    False
    """
    # The logarithm of records per typical row: below 0 repeats are no chance.
    room = float(np.log(max(len(table), 1)))
    for column in table.T:
        counts = np.unique(column, return_counts=True)[1] / len(table)
        room += float(counts @ np.log(counts))
        if room < 0:
            return False
    return True


def _number_equal(table: npt.NDArray[np.generic]) -> IntArray | None:
    """Codes of equal rows, below the number of rows; None where no two are equal."""
    if table.ndim != 2 or not table.shape[1]:
        return None
    held = find_finite_rows(table)
    words = identify_records(np.asarray(table[held], np.float64))
    kinds, first, places = np.unique(words, return_index=True, return_inverse=True)
    if len(kinds) == len(words):
        return None
    codes = np.arange(len(table))
    codes[held] = np.flatnonzero(held)[first][places]
    return codes
