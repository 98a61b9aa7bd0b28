"""An executor on Dask workers: what is sent or held is the result of a task, never scattered."""

import itertools
import math
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar, cast
from weakref import WeakSet

import dask
import numpy as np
from distributed import Client, Future, wait
from distributed import TimeoutError as DaskTimeoutError
from threadpoolctl import threadpool_limits

from privpipe.cluster.executors import executor as local
from privpipe.cluster.executors.boundary import run_sealed
from privpipe.cluster.executors.executor import Function, Listener, Task
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.progress import TOPIC, Progress
from privpipe.errors import ClusterError, PrivpipeError
from privpipe.protocols import Oracle, S, Shard, Sums
from privpipe.records.memory import Aligned, add_in_tree, add_sums

T = TypeVar("T")

_PROCESS = secrets.token_hex(4)
_NUMBERS = itertools.count()
"""Of the questions and values of this process: no two have the same keys, whoever queries."""


class ResidentOracle:
    """Answers a `ShardSum` over shards that stay on their workers: parameters down, sums up.

    They are loaded when it is made, as many by each worker: the slowest one ends a round. Those
    that do not fit are read anew in every round.

    Parameters
    ----------
    executor
        Whose client sends, and who waits.
    question
        What is summed up.
    """

    def __init__(self, executor: "DaskExecutor", question: local.ShardSum) -> None:
        self.executor, self.question = executor, question
        self.token, self._rounds = executor.make_token(), itertools.count()
        self.shared = [executor.send(value) for value in question.shared]
        self.resident = executor.send(dict(question.resident))
        workers = executor.client.scheduler_info(n_workers=-1)["workers"]
        limits = {address: int(one["memory_limit"] or 0) for address, one in workers.items()}
        # Placed by us: as the scheduler liked, 11 of 19 blocks lay on one of two workers,
        # and every round waited for it.
        self.places = spread_evenly(sorted(limits), len(question.tasks))
        chosen = choose_resident(self.places, question.sizes or [0] * len(question.tasks), limits)
        self.blocks = [
            executor.submit(
                question.load,
                *self.shared,
                task,
                key=f"load_shards{self.token}-{number:06d}",
                workers=place,
                # A preference, not a rule: a worker that died must not leave its blocks
                # without a place.
                allow_other_workers=place is not None,
            )
            if stays
            else None
            for number, (task, place, stays) in enumerate(
                zip(question.tasks, self.places, chosen, strict=True)
            )
        ]

    @property
    def loaded(self) -> list[Future[Any]]:
        """Blocks that workers keep."""
        return [block for block in self.blocks if block is not None]

    def __call__(self, parameters: Any, /) -> Sums:
        """Query all workers at once and add their sums."""
        round_number = next(self._rounds)
        tasks = [
            self.executor.submit(
                ask_blocks,
                self.question.function,
                [(number, self.blocks[number], self.question.tasks[number]) for number in numbers],
                self.question.load,
                self.shared,
                self.resident,
                parameters,
                len(self.blocks),
                key=f"{_name(self.question.function)}{self.token}-{round_number:05d}-{place:03d}",
                # One task a worker and round: actors answer in 2 ms instead of 11, but die with
                # their worker.
                workers=[worker] if worker else None,
                allow_other_workers=bool(worker),
            )
            for place, (worker, numbers) in enumerate(self._placement().items())
        ]
        replies: list[list[Aligned]] = self.executor.gather(tasks, "ask_shards")
        # The same tree whoever holds which block: floating point sums depend on the order.
        branches = [item for answer in replies for item in answer]
        ((_, total),) = add_in_tree(branches, len(self.blocks))
        return total

    def _placement(self) -> dict[str, list[int]]:
        """Which worker answers for which blocks: the one that was to hold it, while it lives.

        The scheduler may have let an idle worker load what another was to hold. Such a block is
        sent on with the query, so that no worker works for more than its share. Where no one holds
        a block its worker has died, and the scheduler chooses ("").
        """
        # Looked up anew each round: workers come and go between two of them.
        holders = self.executor.client.who_has(self.loaded) if self.loaded else {}
        alive = {worker for held in holders.values() for worker in held}
        placed: dict[str, list[int]] = defaultdict(list)
        for number, (block, place) in enumerate(zip(self.blocks, self.places, strict=True)):
            held = (place or "",) if block is None else sorted(holders.get(block.key, ()))
            planned = place if place and place in alive else ""
            placed[planned if held and planned else next(iter(held), "")].append(number)
        return dict(sorted(placed.items()))


