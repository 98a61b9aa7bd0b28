"""Records: training data held in memory, with the answers of `Shards`; and partitions that grow.

Of partitions that come one after the other, what was summed up is remembered. A fit to all of them
reads the new ones alone where its question is the same as before. Closed forms of one pass do so.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold
from itertools import pairwise
from operator import add
from typing import Any, TypeVar, cast

import numpy as np

from privpipe import protocols
from privpipe.described import described
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import distinct_columns, find_missing, natural_order, write_category
from privpipe.numerics.finite import as_array, as_reals
from privpipe.numerics.kinds import code_classes, guess_classes
from privpipe.protocols import AnyArray, ArrayLike, Column, FloatArray, IntArray, Shard, ShardSchema
from privpipe.records.sampling import take_records
from privpipe.records.schema import as_names

S = TypeVar("S", bound=protocols.Statistics)


def facts_of_shards(shards: Any) -> dict[str, str]:
    """Shapes and roles of records."""
    schema = shards.schema
    found = {"records": f"{shards.n_records:,}", "features": f"{schema.n_features:,}"}
    for role in ("desired", "confidential", "attributes"):
        kinds = {
            column.name: f"{column.n_categories} classes" if column.is_categorical else "numeric"
            for column in getattr(schema, role)
        }
        if kinds:
            found[role] = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    return found


class ShardsInTurn:
    """Shards that this process reads one after the other; see `Shards`."""

    def shards(self) -> Iterator[Shard]:
        """Yield the shards in order."""
        raise NotImplementedError

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise every shard and merge the summaries; see `Shards.reduce`."""
        return fold(lambda left, right: left.merge(right), map(summarise, self.shards()))

    def oracle(
        self, function: Callable[..., protocols.Sums], **resident: Any
    ) -> protocols.Oracle[Any, protocols.Sums]:
        """Sum ``function(shard, parameters, **resident)`` over the shards at each call."""
        return lambda parameters: add_sums(
            [function(shard, parameters, **resident) for shard in self.shards()]
        )


@described(facts_of_shards)
class Records(ShardsInTurn):
    """Records in memory, cut into shards of consecutive rows.

    Parameters
    ----------
    features : (n_records, n_features)
        Real features. Integers and booleans are turned into float64. A data frame's columns are
        the features' names, by which the fitted map reads other data frames.
    desired, confidential : (n_records,) or (n_records, n_columns), optional
        Variables to predict and to protect. Numbers of a floating type are numeric variables;
        booleans and strings are categorical ones, whose codes follow the sorted order of their
        values. Integers are read as classes where they have at most 64 different values and none
        below -1 (-1 is missing beside two others), and as numbers otherwise. Where they are not 0
        and 1, this is a guess, which `categorical` and `numeric` settle.
    attributes : (n_records, n_attributes), optional
        Categorical attributes (privacy mappings): text, None where missing, by which the fitted map
        reads other records. Codes of text are in natural order, numbers by size before words. Or
        integer codes, -1 where missing, which have no names.
    groups : (n_records,), optional
        Whose each record is: integers, strings or booleans, for adversaries who know several
        records of one person, device or household. Shards hold whole groups where the records are
        sorted by group.
    weights : (n_records,), optional
        How often each record counts in a fit, non-negative; once when not given. Null-space
        cleaning and LEACE count so, other methods refuse weights. Measurements and audits count
        every record once.
    public
        Whether the records are public: what is learned from them is outside every promise.
    categorical, numeric
        Integers whose kind is known: a role ("desired", "confidential"), or one of its variables
        ("confidential_0").
    n_shards
        Number of shards; results do not depend on it but for rounding.

    Raises
    ------
    InputError
        If the arrays differ in their number of rows, or there are no records.
    OptionError
        If `categorical` or `numeric` names what there is not, or both name the same.

    Warns
    -----
    GuessWarning
        If it is guessed what integers are.

    Examples
    --------
    >>> records = Records(np.eye(4), desired=[0.0, 1.0, 0.0, 1.0], n_shards=2)
    >>> records.n_records, records.schema.desired[0].name
    (4, 'desired_0')
    """

    def __init__(
        self,
        features: ArrayLike,
        *,
        desired: ArrayLike | None = None,
        confidential: ArrayLike | None = None,
        attributes: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        public: bool = False,
        categorical: str | Sequence[str] = (),
        numeric: str | Sequence[str] = (),
        n_shards: int = 1,
    ) -> None:
        names = distinct_columns(features)
        x = as_array(features, "features")
        if x.ndim != 2:
            problem = f"features has {x.ndim} dimensions, not 2."
            raise InputError(problem, remedy="Give an array of shape (n_records, n_features).")
        x = as_reals(x, "features")
        if len(x) == 0:
            raise InputError("features has no records.", remedy="Give at least one record.")
        if n_shards < 1:
            raise OptionError(f"n_shards is {n_shards}.", remedy="Use 1 or more.")
        kinds = dict.fromkeys(as_names(categorical), True) | dict.fromkeys(as_names(numeric), False)
        d, d_columns = _as_columns(desired, "desired", len(x), kinds)
        c, c_columns = _as_columns(confidential, "confidential", len(x), kinds)
        _check_kinds(as_names(categorical), as_names(numeric), (*d_columns, *c_columns))
        a, a_columns = _as_codes(attributes, len(x))
        g = _as_groups(groups, len(x))
        self._whole = Shard(x, d, c, a, weights=_as_weights(weights, len(x)), groups=g)
        # No shard is empty: statistics of no records have no mean.
        self._n_shards = min(n_shards, len(x))
        self._schema = ShardSchema(
            n_features=x.shape[1],
            feature_names=names,
            weighted=bool(self._whole.weights.size),
            public=public,
            n_records=len(x),
            desired=d_columns,
            confidential=c_columns,
            attributes=a_columns,
            groups=() if groups is None else (Column("groups"),),
        )

    @classmethod
    def of_shard(cls, shard: Shard, schema: ShardSchema) -> "Records":
        """Records of one shard of a collection, whose schema is known."""
        made = cls.__new__(cls)
        made._whole, made._schema, made._n_shards = shard, schema, 1
        return made

    @property
    def n_records(self) -> int:
        return self._whole.n_records

    @property
    def schema(self) -> ShardSchema:
        return self._schema

    @property
    def shared(self) -> tuple[str, ...]:
        """Desired variables that are equal to a confidential one; `check_shards` looks for it."""
        desired, confidential = self._whole.desired, self._whole.confidential
        return tuple(
            column.name
            for column, values in zip(self._schema.desired, desired.T, strict=True)
            if any(_is_same(values, other) for other in confidential.T)
        )

    def shards(self) -> Iterator[Shard]:
        """Yield the shards in order."""
        w, n = self._whole, self.n_records
        edges = np.linspace(0, n, self._n_shards + 1).astype(int)
        if w.groups.size:
            edges = _move_to_groups(edges, w.groups)
        for start, stop in pairwise(edges):
            # Views: take_records leaves out whose shard it is, and of which records.
            yield replace(take_records(w, slice(start, stop)), first_record=int(start))


