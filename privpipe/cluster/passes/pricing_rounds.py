"""Reduced-cost searches, spread: duals down, the cheapest symbols of each column up.

Columns are cut into blocks that stay on the workers; a round is one task per block. The cut
depends on the problem alone, and every pair's value on neither the block nor the worker, so
that any number of workers gives the same prices to the last bit. All that a block is made of
are results of tasks: what a worker takes along when it dies is made again elsewhere.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from distributed import Client

from privpipe.cluster.events import Event
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.replies import Reply, pack_prices, unpack_prices
from privpipe.errors import PrivpipeError
from privpipe.numerics.mapping.pricing.pair_pricing import (
    Prices,
    Question,
    column_groups,
    merge_prices,
    price_block,
    price_in_memory,
)
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import IntArray

__all__ = ["ClusterPricing", "PricingPlace", "plan_columns"]

PricingPlace = Literal["auto", "cluster", "inline"]

_PAIRS_PER_BLOCK = 2**28
_MOST_BLOCKS = 64
_WORTH_SENDING = 2**29
"""Pairs of a round below which a cluster's overhead is more than the search itself."""


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
        Tasks so far.
    n_bytes
        Bytes of their replies.

    Notes
    -----
    Usable as ``solve_privacy_mapping(..., price=ClusterPricing(client, run_id))``. Every block
    has its columns on one worker; the symbols' codes reach each worker once per problem, the
    duals once per round. A worker may die between rounds or during one, the only one included:
    the answer is the same, bit for bit.
    """

    def __init__(
        self, client: Client | Executor, run_id: str = "", place: PricingPlace = "auto"
    ) -> None:
        self.executor = DaskExecutor(client, run_id) if isinstance(client, Client) else client
        self.place = place
        self.n_sent = self.n_bytes = 0
        self._problem: MappingProblem | None = None
        self._blocks: list[Any] = []
        self._edges: tuple[int, ...] = ()
        self._rounds = itertools.count()

    def __call__(self, problem: MappingProblem, question: Question) -> Prices:
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
        self._problem = problem

    def _ask(self, question: Question) -> Prices:
        levels, number = question.levels, next(self._rounds)
        duals = self.executor.send(replace(question, levels=None))
        tasks = (
            (f"{number:05d}-{place:04d}", (block, duals, None if levels is None else levels[a:b]))
            for place, (block, (a, b)) in enumerate(
                zip(self._blocks, itertools.pairwise(self._edges), strict=True)
            )
        )
        replies: dict[str, Reply] = {}
        for name, reply in self.executor.map_tasks(price_columns, tasks, prefix="price_columns"):
            if isinstance(reply, PrivpipeError):
                raise reply
            replies[name] = reply
        self.n_sent += len(replies)
        self.n_bytes += sum(reply.n_bytes for reply in replies.values())
        parts = [unpack_prices(replies[name]) for name in sorted(replies)]
        return merge_prices(parts, self._edges[:-1])


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


def price_columns(block: tuple[MappingProblem, IntArray], question: Question, levels: Any) -> Reply:
    """Worker side: price the block's columns against all symbols."""
    problem, groups = block
    question = replace(question, levels=levels)
    return pack_prices(price_block(problem, question, 0, problem.n_columns, groups))
