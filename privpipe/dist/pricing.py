"""Reduced-cost searches on a cluster: duals down, the cheapest symbols of each column up.

Columns are cut into blocks that stay on the workers; a round is one task per block. The cut
depends on the problem alone, and every pair's value on neither the block nor the worker, so
that any number of workers gives the same prices to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from distributed import Client, Future, wait

from privpipe.dist.boundary import run_sealed
from privpipe.numerics.mapping_problem import MappingProblem
from privpipe.numerics.pricing import (
    Prices,
    Question,
    column_groups,
    merge_prices,
    price_block,
    price_in_memory,
)
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


@dataclass(eq=False)
class ClusterPricing:
    """A pricing oracle whose columns are priced on a cluster's workers.

    Parameters
    ----------
    client
        The cluster.
    run_id
        Eight hexadecimal digits of the run; part of the keys ``price_columns-<run id>-...``.
    place
        "cluster" always sends; "inline" never; "auto" sends where the search outweighs it.

    Notes
    -----
    Usable as ``solve_privacy_mapping(..., price=ClusterPricing(client, run_id))``. Every block
    has its columns on one worker; the symbols' codes are sent to each worker once per problem,
    the duals once per round.
    """

    client: Client
    run_id: str
    place: PricingPlace = "auto"
    n_sent: int = field(default=0, init=False)
    _problem: MappingProblem | None = field(default=None, init=False)
    _blocks: list[Future[Any]] = field(default_factory=list, init=False)
    _edges: tuple[int, ...] = field(default=(), init=False)
    _rounds: Iterator[int] = field(default_factory=itertools.count, init=False)
    _loads: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __call__(self, problem: MappingProblem, question: Question) -> Prices:
        """Price all columns of a problem."""
        pairs = problem.n_symbols * problem.n_columns
        if self.place == "inline" or (self.place == "auto" and pairs < _WORTH_SENDING):
            return price_in_memory(problem, question)
        if problem is not self._problem:
            self._load(problem)
        return self._ask(question)

    def _load(self, problem: MappingProblem) -> None:
        """Cut the columns and leave each block on a worker."""
        self._edges = plan_columns(problem.n_symbols, problem.n_columns)
        groups, load = column_groups(problem), next(self._loads)
        self._blocks = []
        for number, (a, b) in enumerate(itertools.pairwise(self._edges)):
            part = _part(problem, a, b)
            [sent] = self.client.scatter([(part, groups[a:b])], hash=False)
            self._blocks.append(
                self.client.submit(
                    run_sealed,
                    keep_columns,
                    sent,
                    key=f"keep_columns-{self.run_id}-{load:03d}-{number:04d}",
                    pure=False,
                )
            )
        wait(self._blocks)
        self._problem = problem

    def _ask(self, question: Question) -> Prices:
        levels, number = question.levels, next(self._rounds)
        plain = replace(question, levels=None)
        duals = self.client.scatter(plain, hash=False, broadcast=True)
        tasks = [
            self.client.submit(
                run_sealed,
                price_columns,
                block,
                duals,
                None if levels is None else levels[a:b],
                key=f"price_columns-{self.run_id}-{number:05d}-{place:04d}",
                pure=False,
                retries=2,
            )
            for place, (block, (a, b)) in enumerate(
                zip(self._blocks, itertools.pairwise(self._edges), strict=True)
            )
        ]
        parts: list[Prices] = self.client.gather(tasks)
        self.n_sent += len(tasks)
        return merge_prices(parts, self._edges[:-1])


def _part(problem: MappingProblem, start: int, stop: int) -> MappingProblem:
    columns = np.arange(start, stop)
    return MappingProblem(
        problem.mass[columns],
        problem.posterior[columns],
        problem.distance.columns_of(columns),
        problem.budget,
        problem.stay[columns],
    )


def keep_columns(part: tuple[MappingProblem, IntArray]) -> tuple[MappingProblem, IntArray]:
    """Worker side: hold a block of columns, its arrays aligned."""
    problem, groups = part
    return replace(problem, posterior=np.array(problem.posterior)), np.array(groups)


def price_columns(
    block: tuple[MappingProblem, IntArray], question: Question, levels: Any
) -> Prices:
    """Worker side: price the block's columns against all symbols."""
    problem, groups = block
    return price_block(problem, replace(question, levels=levels), 0, problem.n_columns, groups)