def _as_groups(values: ArrayLike | None, n_records: int) -> IntArray:
    """Whose each record is, by value: whoever is in one partition is known in the next."""
    if values is None:
        return np.empty(0, np.int64)
    owners = _as_table(values, "groups", n_records, width=1)[:, 0]
    if owners.dtype.kind in "iu":
        return owners.astype(np.int64)
    from pandas.util import hash_array  # slow to load

    return np.asarray(hash_array(owners.astype(object)).view(np.int64))


def _move_to_groups(edges: IntArray, groups: IntArray) -> IntArray:
    """Edges of shards, each moved on to where a group begins."""
    # Whole groups: an adversary who pools the records of a person needs all of them in one shard.
    begins = np.append(np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1)), len(groups))
    return np.unique(begins[np.searchsorted(begins, edges)])


def _is_same(one: FloatArray, other: FloatArray) -> bool:
    """Whether two variables are equal in every record in which both are known."""
    known = ~(np.isnan(one) | np.isnan(other))
    return bool(known.any() and (one[known] == other[known]).all())


def add_sums(parts: Sequence[protocols.Sums]) -> protocols.Sums:
    """Add tuples of floats and arrays element by element, in the order given.

    >>> add_sums([(1.0, np.ones(2)), (2.0, np.ones(2))])
    (3.0, array([2., 2.]))
    """
    return tuple(fold(add, column) for column in zip(*parts, strict=True))


Aligned = tuple[tuple[int, int], protocols.Sums]
"""A sum of tasks ``index << level`` to ``(index + 1) << level``, and (level, index)."""


