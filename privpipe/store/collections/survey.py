"""The first pass of ingest, over the variables alone: kinds, categories, records per partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import pandas as pd

from privpipe.errors import InputError
from privpipe.fitted_names import natural_order, write_category
from privpipe.numerics.kinds import are_classes, has_missing, is_large
from privpipe.protocols import AnyArray
from privpipe.records.schema import MISSING, CollectionSchema, Partition, Variable, code_dtype
from privpipe.store.sources.reading.source import Block, Coded, RecordSource, unstable

MAX_CATEGORIES = 2**15 - 2
"""Categories that a variable may have in a collection: codes fit int16."""

# More than MAX_CATEGORIES, for pooling may bring them below it.
MAX_DISTINCT = 2**17
"""Different values counted before pooling; with more, a variable is an identifier."""

POOLED = "(other)"
"""The category of all rare values."""


@dataclass(frozen=True)
class Coder:
    """Turns the values of one variable into what is stored.

    Parameters
    ----------
    variable
        What is stored.
    has_pool
        Whether values that are no category of their own belong to `POOLED`.
    guess
        What messages call it, where its values are whole numbers other than 0 and 1, of which it
        was not said whether they are categories; else empty.
    """

    variable: Variable
    has_pool: bool = False
    guess: str = ""

    def encode(self, values: AnyArray | Coded) -> AnyArray:
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
        # Of whole numbers -1 is missing where it is no category.
        known = {} if isinstance(values, Coded) else {"-1": MISSING}
        known |= {name: code for code, name in enumerate(self.variable.categories)}
        table = [known.get(name, known[POOLED] if self.has_pool else None) for name in coded.names]
        unknown = [code for code, place in enumerate(table) if place is None]
        if unknown and np.isin(coded.codes, unknown).any():
            raise unstable(f"holds values of {self.variable.name!r} that it did not hold")
        # The last entry is what the code -1 picks.
        places = [MISSING if place is None else place for place in (*table, MISSING)]
        return np.asarray(np.array(places, dtype)[coded.codes])


def code_values(values: AnyArray | Coded) -> Coded:
    """Numbers and booleans as coded text; whole numbers without a decimal point."""
    if isinstance(values, Coded):
        return values
    # Codes first: a text is written once per value, not per record.
    codes, kinds = pd.factorize(values, use_na_sentinel=True)
    return Coded(codes, tuple(map(write_category, kinds.tolist())))


def count_values(values: AnyArray | Coded) -> Counter[str]:
    """How often each value occurs; missing ones are not counted."""
    coded = code_values(values)
    sizes = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.names))
    found: Counter[str] = Counter()
    for name, size in zip(coded.names, sizes.tolist(), strict=True):
        found[name] += size  # a name may occur twice: 1 and 1.0 are written alike
    return +found


def pool_rare(counts: Mapping[str, int], min_count: int, name: str) -> tuple[tuple[str, ...], int]:
    """Choose categories so that each holds at least `min_count` records.

    Rare values are pooled. While the pool itself is rare, the next rarest value joins it, so that a
    pool of few records never singles them out.

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
    # Ties by name, so that the order of the source does not decide who is pooled.
    rising = sorted(counts, key=lambda kind: (counts[kind], natural_order(kind)))
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
    common = tuple(sorted(set(counts) - pool, key=natural_order))
    if len(common) + bool(pool) > MAX_CATEGORIES:
        raise too_many(name, MAX_CATEGORIES)
    return ((*common, POOLED), size) if pool else (common, 0)


def too_many(name: str, most: int) -> InputError:
    """The error for a variable that is an identifier rather than a category."""
    return InputError(
        f"The categorical variable {name!r} has more than {most} different values.",
        remedy="Leave it out with --drop if it is an identifier, make it --numeric if it holds "
        "numbers, or pool rare values with --min-category-count.",
        code="too-many-categories",
    )


def fit_survey(survey: Survey, source: RecordSource, like: CollectionSchema, where: str) -> Survey:
    """The survey of a source with the variables of the collection that it joins.

    Raises
    ------
    InputError
        If features or variables differ, a variable is of another kind, or it has categories that
        the collection does not know and does not pool.
    """
    found = {coder.variable.name: coder.variable for coder in survey.coders}
    known = {variable.name: variable for variable in like.variables}
    if source.n_features != like.n_features:
        problem = f"has {source.n_features} features, the collection {like.n_features}"
    elif tuple(source.feature_names) != tuple(like.feature_names):
        problem = "has features of other names, or in another order"
    elif missing := sorted(set(known) - set(found)):
        problem = f"has no variable {', '.join(map(repr, missing))}"
    elif further := sorted(set(found) - set(known)):
        problem = f"has the variable {', '.join(map(repr, further))}, the collection has not"
    else:
        problems = (_find_difference(found[name], one) for name, one in known.items())
        problem = next(filter(None, problems), "")
    if problem:
        remedy = "Nothing was added. Fix the source, or begin a new growing collection."
        raise InputError(f"{where} {problem}.", remedy=remedy, code="schema-drift")
    coders = tuple(Coder(one, has_pool=POOLED in (one.categories or ())) for one in like.variables)
    return replace(survey, coders=coders)


