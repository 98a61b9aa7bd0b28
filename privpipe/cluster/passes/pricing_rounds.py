"""Reduced-cost searches, spread: duals down, the cheapest symbols of each column up.

Columns are cut into blocks that stay on the workers; a round is one task per block. The cut
depends on the problem alone, and every pair's value on neither the block nor the worker, so
that any number of workers gives the same prices to the last bit. All that a block is made of
are results of tasks: what a worker takes along when it dies is made again elsewhere. What the
blocks found is merged by a worker; the driver gets one small answer a round.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from privpipe.cluster.executors.executor import FAN_IN, Event, Executor
from privpipe.errors import PrivpipeError
from privpipe.numerics.mapping.problem.pair_pricing import (
    Prices,
    PricingQuestion,
    column_groups,
    merge_prices,
    price_block,
    price_in_memory,
    sum_prices,
)
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import FloatArray, IntArray

if TYPE_CHECKING:
    from distributed import Client

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Reply:
    """Prices of a block, packed.

    Parameters
    ----------
    values : (n_columns,)
    counts : (n_columns,)
        Symbols named for each column.
    top
        Most symbols that could be named.
    symbols : (sum of counts,)
    shape
        Symbols and groups that partners were searched for.
    named
        A bit for each of them.
    partners, slack
        Of those whose bit is set, in order.
    """

    values: FloatArray
    counts: Numbers
    top: int
    symbols: Numbers
    shape: tuple[int, int]
    named: Bytes
    partners: Numbers
    slack: FloatArray

    @property
    def n_bytes(self) -> int:
        """Of its arrays."""
        arrays = (self.values, self.counts, self.symbols, self.named, self.partners, self.slack)
        return sum(array.nbytes for array in arrays)


def pack_prices(prices: Prices) -> Reply:
    """Pack; named symbols come first in each row of `Prices.best`."""
    there, named = prices.best >= 0, prices.partner >= 0
    return Reply(
        values=prices.values,
        counts=_shorten(there.sum(axis=1)),
        top=prices.best.shape[1],
        symbols=_shorten(prices.best[there]),
        shape=(prices.slack.shape[0], prices.slack.shape[1]),
        named=np.packbits(named),
        partners=_shorten(prices.partner[named]),
        slack=prices.slack[named],
    )


def unpack_prices(reply: Reply) -> Prices:
    """The prices that were packed, to the last bit."""
    best = np.full((len(reply.counts), reply.top), -1)
    best[np.arange(reply.top) < reply.counts[:, None]] = _lengthen(reply.symbols)
    size = reply.shape[0] * reply.shape[1]
    named = np.unpackbits(reply.named, count=size).astype(bool).reshape(reply.shape)
    slack, partner = np.full(reply.shape, np.inf), np.full(reply.shape, -1)
    slack[named], partner[named] = reply.slack, _lengthen(reply.partners)
    return Prices(reply.values, best, slack, partner)


@dataclass(frozen=True, eq=False)
class PriceReply:
    """Prices of all columns, as far as a question wants them.

    Parameters
    ----------
    total
        What the prices weighed by the columns' masses sum to.
    reply
        The rest; without prices where no one reads them, and slack of those below 0 alone.
    below
        A bit for each partner that is named: whether its slack is below 0.
    """

    total: float
    reply: Reply
    below: Bytes

    @property
    def n_bytes(self) -> int:
        """Of its arrays and its number."""
        return 8 + self.reply.n_bytes + self.below.nbytes

    def prices(self) -> Prices:
        """See `Prices` for what is left out."""
        reply = self.reply
        below = np.unpackbits(self.below, count=len(reply.partners)).astype(bool)
        slack = np.zeros(len(below))
        # Others are 0: only an undercut column enters the programme, by how much it is
        # undercut.
        slack[below] = reply.slack
        return replace(unpack_prices(replace(reply, slack=slack)), total=self.total)


def merge_replies(replies: Sequence[Reply]) -> Reply:
    """Replies of consecutive blocks as one; partners are counted within the whole already."""
    return pack_prices(
        merge_prices([unpack_prices(reply) for reply in replies], [0] * len(replies))
    )


def answer_round(
    replies: Sequence[Reply], mass: FloatArray, question: PricingQuestion
) -> PriceReply:
    """Worker side: what the driver learns of a round.

    Parameters
    ----------
    replies
        In the order of their columns; all of them.
    mass : (n_columns,)
    question
        Its flags alone are read.
    """
    found = merge_prices([unpack_prices(reply) for reply in replies], [0] * len(replies))
    whole, total = pack_prices(found), sum_prices(mass, found)
    # Slack stays float64: in float32 ties would depend on the cut into blocks.
    below = whole.slack < 0.0
    reply = replace(whole, slack=whole.slack[below])
    if not question.values:
        reply = replace(reply, values=reply.values[:0])
        if not question.partners:  # the sum is all that is used
            reply = replace(reply, counts=reply.counts[:0], symbols=reply.symbols[:0])
    return PriceReply(total, reply, np.packbits(below))


def _shorten(numbers: Any) -> Numbers:
    """The same numbers, not negative, in the smallest type that holds them."""
    largest = int(numbers.max(initial=0))
    if 2**16 <= largest < 2**24:  # three bytes, for which there is no type
        wide = np.asarray(numbers, "<u4").reshape(-1, 1)
        return np.ascontiguousarray(wide.view(np.uint8)[:, :3])
    return np.asarray(numbers, dtype=np.min_scalar_type(largest))


def _lengthen(numbers: Numbers) -> Numbers:
    """What was shortened."""
    if numbers.ndim == 1:
        return numbers
    wide = np.zeros((len(numbers), 4), np.uint8)
    wide[:, :3] = numbers
    return wide.view("<u4").ravel()


PricingPlace = Literal["auto", "cluster", "inline"]

_PAIRS_PER_BLOCK = 2**28
# The square of FAN_IN: two levels of merging.
_MOST_BLOCKS = 64
_WORTH_SENDING = 2**29
"""Pairs of a round below which a cluster's overhead is more than the search itself."""

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


