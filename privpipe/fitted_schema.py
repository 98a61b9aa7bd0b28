"""What a map was fitted on, by name, and the one way by which records of another table reach it.

A table written later numbers its categories anew and may have its columns in another order. So a
map holds the names of what it was fitted on. Columns and codes of records are put into its order by
name. What it does not name is counted by column, never quoted: it is a value of a record.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import AnyArray, Column, IntArray, ShardSchema

# Not -1: a missing value is known to be missing.
UNKNOWN = -2
"""Code of a category that a map does not name: one that no profile of a fit has."""

MOST_NAMED = 8
"""Most names in a message."""


@dataclass(frozen=True, eq=False)
class NamedCodes:
    """Codes of categorical records with what they mean.

    Parameters
    ----------
    codes : (n_records, n_attributes)
        -1 where missing.
    columns
        The attributes, with the tables by which the codes are numbered.
    """

    codes: IntArray
    columns: tuple[Column, ...]

    def read_as(self, fitted: "FittedSchema") -> IntArray:
        """The codes of a map's attributes in its order and numbering, (n_records, n_attributes).

        Raises
        ------
        InputError
            See `match_columns`.
        """
        matching = match_columns(replace(fitted, labels=(), included=()), 0, (), self.columns)
        places = [column.name for column in self.columns]
        codes = ((one.name, self.codes[:, places.index(one.name)]) for one in fitted.attributes)
        return np.column_stack([matching.translate(*one) for one in codes])


@dataclass(frozen=True)
class FittedSchema:
    """Names, kinds and category tables of what a map was fitted on.

    Parameters
    ----------
    n_features
        Features of the records, whether the map reads them or not.
    feature_names
        One per feature, or empty where they have none.
    attributes
        Categorical variables that the map reads, in its order.
    labels
        Desired and confidential variables that it was fitted to.
    included
        Variables that its releases hold as they are.
    """

    n_features: int
    feature_names: tuple[str, ...] = ()
    attributes: tuple[Column, ...] = ()
    labels: tuple[Column, ...] = ()
    included: tuple[Column, ...] = ()

    @classmethod
    def of(cls, schema: ShardSchema, included: Sequence[Column] = ()) -> "FittedSchema":
        """That of a map fitted to such records."""
        names = schema.feature_names if len(schema.feature_names) == schema.n_features else ()
        return cls(
            schema.n_features,
            # Names that are there twice match nothing.
            names if len(set(names)) == len(names) else (),
            schema.attributes,
            tuple(dict.fromkeys((*schema.desired, *schema.confidential))),
            tuple(included),
        )

    @property
    def knows_names(self) -> bool:
        """Whether there is anything to match records by."""
        columns = (*self.attributes, *self.included)
        return bool(self.feature_names) or any(c.categories is not None for c in columns)

    def encode(self) -> dict[str, Any]:
        """JSON-ready. Of classes of labels only hashes: a model need not list what it hides."""
        return {
            "n_features": self.n_features,
            "feature_names": list(self.feature_names),
            "attributes": list(map(astuple, self.attributes)),
            "labels": [[one.name, one.n_categories, _hash_table(one)] for one in self.labels],
            "included": list(map(astuple, self.included)),
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> "FittedSchema":
        """What `encode` made; of labels it knows their tables' hashes in the tables' place.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        schema = cls(
            int(content["n_features"]),
            tuple(map(str, content["feature_names"])),
            tuple(_decode_column(*column) for column in content["attributes"]),
            tuple(_HashedColumn(str(a), b, None, str(c)) for a, b, c in content["labels"]),
            tuple(_decode_column(*column) for column in content["included"]),
        )
        if schema.feature_names and len(schema.feature_names) != schema.n_features:
            raise ValueError("names")
        return schema


@dataclass(frozen=True)
class _HashedColumn(Column):
    """A label of which a stored model knows the hash of its table."""

    hashed: str = ""


@dataclass(frozen=True)
class Matching:
    """How records of another table are read as the fitted ones.

    Parameters
    ----------
    order
        Place of each fitted feature among those of the records; None where none moves.
    codes
        By variable, the fitted code of each code of the records; variables that are numbered as
        fitted are not in it.
    tables
        By variable, the table of these codes.
    unknown
        By attribute, how many categories of the records the map does not name.
    """

    order: tuple[int, ...] | None
    # Collections that hold one are looked up by workers: what cannot be hashed is compared alone.
    codes: Mapping[str, tuple[int, ...]] = field(hash=False)
    tables: Mapping[str, tuple[str, ...]] = field(hash=False)
    unknown: Mapping[str, int] = field(hash=False)

    @property
    def is_identity(self) -> bool:
        """Whether the records are numbered and ordered as the fitted ones."""
        return self.order is None and not self.codes

    def translate(self, name: str, values: AnyArray) -> AnyArray:
        """A variable's codes as the fitted ones; of another variable as they are."""
        if name not in self.codes:
            return values
        # Missing and unknown ones, which lie below zero, are the table's last entries.
        return np.asarray(np.array([*self.codes[name], UNKNOWN, -1])[values])

    def arrange(self, features: AnyArray) -> AnyArray:
        """Features, (n_records, n_features), in the order of the fitted ones."""
        # In the layout of rows as they are read: sums over them are rounded alike.
        order = self.order
        return features if order is None else np.ascontiguousarray(features[:, list(order)])