def add_in_tree(parts: Iterable[Aligned], n: int) -> list[Aligned]:
    """Add sums of `n` tasks pair by pair, as far as both halves of a pair are there.

    The tree depends on the number of tasks alone: whoever adds a branch gets its bits. So a worker
    returns a few branches for any number of tasks, and holds no more.

    >>> branches = add_in_tree([((0, at), (1.0,)) for at in range(3)], 5)
    >>> branches
    [((1, 0), (2.0,)), ((0, 2), (1.0,))]
    >>> add_in_tree([*branches, ((0, 4), (1.0,)), ((0, 3), (1.0,))], 5)
    [((3, 0), (5.0,))]
    """
    held: dict[tuple[int, int], protocols.Sums] = {}
    for (level, at), sums in parts:
        while last := (n - 1) >> level:  # the last index of this level; 0 at the root
            if at ^ 1 <= last:  # otherwise it has no other half
                if (level, at ^ 1) not in held:
                    break
                sums = add_sums([sums, held.pop((level, at ^ 1))])
            level, at = level + 1, at >> 1
        held[level, at] = sums
    return list(held.items())


def _check_kinds(classes: Sequence[str], numeric: Sequence[str], columns: Sequence[Column]) -> None:
    known = {"desired", "confidential", *(column.name for column in columns)}
    wrong = [name for name in (*classes, *numeric) if name not in known]
    wrong += [name for name in classes if name in numeric]
    if wrong:
        problem = f"categorical or numeric names {wrong[0]!r}, which is no variable, or in both."
        raise OptionError(problem, remedy=f"Use some of: {', '.join(sorted(known))}.")


def _as_columns(
    values: ArrayLike | None, role: str, n_records: int, kinds: Mapping[str, bool]
) -> tuple[FloatArray, tuple[Column, ...]]:
    table = np.empty((n_records, 0)) if values is None else _as_table(values, role, n_records)
    names = [f"{role}_{j}" for j in range(table.shape[1])]
    coded = [
        _as_column(column, name, kinds.get(name, kinds.get(role)))
        for column, name in zip(table.T, names, strict=True)
    ]
    # The first is there where there are no others.
    stacked = np.column_stack([np.empty((n_records, 0)), *(values for values, _ in coded)])
    return stacked, tuple(column for _, column in coded)


def _as_column(values: AnyArray, name: str, classes: bool | None) -> tuple[FloatArray, Column]:
    """One variable: numbers as they are, classes as codes in sorted order.

    Parameters
    ----------
    values : (n_records,)
    name
        Its name.
    classes
        Whether numbers are classes; None if that is not said.
    """
    if values.dtype.kind == "O":
        # A data frame of several types comes as objects: each column has a type of its own.
        known = ~find_missing(values)
        if (plain := np.array(values[known].tolist())).dtype.kind != "O":
            whole = np.full(len(values), np.nan)
            if plain.dtype.kind in "SU":  # NumPy's text has no NUL at its end
                texts = np.array([*map(str, values[known])], object)
                whole[known], column = _name_classes(texts, name)
            else:
                whole[known], column = _as_column(plain, name, classes)
            return whole, column
    if values.dtype.kind in "iu" and classes is None:
        remedy = "Give text or floating numbers, or say categorical= or numeric=."
        classes = guess_classes(values, name, remedy)
    if values.dtype.kind in "iuf" and not classes:
        return values.astype(np.float64), Column(name)
    if values.dtype.kind not in "iufbUST":
        problem = f"{name} holds neither numbers alone nor text alone (dtype {values.dtype})."
        remedy = "Give numbers, text or booleans; leave out records without a class."
        raise InputError(problem, remedy=remedy, code="dtype")
    return _name_classes(values, name)


def _name_classes(values: AnyArray, name: str) -> tuple[FloatArray, Column]:
    """Classes as codes in sorted order, and what they are called."""
    codes, kinds = code_classes(values)
    return codes, Column(name, len(kinds), tuple(map(str, kinds.tolist())))


def _as_codes(values: ArrayLike | None, n_records: int) -> tuple[IntArray, tuple[Column, ...]]:
    """Codes of the attributes, and what is known of them by name."""
    if values is None:
        return np.empty((n_records, 0), np.int64), ()
    table = _as_table(values, "attributes", n_records)
    names = distinct_columns(values) or [f"attribute_{j}" for j in range(table.shape[1])]
    columns = list(zip(names, table.T, strict=True))
    if np.issubdtype(table.dtype, np.integer) and table.min(initial=0) >= -1:
        return table.astype(np.int64), tuple(
            Column(name, int(codes.max(initial=-1)) + 1) for name, codes in columns
        )
    if table.dtype.kind not in "OUTb":
        problem = f"attributes has dtype {table.dtype}, or codes below -1: neither text nor codes."
        remedy = "Give text, or the codes 0 .. n_categories - 1, and -1 where missing."
        raise InputError(problem, remedy=remedy)
    coded = [_as_category(texts, name) for name, texts in columns]
    return np.column_stack([codes for codes, _ in coded]), tuple(one for _, one in coded)


