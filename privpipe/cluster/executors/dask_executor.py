"""An executor on Dask workers: what is sent or held is the result of a task, never scattered."""

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from distributed import Client, Future, get_worker, wait
from distributed import TimeoutError as DaskTimeoutError
from threadpoolctl import threadpool_limits

from privpipe.cluster.executors.executor import (
    Event,
    Executor,
    Listener,
    LocalExecutor,
    WorkerMemory,
    fold_in_tree,
    ignore,
    merge_all,
)
from privpipe.cluster.executors.oracles import ResidentOracle, send
from privpipe.cluster.workers.boundary import run_sealed
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.progress import TOPIC, Progress
from privpipe.errors import ClusterError, PrivpipeError
from privpipe.protocols import Oracle, Shard, Statistics, Sums

S = TypeVar("S", bound=Statistics)

IN_FLIGHT_PER_THREAD = 3
"""Tasks submitted per worker thread: one at work, two waiting close by."""

TELL_EVERY = 0.5
"""Seconds between two looks at how far a pass has come."""

REPORT_AFTER = 60.0
"""Seconds without a finished task after which a stall is reported."""

GIVE_UP_AFTER = 600.0
"""Seconds without a finished task *and* without any worker after which the work fails."""


_numbers = itertools.count()
"""Numbers of the questions of this process: no two have the same keys, whoever queries."""


class DaskExecutor:
    """Runs work on the workers of a cluster; see `Executor`.

        Parameters
        ----------
        client
            The cluster.
        run
            Identifier of the run: keys of two runs on one scheduler never meet.
        listener
    Hears what happens.
    """

    def __init__(self, client: Client, run: str = "", listener: Listener = ignore) -> None:
        self.client, self.listener = client, listener
        self.run = run or secrets.token_hex(4)
        # One topic a run: a scheduler that serves many keeps the events of each topic.
        self._topic = f"privpipe-{self.run}"
        self._report_chunks: Callable[[], bool] = _nothing

    def describe(self) -> str:
        """The dashboard's address."""
        link = self.client.dashboard_link
        return f"dashboard at {link}" if link else "no dashboard"

    def measure(self) -> WorkerMemory:
        """Workers, threads and memory as they are now."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [int(worker["memory_limit"] or 0) for worker in workers]
        threads = [int(worker["nthreads"]) for worker in workers]
        return WorkerMemory(
            n_workers=len(limits),
            n_threads=sum(threads),
            smallest=min(limits, default=0),
            total=sum(limits),
            threads=max(threads, default=1),
        )

    def show(self, progress: Progress) -> None:
        """An event on the scheduler, for its page and its gauges."""
        with suppress(Exception):
            self.client.log_event(TOPIC, progress.encode())

    def send(self, value: Any) -> Future[Any]:
        """Future of a small value, which the scheduler can make again."""
        return send(self.client, value)

    def hold(self, function: Callable[..., Any], *arguments: Any, key: str) -> Future[Any]:
        """Future of a value made on a worker; made again when that worker is lost."""
        name = f"{key}-{self._token()}"
        # Not pure: two values with one key would be taken for one, and a retry must run
        # again.
        return self.client.submit(run_sealed, function, *arguments, key=name, pure=False, retries=2)

    def reduce(
        self, leaf: Callable[..., S], shared: Sequence[Any], tasks: Sequence[Any], *, label: str
    ) -> S:
        """See `Executor.reduce`; merges are submitted as soon as their parts are."""
        # The number of the question is part of each key: results of an earlier one are
        # never met.
        token, numbers = self._token(), itertools.count()
        sent = [self._ready(value) for value in shared]

        def merge(parts: list[Future[Any]]) -> Future[Any]:
            key = f"merge_{label}-{token}-{next(numbers):06d}"
            return self.client.submit(run_sealed, merge_all, parts, key=key, pure=False, retries=2)

        leaves = (
            self.client.submit(
                run_counted,
                self._topic,
                (token, number),
                leaf,
                *sent,
                task,
                key=f"sum_{label}-{token}-{number:06d}",
                pure=False,
                retries=2,
            )
            for number, task in enumerate(tasks)
        )
        work = f"sum_{label}"
        with self._counting(token, work):
            found: S = self._fetch(fold_in_tree(leaves, merge), work)
        return found

    def oracle(
        self,
        load: Callable[..., list[Shard]],
        shared: Sequence[Any],
        tasks: Sequence[Any],
        function: Callable[..., Sums],
        resident: Mapping[str, Any],
        *,
        label: str,
        sizes: Sequence[int] = (),
    ) -> Oracle[Any, Sums]:
        """See `Executor.oracle`; shards stay on the workers that loaded them, if there is room."""
        del label
        oracle = ResidentOracle.load(
            self.client, load, shared, tasks, sizes, function, resident, self._token(), self._gather
        )
        if oracle.loaded:  # a round queries each worker about what it holds
            self._await(oracle.loaded, "load_shards", len(oracle.loaded))
        return oracle

    def map_tasks(
        self,
        function: Callable[..., Any],
        tasks: Iterable[tuple[str, tuple[Any, ...]]],
        *,
        shared: Sequence[Any] = (),
        prefix: str,
        retries: int = 2,
    ) -> Iterator[tuple[str, Any]]:
        """See `Executor.map_tasks`."""
        sent = [self._ready(value) for value in shared]
        queue, under_way = iter(tasks), dict[Future[Any], str]()

        def submit_next() -> None:
            if (task := next(queue, None)) is not None:
                key = f"{prefix}-{self.run}-{task[0]}"
                options = {"key": key, "pure": False, "retries": retries}
                future = self.client.submit(run_sealed, function, *sent, *task[1], **options)
                under_way[future] = task[0]

        # At least one: with no worker yet the tasks wait on the scheduler, and `_await`
        # reports it.
        for _ in range(max(1, self.measure().n_threads) * IN_FLIGHT_PER_THREAD):
            submit_next()
        try:
            while under_way:
                for future in self._await(set(under_way), prefix, 1):
                    name, outcome = under_way.pop(future), _outcome(future)
                    # Released before the next is submitted: the scheduler
                    # holds a bounded number of results.
                    future.release()
                    yield name, outcome
                    submit_next()
        finally:
            # Also when the caller stops early, or a receipt could not be stored.
            self.client.cancel(list(under_way))

    def _token(self) -> str:
        return f"{self.run}-{next(_numbers):03d}"

    def _ready(self, value: Any) -> Any:
        return value if isinstance(value, Future) else self.send(value)

    @contextmanager
    def _counting(self, token: str, work: str) -> Iterator[None]:
        """Count chunks as workers finish them, each once, though a lost one is done again.

        Events come on a thread of the client's own, and some may never come: they are shown, and
        nothing rests on them.
        """
        # Appending to a deque is atomic: events arrive on the client's thread, and are
        # read on ours.
        heard: deque[tuple[str, int, int]] = deque()
        counted: set[int] = set()

        def report_chunks() -> bool:
            found = [heard.popleft() for _ in range(len(heard))]
            # Of this question alone: a topic belongs to the run, and passes may
            # overlap.
            new = {number: n for owner, number, n in found if owner == token}
            done = sum(n for number, n in new.items() if number not in counted)
            counted.update(new)
            if done:
                self.listener(Event(work, "advances", done, "chunks"))
            return bool(done)

        with suppress(Exception):
            self.client.subscribe_topic(self._topic, lambda event: heard.append(tuple(event[1])))
        self._report_chunks = report_chunks
        try:
            yield
        finally:
            self._report_chunks = _nothing
            with suppress(Exception):
                self.client.unsubscribe_topic(self._topic)

    def _fetch(self, future: Future[Any], work: str) -> Any:
        """The result, or the error without its traceback, whose frames are the workers'."""
        self._await([future], work, 1)
        self._report_chunks()
        outcome = _outcome(future)
        if isinstance(outcome, PrivpipeError):
            raise outcome
        return outcome

    def _gather(self, futures: Sequence[Future[Any]], work: str) -> list[Any]:
        """All results, in order, or the first error of ours."""
        self._await(futures, work, len(futures))
        outcomes: list[Any]
        try:
            return list(self.client.gather(list(futures)))
        except Exception:  # what each of them is, one by one, sealed
            outcomes = [_outcome(future) for future in futures]
        for outcome in outcomes:
            if isinstance(outcome, PrivpipeError):
                raise outcome
        return outcomes

    def _await(self, futures: Collection[Future[Any]], work: str, n_needed: int) -> list[Any]:
        """Futures that are done, well or not, once there are so many.

        Reports when nothing moves, and gives up when no worker is left.
        """
        moved, reported, n_before = time.monotonic(), 0.0, 0
        until = "FIRST_COMPLETED" if n_needed == 1 else "ALL_COMPLETED"
        while True:
            # A cancelled future is done, and `_outcome` says why.
            with suppress(DaskTimeoutError, CancelledError):
                wait(futures, timeout=TELL_EVERY, return_when=until)
            done = [future for future in futures if future.done()]
            if len(done) >= n_needed:
                return done
            now = time.monotonic()
            if self._report_chunks() or len(done) > n_before:
                moved, n_before = now, len(done)
            # Once a minute while nothing moves, not once ever: a run may hang for
            # hours.
            if now - max(moved, reported) >= REPORT_AFTER:
                reported = now
                self._report(now - moved, work)

    def _report(self, silent: float, work: str) -> None:
        """Say that nothing has been heard for so many seconds."""
        n_workers = self.measure().n_workers
        self.listener(Event(work, "stalls", silent, "seconds", (("workers", n_workers),)))
        # Ten minutes: a nanny, or a queue, may be starting another worker.
        if n_workers == 0 and silent > GIVE_UP_AFTER:
            raise ClusterError(
                f"No worker has been connected for {silent:.0f} s.",
                remedy="Start workers, then run again; finished chunks are retained.",
                code="no-workers",
            )


