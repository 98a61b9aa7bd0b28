"""Where work is done: in this process or on Dask workers, with the same answers.

Fits, cleaning, audit and pricing take an `Executor` and know no client. Whatever is sent or held
can be made again, so that the loss of any worker, the only one included, costs time alone.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold
from typing import Any, Literal, TypeVar

from privpipe.cluster.executors.boundary import run_sealed, seal
from privpipe.errors import PrivpipeError
from privpipe.protocols import Oracle, S, Shard, Sums
from privpipe.records.memory import add_in_tree, add_sums


@dataclass(frozen=True)
class Event:
    """Something happened to a piece of work.

    Parameters
    ----------
    work
        What is under way, as the dashboard names its tasks: "clean_chunk", "sum_moments",
        "attack", "price_columns".
    what
        "begins", "advances", "stalls", "ends", or "decides" by a pilot whether it is sent.
    amount
        When it begins, how much there is to do (0: not known). When it advances, how much more is
        done. When it stalls, seconds without progress. When a pilot decides, 1 where it is sent,
        else 0.
    unit
        Of the amount: "records", "chunks", "rounds", "attacks", "objects".
    numbers
        What else is known by now, by name: workers, bytes, a gap.
    """

    work: str
    what: Literal["begins", "advances", "stalls", "ends", "decides"]
    amount: float = 0.0
    unit: str = "records"
    numbers: tuple[tuple[str, float], ...] = ()


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


SHARD_SHARE = 0.4
"""Of a worker's memory: what shards may take. Beyond .6 Dask writes to disk what it holds."""

RESERVED = 400 << 20
"""Bytes of a worker's memory that its libraries and the reading of records take."""


@dataclass(frozen=True)
class WorkerMemory:
    """The workers as a memory plan sees them.

    Parameters
    ----------
    n_workers, n_threads
        Workers, and threads over all of them.
    smallest
        Memory limit of the smallest worker, bytes; 0 when there is none.
    total
        Sum of the limits, bytes.
    threads
        Threads of the worker with most threads.
    """

    n_workers: int
    n_threads: int
    smallest: int
    total: int
    threads: int


def find_room(limit: int) -> int:
    """Bytes of shards that a worker of so many bytes of memory retains."""
    # Left to Dask, 462 MB in 800 MiB were spilt until the nanny ended the worker.
    return int(SHARD_SHARE * max(0, limit - RESERVED))


T = TypeVar("T")

# A quarter: the statistics of a fit, and the user's own process, need the rest.
RESIDENT_SHARE = 0.25
"""Of this machine's memory: what an oracle without workers keeps of its shards."""

# Eight: a merge holds nine statistics; with two the tree has three times the tasks.
FAN_IN = 8
"""Statistics merged by one task."""


def fold_in_tree(parts: Iterator[T], merge: Callable[[list[T]], T]) -> T:
    """Merge in the order given, at most `FAN_IN` at a time, with few parts alive.

    The shape of the tree depends on the number of parts alone, whoever merges them.

    >>> fold_in_tree(iter("abcdefghij"), lambda parts: f"({''.join(parts)})")
    '((abcdefgh)ij)'
    """
    levels: list[list[T]] = [[]]
    for part in parts:
        levels[0].append(part)
        level = 0
        while len(levels[level]) == FAN_IN:
            if level + 1 == len(levels):
                levels.append([])
            levels[level + 1].append(merge(levels[level]))
            levels[level] = []
            level += 1
    # What is left over, from the fullest part to the newest, keeps the order.
    rest = [part for level in reversed(levels) for part in level]
    return rest[0] if len(rest) == 1 else merge(rest)


def merge_all(parts: Iterable[S]) -> S:
    """Merge in order."""
    return fold(lambda left, right: left.merge(right), parts)


_NUMBERS = itertools.count()
"""Of problems that this process solves apart: no two have one key."""

Function = Callable[..., Any]
Task = tuple[str, tuple[Any, ...]]
"""Name and arguments."""


@dataclass(frozen=True)
class ShardSum:
    """``sum of function(shard, parameters, **resident)`` over shards that are loaded once.

    Parameters
    ----------
    load, shared, tasks
        ``load(*shared, task)`` gives the shards of a task, several chunks each, in the order of the
        records.
    function
        Module-level function of a shard; see `Shards.oracle`.
    resident
        Keyword arguments that are sent once.
    sizes
        Bytes of each task's shards; where they are not known, all are retained.
    """

    load: Callable[..., list[Shard]]
    shared: tuple[Any, ...]
    tasks: Sequence[Any]
    function: Callable[..., Sums]
    resident: Mapping[str, Any]
    sizes: Sequence[int] = ()


