"""The steps of a search that cost time, each looked up among those taken before.

What is left of a step is small: duals and logits, a number per symbol and private value; names of
pairs in the fewest bytes. The masses of a smoothed dual follow from its logits, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privpipe.numerics.mapping.dual.interior_point import InteriorPoint, solve_interior_point
from privpipe.numerics.mapping.dual.smoothed_dual import (
    SmoothedDual,
    maximise_smoothed_dual,
    softmin_masses,
)
from privpipe.numerics.mapping.problem.incumbent import SearchProgress
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem, Pairs
from privpipe.numerics.mapping.search.pairs.column_generation import Explorer, Found
from privpipe.protocols import FloatArray, IntArray


def find_smoothed_dual(
    progress: SearchProgress,
    pairs: Pairs,
    tau: float,
    logits: FloatArray,
    multiplier: float,
    anchor: FloatArray,
) -> SmoothedDual:
    """`maximise_smoothed_dual`, or what it found before."""
    problem = progress.problem
    fresh: list[SmoothedDual] = []

    def take() -> tuple[Any, ...]:
        found = maximise_smoothed_dual(
            problem, pairs, tau, logits, multiplier, anchor=anchor, late=progress.is_late
        )
        fresh.append(found)
        numbers = float(found.multiplier), found.converged, found.n_steps, found.n_products
        return found.logits, *numbers

    asked = ("smoothed dual", *_name(pairs), tau, logits, multiplier, anchor)
    t, lam, *numbers = progress.recall(asked, take)
    if fresh:
        return fresh[0]
    return SmoothedDual(t, lam, softmin_masses(problem, pairs, t, lam, tau), *numbers)


def find_interior_point(
    progress: SearchProgress,
    pairs: Pairs,
    logits: FloatArray,
    multiplier: float,
    anchor: FloatArray,
    *,
    start_gap: float,
    gap: float,
    dense: bool,
) -> InteriorPoint:
    """`solve_interior_point`, or what it found before."""

    def take() -> tuple[Any, ...]:
        found = solve_interior_point(
            progress.problem,
            pairs,
            logits,
            multiplier,
            anchor,
            start_gap=start_gap,
            gap=gap,
            dense=dense,
            late=progress.is_late,
        )
        ends = float(found.multiplier), found.column_potentials, found.weights
        return found.logits, *ends, float(found.bound), bool(found.converged)

    options = start_gap, gap, dense
    asked = ("interior point", *_name(pairs), logits, multiplier, anchor, *options)
    return InteriorPoint(*progress.recall(asked, take))


@dataclass(frozen=True)
class KnownExplorer:
    """An explorer whose answers are looked up first.

    Parameters
    ----------
    explore
    progress
        Of the search, with the steps taken before.
    """

    explore: Explorer
    progress: SearchProgress

    def __call__(
        self, problem: MappingProblem, duals: Duals, levels: FloatArray | None, near: float
    ) -> Found:
        def take() -> tuple[Any, ...]:
            found = self.explore(problem, duals, levels, near)
            repaired = found.duals is not duals
            return (
                found.duals.potentials if repaired else np.empty((0, 0)),
                float(found.bound),
                float(found.raw_bound),
                shorten(found.symbols),
                shorten(found.columns),
            )

        number = float(duals.multiplier)
        asked = ("explore", repr(self.explore), duals.potentials, number, levels, near)
        potentials, bound, raw, symbols, columns = self.progress.recall(asked, take)
        best = replace(duals, potentials=potentials) if potentials.size else duals
        return Found(best, bound, raw, symbols.astype(np.int64), columns.astype(np.int64))


def _name(pairs: Pairs) -> tuple[IntArray, IntArray]:
    """All that pairs are, in a problem that knows its distances."""
    return pairs.pointers, pairs.symbols


def shorten(numbers: IntArray) -> Any:
    """The same numbers, not negative, in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
