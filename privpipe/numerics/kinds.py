"""Whether whole numbers are classes or numbers: one rule, where no one has said.

Text and truth values are classes, numbers with a decimal type are numbers. Integers may be either:
with at most `MOST_CODES` different values, none below -1, they are read as classes, else as
numbers. Beside two other classes -1 is missing. Whoever reads integers other than 0 and 1 so has
guessed, and says so (`GuessWarning`).
"""

import math
import warnings

import numpy as np

from privpipe.errors import GuessWarning
from privpipe.protocols import AnyArray, FloatArray, IntArray

MOST_CODES = 64
"""Most different values of integers that are read as classes."""


def is_large(values: AnyArray) -> bool:
    """Whether some numbers are so large that float64 does not hold every whole one.

    >>> is_large(np.array([1.0, np.nan], np.float16)), is_large(np.array([-(2**53)]))
    (False, True)
    """
    # As float64: of float16 the bound would overflow, and the least int64 has no absolute value.
    return bool((np.abs(values, dtype=np.float64) >= 2**53).any())


def are_classes(kinds: AnyArray) -> bool:
    """The rule itself, for the different values of integers, ascending.

    >>> are_classes(np.arange(-1, 10)), are_classes(np.arange(65)), are_classes(np.array([-5, 5]))
    (True, False, False)
    """
    return len(kinds) <= MOST_CODES and bool((kinds >= -1).all())


def guess_classes(values: IntArray, name: str, remedy: str) -> bool:
    """Whether integers are classes; says so where they could be either.

    Integers below -1 are never classes.

    Parameters
    ----------
    values : (n_records,)
        Integers.
    name
        The variable, for the warning.
    remedy
        How to say what they are.

    Warns
    -----
    GuessWarning
        If there are other values than 0 and 1.

    Examples
    --------
    >>> guess_classes(np.array([0, 1, 1]), "smoker", "")
    True
    """
    kinds = np.unique(values)
    found = are_classes(kinds)
    if kinds.tolist() not in ([0], [1], [0, 1]):
        gone = ", -1 being missing" if found and has_missing(kinds) else ""
        warnings.warn(
            f"{name} holds integers of {len(kinds)} different values, which are read as "
            f"{'classes' if found else 'numbers'}{gone}. {remedy}",
            GuessWarning,
            stacklevel=4,
        )
    return found


def has_missing(kinds: AnyArray) -> bool:
    """Whether -1 means that there is no class: it is the least of at least three.

    >>> has_missing(np.array([-1, 1])), has_missing(np.array([-1, 0, 1]))
    (False, True)
    """
    return len(kinds) > 2 and int(kinds[0]) == -1


def code_classes(values: AnyArray) -> tuple[FloatArray, AnyArray]:
    """Classes as codes in their order, NaN where missing; and the classes.

    Parameters
    ----------
    values : (n_records,)
        Text, integers, -1 where missing (see `has_missing`), or floating numbers, NaN where
        missing.

    Examples
    --------
    >>> code_classes(np.array([7, -1, 3]))
    (array([ 1., nan,  0.]), array([3, 7]))
    """
    gone = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if values.dtype.kind in "iu" and has_missing(np.unique(values)):
        gone = values == -1
    kinds, places = np.unique(values[~gone], return_inverse=True)
    codes = np.full(len(values), np.nan)
    codes[~gone] = places
    return codes, kinds


def find_distinct_rows(table: IntArray) -> tuple[IntArray, IntArray]:
    """The rows that occur, ascending, and which of them each row is.

    Parameters
    ----------
    table : (n_rows, n_columns)

    Returns
    -------
    distinct : (n_distinct, n_columns)
    places : (n_rows,)

    Examples
    --------
    >>> find_distinct_rows(np.array([[3, -1], [2, 5], [3, -1]]))
    (array([[ 2,  5],
           [ 3, -1]]), array([1, 0, 1]))
    """
    if table.size:
        least = table.min(axis=0).astype(np.int64)
        sizes = (table.max(axis=0).astype(np.int64) - least + 1).tolist()
        if math.prod(sizes) < 2**62:
            # A number for each row, since sorting whole rows takes eight times as long.
            numbers = np.ravel_multi_index(tuple((table - least).T), sizes)
            found, places = np.unique(numbers, return_inverse=True)
            distinct = np.stack(np.unravel_index(found, sizes), axis=1) + least
            return distinct.astype(table.dtype), places
    distinct, places = np.unique(table, axis=0, return_inverse=True)
    return distinct, places.ravel()
