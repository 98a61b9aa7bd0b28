"""Reduced-cost searches, spread: duals down, the cheapest symbols of each column up.

Columns are cut into blocks that stay on the workers; a round is one task per block. The cut depends
on the problem alone, and every pair's value on neither the block nor the worker. So any number of
workers gives the same prices to the last bit. All that a block is made of are results of tasks:
what a worker takes along when it dies is made again elsewhere. What the blocks found is merged by a
worker; the driver gets one small answer a round.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numcodecs.blosc import Blosc

from privpipe.cluster.executors.executor import FAN_IN, Event, Executor
from privpipe.numerics.mapping.problem import pair_pricing
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion
from privpipe.numerics.mapping.problem.programme import Programme
from privpipe.numerics.mapping.problem.search_progress import Deadline, waiting
from privpipe.protocols import FloatArray, IntArray

if TYPE_CHECKING:
    from distributed import Client

KINDS = {"values": "<f8", "best": "<i8", "slack": "<f8", "partner": "<i8"}
"""Of the arrays of `Prices`."""

# Equal bits of numbers that are small, alike or 0 lie side by side then. LZ4 took up to 14 bytes a
# symbol and private value where Zstandard takes 6.
_CODEC = Blosc(cname="zstd", clevel=3, shuffle=Blosc.BITSHUFFLE)


@dataclass(frozen=True, eq=False)
class Reply:
    """Prices as they travel: each array of `KINDS` packed, with its shape."""

    total: float | None
    arrays: dict[str, tuple[bytes, tuple[int, ...]]]

    @property
    def n_bytes(self) -> int:
        """Of its arrays and its number."""
        return 8 + sum(len(content) for content, _ in self.arrays.values())


def pack_prices(prices: Prices) -> Reply:
    """Pack, to be unpacked to the last bit."""
    packed = {}
    for name, kind in KINDS.items():
        array = np.ascontiguousarray(getattr(prices, name), kind)
        # Blosc (numcodecs 0.16) does not decode what it made of no numbers.
        packed[name] = bytes(_CODEC.encode(array)) if array.size else b"", array.shape
    return Reply(prices.total, packed)


def unpack_prices(reply: Reply) -> Prices:
    """The prices that were packed."""
    found = {name: np.empty(shape, KINDS[name]) for name, (_, shape) in reply.arrays.items()}
    for name, (content, _) in reply.arrays.items():
        if content:
            _CODEC.decode(content, found[name])
    return Prices(**found, total=reply.total)


def _merge(replies: Sequence[Reply]) -> Prices:
    # Partners are counted within the whole already.
    return pair_pricing.merge_prices([unpack_prices(one) for one in replies], [0] * len(replies))


def merge_replies(replies: Sequence[Reply]) -> Reply:
    """Replies of consecutive blocks as one."""
    return pack_prices(_merge(replies))


def answer_round(replies: Sequence[Reply], mass: FloatArray, question: PricingQuestion) -> Reply:
    """Worker side: what the driver learns of a round, as far as the question wants it.

    Parameters
    ----------
    replies
        In the order of their columns; all of them.
    mass : (n_columns,)
    question
        Its flags alone are read.
    """
    found = _merge(replies)
    found = replace(found, total=pair_pricing.sum_prices(mass, found))
    # Only an undercut column enters the programme, by how much it is undercut: other slack is 0.
    # It stays float64: in float32 ties would depend on the cut into blocks.
    found.slack[(found.partner >= 0) & ~(found.slack < 0.0)] = 0.0
    if not question.values:
        found = replace(found, values=found.values[:0])
        if not question.partners:  # the sum is all that is used
            found = replace(found, best=found.best[:0])
    return pack_prices(found)


PricingPlace = Literal["auto", "cluster", "inline"]

_PAIRS_PER_BLOCK = 2**28
# The square of FAN_IN: two levels of merging.
_MOST_BLOCKS = 64
# Of a pilot; and seconds of work that no task would shorten.
_PILOT_PAIRS, _SHORT = 2**21, 0.05
# Of the seconds here: what tasks may take to be worth it.
_PAYS = 0.9

_ROUNDS = itertools.count()
"""Rounds of this process: no two have one key."""


def plan_columns(n_symbols: int, n_columns: int) -> tuple[int, ...]:
    """Edges of the blocks of columns, from the problem's size alone.

    Parameters
    ----------
    n_symbols, n_columns

    Returns
    -------
    edges
        From 0 to `n_columns`; at least four blocks, so that two workers share evenly.
    """
    blocks = -(-n_symbols * n_columns // _PAIRS_PER_BLOCK)
    # From the size alone, not from the workers: prices would differ in the last bit.
    blocks = min(max(blocks, 4), _MOST_BLOCKS, n_columns)
    return tuple(int(edge) for edge in np.linspace(0, n_columns, blocks + 1).astype(np.int64))


def _executor_of(client: "Client | Executor", run_id: str) -> Executor:
    """An executor as it is. Distributed, slow to load, is there already where there is a client."""
    if "distributed" in sys.modules:
        from distributed import Client

        from privpipe.cluster.executors.dask_executor import DaskExecutor

        if isinstance(client, Client):
            return DaskExecutor(client, run_id)
    return cast("Executor", client)


class ClusterPricing:
    """A pricing oracle whose columns are priced where an executor works.

    Parameters
    ----------
    client
        A cluster's client, or an executor.
    run_id
        Eight hexadecimal digits of the run, part of the keys ``price_columns-<run id>-...``; an
        executor has its own.
    place
        "cluster" always sends; "inline" never; "auto" where a pilot finds that it pays.

    Attributes
    ----------
    n_sent
        Blocks priced so far.
    n_bytes
        Bytes of the answers that came back.

    Notes
    -----
    Usable as ``solve_privacy_mapping(..., price=ClusterPricing(client, run_id))``. Every block
    has its columns on one worker; the symbols' codes reach each worker once per problem, the
    duals once per round. A worker may die between rounds or during one, the only one included:
    the answer is the same, bit for bit.

    An answer leaves out what a question does not want (see `Prices`). It takes at most 8 bytes per
    symbol and private value under three conditions. The question wants no prices and names no more
    symbols than `most_named`, and at most a tenth of the partners undercut their column.
    """

    def __init__(
        self, client: "Client | Executor", run_id: str = "", place: PricingPlace = "auto"
    ) -> None:
        self.executor = _executor_of(client, run_id)
        self.place = place
        self.n_sent = self.n_bytes = 0
        self._problem: Programme | None = None
        self._blocks: list[Any] = []
        self._edges: tuple[int, ...] = ()
        self._mass: Any = None

    def __call__(self, problem: Programme, question: PricingQuestion) -> Prices:
        """Price all columns of a problem."""
        # The same object, not an equal one: comparing would cost as much as sending.
        if problem is not self._problem:
            self._problem, self._blocks = problem, []
            if self._pays_pricing(problem, question):
                self._load(problem)
        if not self._blocks:
            return pair_pricing.price_in_memory(problem, question)
        prices = self._ask(question)
        self.executor.listener(Event("price_columns", "advances", 1, "rounds"))
        return prices

    @property
    def n_threads(self) -> int:
        """Threads of workers; 0 where all is done in this process."""
        alone = type(self.executor) is Executor or self.place == "inline"
        return 0 if alone else max(1, self.executor.measure().n_threads)

    @cached_property
    def task_seconds(self) -> float:
        """What a task takes beyond its work: the least of three without any."""

        def try_one() -> float:
            begun = time.monotonic()
            list(self.executor.run_tasks(str, [(f"{next(_ROUNDS):06d}", ())], prefix="pilot"))
            return time.monotonic() - begun

        return min(try_one() for _ in range(3))

    def pays(self, work: str, seconds: float, n_tasks: int) -> bool:
        """Whether work of so many seconds here is sent as tasks; a pilot's decision is reported."""
        n = self.n_threads
        if self.place != "auto" or not n or seconds < _SHORT:
            return self.place == "cluster"
        there = seconds / min(n, n_tasks) + self.task_seconds * (2 + n_tasks / n)
        numbers = ("here", seconds), ("task", self.task_seconds), ("workers", float(n))
        sent = there <= _PAYS * seconds
        self.executor.listener(Event(work, "decides", float(sent), "tasks", numbers))
        return sent

    def _pays_pricing(self, problem: Programme, question: PricingQuestion) -> bool:
        if self.place != "auto" or not self.n_threads:
            return self.place == "cluster"
        n = min(max(_PILOT_PAIRS // problem.n_symbols, 1), problem.n_columns)
        for _ in range(2):  # the first compiles
            clock = Deadline(np.inf)
            pair_pricing.price_block(problem, question, 0, n, pair_pricing.column_groups(problem))
        n_blocks = len(plan_columns(problem.n_symbols, problem.n_columns)) - 1
        return self.pays("price_columns", clock.spent * problem.n_columns / n, n_blocks)

    def spread(
        self, solve: Callable[[Any], Any], problems: Iterable[Any], at_once: int | None = None
    ) -> Iterator[Any]:
        """Solve problems that know nothing of one another, each a task of its own, in order.

        So many at once, or all: the next are not begun where no one reads on. With 0 they are
        solved here, one by one.
        """
        queue, executor = iter(problems), self.executor
        if at_once == 0:
            at_once, executor = 1, Executor(executor.listener)
        while several := list(itertools.islice(queue, at_once)):
            with waiting():
                found = executor.solve_apart(solve, several)
            yield from found

    def _load(self, problem: Programme) -> None:
        """Cut the columns and leave each block where it will be priced."""
        self._edges = plan_columns(problem.n_symbols, problem.n_columns)
        groups, send = pair_pricing.column_groups(problem), self.executor.send
        symbols = send(getattr(problem.distance, "symbols", None))
        hold = partial(self.executor.hold, keep_columns, key="keep_columns")
        self._blocks = [
            hold(send(_part(problem, a, b)), send(groups[a:b]), symbols)
            for a, b in itertools.pairwise(self._edges)
        ]
        self._mass = send(problem.mass)

    def _ask(self, question: PricingQuestion) -> Prices:
        levels, executor = question.levels, self.executor
        duals = executor.send(replace(question, levels=None))
        hold = partial(executor.hold, price_columns, key="price_columns")
        parts = [
            hold(block, duals, None if levels is None else levels[a:b], a)
            for block, (a, b) in zip(self._blocks, itertools.pairwise(self._edges), strict=True)
        ]
        self.n_sent += len(parts)
        while len(parts) > FAN_IN:
            parts = [
                executor.hold(merge_replies, parts[at : at + FAN_IN], key="merge_prices")
                for at in range(0, len(parts), FAN_IN)
            ]
        tasks = [(f"{next(_ROUNDS):06d}", (parts, self._mass, duals))]
        [(_, answer)] = executor.run_tasks(answer_round, tasks, prefix="answer_prices")
        self.n_bytes += answer.n_bytes
        return unpack_prices(answer)


def _part(problem: Programme, start: int, stop: int) -> Programme:
    """A block of columns without the symbols, which all blocks share and one broadcast carries."""
    columns = np.arange(start, stop)
    distance: Any = problem.distance.columns_of(columns)
    if hasattr(distance, "symbols"):
        # All blocks share them: they are sent once a problem, apart.
        distance = replace(distance, symbols=distance.symbols[:0])
    mass, posterior = problem.mass[columns], problem.posterior[columns]
    return Programme(mass, posterior, distance, problem.budget, problem.stay[columns])


def keep_columns(part: Programme, groups: IntArray, symbols: Any) -> tuple[Programme, IntArray]:
    """Worker side: hold a block of columns, its arrays aligned."""
    distance: Any = part.distance
    if symbols is not None:
        distance = replace(distance, symbols=symbols)
    # Copied: what comes off the wire may lie at any address, and sums another way.
    return replace(part, posterior=np.array(part.posterior), distance=distance), np.array(groups)


def price_columns(
    block: tuple[Programme, IntArray], question: PricingQuestion, levels: Any, first: int
) -> Reply:
    """Worker side: price the block's columns, the first of which is given, against all symbols."""
    problem, groups = block
    question = replace(question, levels=levels)
    found = pair_pricing.price_block(problem, question, 0, problem.n_columns, groups)
    return pack_prices(pair_pricing.merge_prices([found], [first]))
