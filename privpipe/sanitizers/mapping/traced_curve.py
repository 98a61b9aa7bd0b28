"""A fit's own trade-off curve: what `privpipe tradeoff` draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.mapping.problem.extremes import measure_mean_distances
from privpipe.protocols import Shards
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.exponential import (
    MOST_SYMBOLS,
    fit_exponential_mechanism,
    keep_symbols,
)
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.mapping_task import MappingTask
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping


def trace_curve(
    shards: Shards,
    options: PrivacyMappingOptions,
    n_points: int,
    kept: Callable[[int], SparseMapping | None],
    keep: Callable[[int, SparseMapping], None],
) -> list[Mapping[str, float]]:
    """Information against distortion: counted once, split once, each budget begun from the last.

    Parameters
    ----------
    shards, options
        As of `fit_privacy_mapping`; the budgets reach from 0 to where one profile is for all,
        nearer to one another where they are small and the curve is steep.
    n_points
        Budgets, at least 2.
    kept, keep
        See `Method.trace`.

    Returns
    -------
    points
        By ascending budget; every upper bound has the confidence of the options by itself. The
        exponential mechanism and the identity are measured under the same counts; the mechanism is
        left out where there are too many profiles.
    """
    if options.information_budgets is not None:
        raise OptionError(
            "a curve is of the information about all private variables together.",
            remedy="Leave information_budgets out.",
            code="budgets-alone",
        )
    task = MappingTask.of(shards, options)
    joint, codes = task.joint, task.codes
    free = prepare_alphabet(joint, codes, options.distortion, 0.0)
    most = float(measure_mean_distances(free.problem).min()) * free.unit
    raw = keep_symbols(joint, codes, options.distortion).information
    points: list[Mapping[str, float]] = []
    mapping: SparseMapping | None = None
    for number, budget in enumerate(most * np.linspace(0.0, 1.0, n_points) ** 2):
        start = mapping
        mapping = kept(number)
        if mapping is None:
            at_budget = replace(options, distortion_budget=float(budget))
            mapping = task.assure(task.solve(at_budget, start=start), options)
            keep(number, mapping)
        point = {
            "distortion_budget": float(budget),
            "distortion": mapping.distortion,
            "plug_in": mapping.information,
            "upper_bound": float(mapping.guarantee.number or 0.0),
            "lower_bound": mapping.lower_bound,
            "identity": raw,
        }
        if len(codes) <= MOST_SYMBOLS and budget > 0:
            other = fit_exponential_mechanism(
                joint, codes, options.distortion, distortion_budget=float(budget)
            )
            point["exponential"] = other.information
        points.append(point)
    return points
