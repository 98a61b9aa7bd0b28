"""The trade-off curve between information and distortion, and the question asked backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.mapping.problem.scale import measure_mean_distances
from privpipe.sanitizers.mapping.alphabet import Distortion, prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

_MOST_SOLVES = 60


def solve_tradeoff(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: Distortion = "hamming",
    *,
    distortion_budgets: Sequence[float],
    **options: Any,
) -> tuple[SparseMapping, ...]:
    """Mappings for a list of budgets, each begun from its neighbour.

    Parameters
    ----------
    joint : (n_private, n_symbols)
    codes : (n_symbols, n_attributes)
    distortion
    distortion_budgets
        In any order; solved in ascending order, since a mapping within a smaller budget is
        within a larger one.
    **options
        As of `solve_privacy_mapping`.

    Returns
    -------
    mappings
        In the order of the budgets.
    """
    found: dict[int, SparseMapping] = {}
    start: SparseMapping | None = None
    for k in np.argsort(np.asarray(distortion_budgets, dtype=np.float64), kind="stable"):
        budget = float(distortion_budgets[k])
        start = solve_privacy_mapping(
            joint, codes, distortion, distortion_budget=budget, **{"start": start, **options}
        )
        found[int(k)] = start
    return tuple(found[k] for k in range(len(distortion_budgets)))


def solve_least_distortion(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: Distortion = "hamming",
    *,
    information: float,
    tolerance: float = 1e-6,
    **options: Any,
) -> SparseMapping:
    """The smallest distortion at which at most a given information is released.

    The curve of least information against the budget is convex and falls; its slope at a
    solved budget is minus the certificate's multiplier. Each solve gives a budget that is
    surely too small (its lower bound exceeds the target) or large enough (its information
    does not), and the next budget is read off the supporting line.

    Parameters
    ----------
    joint : (n_private, n_symbols)
    codes : (n_symbols, n_attributes)
    distortion
    information
        Target, nats.
    tolerance
        Width, relative to the distortion of perfect privacy, at which to stop.
    **options
        As of `solve_privacy_mapping`.

    Returns
    -------
    mapping
        Its information is at most the target; a budget smaller by the tolerance, or by what
        the solves' own gap allows, does not suffice.

    Raises
    ------
    OptionError
        If the target is negative or not finite.
    ConvergenceError
        If the solves' gaps are too wide to tell.
    """
    if not np.isfinite(information) or information < 0:
        raise OptionError(
            f"information is {information} nats.", remedy="Use a finite number, 0 or more."
        )
    alphabet = prepare_alphabet(joint, codes, distortion, 0.0)
    low, high = 0.0, float(measure_mean_distances(alphabet.problem).min()) * alphabet.unit
    width = tolerance * high
    best = solve_privacy_mapping(joint, codes, distortion, distortion_budget=0.0, **options)
    if best.information <= information:
        return best
    best = solve_privacy_mapping(joint, codes, distortion, distortion_budget=high, **options)
    start: SparseMapping | None = None
    for _ in range(_MOST_SOLVES):
        if high - low <= width:
            return best
        budget = _next_budget(low, high, start, information)
        start = solve_privacy_mapping(
            joint, codes, distortion, distortion_budget=budget, **{"start": start, **options}
        )
        if start.information <= information:
            best, high = start, budget
        else:
            # The line through the bound with slope -multiplier lies under the whole curve.
            reach = max(start.lower_bound - information, 0.0) / max(start.multiplier, 1e-300)
            low = max(low, min(budget + reach, high)) if reach > 0 else budget
    if high - low <= 1e3 * width:
        return best
    raise ConvergenceError(
        f"the distortion is only known to a width of {high - low:.3g}.",
        remedy="Ask for a smaller gap, or a larger tolerance.",
    )


def _next_budget(low: float, high: float, last: SparseMapping | None, information: float) -> float:
    """Newton's budget where it lies well inside the bracket, else its middle."""
    if last is not None and last.multiplier > 0:
        step = (last.information - information) / last.multiplier
        budget = last.distortion_budget + step * (1 + 1e-3)
        if low + 0.05 * (high - low) * 0.01 < budget < high - 0.01 * (high - low) * 0.01:
            return budget
    return 0.5 * (low + high)
