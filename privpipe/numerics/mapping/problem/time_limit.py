"""Pricing that keeps a time limit: asked between pieces of a round, and before a round begins.

A round over all pairs is the one step of a search whose length grows with the square of the
alphabet. In memory it is cut into pieces, whose answers do not depend on the cut; an oracle
elsewhere is not asked what it could not answer in time, as its slowest answer so far tells.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from privpipe.numerics.mapping.problem.pair_pricing import (
    PriceOracle,
    Prices,
    PricingQuestion,
    column_groups,
    merge_prices,
    price_block,
)
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.numerics.mapping.problem.search_progress import SearchProgress

_PAIRS_PER_PIECE = 2**25
"""Less than a tenth of a second."""


class OutOfTime(Exception):
    """The time of a search is up; its `SearchProgress` holds the best plan and bound so far."""


@dataclass(eq=False)
class TimedPricing:
    """A pricing oracle that raises `OutOfTime` rather than overrun a search's limit.

    Parameters
    ----------
    progress
        Of the search; without a limit the oracle is asked as it is.
    price
        An oracle; None for the search over all pairs in this process.
    """

    progress: SearchProgress
    price: PriceOracle | None = None
    _slowest: float = field(default=0.0, init=False)

    def __call__(self, problem: MappingProblem, question: PricingQuestion) -> Prices:
        """Price all columns of a problem."""
        if self.price is None:
            return self._in_pieces(problem, question)
        self._check(self._slowest)
        begun = time.monotonic()
        prices = self.price(problem, question)
        self._slowest = max(self._slowest, time.monotonic() - begun)
        return prices

    def _in_pieces(self, problem: MappingProblem, question: PricingQuestion) -> Prices:
        groups = column_groups(problem)
        width = max(1, _PAIRS_PER_PIECE // problem.n_symbols)
        edges = [*range(0, problem.n_columns, width), problem.n_columns]
        parts = []
        for start, stop in pairwise(edges):
            self._check(0.0)
            parts.append(price_block(problem, question, start, stop, groups))
        return merge_prices(parts, np.zeros(len(parts), np.int64).tolist())

    def _check(self, needed: float) -> None:
        """Go on only if so many seconds are left, a twentieth of all beyond the limit included."""
        limit = self.progress.max_seconds
        if np.isfinite(limit) and self.progress.seconds + needed >= limit * (1.05 if needed else 1):
            raise OutOfTime
