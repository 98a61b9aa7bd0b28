"""Categories of a variable: values as text, rare ones pooled, and the code of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from privpipe.errors import InputError, StoreError
from privpipe.records.schema import MISSING, Variable
from privpipe.store.sources.reading.source import Coded

MAX_CATEGORIES = 2**15 - 2
"""Categories that a variable may have in a collection: codes fit int16."""

MAX_DISTINCT = 2**17
"""Different values counted before pooling; with more, a variable is an identifier."""

POOLED = "(other)"
"""The category that stands for all rare ones."""


@dataclass(frozen=True)
class Coder:
    """Turns the values of one variable into what is stored.

    Parameters
    ----------
    variable
        What is stored.
    has_pool
        Whether values that are no category of their own belong to `POOLED`.
    """

    variable: Variable
    has_pool: bool = False

    def encode(self, values: npt.NDArray[Any] | Coded) -> npt.NDArray[Any]:
        """Codes of a categorical variable, numbers of a numeric one, in the stored dtype.

        Raises
        ------
        StoreError
            If a value was not there when the source was read the first time.
        """
        dtype = np.dtype(self.variable.dtype)
        if self.variable.categories is None:
            assert not isinstance(values, Coded), "text has categories"
            return values.astype(dtype)
        coded = code_values(values)
        default = self._places[POOLED] if self.has_pool else None
        table = [self._places.get(name, default) for name in coded.names]
        unknown = [code for code, place in enumerate(table) if place is None]
        if unknown and np.isin(coded.codes, unknown).any():
            raise StoreError(
                f"The source holds values of {self.variable.name!r} that it did not hold at first.",
                remedy="Ingest when nothing writes to the source.",
                code="source-changed",
            )
        # The last entry is what the code -1 picks.
        places = [MISSING if place is None else place for place in (*table, MISSING)]
        codes: npt.NDArray[Any] = np.array(places, dtype)[coded.codes]
        return codes

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: code for code, name in enumerate(self.variable.categories or ())}


def code_values(values: npt.NDArray[Any] | Coded) -> Coded:
    """Numbers and booleans as coded text; whole numbers without a decimal point."""
    if isinstance(values, Coded):
        return values
    codes, kinds = pd.factorize(values, use_na_sentinel=True)
    return Coded(codes, tuple(_write(kind) for kind in kinds.tolist()))


def count_values(values: npt.NDArray[Any] | Coded) -> Counter[str]:
    """How often each value occurs; missing ones are not counted."""
    coded = code_values(values)
    sizes = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.names))
    found: Counter[str] = Counter()
    for name, size in zip(coded.names, sizes.tolist(), strict=True):
        if size:
            found[name] += size
    return found


def pool_rare(counts: Mapping[str, int], min_count: int, name: str) -> tuple[tuple[str, ...], int]:
    """Choose categories so that each holds at least `min_count` records.

    Rare values are pooled; while the pool itself is rare, the next rarest value joins it, so
    that a pool of few records never singles them out.

    Parameters
    ----------
    counts
        Records of each value.
    min_count
        Fewest records of a category; 1 pools nothing.
    name
        The variable, for messages.

    Returns
    -------
    categories
        In natural order, `POOLED` last where anything is pooled.
    n_pooled
        Records in the pool.

    Raises
    ------
    InputError
        If too many categories are left.

    Notes
    -----
    Guarantee: every category holds `min_count` records or more, unless all records with a
    value are fewer; then there is one category.

    Examples
    --------
    >>> pool_rare({"a": 9, "b": 2, "c": 3, "d": 7}, min_count=4, name="v")
    (('a', 'd', '(other)'), 5)
    """
    rising = sorted(counts, key=lambda kind: (counts[kind], _natural(kind)))
    pool = {kind for kind in rising if counts[kind] < min_count}
    # A value that is named like the pool joins it.
    pool |= {POOLED} & set(counts) if pool else set()
    size = sum(counts[kind] for kind in pool)
    for kind in rising:
        if not pool or size >= min_count:
            break
        if kind not in pool:
            pool.add(kind)
            size += counts[kind]
    kept = order_names(kind for kind in counts if kind not in pool)
    if len(kept) + bool(pool) > MAX_CATEGORIES:
        raise too_many(name, MAX_CATEGORIES)
    return ((*kept, POOLED), size) if pool else (kept, 0)


def too_many(name: str, most: int) -> InputError:
    """The error for a variable that is an identifier rather than a category."""
    return InputError(
        f"The categorical variable {name!r} has more than {most} different values.",
        remedy="Leave it out with --drop if it is an identifier, make it --numeric if it holds "
        "numbers, or pool rare values with --min-category-count.",
        code="too-many-categories",
    )


def order_names(names: Any) -> tuple[str, ...]:
    """Names in natural order: numbers by size, then text.

    >>> order_names(["10", "b", "9", "a"])
    ('9', '10', 'a', 'b')
    """
    found: Sequence[str] = sorted(names, key=_natural)
    return tuple(found)


def _natural(text: str) -> tuple[int, float, str]:
    try:
        number = float(text)
    except ValueError:
        return (1, 0.0, text)
    return (0, number, text) if number == number else (1, 0.0, text)


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as Arrow writes them
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
