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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import FAN_IN, Executor
from privpipe.cluster.passes.replies import (
    PriceReply,
    Reply,
    answer_round,
    merge_replies,
    pack_prices,
)
from privpipe.errors import PrivpipeError
from privpipe.numerics.mapping.pricing.pair_pricing import (
    Prices,
    PricingQuestion,
    column_groups,
    merge_prices,
    price_block,
    price_in_memory,
)
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import IntArray

if TYPE_CHECKING:
    from distributed import Client

PricingPlace = Literal["auto", "cluster", "inline"]

_PAIRS_PER_BLOCK = 2**28
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
    return replace(part, posterior=np.array(part.posterior), distance=distance), np.array(groups)


def price_columns(
    block: tuple[MappingProblem, IntArray], question: PricingQuestion, levels: Any, first: int
) -> Reply:
    """Worker side: price the block's columns, the first of which is given, against all symbols."""
    problem, groups = block
    question = replace(question, levels=levels)
    found = price_block(problem, question, 0, problem.n_columns, groups)
    return pack_prices(merge_prices([found], [first]))
