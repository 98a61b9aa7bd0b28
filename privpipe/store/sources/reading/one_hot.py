"""Columns of text as features: one column of 0 and 1 per category, only where an option names it.

What the categories are called becomes part of the names of features, which a release publishes;
so a column is turned into features only where an option names it, and rare categories are pooled.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray
from privpipe.store.sources.reading.source import Block, Coded, RecordSource

MOST_CATEGORIES = 1_000
"""Categories that all columns may become in all: more are surely identifiers or free text."""

MISSING, RARE = "(missing)", "(other)"


def spread_texts(source: RecordSource, columns: Sequence[str], least: int = 1) -> RecordSource:
    """A source in which some variables of text are features, after the features that there are.

    Parameters
    ----------
    source
        The source; it is read once to learn the categories.
    columns
        Variables that become features.
    least
        Categories of fewer records are pooled.

    Raises
    ------
    OptionError
        If a column is no categorical variable of the source.
    InputError
        If there are more than `MOST_CATEGORIES` categories.
    """
    for name in set(columns) - {variable.name for variable in source.variables}:
        raise OptionError(
            f"--one-hot names {name!r}, which is no column of text.",
            remedy="Name columns of a table; numbers are features as they are.",
        )
    categories = _learn(source, columns, least)
    made = tuple(f"{name}={one}" for name, found in categories.items() for one in found)
    # float32 holds 0 and 1 exactly; numbers that are there may need more.
    dtype = source.features_dtype if source.n_features else np.dtype(np.float32)

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        for block in source.blocks(rows, with_features=with_features):
            features = block.features
            if with_features:
                new = [_spread(block, *item) for item in categories.items()]
                features = np.hstack([features.astype(dtype, copy=False), *new])
            rest = {k: v for k, v in block.variables.items() if k not in categories}
            yield replace(block, features=features, variables=rest)

    return replace(
        source,
        feature_names=(*source.feature_names, *made),
        n_features=source.n_features + len(made),
        features_dtype=dtype,
        variables=tuple(v for v in source.variables if v.name not in categories),
        read=read,
    )


def _learn(
    source: RecordSource, columns: Sequence[str], least: int
) -> Mapping[str, tuple[str, ...]]:
    """Categories of each column in natural order; rare ones and missing values come last."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in columns}
    for block in source.blocks(2**16, with_features=False):
        for name, found in counts.items():
            coded = _as_coded(block, name)
            names = (*coded.names, MISSING)  # the code -1 picks the last
            found.update(names[code] for code in coded.codes)
            if sum(map(len, counts.values())) > MOST_CATEGORIES:
                raise InputError(
                    f"{name} and the other columns of --one-hot have more than {MOST_CATEGORIES} "
                    "categories.",
                    remedy="Leave identifiers and free text out with --drop.",
                    code="too-many-categories",
                )
    return {name: _choose_categories(found, least) for name, found in counts.items()}


def _choose_categories(counts: Counter[str], least: int) -> tuple[str, ...]:
    common = sorted(c for c, n in counts.items() if n >= least and c not in (MISSING, RARE))
    pooled = set(counts) - {*common, MISSING}
    return (*common, *([RARE] if pooled else []), *([MISSING] if MISSING in counts else []))


def _as_coded(block: Block, name: str) -> Coded:
    values = block.variables[name]
    assert isinstance(values, Coded), "the columns are read as text"
    return values


def _spread(block: Block, name: str, categories: tuple[str, ...]) -> FloatArray:
    """A block's column as columns of 0 and 1, (n_records, n_categories)."""
    values = _as_coded(block, name)
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