def run_counted(
    topic: str, mark: tuple[str, int], function: Callable[..., Any], *given: Any
) -> Any:
    """Worker side: a leaf of a sum; reports how many chunks are done."""
    found = run_sealed(function, *given)
    n_chunks = len(given[-1]) if isinstance(given[-1], Sized) else 1
    with suppress(Exception):  # a sum is worth more than its progress
        get_worker().log_event(topic, [*mark, n_chunks])
    return found


def _nothing() -> bool:
    """Nothing to report."""
    return False


def _outcome(future: Future[Any]) -> Any:
    """Result of a finished task, or why there is none, as an error of ours."""
    try:
        return future.result()
    except PrivpipeError as error:
        return error.with_traceback(None)
    except Exception as error:  # a killed worker, a cancelled task, a broken installation
        # A lost scheduler shows as lost futures of a client that no longer runs.
        if future.client.status not in ("running", "newly-created"):
            return ClusterError(
                "The scheduler was lost: it ended, or cannot be reached any more.",
                remedy="Start it again, then run again: what has a receipt is retained.",
                code="scheduler-lost",
            )
        return ClusterError(
            f"A task was lost ({type(error).__name__}).",
            remedy="Look at the workers' memory and logs, then run again.",
            code="task-lost",
        )


@contextmanager
def open_executor(
    options: ClusterOptions, run: str, listener: Listener = ignore
) -> Iterator[Executor]:
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
            yield LocalExecutor(listener)
        return
    with connect(options) as client:
        yield DaskExecutor(client, run, listener)