def _as_category(values: AnyArray, name: str) -> tuple[IntArray, Column]:
    """Codes of text in natural order, as of an ingest, -1 where it is missing."""
    missing = find_missing(values)
    texts = [write_category(value) for value in values[~missing]]
    # Sorted, so that the codes do not depend on the order of the records; as texts of Python, since
    # NumPy gives each as much room as the longest, and takes a NUL off its end.
    kinds = sorted(set(texts), key=natural_order)
    places = {kind: code for code, kind in enumerate(kinds)}
    codes = np.full(len(values), -1)
    codes[~missing] = [places[text] for text in texts]
    return codes, Column(name, len(kinds), tuple(kinds))


def _as_weights(values: ArrayLike | None, n_records: int) -> FloatArray:
    if values is None:
        return np.empty(0)
    weights = as_reals(values, "weights").astype(np.float64)
    # A negative weight would subtract a record.
    if weights.shape != (n_records,) or not (np.isfinite(weights) & (weights >= 0)).all():
        problem = f"weights has shape {weights.shape}, or holds negative or non-finite values."
        remedy = f"Give {n_records} finite weights of at least 0."
        raise InputError(problem, remedy=remedy, code="weights")
    return weights


def _read_columns(given: Any, table: AnyArray) -> AnyArray:
    """A table as objects, as each column has them: integers beside numbers are no numbers yet.

    NumPy makes floats of a whole table, and of integers where one is missing.
    """
    if hasattr(given, "iloc"):  # pandas
        return np.asarray(given.astype(object))
    if hasattr(given, "rows"):  # a table of polars
        return np.array(given.rows(), object)
    if hasattr(given, "to_pydict"):  # a table of Arrow
        return np.array(list(given.to_pydict().values()), object).T
    read = getattr(given, "to_pylist", getattr(given, "to_list", None))  # a column of either
    return table if read is None else np.array(read(), object)


def _as_table(given: ArrayLike, role: str, n_records: int, *, width: int | None = None) -> AnyArray:
    """A table with a row per record, and so many columns where that is said; of a vector one."""
    table = as_array(given, role)
    if table.dtype.kind == "f" and not isinstance(given, np.ndarray):
        table = _read_columns(given, table)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != n_records or width not in (None, table.shape[1]):
        problem = f"{role} has shape {np.shape(given)}, but features has {n_records} rows."
        raise InputError(problem, remedy=f"Give {role} one row per record.")
    return table


@described(facts_of_shards)
class GrowingRecords:
    """Partitions, each of which any `Shards` may be; implements `Shards`.

    Only sums over partitions are remembered, in this process. Rounds of an iterated fit read all
    partitions: it resumes with ``earlier``, the map that was fitted before.

    Parameters
    ----------
    first
        The first partition; all others have its variables, categories and features: each class
        is in every one of them.

    Examples
    --------
    >>> import numpy as np
    >>> from privpipe import Records
    >>> grown = GrowingRecords(Records(np.eye(3), desired=[0.0, 1.5, 2.5]))
    >>> grown.append(Records(np.ones((2, 3)), desired=[0.5, 2.5]))
    >>> grown.n_records
    5
    """

    def __init__(self, first: protocols.Shards) -> None:
        self.partitions = [first]
        self._known: dict[bytes, tuple[int, Any]] = {}

    @property
    def n_records(self) -> int:
        return sum(one.n_records for one in self.partitions)

    @property
    def schema(self) -> ShardSchema:
        # Without the number of records, which would make every question a new one.
        return replace(self.partitions[0].schema, n_records=0)

    def append(self, partition: protocols.Shards) -> None:
        """Add a partition.

        Raises
        ------
        InputError
            If its variables, categories or features are not those of the first.
        """
        if replace(partition.schema, n_records=0) != self.schema:
            problem = "A partition has other variables, categories or features than the first."
            remedy = "Ingest all partitions with one schema; in Python each needs every class."
            raise InputError(problem, remedy=remedy, code="schema-drift")
        self.partitions.append(partition)

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise the partitions that came since this question; see `Shards.reduce`."""
        question = pickle.dumps(summarise)
        n_known, known = self._known.get(question, (0, None))
        for one in self.partitions[n_known:]:
            found = one.reduce(summarise)
            known = found if known is None else known.merge(found)
        self._known[question] = len(self.partitions), known
        return cast(S, known)

    def oracle(
        self, function: Callable[..., protocols.Sums], **resident: Any
    ) -> protocols.Oracle[Any, protocols.Sums]:
        """Sum over all partitions at each call; see `Shards.oracle`."""
        oracles = [one.oracle(function, **resident) for one in self.partitions]
        return lambda parameters: add_sums([ask(parameters) for ask in oracles])
