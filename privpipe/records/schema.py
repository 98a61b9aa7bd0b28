"""What a collection consists of: names, kinds, category tables, source partitions, chunks.

The records of all partitions follow one another on one grid of chunks; a partition is a
run of them. A record is addressed by its partition and its number within, which neither the
chunk size nor the partitions before it change.
"""

import difflib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from privpipe.errors import InputError, MemoryBudgetError, PrivpipeError
from privpipe.fitted_schema import FittedSchema, Matching
from privpipe.protocols import Column, FloatArray, IntArray


@dataclass(frozen=True, config=ConfigDict(hide_input_in_errors=True))
class Partition:
    """A run of records that came from one partition of the source.

    Parameters
    ----------
    name
        Name of the file or of the Hive folder, relative to the source.
    first_record
        Number of its first record within the collection.
    n_records
        Number of its records.
    digest
        SHA-256 of its content as stored (hexadecimal): of features and variables with their
        names, dtypes and categories, and not of chunks or codecs.
    """

    name: str
    first_record: int
    n_records: int
    digest: str = ""


@plain_dataclass(frozen=True)
class PartitionRun:
    """Consecutive records within one partition.

    Parameters
    ----------
    partition
        The partition.
    first_record
        Number of the first of them within the partition.
    n_records
        How many.
    """

    partition: Partition
    first_record: int
    n_records: int


def cut_by_partition(
    partitions: Sequence[Partition], start: int, stop: int
) -> tuple[PartitionRun, ...]:
    """Cut a range of records of the collection where partitions meet.

    Parameters
    ----------
    partitions
        All partitions, in order; empty ones may be among them.
    start, stop
        Numbers within the collection, ``start <= stop``.

    Returns
    -------
    runs
        In the order of the records, none empty; jointly they are the range.

    Examples
    --------
    >>> parts = (Partition("a", 0, 3), Partition("b", 3, 4))
    >>> [(r.partition.name, r.first_record, r.n_records) for r in cut_by_partition(parts, 2, 6)]
    [('a', 2, 1), ('b', 0, 3)]
    """
    firsts = [partition.first_record for partition in partitions]
    runs: list[PartitionRun] = []
    # The partition that holds `start`, or the last that begins before it.
    for partition in partitions[max(0, bisect_right(firsts, start) - 1) :]:
        if partition.first_record >= stop:
            break
        low = max(start, partition.first_record)
        high = min(stop, partition.first_record + partition.n_records)
        if low < high:
            runs.append(PartitionRun(partition, low - partition.first_record, high - low))
    return tuple(runs)


# In every signed dtype of codes, and never a place in a table.
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
        known = [variable.name for variable in self.variables]
        hint = ", but a feature (ingest with --labels)," * (name in self.feature_names)
        raise explain_unknown(f"The collection has no variable{hint}", name, known)

    def renumbered(self, fitted: FittedSchema, matching: Matching) -> "CollectionSchema":
        """The schema of the same records once they are matched to what a map was fitted on."""
        variables = tuple(
            replace(one, categories=names, dtype=code_dtype(len(names)))
            if (names := matching.tables.get(one.name)) is not None
            else one
            for one in self.variables
        )
        names = self.feature_names if matching.order is None else fitted.feature_names
        return replace(self, variables=variables, feature_names=names)


def code_dtype(n_categories: int) -> str:
    """In which codes of a variable are stored."""
    # Codes below 127, and -1 where missing.
    return "int8" if n_categories < 127 else "int16"


