"""What a collection consists of: names, kinds, category tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from privpipe.errors import InputError
from privpipe.fitted_schema import FittedSchema, Matching
from privpipe.protocols import Column, ShardSchema
from privpipe.records.partitions import Partition

MISSING = -1
"""Code of a missing value of a categorical variable; NaN is that of a numeric one."""


@dataclass(frozen=True, config=ConfigDict(hide_input_in_errors=True))
class Variable:
    """A named variable of a collection, one value per record.

    Parameters
    ----------
    name
        Name of the array in the Zarr group.
    dtype
        NumPy name of the stored dtype.
    categories
        The category of each code ``0 .. n - 1``; None for a numeric variable.
    """

    name: str
    dtype: str
    categories: tuple[str, ...] | None = None

    @property
    def column(self) -> Column:
        """The variable as a fit sees it."""
        n_categories = None if self.categories is None else len(self.categories)
        return Column(self.name, n_categories, self.categories)


@dataclass(frozen=True, config=ConfigDict(hide_input_in_errors=True))
class CollectionSchema:
    """Features and variables of a collection.

    Parameters
    ----------
    n_records, n_features
        Shape of the features.
    dtype
        Floating dtype of the features, "float32" or "float64".
    chunk_rows
        Records per chunk, the same for features and variables.
    variables
        Named variables.
    feature_names
        One per feature, or empty.
    partitions
        Runs of records from one partition of the source each, in order; empty only until the
        collection is written.
    """

    n_records: int
    n_features: int
    dtype: str
    chunk_rows: int
    variables: tuple[Variable, ...] = ()
    feature_names: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()

    def variable(self, name: str) -> Variable:
        """Find a variable by name.

        Raises
        ------
        InputError
            If there is none, with the closest name there is.
        """
        for variable in self.variables:
            if variable.name == name:
                return variable
        names = [variable.name for variable in self.variables]
        raise InputError(
            f"The collection has no variable {name!r}{suggest(name, names)}.",
            remedy=f"It has: {', '.join(names) or 'none'}.",
            code="missing-variable",
        )

    def renumbered(self, fitted: FittedSchema, matching: Matching) -> CollectionSchema:
        """The schema of the same records once they are matched to what a map was fitted on."""
        variables = tuple(
            replace(one, categories=names, dtype=code_dtype(len(names)))
            if (names := matching.tables.get(one.name)) is not None
            else one
            for one in self.variables
        )
        names = self.feature_names if matching.order is None else fitted.feature_names
        return replace(self, variables=variables, feature_names=names)

    def for_roles(
        self,
        desired: Sequence[str] = (),
        confidential: Sequence[str] = (),
        attributes: Sequence[str] = (),
        groups: Sequence[str] = (),
    ) -> ShardSchema:
        """What shards look like when these variables are asked for."""
        return ShardSchema(
            n_features=self.n_features,
            desired=tuple(self.variable(name).column for name in desired),
            confidential=tuple(self.variable(name).column for name in confidential),
            attributes=tuple(self.variable(name).column for name in attributes),
            groups=tuple(self.variable(name).column for name in groups),
            feature_names=self.feature_names,
            n_records=self.n_records,
        )


def code_dtype(n_categories: int) -> str:
    """In which codes of a variable are stored."""
    return "int8" if n_categories < 127 else "int16"


def as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names as a tuple; a single one may be given as it is.

    >>> as_names("height"), as_names(["height", "weight"]), as_names(None)
    (('height',), ('height', 'weight'), ())
    """
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` for the closest known name, or nothing.

    >>> suggest("beech", ["beach", "urban"])
    ", did you mean 'beach'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
