"""Where a search on pairs stands, small enough to be left behind after every round.

A round is a function of it: a search that was interrupted goes on with the next round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privpipe.numerics.mapping.problem.programme import MappingProblem, Pairs
from privpipe.protocols import FloatArray, IntArray

__all__ = ["SearchCheckpoint", "SearchState"]


@dataclass(frozen=True, eq=False)
class SearchState:
    """Pairs, dual point and temperature of the next round.

    Parameters
    ----------
    symbols : (n_pairs,)
        In the smallest type that holds them, by column.
    pointers : (n_columns + 1,)
        Where each column's pairs begin.
    logits : (n_symbols, n_private - 1)
    multiplier, temperature
        See `AnnealState`.
    """

    symbols: IntArray
    pointers: IntArray
    logits: FloatArray
    multiplier: float
    temperature: float

    @classmethod
    def of(
        cls, pairs: Pairs, logits: FloatArray, multiplier: float, temperature: float
    ) -> SearchState:
        """Distances and columns are left out: the problem knows them."""
        small = np.min_scalar_type(int(pairs.symbols.max(initial=0)))
        return cls(
            pairs.symbols.astype(small),
            pairs.pointers.astype(np.uint32),
            logits,
            float(multiplier),
            float(temperature),
        )

    def pairs(self, problem: MappingProblem) -> Pairs:
        """The pairs, with their distances in the problem that they are of."""
        ends = self.pointers.astype(np.int64)
        counts = np.asarray(ends[1:] - ends[:-1], np.int64)
        columns = np.repeat(np.arange(problem.n_columns), counts)
        return Pairs.of(problem, self.symbols.astype(np.int64), columns)


class SearchCheckpoint(Protocol):
    """A place that outlives the process, for one problem and one gap."""

    def read(self) -> SearchState | None:
        """What was left; None where nothing was."""
        ...

    def write(self, state: SearchState) -> None:
        """Leave a state; it takes the place of the last one."""
        ...