def as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names as a tuple; a single one may be given as it is.

    >>> as_names("height"), as_names(["height", "weight"]), as_names(None)
    (('height',), ('height', 'weight'), ())
    """
    return (names,) if isinstance(names, str) else tuple(names or ())


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` for the closest known name, or nothing.

    >>> suggest("beech", ["beach", "urban"])
    ", did you mean 'beach'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def explain_unknown(
    what: str, name: str, known: Sequence[str], kind: type[PrivpipeError] = InputError
) -> PrivpipeError:
    """The error for a name that is none of those that are there."""
    problem = f"{what} {name!r}{suggest(name, known)}"
    return kind(problem, remedy=f"It has: {', '.join(known) or 'none'}.", code="missing-variable")


def expand_indicators(codes: IntArray, columns: Sequence[Column]) -> FloatArray:
    """Indicators of each category of each variable; all zero where a code is missing.

    Parameters
    ----------
    codes : (n_records, n_attributes)
    columns
        The variables, all categorical.

    Returns
    -------
    indicators : (n_records, sum of n_categories), float64

    Examples
    --------
    >>> expand_indicators(np.array([[1, 0], [-1, 1]]), [Column("a", 2), Column("b", 2)])
    array([[0., 1., 1., 0.],
           [0., 0., 0., 1.]])
    """
    parts = [codes[:, j : j + 1] == np.arange(c.n_categories or 0) for j, c in enumerate(columns)]
    return np.concatenate(parts, axis=1).astype(np.float64)


def name_indicators(columns: Sequence[Column]) -> tuple[str, ...]:
    """Name of each indicator: the variable and the number of the category, never its text."""
    return tuple(f"{one.name}={k}" for one in columns for k in range(one.n_categories or 0))


TARGET_CHUNK_BYTES = 8 * 2**20
"""Bytes of features per chunk: measured best between 4 and 16 MiB with lz4 and bitshuffle."""

CHUNKS_PER_TASK = 8
"""Most chunks a worker handles per task, one after the other; halves the overhead per chunk."""
MOST_TASKS = 4_096
"""Of a pass: with more chunks each task takes more of them, and the scheduler does not grow."""

FEWEST_TASKS = 16
"""Of a collection of as many chunks: a small one is cut finer, so that all workers have some."""


@plain_dataclass(frozen=True)
class ChunkPlan:
    """How the records of a collection are cut into chunks, and chunks into tasks.

    Examples
    --------
    >>> plan = ChunkPlan(n_records=10, chunk_rows=4)
    >>> plan.n_chunks, plan.rows(2), plan.tasks()
    (3, (8, 10), [range(0, 1), range(1, 2), range(2, 3)])
    >>> ChunkPlan(n_records=1000, chunk_rows=1).tasks()[-1]
    range(992, 1000)
    >>> len(ChunkPlan(n_records=10**6, chunk_rows=1).tasks())
    4082
    """

    n_records: int
    chunk_rows: int

    @property
    def n_chunks(self) -> int:
        return -(-self.n_records // self.chunk_rows)

    def rows(self, chunk: int) -> tuple[int, int]:
        """First record of a chunk, and the one after its last."""
        start = chunk * self.chunk_rows
        return start, min(start + self.chunk_rows, self.n_records)

    def tasks(self) -> list[range]:
        """Chunks of each task, in order; how many depends on the number of chunks alone."""
        most = max(CHUNKS_PER_TASK, -(-self.n_chunks // MOST_TASKS))
        step = min(most, max(1, self.n_chunks // FEWEST_TASKS))
        return [range(i, min(i + step, self.n_chunks)) for i in range(0, self.n_chunks, step)]


def plan_chunk_rows(
    n_features: int, itemsize: int, *, target_bytes: int = TARGET_CHUNK_BYTES
) -> int:
    """Records per chunk so that a chunk's features take about `target_bytes`.

    >>> plan_chunk_rows(64, 4)
    32768
    """
    return max(1, target_bytes // max(1, n_features * itemsize))


def predict_chunk_memory(chunk_rows: int, n_in: int, n_out: int, itemsize: int) -> int:
    """Most bytes that one chunk in work occupies in a worker.

    Stored and decoded bytes of the source, a float64 copy to compute in, float64 result,
    released dtype, and its encoded bytes.
    """
    return chunk_rows * (n_in * (2 * itemsize + 8 + 8) + n_out * (8 + 2 * itemsize))


def check_memory(needed: int, available: int, threads: int) -> None:
    """Refuse a plan whose chunks do not fit a worker.

    Parameters
    ----------
    needed
        Bytes per chunk in work; `threads` chunks are in work at once.
    available
        Memory limit of the smallest worker, bytes; 0 when it has none.
    threads
        Threads of that worker.

    Raises
    ------
    MemoryBudgetError
        If more than half of the memory would be needed: the rest is for the interpreter,
        libraries and what Dask keeps.
    """
    if available and needed * threads > available // 2:
        raise MemoryBudgetError(
            f"Chunks of this collection need {needed * threads / 2**20:.0f} MiB at once in a "
            f"worker of {available / 2**20:.0f} MiB.",
            remedy="Give workers more memory, fewer threads, or ingest with a smaller --chunk-mib.",
        )
