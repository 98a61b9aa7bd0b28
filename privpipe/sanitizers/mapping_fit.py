"""The method "privacy_mapping": SPPM fitted on records, one row of the table of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from privpipe.errors import InputError
from privpipe.numerics.distortion import CodeDistance
from privpipe.numerics.pricing import PriceOracle
from privpipe.protocols import FloatArray, IntArray, Method, Role, Shards
from privpipe.sanitizers.arrays import check_shards, check_unweighted
from privpipe.sanitizers.mapping import SparseMapping
from privpipe.sanitizers.mapping_solve import solve_privacy_mapping
from privpipe.sanitizers.profiles import ProfileCounts, make_joint

__all__ = ["PRIVACY_MAPPING", "PrivacyMappingOptions", "fit_privacy_mapping", "prepare_joint"]

_BLOCK_PAIRS = 2**22


@dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class PrivacyMappingOptions:
    """Options of the privacy mapping (SPPM).

    Parameters
    ----------
    attributes
        Categorical variables that are released, and changed.
    private
        Categorical variables that must not be told from the release; of several, their
        combination.
    distortion_budget
        Largest mean distortion per record: with "hamming" in changed attributes.
    distortion
        "hamming" counts changed attributes, 0 to their number; the paper divides by it.
        "squared" and "absolute" add up differences of codes, for ordered categories.
    gap
        Wanted certified gap, nats.
    solver
        "auto", or "frank_wolfe", the paper's algorithm.
    steps
        L of the paper's algorithm.
    smoothing
        Pseudo-records per profile, spread over the private values as in all records. Draws
        rare profiles towards the average.
    most_frequent
        Keep only so many profiles, the most frequent; None keeps all.
    unseen
        "nearest": a record of unknown profile is treated as the nearest known one; profiles
        left out by `most_frequent` are counted with it. "refuse": such records stop the
        release.
    pricing
        Where columns are priced: "auto", "cluster" or "inline".
    max_seconds
        Time after which the best mapping so far is taken; None for no limit.
    """

    name: Literal["privacy_mapping"]
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    private: Annotated[tuple[str, ...], Field(min_length=1)]
    distortion_budget: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    distortion: Literal["hamming", "squared", "absolute"] = "hamming"
    gap: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    solver: Literal["auto", "frank_wolfe"] = "auto"
    steps: Annotated[int, Field(ge=1)] = 100
    smoothing: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    most_frequent: Annotated[int, Field(ge=1)] | None = None
    unseen: Literal["nearest", "refuse"] = "refuse"
    pricing: Literal["auto", "cluster", "inline"] = "auto"
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def prepare_joint(
    counts: ProfileCounts, options: PrivacyMappingOptions
) -> tuple[FloatArray, IntArray]:
    """Joint distribution and codes from counts: most frequent profiles, smoothing.

    Parameters
    ----------
    counts
    options

    Returns
    -------
    joint : (n_private, n_symbols)
        Sums to 1.
    codes : (n_symbols, n_attributes)

    Raises
    ------
    InputError
        If no record has a known private value.
    """
    if counts.n_records == 0:
        raise InputError(
            "no record has a known private value.",
            remedy="Name private variables that are known for some records.",
        )
    table, codes, _ = make_joint(counts)
    if options.most_frequent is not None and options.most_frequent < len(codes):
        table, codes = _keep_frequent(table, codes, options)
    prior = table.sum(axis=1, keepdims=True) / table.sum()
    table = table + options.smoothing * prior
    return table / table.sum(), codes


def _keep_frequent(
    table: FloatArray, codes: IntArray, options: PrivacyMappingOptions
) -> tuple[FloatArray, IntArray]:
    """The most frequent profiles, of equals the first; the rest joins the nearest, or goes."""
    ranked = np.argsort(-table.sum(axis=0), kind="stable")
    kept, rest = np.sort(ranked[: options.most_frequent]), ranked[options.most_frequent :]
    few = table[:, kept]
    if options.unseen == "nearest":
        distance = CodeDistance(
            options.distortion, codes[kept].astype(np.float64), codes[rest].astype(np.float64)
        )
        step = max(1, _BLOCK_PAIRS // len(kept))
        for a in range(0, len(rest), step):
            b = min(a + step, len(rest))
            nearest = distance.block(a, b).argmin(axis=1)
            for value, row in enumerate(table[:, rest[a:b]]):
                few[value] += np.bincount(nearest, row, len(kept))
    return few, codes[kept]


def fit_privacy_mapping(
    shards: Shards, options: PrivacyMappingOptions, price: PriceOracle | None = None
) -> SparseMapping:
    """Count profiles over the shards and solve for the mapping.

    Parameters
    ----------
    shards
        With the attributes and, as confidential variables, the private ones.
    options
    price
        Pricing oracle; in memory when not given.

    Returns
    -------
    mapping
        Its `stopped` and gap say how near the optimum it is.

    Raises
    ------
    InputError
        If there is nothing to count, or a variable is not categorical.

    Notes
    -----
    Guarantee: mutual information of private values and released profile, for the distribution
    counted (after smoothing); the estimate from n records is itself off by about
    ``(n_private - 1)(n_symbols - 1) / (2 n)`` nats.

    References
    ----------
    Salamatian et al., SPPM: Sparse Privacy Preserving Mappings.
    """
    check_shards(shards)
    check_unweighted(shards.schema)
    counts = shards.reduce(ProfileCounts.of)
    joint, codes = prepare_joint(counts, options)
    return solve_privacy_mapping(
        joint,
        codes,
        options.distortion,
        distortion_budget=options.distortion_budget,
        gap=options.gap,
        price=price,
        solver=options.solver,
        n_steps=options.steps,
        max_seconds=np.inf if options.max_seconds is None else options.max_seconds,
        unseen=options.unseen,
    )


def _columns(options: PrivacyMappingOptions) -> Mapping[Role, tuple[str, ...]]:
    return {"attributes": options.attributes, "confidential": options.private}


PRIVACY_MAPPING = Method(
    name="privacy_mapping",
    options=PrivacyMappingOptions,
    needs=lambda _: frozenset(),
    releases="rows",
    fit=fit_privacy_mapping,
    source="Salamatian et al., SPPM, Algorithms 1 and 2; certified search",
    columns=_columns,
    prices=True,
)