def _find_difference(found: Variable, known: Variable) -> str:
    """Why a variable cannot join the one that a collection holds; empty where it can."""
    if (known.categories is None) != (found.categories is None):
        holds = "classes (give --categorical)" if known.categories else "numbers (give --numeric)"
        return f"has {known.name!r} of another kind; it holds {holds}"
    unseen = set(found.categories or ()) - set(known.categories or ())
    # Where there is a pool, what is unknown belongs to it.
    if unseen and POOLED not in (known.categories or ()):
        return f"has {len(unseen)} categories of {known.name!r} that the collection has not"
    return ""


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
    """

    partitions: tuple[Partition, ...]
    coders: tuple[Coder, ...]
    n_pooled: Mapping[str, int]

    @property
    def n_records(self) -> int:
        return sum(partition.n_records for partition in self.partitions)


def survey_source(
    source: RecordSource, rows: int, *, categorical: Set[str], numeric: Set[str], least_count: int
) -> Survey:
    """Read the variables of a source once.

    Booleans, text, and whole numbers of at most 64 different values, none below -1, are
    categorical, other numbers numeric, unless forced. Of whole numbers this is a guess, and those
    are named; -1 is missing beside two others of them.

    Parameters
    ----------
    source
        The source.
    rows
        Records per block.
    categorical, numeric
        Variables whose kind is forced.
    least_count
        See `pool_rare`.

    Raises
    ------
    InputError
        If a variable cannot be of its kind, or has too many categories.
    """
    for variable in source.variables:
        if variable.kind == "text" and variable.name in numeric:
            problem = f"The variable {variable.name!r} holds text and cannot be numeric."
            remedy = "Leave it out of --numeric, or drop it with --drop."
            raise InputError(problem, remedy=remedy, code="text-variable")
    # Whole numbers may be classes or numbers, where that is not said.
    counters = {
        one.name: _Counter(one.name, one.kind == "integer" and one.name not in categorical)
        for one in source.variables
        if one.name in categorical or (one.name not in numeric and one.kind != "number")
    }
    sizes = [0] * len(source.partitions)
    wide = dict[str, bool]()  # by numbers that float64 may round, whether reading may have done so
    for block in source.read(rows, False):
        sizes[block.partition] += block.n_records
        for name, values in block.variables.items():
            if isinstance(values, Coded) or is_large(values):
                wide[name] = not isinstance(values, Coded) and values.dtype.kind == "f"
        for counter in counters.values():
            counter.add(block)
    coders, pooled = list[Coder](), dict[str, int]()
    for variable in source.variables:
        found = counters.get(name := variable.name)
        guess = name if found and found.may_be_numbers and {*found.counts} - {"0", "1"} else ""
        is_number = found is None or not found.is_categorical
        if name in wide and (source.rounds(name) if wide[name] else is_number):
            problem = f"{name!r} holds whole numbers of 2**53 and more, which float64 would round."
            remedy = f'Make it --categorical {name!r} (kind = "text"), or store floating numbers.'
            raise InputError(problem, remedy=remedy, code="rounded-key")
        if found is None or is_number:
            coders.append(Coder(Variable(name, "float64"), guess=guess))
            continue
        if variable.kind == "integer" and has_missing(found.kinds):
            del found.counts["-1"]
            guess = guess and f"{guess} (-1 being missing)"
        names, pooled[name] = pool_rare(found.counts, least_count, name)
        coders.append(Coder(Variable(name, code_dtype(len(names)), names), pooled[name] > 0, guess))
    partitions = map(Partition, source.partitions, accumulate(sizes, initial=0), sizes)
    return Survey(tuple(partitions), tuple(coders), pooled)


@dataclass(eq=False)
class _Counter:
    """Counts the values of a variable until it is clear that they are no categories."""

    name: str
    may_be_numbers: bool
    counts: Counter[str] = field(default_factory=Counter)
    is_categorical: bool = True

    @property
    def kinds(self) -> AnyArray:
        """Different values of whole numbers, ascending."""
        return np.sort([*map(float, self.counts)])  # of exact ones two may be one number here

    def add(self, block: Block) -> None:
        if not self.is_categorical:
            return
        self.counts.update(count_values(block.variables[self.name]))
        if self.may_be_numbers:
            self.is_categorical = are_classes(self.kinds)
        if self.is_categorical and len(self.counts) > MAX_DISTINCT:
            raise too_many(self.name, MAX_DISTINCT)
