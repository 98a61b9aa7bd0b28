"""Categorical draws: one 64-bit word compared with whole-number thresholds, never with floats."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.compiler import compiled
from privpipe.protocols import FloatArray, IntArray, WordArray

_SUM_TOLERANCE = 1e-9
_RUN = 512


@dataclass(frozen=True, eq=False)
class CategoryTable:
    """Some categorical laws, each cut into runs of 64-bit words.

    Law i has the entries k from ``bounds[i]`` to before ``bounds[i + 1]``. Category ``codes[k]``
    has the words from ``starts[k]`` to before ``starts[k + 1]``. The last entry of a law has them
    to the last word. Categories without a word are left out. Made by `tabulate_categories`.

    Parameters
    ----------
    bounds : (n_laws + 1,), int64
        Where each law begins.
    codes : (n_entries,), int64
        Categories, in the order of the words.
    starts : (n_entries,), uint64
        First word of each; 0 for the first of each law.
    """

    bounds: IntArray
    codes: IntArray
    starts: WordArray

    @property
    def n_laws(self) -> int:
        return len(self.bounds) - 1


def tabulate_categories(bounds: IntArray, codes: IntArray, shares: FloatArray) -> CategoryTable:
    """Cut laws given as in a sparse matrix by columns into runs of words.

    Parameters
    ----------
    bounds : (n_laws + 1,), integer
        Where the entries of each law begin: ``indptr`` of a CSC matrix whose columns are laws.
    codes : (n_entries,), integer
        Category of each entry: ``indices`` of that matrix.
    shares : (n_entries,)
        Its probability: ``data``. Each law sums to 1 within 1e-9.

    Raises
    ------
    InputError
        If a law is empty, has a negative or non-finite probability, or another sum.

    Notes
    -----
    Guarantee: each category but a law's most probable one has probability ``floor(p * n) / n``
    exactly, n = 2**64. So it has at most ``1 / n`` less than given, and none when p is 0. The most
    probable one has the rest. The total variation distance from the law given is at most
    ``n_entries_of_the_law / n + abs(1 - sum(p))``.

    Examples
    --------
    >>> table = tabulate_categories(np.array([0, 3]), np.array([7, 8, 9]), np.array([0.5, 0, 0.5]))
    >>> table.codes, table.starts
    (array([7, 9]), array([                  0, 9223372036854775808], dtype=uint64))
    """
    edges = np.ascontiguousarray(bounds, np.int64)
    p = np.ascontiguousarray(shares, np.float64)
    _check_laws(edges, np.asarray(codes), p)
    masses, largest = np.empty(len(p), np.uint64), np.empty(len(edges) - 1, np.int64)
    _share_words(edges, p, masses, largest)
    used = masses > 0
    used[largest] = True  # all 2**64 words are written as 0
    counted = np.concatenate([[0], np.cumsum(used)])
    before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(masses, dtype=np.uint64)])
    starts = before[:-1] - np.repeat(before[edges[:-1]], np.diff(edges))  # modulo 2**64
    named = np.asarray(codes)[used].astype(np.int64)
    return CategoryTable(counted[edges].astype(np.int64), named, starts[used])


def draw_categories(words: WordArray, table: CategoryTable, laws: IntArray) -> IntArray:
    """Draw a category per record, one word each.

    Parameters
    ----------
    words : (n_records, 1)
        Uniform words of a stream.
    table
        The laws.
    laws : (n_records,), integer
        Number of each record's law.

    Returns
    -------
    categories : (n_records,)
        Codes of the categories drawn.

    Raises
    ------
    InputError
        If the shapes do not fit or a law's number is not in the table.

    Examples
    --------
    >>> coin = tabulate_categories(np.array([0, 2]), np.array([0, 1]), np.array([0.25, 0.75]))
    >>> draw_categories(np.array([[2**62 - 1], [2**62]], np.uint64), coin, np.array([0, 0]))
    array([0, 1])
    """
    numbers = np.asarray(laws)
    if words.shape != (len(numbers), 1) or numbers.ndim != 1:
        remedy = "Request one word per record of the stream, and name one law per record."
        raise InputError(f"words has shape {words.shape}, laws {numbers.shape}.", remedy=remedy)
    if len(numbers) and not (0 <= numbers.min() and numbers.max() < table.n_laws):
        problem = f"A record's law is not among the {table.n_laws} of the table."
        raise InputError(problem, remedy="Withhold records of unknown symbols before drawing.")
    out = np.empty(len(numbers), np.int64)
    flat = np.ascontiguousarray(words, np.uint64).reshape(-1)
    _pick(flat, table.bounds, table.codes, table.starts, numbers.astype(np.int64), out)
    return out


@compiled
def _share_words(bounds: Any, p: Any, masses: Any, largest: Any) -> None:
    """Words of each category: floor(p 2**64), the rest to the first most probable one."""
    for law in range(len(bounds) - 1):
        top, total = bounds[law], np.uint64(0)
        for k in range(bounds[law], bounds[law + 1]):
            if p[k] > p[top]:
                top = k
        for k in range(bounds[law], bounds[law + 1]):
            if k != top:
                # Times 2**64 is exact for a float, and the conversion rounds down: floor(p 2**64)
                # words.
                masses[k] = np.uint64(p[k] * 18446744073709551616.0)
                total += masses[k]
        # Modulo 2**64: what is left of all words. So every word belongs to a category.
        masses[top] = np.uint64(0) - total
        largest[law] = top


@compiled
def _pick(words: Any, bounds: Any, codes: Any, starts: Any, laws: Any, out: Any) -> None:
    """Per record the last entry of its law whose start is not beyond its word.

    One step of the binary searches of a run of records after another. A search alone waits for
    memory and for its branches, and is four times slower.
    """
    low, left = np.empty(_RUN, np.uint64), np.empty(_RUN, np.uint64)
    one = np.uint64(1)
    for start in range(0, len(words), _RUN):
        count = min(_RUN, len(words) - start)
        widest = one
        for i in range(count):
            law = laws[start + i]
            low[i] = np.uint64(bounds[law])
            left[i] = np.uint64(bounds[law + 1] - bounds[law])
            widest = max(widest, left[i])
        while widest > one:
            for i in range(count):
                half = left[i] >> one
                middle = low[i] + half
                low[i] = middle if starts[middle] <= words[start + i] else low[i]
                left[i] -= half
            widest -= widest >> one
        for i in range(count):
            out[start + i] = codes[low[i]]


def _check_laws(bounds: IntArray, codes: IntArray, p: FloatArray) -> None:
    fits = bounds.ndim == 1 and len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == len(p)
    if not fits or codes.shape != p.shape or np.any(np.diff(bounds) < 1):
        problem = f"{len(p)} probabilities do not make {len(bounds) - 1} laws."
        raise InputError(problem, remedy="Give every law at least one entry, as a CSC matrix does.")
    if not np.all((p >= 0) & (p <= 1 + _SUM_TOLERANCE)):
        problem = "A probability is negative, above 1 or not finite."
        raise InputError(problem, remedy="Use values from 0 to 1.")
    off = np.abs(np.add.reduceat(p, bounds[:-1]) - 1) if len(p) else np.zeros(0)
    if np.any(off > _SUM_TOLERANCE):
        problem = f"{np.count_nonzero(off > _SUM_TOLERANCE)} laws do not sum to 1."
        raise InputError(problem, remedy="Divide each by its sum.")