def spread_evenly(workers: Sequence[str], n_blocks: int) -> list[str | None]:
    """Which worker should hold which block: neighbours together, numbers apart by at most one.

    None, for wherever the scheduler sees fit, while no one is there yet.

    >>> spread_evenly(["a", "b"], 5)
    ['a', 'a', 'a', 'b', 'b']
    """
    if not workers:
        return [None] * n_blocks
    return [workers[number * len(workers) // n_blocks] for number in range(n_blocks)]


def choose_resident(
    places: Sequence[str | None], sizes: Sequence[int], limits: Mapping[str, int]
) -> list[bool]:
    """Which blocks stay where they are loaded: the first ones, as far as a worker has room.

    Parameters
    ----------
    places
        Who should hold each block.
    sizes
        Bytes of each block.
    limits
        Memory of each worker; 0 where it has no limit.

    >>> choose_resident(["a", "a", "b", None], [30 << 20] * 4, {"a": 500 << 20, "b": 0})
    [True, False, True, True]
    """
    room = {name: local.find_room(limit) for name, limit in limits.items() if limit}
    resident = []
    for place, size in zip(places, sizes, strict=True):
        stays = place not in room or size <= room[place]
        if stays and place in room:
            room[place] -= size
        resident.append(stays)
    return resident


def ask_blocks(
    function: Callable[..., Sums],
    blocks: list[tuple[int, list[Shard] | None, Any]],
    read: Callable[..., list[Shard]],
    shared: list[Any],
    resident: Mapping[str, Any],
    parameters: Any,
    n_blocks: int,
) -> list[Aligned]:
    """Worker side: one round over blocks by number, those that are None read by their task."""
    known = {name: align(value) for name, value in resident.items()}
    aligned = align(parameters)

    def ask(block: list[Shard]) -> Sums:
        return add_sums([function(align(shard), aligned, **known) for shard in block])

    # Hessians have megabytes: added as they come, a worker holds those of a few blocks.
    sums = (((0, n), ask(read(*shared, task) if one is None else one)) for n, one, task in blocks)
    return add_in_tree(sums, n_blocks)


def align(value: T) -> T:
    """An array, or a shard of arrays, whose numbers lie at addresses of their own size.

    What came from another worker may lie anywhere, and NumPy sums it in another order: the same
    records would not give the same bits.
    """
    if isinstance(value, np.ndarray):
        # "K": the layout decides the order of a sum too, and must stay.
        return value if value.flags.aligned else cast(T, value.copy(order="K"))
    if isinstance(value, Shard):
        arrays = {item.name: getattr(value, item.name) for item in fields(value)}
        plain = {name: one for name, one in arrays.items() if isinstance(one, np.ndarray)}
        moved = {name: one.copy(order="K") for name, one in plain.items() if not one.flags.aligned}
        return cast(T, replace(value, **cast(dict[str, Any], moved))) if moved else value
    return value


def _name(function: Callable[..., Any]) -> str:
    """Readable key prefix of a function or partial."""
    return str(getattr(getattr(function, "func", function), "__name__", "ask_shards")).strip("_")


class Broadcast:
    """Wraps a value so that nothing prints it: it is an argument that Dask may log."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Broadcast({type(self.value).__name__})"


_unpack = attrgetter("value")

IN_FLIGHT_PER_THREAD = 3
"""Tasks submitted per worker thread: one at work, two waiting close by."""

COUNT_EVERY = 5.0
"""Seconds between two looks at how many threads there are."""

TELL_EVERY = 0.5
"""Seconds between two looks at how far a pass has come."""

REPORT_AFTER = 60.0
"""Seconds without a finished task after which a stall is reported."""

GIVE_UP_AFTER = 600.0
"""Seconds without a finished task *and* without any worker after which the work fails."""


class DaskExecutor(local.Executor):
    """Runs work on the workers of a cluster; see `Executor`.

    Parameters
    ----------
    client
        The cluster.
    run
        Identifier of the run: keys of two runs on one scheduler never meet.
    listener
        Receives the events.
    """

    here = False

    def __init__(self, client: Client, run: str = "", listener: Listener = local.ignore) -> None:
        super().__init__(listener)
        self.client = client
        self.run = run or secrets.token_hex(4)

    def describe(self) -> str:
        """The dashboard's address."""
        link = self.client.dashboard_link
        return f"dashboard at {link}" if link else "no dashboard"

    def measure(self) -> local.WorkerMemory:
        """Workers, threads and memory as they are now."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [int(worker["memory_limit"] or 0) for worker in workers]
        threads = [int(worker["nthreads"]) for worker in workers]
        smallest, most_threads = min(limits, default=0), max(threads, default=1)
        return local.WorkerMemory(len(limits), sum(threads), smallest, sum(limits), most_threads)

    def show(self, progress: Progress) -> None:
        """An event on the scheduler, for its page and its gauges."""
        with suppress(Exception):
            self.client.log_event(TOPIC, progress.encode())

    def send(self, value: Any) -> Future[Any]:
        """Future of a picklable value, for the arguments of tasks; no killed worker takes it along.

        Scattered data lives on workers only: when the last one that holds it dies, every task that
        needs it is lost. A broadcast is the result of a task, which the scheduler runs again
        wherever it is missing. The scheduler retains the value as long as a task that may need it
        is there.
        """
        key = f"send_{type(value).__name__}-{_PROCESS}-{next(_NUMBERS):06d}"
        # That the value travels with the task is the point, whatever its size.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            return self.client.submit(_unpack, Broadcast(value), key=key, pure=False, retries=2)

    def submit(
        self, function: Callable[..., Any], *arguments: Any, key: str, **where: Any
    ) -> Future[Any]:
        """Future of a sealed task, which is run again where its worker is lost."""
        # Not pure: two values with one key would be taken for one, and a retry must run again.
        more: dict[str, Any] = {"key": key, "pure": False, "retries": 2}
        return self.client.submit(run_sealed, function, *arguments, **more, **where)

    def hold(self, function: Callable[..., Any], *arguments: Any, key: str) -> Future[Any]:
        """Future of a value made on a worker; made again when that worker is lost."""
        return self.submit(function, *arguments, key=f"{key}{self.make_token()}")

    def reduce(
        self, leaf: Callable[..., S], shared: Sequence[Any], tasks: Sequence[range], *, label: str
    ) -> S:
        """See `Executor.reduce`; merges are submitted as soon as their parts are."""
        # The number of the question is part of each key: results of an earlier one are
        # never met.
        token, numbers = self.make_token(), itertools.count()
        sent = [self._ready(value) for value in shared]

        def merge(parts: list[Future[Any]]) -> Future[Any]:
            key = f"merge_{label}{token}-{next(numbers):06d}"
            return self.submit(local.merge_all, parts, key=key)

        heard, under_way = deque[int](), WeakSet[Future[Any]]()

        def submit_leaf(number: int, task: range) -> Future[Any]:
            future = self.submit(leaf, *sent, task, key=f"sum_{label}{token}-{number:06d}")
            # Appending is atomic: callbacks come on a thread of the client's, and are read on ours.
            future.add_done_callback(lambda _: heard.append(len(task)))
            under_way.add(future)
            return future

        leaves = itertools.starmap(submit_leaf, enumerate(tasks))
        try:
            [found] = self.gather([local.fold_in_tree(leaves, merge)], f"sum_{label}", heard)
        finally:
            # A callback holds its future, so that a failure ends the other leaves by this alone.
            self.client.cancel(list(under_way))
        return cast(S, found)

    def oracle(self, question: local.ShardSum) -> Oracle[Any, Sums]:
        """See `Executor.oracle`; shards stay on the workers that loaded them, if there is room."""
        oracle = ResidentOracle(self, question)
        if oracle.loaded:  # a round queries each worker about what it holds
            self._await(oracle.loaded, "load_shards", len(oracle.loaded))
        return oracle

    def map_tasks(
        self, function: Function, tasks: Iterable[Task], *, shared: Sequence[Any] = (), prefix: str
    ) -> Iterator[tuple[str, Any]]:
        """See `Executor.map_tasks`."""
        sent = [self._ready(value) for value in shared]
        queue, under_way = iter(tasks), dict[Future[Any], str]()

        limit, counted = 1, -math.inf

        def fill() -> None:
            nonlocal limit, counted
            if time.monotonic() - counted >= COUNT_EVERY:
                # A run begins with the first worker, and its others come when their machines do.
                # For one at least: with no worker tasks wait on the scheduler, as `_await` says.
                with suppress(Exception):  # of a scheduler that is lost the futures say so
                    n_threads = sum(self.client.nthreads().values())
                    limit, counted = max(1, n_threads) * IN_FLIGHT_PER_THREAD, time.monotonic()
            while len(under_way) < limit and (task := next(queue, None)) is not None:
                name, arguments = task
                key = f"{prefix}{self.part}-{self.run}-{name}"
                under_way[self.submit(function, *sent, *arguments, key=key)] = name

        try:
            fill()
            while under_way:
                for future in self._await(set(under_way), prefix, 1):
                    name, outcome = under_way.pop(future), _outcome(future)
                    # Released before the next is submitted: the scheduler
                    # holds a bounded number of results.
                    future.release()
                    yield name, outcome
                    fill()
        finally:
            # Also when the caller stops early, or a receipt could not be stored.
            self.client.cancel(list(under_way))

    def make_token(self) -> str:
        """End of a name of work, which makes the keys of a question, or of values, unique."""
        return f"{self.part}-{self.run}-{next(_NUMBERS):03d}"

    def _ready(self, value: Any) -> Any:
        return value if isinstance(value, Future) else self.send(value)

    def gather(
        self, futures: Sequence[Future[Any]], work: str, heard: deque[int] | None = None
    ) -> list[Any]:
        """All results, in order, or the first error of ours, without its traceback, whose frames
        are the workers'."""
        self._await(futures, work, len(futures), heard)
        try:
            return list(self.client.gather(list(futures)))
        except Exception:  # what each of them is, one by one, sealed
            outcomes = [_outcome(future) for future in futures]
        for outcome in outcomes:
            if isinstance(outcome, PrivpipeError):
                raise outcome
        return outcomes

    def _await(
        self, tasks: Collection[Future[Any]], work: str, least: int, heard: deque[int] | None = None
    ) -> list[Any]:
        """Futures that are done, well or not, once there are so many.

        Reports the chunks that are heard of, and when nothing moves; gives up when no worker is
        left.
        """
        moved, reported, n_before = time.monotonic(), 0.0, 0
        until = "FIRST_COMPLETED" if least == 1 else "ALL_COMPLETED"
        while True:
            # A cancelled future is done, and `_outcome` says why.
            with suppress(DaskTimeoutError, CancelledError):
                wait(tasks, timeout=TELL_EVERY, return_when=until)
            done = [future for future in tasks if future.done()]
            n_chunks = sum(heard.popleft() for _ in range(len(heard))) if heard else 0
            if n_chunks:
                self.listener(local.Event(work, "advances", n_chunks, "chunks"))
            if len(done) >= least:
                return done
            now = time.monotonic()
            if n_chunks or len(done) > n_before:
                moved, n_before = now, len(done)
            # Once a minute while nothing moves, not once ever: a run may hang for
            # hours.
            if now - max(moved, reported) >= REPORT_AFTER:
                reported = now
                self._report(now - moved, work)

    def _report(self, silent: float, work: str) -> None:
        """Say that nothing has been heard for so many seconds."""
        n_workers = self.measure().n_workers
        self.listener(local.Event(work, "stalls", silent, "seconds", (("workers", n_workers),)))
        # Ten minutes: a nanny, or a queue, may be starting another worker.
        if n_workers == 0 and silent > GIVE_UP_AFTER:
            problem = f"No worker has been connected for {silent:.0f} s."
            remedy = "Start workers, then run again; finished chunks are retained."
            raise ClusterError(problem, remedy=remedy, code="no-workers")


def _outcome(future: Future[Any]) -> Any:
    """Result of a finished task, or why there is none, as an error of ours."""
    try:
        return future.result()
    except PrivpipeError as error:
        return error.with_traceback(None)
    except Exception as error:  # a killed worker, a cancelled task, a broken installation
        # A lost scheduler shows as lost futures of a client that no longer runs.
        if future.client.status not in ("running", "newly-created"):
            problem = "The scheduler was lost: it ended, or cannot be reached any more."
            remedy = "Start it again, then run again: what has a receipt is retained."
            return ClusterError(problem, remedy=remedy, code="scheduler-lost")
        problem = f"A task was lost ({type(error).__name__})."
        remedy = "Look at the workers' memory and logs, then run again."
        return ClusterError(problem, remedy=remedy, code="task-lost")


@contextmanager
def open_executor(
    options: ClusterOptions, run: str, listener: Listener = local.ignore
) -> Iterator[local.Executor]:
    """All work in this process where no workers are requested, on a cluster otherwise.

    Parameters
    ----------
    options
        ``workers = 0`` without an address: this process.
    run
        Identifier of the run.
    listener
        Receives the events.

    Raises
    ------
    OptionError, ClusterError
        As `connect`.
    """
    if options.address is None and options.workers == 0:
        # As on a worker: more threads give other bits, and fight for the processors of others.
        with threadpool_limits(limits=1):
            yield local.Executor(listener)
        return
    with connect(options) as client:
        yield DaskExecutor(client, run, listener)