def _executor_of(client: Client | Executor, run_id: str) -> Executor:
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
        "cluster" always sends; "inline" never; "auto" sends where the search outweighs it.

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

    An answer leaves out what a question does not want (see `Prices`): it takes at most 8 bytes
    per symbol and private value where the question wants no prices, names no more symbols than
    `most_named`, and not more than a tenth of the partners undercut their column.
    """

    def __init__(
        self, client: Client | Executor, run_id: str = "", place: PricingPlace = "auto"
    ) -> None:
        self.executor = _executor_of(client, run_id)
        self.place = place
        self.n_sent = self.n_bytes = 0
        self._problem: MappingProblem | None = None
        self._blocks: list[Any] = []
        self._edges: tuple[int, ...] = ()
        self._mass: Any = None

    def __call__(self, problem: MappingProblem, question: PricingQuestion) -> Prices:
        """Price all columns of a problem."""
        pairs = problem.n_symbols * problem.n_columns
        if self.place == "inline" or (self.place == "auto" and pairs < _WORTH_SENDING):
            return price_in_memory(problem, question)
        # The same object, not an equal one: comparing would cost as much as sending.
        if problem is not self._problem:
            self._load(problem)
        prices = self._ask(question)
        self.executor.listener(Event("price_columns", "advances", 1, "rounds"))
        return prices

    def _load(self, problem: MappingProblem) -> None:
        """Cut the columns and leave each block where it will be priced."""
        self._edges = plan_columns(problem.n_symbols, problem.n_columns)
        groups, send = column_groups(problem), self.executor.send
        symbols = send(getattr(problem.distance, "symbols", None))
        self._blocks = [
            self.executor.hold(
                keep_columns,
                send(_part(problem, a, b)),
                send(groups[a:b]),
                symbols,
                key="keep_columns",
            )
            for a, b in itertools.pairwise(self._edges)
        ]
        self._mass = send(problem.mass)
        self._problem = problem

    def _ask(self, question: PricingQuestion) -> Prices:
        levels, executor = question.levels, self.executor
        duals = executor.send(replace(question, levels=None))
        parts = [
            executor.hold(
                price_columns,
                block,
                duals,
                None if levels is None else levels[a:b],
                a,
                key="price_columns",
            )
            for block, (a, b) in zip(self._blocks, itertools.pairwise(self._edges), strict=True)
        ]
        self.n_sent += len(parts)
        while len(parts) > FAN_IN:
            parts = [
                executor.hold(merge_replies, parts[at : at + FAN_IN], key="merge_prices")
                for at in range(0, len(parts), FAN_IN)
            ]
        answer = self._fetch(parts, duals)
        self.n_bytes += answer.n_bytes
        return answer.prices()

    def _fetch(self, parts: list[Any], question: Any) -> PriceReply:
        task = f"{next(_ROUNDS):06d}", (parts, self._mass, question)
        for _, answer in self.executor.map_tasks(answer_round, [task], prefix="answer_prices"):
            if isinstance(answer, PrivpipeError):
                raise answer
            found: PriceReply = answer
        return found


def _part(problem: MappingProblem, start: int, stop: int) -> MappingProblem:
    """A block of columns without the symbols, which all blocks share and one broadcast carries."""
    columns = np.arange(start, stop)
    distance: Any = problem.distance.columns_of(columns)
    if hasattr(distance, "symbols"):
        # All blocks share them: they are sent once a problem, apart.
        distance = replace(distance, symbols=distance.symbols[:0])
    return MappingProblem(
        problem.mass[columns],
        problem.posterior[columns],
        distance,
        problem.budget,
        problem.stay[columns],
    )


def keep_columns(
    part: MappingProblem, groups: IntArray, symbols: Any
) -> tuple[MappingProblem, IntArray]:
    """Worker side: hold a block of columns, its arrays aligned."""
    distance: Any = part.distance
    if symbols is not None:
        distance = replace(distance, symbols=symbols)
    # Copied: what comes off the wire may lie at any address, and sums another way.
    return replace(part, posterior=np.array(part.posterior), distance=distance), np.array(groups)


def price_columns(
    block: tuple[MappingProblem, IntArray], question: PricingQuestion, levels: Any, first: int
) -> Reply:
    """Worker side: price the block's columns, the first of which is given, against all symbols."""
    problem, groups = block
    question = replace(question, levels=levels)
    found = price_block(problem, question, 0, problem.n_columns, groups)
    return pack_prices(merge_prices([found], [first]))