class Executor:
    """Runs functions on what they are given; nothing but our own errors comes out.

    This one does all work in this process, one task after the other (``[cluster] workers = 0``);
    `DaskExecutor` does it on workers. Functions are module-level and picklable, arguments small and
    without records. The shape of every sum depends on the tasks alone, never on the workers: all
    executors give the same bits.

    Parameters
    ----------
    listener
        Receives the events.
    """

    here, part = True, ""
    """Whether all is done in this process; and a part of the names of all work. The part is empty
    unless the run is of one partition. Dask's pages group by these names."""

    def __init__(self, listener: Listener = ignore) -> None:
        self.listener = listener

    def describe(self) -> str:
        """Where it works, in words for the start of a run."""
        return "none: all work is done in this process"

    def measure(self) -> WorkerMemory:
        """Workers, threads and memory as they are now: here one thread, with all memory."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return WorkerMemory(1, 1, total, total, 1)

    # Any: where `Progress` is from loads distributed, which nothing else here needs.
    def show(self, progress: Any) -> None:
        """Let whoever watches the cluster see a `Progress`; never a reason to fail."""

    def send(self, value: Any) -> Any:
        """Make a value ready to be an argument of many tasks."""
        return value

    def hold(self, function: Callable[..., Any], *arguments: Any, key: str) -> Any:
        """Let a value be made where it is used, and keep it there."""
        return run_sealed(function, *arguments)

    def reduce(
        self, leaf: Callable[..., S], shared: Sequence[Any], tasks: Sequence[range], *, label: str
    ) -> S:
        """Merge ``leaf(*shared, task)`` of all tasks, in their order.

        Keys are ``sum_<label>-...`` and ``merge_<label>-...``.
        """

        def work() -> Iterator[S]:
            for task in tasks:
                yield leaf(*shared, task)
                self.listener(Event(f"sum_{label}", "advances", len(task), "chunks"))

        return run_sealed(fold_in_tree, work(), merge_all)

    def oracle(self, question: ShardSum) -> Oracle[Any, Sums]:
        """A callable that gives the sum over all shards for some parameters.

        Shards stay while memory allows, others are read anew in every round. Sums are added shard
        by shard within a task, then tasks pair by pair (`add_in_tree`).
        """
        room = int(RESIDENT_SHARE * self.measure().smallest)
        held: dict[int, list[Shard]] = {}

        def find_shards(number: int) -> list[Shard]:
            nonlocal room
            if number in held:
                return held[number]
            shards = question.load(*question.shared, question.tasks[number])
            size = sum(shard.n_bytes for shard in shards)
            # The first ones stay: which do decides about time only, sums are added in one order.
            if size <= room:
                room -= size
                held[number] = shards
            return shards

        def ask_task(number: int, parameters: Any) -> Sums:
            function = partial(question.function, **question.resident)
            return add_sums([function(shard, parameters) for shard in find_shards(number)])

        def ask(parameters: Any) -> Sums:
            n = len(question.tasks)
            ((_, total),) = add_in_tree((((0, i), ask_task(i, parameters)) for i in range(n)), n)
            return total

        return lambda parameters, /: run_sealed(ask, parameters)

    def map_tasks(
        self, function: Function, tasks: Iterable[Task], *, shared: Sequence[Any] = (), prefix: str
    ) -> Iterator[tuple[str, Any]]:
        """Yield name and ``function(*shared, *arguments)`` of each task as it is done.

        A task that failed yields its error, one of ours; on workers it is tried again before. A
        bounded number of tasks is under way; the next begins once what was yielded has been dealt
        with. Keys are ``<prefix>-<name>``.
        """
        for name, arguments in tasks:
            outcome: Any
            try:
                outcome = function(*shared, *arguments)
            except Exception as error:
                # Sealed as on a worker: callers see one kind of failure, whoever works.
                outcome = seal(error, getattr(function, "__name__", "task"))
            yield name, outcome

    def run_tasks(
        self, function: Function, tasks: Iterable[Task], *, shared: Sequence[Any] = (), prefix: str
    ) -> Iterator[tuple[str, Any]]:
        """`map_tasks` where the first failure is raised; the other tasks are cancelled then."""
        for name, found in self.map_tasks(function, tasks, shared=shared, prefix=prefix):
            if isinstance(found, PrivpipeError):
                raise found
            yield name, found

    def solve_apart(
        self, solve: Function, problems: Iterable[Any], *, shared: Sequence[Any] = ()
    ) -> list[Any]:
        """``solve(*shared, problem)`` of each, in order: a task for each, as none needs another."""
        tasks = {f"{next(_NUMBERS):06d}": (one,) for one in problems}
        found = dict.fromkeys(tasks)
        for name, one in self.run_tasks(solve, tasks.items(), shared=shared, prefix="solve_apart"):
            found[name] = one
            self.listener(Event("solve_apart", "advances", 1, "problems"))
        return list(found.values())