def match_columns(
    fitted: FittedSchema, n_features: int, feature_names: Sequence[str], columns: Iterable[Column]
) -> Matching:
    """Match a table to what a map was fitted on, by name.

    Parameters
    ----------
    fitted
        What the map was fitted on.
    n_features, feature_names
        Of the records; features without names are taken in their order.
    columns
        Variables of the records.

    Returns
    -------
    Matching
        Categories that the fitted records have not: of attributes they become `UNKNOWN`, of labels
        they follow the fitted ones.

    Raises
    ------
    InputError
        If features are missing, too many or nameless where the fitted ones have names. If a
        variable is of another kind, or an attribute is not there. If a variable that is released as
        it is has categories that the fitted records have not, which no audit has judged.
    """
    there = {column.name: column for column in columns}
    codes, tables = dict[str, tuple[int, ...]](), dict[str, tuple[str, ...]]()
    # A variable of several roles counts as the last of them.
    roles = {
        **dict.fromkeys(fitted.labels, "label"),
        **dict.fromkeys(fitted.included, "included"),
        **dict.fromkeys(fitted.attributes, "attribute"),
    }
    for column, role in roles.items():
        if (mine := there.get(column.name)) is not None:
            _check_kind(mine, column)
            if (table := _match_table(mine, column, role)) is not None:
                places = {name: code for code, name in enumerate(table)}
                categories = mine.categories or ()
                codes[column.name] = tuple(places.get(name, UNKNOWN) for name in categories)
                tables[column.name] = table
        elif role == "attribute":
            raise _drifted(f"The records have no variable {column.name!r}, which the model reads.")
    unknown = {name: found.count(UNKNOWN) for name, found in codes.items() if UNKNOWN in found}
    given, order = (n_features, tuple(feature_names)), None
    # A map of attributes reads no feature.
    if not fitted.attributes and given != (fitted.n_features, fitted.feature_names):
        order = _order_features(fitted, n_features, feature_names)
    return Matching(order, codes, tables, unknown)


def _match_table(mine: Column, fitted: Column, role: str) -> tuple[str, ...] | None:
    """The table by which a variable is numbered anew; None where it is numbered as fitted."""
    if mine.categories is None or fitted.categories in (None, mine.categories):
        return None
    table = fitted.categories or ()
    further = tuple(name for name in mine.categories if name not in set(table))
    if further and role == "included":
        raise _drifted(
            f"The variable {mine.name!r}, which is released as it is, has {len(further)} "
            "categories that no training record has: no audit has judged them.",
            "Train on records that have them, or leave the variable out of include.",
        )
    return (*table, *further) if role == "label" else table


def check_numbered_alike(fitted: FittedSchema, schema: ShardSchema) -> None:
    """Raise InputError unless records are numbered and ordered as a map's own.

    What is released is named by the tables of the records, so these are the map's by then.
    """
    mine, theirs = ([(c.name, c.categories) for c in s.attributes] for s in (schema, fitted))
    # A map of attributes reads no feature, in whatever order they are.
    named = fitted.feature_names and not fitted.attributes
    if mine != theirs or (named and schema.feature_names not in ((), fitted.feature_names)):
        raise _drifted("Records that were not matched to the model's names have reached it.")


def _order_features(fitted: FittedSchema, n: int, names: Sequence[str]) -> tuple[int, ...] | None:
    if n != fitted.n_features and not (fitted.feature_names and names):
        problem = f"The collection has {n} features, the training collection {fitted.n_features}."
        raise _drifted(problem, "Train on records of the same features.")
    if not fitted.feature_names or not names:
        problem = "Features have names in the collection or in the training collection, not both."
        raise _drifted(problem, "Ingest both from sources with the same columns.")
    places = {name: place for place, name in enumerate(names)}
    lack = [name for name in fitted.feature_names if name not in places]
    more = sorted(set(names) - set(fitted.feature_names))
    if lack or more or len(places) < len(names):
        both = filter(None, (_say_features("lacks", lack), _say_features("has too many", more)))
        problem = f"The features of collection and training collection differ: {'; '.join(both)}."
        raise _drifted(problem, "Ingest both with the same columns; their order does not matter.")
    return tuple(places[name] for name in fitted.feature_names)


def _say_features(what: str, names: Sequence[str]) -> str:
    """Names of columns; of a column of text that became features, how many, not its categories."""
    # What follows "=" is a category, and so a value of a record.
    plain = [repr(name) for name in names if "=" not in name][:MOST_NAMED]
    plain += [
        f"{sum(n.startswith(f'{column}=') for n in names)} categories of {column!r}"
        for column in sorted({name.partition("=")[0] for name in names if "=" in name})[:MOST_NAMED]
    ]
    return f"it {what} {', '.join(plain)}" if plain else ""


def _check_kind(mine: Column, fitted: Column) -> None:
    if mine.is_categorical == fitted.is_categorical:
        return
    kinds = ("numbers", "classes") if fitted.is_categorical else ("classes", "numbers")
    raise _drifted(
        f"The variable {mine.name!r} holds {kinds[0]}, and {kinds[1]} in the training records.",
        "Ingest it with --categorical or --numeric, as the training records were.",
    )


def _drifted(problem: str, remedy: str = "") -> InputError:
    remedy = remedy or "Give records with the columns that the model was trained on."
    return InputError(problem, remedy=remedy, code="schema-drift")


def _decode_column(name: Any, n_categories: Any, categories: Any) -> Column:
    names = None if categories is None else tuple(map(str, categories))
    count = None if n_categories is None else int(n_categories)
    # A document of a stranger: a table with a name twice has two codes for one category.
    if names is not None and (len(names) != count or len(set(names)) != count):
        raise ValueError("categories")
    return Column(str(name), count, names)


def _hash_table(column: Column) -> str:
    if isinstance(column, _HashedColumn):
        return column.hashed
    if column.categories is None:
        return ""
    # With the lengths: no two tables make the same text by moving a border.
    lengths = ",".join(str(len(name)) for name in column.categories)
    content = "\n".join([column.name, lengths, *column.categories])
    return hashlib.sha256(content.encode()).hexdigest()
