"""Columns of text as features: one column of 0 and 1 per category, by name only when asked for.

What the categories are called becomes part of the names of features, which a release publishes;
so a column is turned into features only where an option names it, and rare categories are pooled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError
from privpipe.store.sources.reading.source import Block, Coded, RecordSource, SourceVariable

MOST_CATEGORIES = 1_000
"""Categories that all columns together may become: more are surely identifiers or free text."""

MISSING, RARE = "(missing)", "(other)"


class OneHotSource:
    """A source in which some variables of text are features.

    Parameters
    ----------
    source
        The source; it is read once to learn the categories.
    columns
        Variables that become features, after the features that there are.
    least
        Categories of fewer records are pooled.

    Raises
    ------
    OptionError
        If a column is no categorical variable of the source.
    InputError
        If there are more than `MOST_CATEGORIES` categories.
    """

    def __init__(self, source: RecordSource, columns: Sequence[str], least: int = 1) -> None:
        self._source = source
        known = {variable.name for variable in source.variables}
        for name in columns:
            if name not in known:
                raise OptionError(
                    f"--one-hot names {name!r}, which is no column of text.",
                    remedy="Name columns of a table; numbers are features as they are.",
                )
        self._categories = _learn(source, columns, least)

    @property
    def feature_names(self) -> tuple[str, ...]:
        made = (f"{name}={one}" for name, all_ in self._categories.items() for one in all_)
        return (*self._source.feature_names, *made)

    @property
    def n_features(self) -> int:
        return self._source.n_features + sum(map(len, self._categories.values()))

    @property
    def features_dtype(self) -> np.dtype[np.floating]:
        own = self._source.features_dtype
        return own if self._source.n_features else np.dtype(np.float32)

    @property
    def variables(self) -> tuple[SourceVariable, ...]:
        return tuple(v for v in self._source.variables if v.name not in self._categories)

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._source.partitions

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks; see `RecordSource`."""
        for block in self._source.blocks(rows, with_features=with_features):
            features = block.features
            if with_features:
                made = [_spread(block, *item) for item in self._categories.items()]
                features = np.hstack([features.astype(self.features_dtype, copy=False), *made])
            rest = {k: v for k, v in block.variables.items() if k not in self._categories}
            yield replace(block, features=features, variables=rest)


def _learn(source: RecordSource, columns: Sequence[str], least: int) -> dict[str, tuple[str, ...]]:
    """Categories of each column in natural order; rare ones and missing values stand last."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in columns}
    for block in source.blocks(2**16, with_features=False):
        for name, found in counts.items():
            found.update(_as_texts(block.variables[name]))
            if sum(map(len, counts.values())) > MOST_CATEGORIES:
                raise InputError(
                    f"{name} and the other columns of --one-hot have more than {MOST_CATEGORIES} "
                    "categories.",
                    remedy="Leave identifiers and free text out with --drop.",
                    code="too-many-categories",
                )
    chosen = {}
    for name, found in counts.items():
        kept = sorted(c for c, n in found.items() if n >= least and c not in (MISSING, RARE))
        pooled = any(c not in kept and c != MISSING for c in found)
        ends = [RARE] * pooled + [MISSING] * (MISSING in found)
        chosen[name] = (*kept, *ends)
    return chosen


def _as_texts(values: npt.NDArray[np.generic] | Coded) -> Iterator[str]:
    assert isinstance(values, Coded)  # the columns are asked for as text
    names = (*values.names, MISSING)
    return (names[code] for code in values.codes)


def _spread(block: Block, name: str, categories: tuple[str, ...]) -> npt.NDArray[np.float32]:
    """A block's column as columns of 0 and 1, (n_records, n_categories)."""
    values = block.variables[name]
    assert isinstance(values, Coded)
    places = {category: place for place, category in enumerate(categories)}
    other = places.get(RARE, -1)
    table = [places.get(value, other) for value in values.names] + [places.get(MISSING, -1)]
    found = np.asarray(table)[values.codes]
    if (found < 0).any():
        raise InputError(
            f"{name} holds a category that was not there before.",
            remedy="The source changes while it is read: copy it first.",
            code="source-changed",
        )
    made = np.zeros((len(found), len(categories)), np.float32)
    made[np.arange(len(found)), found] = 1
    return made
