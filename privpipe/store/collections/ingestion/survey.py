"""The first pass of ingest, over the variables alone: kinds, categories, records per partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from privpipe.errors import InputError
from privpipe.numerics.kinds import are_classes
from privpipe.records.partitions import Partition
from privpipe.records.schema import CollectionSchema, Variable, code_dtype
from privpipe.store.collections.ingestion.category_tables import (
    MAX_DISTINCT,
    POOLED,
    Coder,
    count_values,
    pool_rare,
    too_many,
)
from privpipe.store.sources.reading.source import Block, RecordSource, SourceVariable


def fit_survey(survey: Survey, source: RecordSource, like: CollectionSchema, where: str) -> Survey:
    """The survey of a source with the variables of the collection that it joins.

    Raises
    ------
    InputError
        If features or variables differ, a variable is of another kind, or it has categories that
        the collection does not know and does not pool.
    """
    found = {coder.variable.name: coder.variable for coder in survey.coders}
    wanted = {variable.name: variable for variable in like.variables}
    problem = ""
    if source.n_features != like.n_features:
        problem = f"has {source.n_features} features, the collection {like.n_features}"
    elif tuple(source.feature_names) != tuple(like.feature_names):
        problem = "has features of other names, or in another order"
    elif missing := sorted(set(wanted) - set(found)):
        problem = f"has no variable {', '.join(map(repr, missing))}"
    elif further := sorted(set(found) - set(wanted)):
        problem = f"has the variable {', '.join(map(repr, further))}, the collection has not"
    if problem:
        raise _drifted(where, problem)
    for name, variable in wanted.items():
        _check_kind(where, found[name], variable)
    coders = tuple(
        Coder(variable, has_pool=POOLED in (variable.categories or ()))
        for variable in like.variables
    )
    return replace(survey, coders=coders, guessed=())


def _check_kind(where: str, found: Variable, wanted: Variable) -> None:
    if wanted.categories is None or found.categories is None:
        if (wanted.categories is None) != (found.categories is None):
            kind = "numbers" if wanted.categories is None else "classes"
            option = "--numeric" if wanted.categories is None else "--categorical"
            raise _drifted(
                where, f"has {wanted.name!r} of another kind; it holds {kind} (give {option})"
            )
        return
    unseen = set(found.categories) - set(wanted.categories)
    if unseen and POOLED not in wanted.categories:
        raise _drifted(
            where, f"has {len(unseen)} categories of {wanted.name!r} that the collection has not"
        )


def _drifted(where: str, problem: str) -> InputError:
    return InputError(
        f"{where} {problem}.",
        remedy="Nothing was added. Fix the source, or begin a new growing collection.",
        code="schema-drift",
    )


@dataclass(frozen=True)
class Survey:
    """What must be known of a source before anything is written.

    Parameters
    ----------
    partitions
        Its partitions, without digests.
    coders
        One per variable.
    n_pooled
        Records of each variable in a pooled category.
    guessed
        Variables of whole numbers other than 0 and 1, which are categorical or not by a guess.
    """

    partitions: tuple[Partition, ...]
    coders: tuple[Coder, ...]
    n_pooled: Mapping[str, int]
    guessed: tuple[str, ...] = ()

    @property
    def n_records(self) -> int:
        return sum(partition.n_records for partition in self.partitions)


def survey_source(
    source: RecordSource,
    rows: int,
    *,
    categorical: frozenset[str],
    numeric: frozenset[str],
    min_category_count: int,
) -> Survey:
    """Read the variables of a source once.

    Booleans, text, and whole numbers of at most 64 different values are categorical, other
    numbers numeric, unless forced. Of whole numbers this is a guess, and those are named.

    Parameters
    ----------
    source
        The source.
    rows
        Records per block.
    categorical, numeric
        Variables whose kind is forced.
    min_category_count
        See `pool_rare`.

    Raises
    ------
    InputError
        If a variable cannot be of its kind, or has too many categories.
    """
    counters = {
        variable.name: _Counter(variable, variable.name in categorical)
        for variable in source.variables
        if variable.name in categorical
        or (variable.name not in numeric and variable.kind != "number")
    }
    for variable in source.variables:
        _check_numeric(variable, numeric)
    sizes = [0] * len(source.partitions)
    for block in source.blocks(rows, with_features=False):
        sizes[block.partition] += block.n_records
        for counter in counters.values():
            counter.add(block)
    coders: list[Coder] = []
    pooled: dict[str, int] = {}
    for variable in source.variables:
        found = counters.get(variable.name)
        if found is None or not found.is_categorical:
            coders.append(Coder(Variable(variable.name, "float64")))
            continue
        names, size = pool_rare(found.counts, min_category_count, variable.name)
        coded = Variable(variable.name, code_dtype(len(names)), names)
        coders.append(Coder(coded, has_pool=size > 0))
        pooled[variable.name] = size
    guessed = tuple(
        name
        for name, counter in counters.items()
        if counter.variable.kind == "integer"
        and not counter.forced
        and set(counter.counts) - {"0", "1"}
    )
    return Survey(_place(source.partitions, sizes), tuple(coders), pooled, guessed)


@dataclass(eq=False)
class _Counter:
    """Counts the values of a variable until it is clear that they are no categories."""

    variable: SourceVariable
    forced: bool

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.is_categorical = True

    def _is_signed(self) -> bool:
        return len(self.counts) > 2 and any(name.startswith("-") for name in self.counts)

    def add(self, block: Block) -> None:
        if not self.is_categorical:
            return
        self.counts.update(count_values(block.variables[self.variable.name]))
        if self.variable.kind == "integer" and not self.forced:
            self.is_categorical = are_classes(len(self.counts)) and not self._is_signed()
        if self.is_categorical and len(self.counts) > MAX_DISTINCT:
            raise too_many(self.variable.name, MAX_DISTINCT)


def _check_numeric(variable: SourceVariable, numeric: frozenset[str]) -> None:
    if variable.kind == "text" and variable.name in numeric:
        raise InputError(
            f"The variable {variable.name!r} holds text and cannot be numeric.",
            remedy="Leave it out of --numeric, or drop it with --drop.",
            code="text-variable",
        )


def _place(names: tuple[str, ...], sizes: list[int]) -> tuple[Partition, ...]:
    found: list[Partition] = []
    first = 0
    for name, size in zip(names, sizes, strict=True):
        found.append(Partition(name, first, size))
        first += size
    return tuple(found)
