"""The method "privacy_mapping": SPPM fitted on records, one row of the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from privpipe.capabilities import Preview
from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.pricing.pair_pricing import PriceOracle
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.numerics.mapping.problem.extremes import measure_mean_distances
from privpipe.numerics.mapping.problem.known_steps import KnownSteps
from privpipe.protocols import FloatArray, IntArray, Method, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted, say_incomplete
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.assurance import assure_mapping, check_wanted, forecast_needed
from privpipe.sanitizers.mapping.exponential import (
    MOST_SYMBOLS,
    fit_exponential_mechanism,
    keep_symbols,
)
from privpipe.sanitizers.mapping.law_ball import count_cells, find_robust_radius
from privpipe.sanitizers.mapping.profile_forecast import (
    ProfileForecast,
    forecast_profiles,
    suggest_mapping,
)
from privpipe.sanitizers.mapping.profiles import (
    ProfileCounts,
    make_joint,
    number_private,
    split_counts,
)
from privpipe.sanitizers.mapping.smoothing import (
    PSEUDO_RECORDS,
    SmoothingKind,
    choose_smoothing,
    smooth_table,
)
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from privpipe.sanitizers.mapping.solving.robust import solve_robust_mapping
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from privpipe.sanitizers.options import FORBID, Options

__all__ = ["METHOD", "PrivacyMappingOptions", "fit_privacy_mapping", "prepare_joint"]

_BLOCK_PAIRS = 2**22
_FORECAST_SECONDS = 20.0
SMOOTHINGS: tuple[SmoothingKind, ...] = ("none", "dirichlet", "hierarchical")
"""What "best" chooses among."""


@dataclass(frozen=True, config=FORBID)
class PrivacyMappingOptions(Options):
    """Options of ``[method] name = "privacy_mapping"`` (SPPM)."""

    name: Literal["privacy_mapping"]
    attributes: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="Categorical variables that are released, and changed."),
    ]
    private: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Categorical variables that must not be told from the release; of several, "
            "their combination.",
        ),
    ]
    distortion_budget: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description='Largest mean distortion per record: with "hamming", changed attributes.',
        ),
    ]
    distortion: Annotated[
        Literal["hamming", "squared", "absolute"],
        Field(
            description="hamming counts changed attributes; squared and absolute add up "
            "differences of codes, for ordered categories."
        ),
    ] = "hamming"
    gap: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="Wanted certified gap, nats.")
    ] = 1e-3
    max_posterior_odds: Annotated[
        Annotated[float, Field(gt=1, allow_inf_nan=False)] | None,
        Field(
            description="No released profile multiplies the odds of two private values by more, "
            "under the law counted."
        ),
    ] = None
    max_leakage: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        Field(description="Largest maximal leakage of the mapping, nats, under the law counted."),
    ] = None
    solver: Annotated[
        Literal["auto", "frank_wolfe"],
        Field(description="frank_wolfe is the paper's algorithm."),
    ] = "auto"
    steps: Annotated[int, Field(ge=1, description="L of the paper's algorithm.")] = 100
    smoothing: Annotated[
        Literal["best", "none", "dirichlet", "hierarchical"],
        Field(
            description="Pseudo-records per profile: dirichlet with the private values of all "
            "records, hierarchical with those of profiles that differ in one attribute; best takes "
            "the one under which counts left aside are likeliest."
        ),
    ] = "best"
    pseudo_records: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        Field(description="How many per profile; chosen as well when not given."),
    ] = None
    confidence: Annotated[
        float, Field(gt=0, lt=1, description="Of the bounds on information and distortion.")
    ] = 0.95
    held_out: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Share of the training records that the mapping is not fitted on, which "
            "bound what it tells; 0 leaves the bound over a ball around all counts.",
        ),
    ] = 0.5
    robust: Annotated[
        Literal["none", "ball"],
        Field(
            description="ball takes the mapping whose information under the worst law near the "
            "counts is the least, not under the counts; near is what sampling leaves open. The "
            "counts are then not smoothed."
        ),
    ] = "none"
    wanted_information: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        Field(
            description="Nats that the bound must not exceed: `check` says how many records that "
            "needs, and a run whose bound is above stops."
        ),
    ] = None
    most_frequent: Annotated[
        Annotated[int, Field(ge=1)] | None,
        Field(description="Keep only so many profiles, the most frequent."),
    ] = None
    unseen: Annotated[
        Literal["nearest", "refuse"],
        Field(
            description="What becomes of records whose profile the mapping does not know: nearest "
            "treats them as the nearest known one, and the report says how many; refuse stops."
        ),
    ] = "nearest"
    pricing: Annotated[
        Literal["auto", "cluster", "inline"], Field(description="Where columns are priced.")
    ] = "auto"
    max_seconds: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        Field(description="Time after which the best mapping so far is taken."),
    ] = None


def prepare_joint(
    counts: ProfileCounts, options: PrivacyMappingOptions, private: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Joint distribution and codes from counts: most frequent profiles, smoothing.

    Parameters
    ----------
    counts
    options
    private : (n_private, n_private_variables), optional
        The private values, in sorted order; those that occur when not given.

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
    table, codes, _ = make_joint(counts, private)
    if options.most_frequent is not None and options.most_frequent < len(codes):
        table, codes = _keep_frequent(table, codes, options)
    if options.robust == "ball":
        return table / table.sum(), codes
    kinds = SMOOTHINGS if options.smoothing == "best" else (options.smoothing,)
    sizes = PSEUDO_RECORDS if options.pseudo_records is None else (options.pseudo_records,)
    table = smooth_table(table, codes, choose_smoothing(table, codes, kinds, sizes))
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
    shards: Shards,
    options: PrivacyMappingOptions,
    price: PriceOracle | None = None,
    known: KnownSteps | None = None,
) -> SparseMapping:
    """Count profiles over the shards and solve for the mapping.

    Parameters
    ----------
    shards
        With the attributes and, as confidential variables, the private ones.
    options
    price
        Pricing oracle; in memory when not given.
    known
        Steps that an interrupted fit of these shards and options has taken.

    Returns
    -------
    mapping
        Its `stopped` and gap say how near the optimum it is.

    Raises
    ------
    InputError
        If there is nothing to count, or a variable is not categorical.
    GuaranteeError
        If the bound is above the wanted one; how many records it needs is said.

    Warns
    -----
    LeftOutWarning
        If records have no private label: they are left out, and how many is said.

    Notes
    -----
    Guarantee: with the confidence asked for, the mutual information of private values and released
    profile is at most ``guarantee.number`` under the law that the records are independent draws of,
    and the mean distortion at most its parameter ``distortion_at_most``; see `assurance`.

    References
    ----------
    Salamatian et al., SPPM: Sparse Privacy Preserving Mappings.
    """
    check_shards(shards)
    check_unweighted(shards.schema)
    _check_robust(options)
    counts = shards.reduce(ProfileCounts.of)
    fitted, fresh = split_counts(counts, options.held_out)
    private, _ = number_private(counts)
    joint, codes = prepare_joint(fitted, options, private)  # raises where nothing is known
    say_incomplete(counts.n_left_out, counts.n_records + counts.n_left_out, "private")
    radius = _choose_radius(fitted, fresh, len(private), shards.schema, options)
    mapping = _solve(joint, codes, options, price, known, radius=radius)
    assured = _assure(mapping, joint, private, fitted, fresh, shards.schema, options)
    check_wanted(
        assured, joint, fitted, options.wanted_information, options.held_out, shards.schema
    )
    return assured


def _assure(
    mapping: SparseMapping,
    joint: FloatArray,
    private: IntArray,
    fitted: ProfileCounts,
    fresh: ProfileCounts,
    schema: ShardSchema,
    options: PrivacyMappingOptions,
) -> SparseMapping:
    return assure_mapping(
        mapping,
        joint,
        private,
        fitted,
        fresh,
        schema,
        confidence=options.confidence,
        held_out=options.held_out,
    )


def _choose_radius(
    fitted: ProfileCounts,
    fresh: ProfileCounts,
    n_seen: int,
    schema: ShardSchema,
    options: PrivacyMappingOptions,
) -> float:
    """Of the ball that the mapping is chosen for, nats; 0 where it is chosen for the counts."""
    if options.robust == "none":
        return 0.0
    return find_robust_radius(
        count_cells(schema, n_seen),
        fitted.n_records,
        fresh.n_records,
        options.held_out,
        options.confidence,
    )


def _solve(
    joint: FloatArray,
    codes: IntArray,
    options: PrivacyMappingOptions,
    price: PriceOracle | None,
    known: KnownSteps | None = None,
    start: SparseMapping | None = None,
    radius: float = 0.0,
) -> SparseMapping:
    """The mapping of the options; with limits on the worst case by a programme of its own."""
    seconds = np.inf if options.max_seconds is None else options.max_seconds
    if radius > 0:
        return solve_robust_mapping(
            joint,
            codes,
            options.distortion,
            distortion_budget=options.distortion_budget,
            radius=radius,
            gap=options.gap,
            max_seconds=seconds,
            unseen=options.unseen,
            known=known,
        )
    if options.max_posterior_odds is not None or options.max_leakage is not None:
        return solve_constrained_mapping(
            joint,
            codes,
            options.distortion,
            distortion_budget=options.distortion_budget,
            max_posterior_odds=options.max_posterior_odds,
            max_leakage=options.max_leakage,
            gap=options.gap,
            price=price,
            max_seconds=seconds,
            unseen=options.unseen,
            known=known,
        )
    return solve_privacy_mapping(
        joint,
        codes,
        options.distortion,
        distortion_budget=options.distortion_budget,
        gap=options.gap,
        price=price,
        solver=options.solver,
        n_steps=options.steps,
        max_seconds=seconds,
        unseen=options.unseen,
        known=known,
        start=start,
    )


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
    check_shards(shards)
    check_unweighted(shards.schema)
    counts = shards.reduce(ProfileCounts.of)
    fitted, fresh = split_counts(counts, options.held_out)
    private, _ = number_private(counts)
    joint, codes = prepare_joint(fitted, options, private)
    radius = _choose_radius(fitted, fresh, len(private), shards.schema, options)
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
            mapping = _solve(joint, codes, at_budget, None, start=start, radius=radius)
            mapping = _assure(mapping, joint, private, fitted, fresh, shards.schema, options)
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


def _columns(options: PrivacyMappingOptions) -> Mapping[Role, tuple[str, ...]]:
    return {"attributes": options.attributes, "confidential": options.private}


def _forecast(preview: Preview, options: PrivacyMappingOptions) -> ProfileForecast | None:
    """Count profiles in a few chunks as the fit will."""
    counts = reduce(ProfileCounts.merge, map(ProfileCounts.of, preview.read_training()))
    fitted, _ = split_counts(counts, options.held_out)
    if fitted.n_records == 0:
        return None
    joint, codes = prepare_joint(fitted, options)
    known = forecast_profiles(
        codes,
        fitted.n_records,
        preview.read_attributes(),
        exact=preview.is_whole,
        policy=options.unseen,
    )
    if options.wanted_information is None:
        return known
    mapping = solve_privacy_mapping(
        joint,
        codes,
        options.distortion,
        distortion_budget=options.distortion_budget,
        gap=max(options.gap, 0.1 * options.wanted_information),
        max_seconds=_FORECAST_SECONDS,
    )
    needed = forecast_needed(
        mapping,
        joint,
        options.wanted_information,
        options.held_out,
        confidence=options.confidence,
        schema=None if options.held_out else preview.read_labelled()[1],
    )
    return replace(known, wanted_information=options.wanted_information, n_needed=needed)


def check_mapping(options: PrivacyMappingOptions, schema: ShardSchema) -> None:
    """Raise InputError if an attribute is a number; a private variable may be one, of classes."""
    numbers = [column.name for column in schema.attributes if not column.is_categorical]
    if numbers:
        raise InputError(
            f"{', '.join(map(repr, numbers))} is not categorical: a mapping is between categories.",
            remedy="Name categorical variables, or cut numeric ones into classes when you ingest.",
            code="not-categorical",
        )
    _check_robust(options)


def _check_robust(options: PrivacyMappingOptions) -> None:
    """Raise OptionError for what a robust mapping does not go with."""
    if options.robust == "none":
        return
    others = {
        "max_posterior_odds": options.max_posterior_odds is not None,
        "max_leakage": options.max_leakage is not None,
        'solver = "frank_wolfe"': options.solver != "auto",
        f'smoothing = "{options.smoothing}"': options.smoothing not in ("best", "none"),
    }
    named = ", ".join(name for name, given in others.items() if given)
    if named:
        raise OptionError(
            f'robust = "ball" does not go with {named}.',
            remedy="Take one of them out.",
            code="robust-alone",
        )


METHOD = Method(
    name="privacy_mapping",
    options=PrivacyMappingOptions,
    needs=lambda _: frozenset(),
    releases="rows",
    fit=fit_privacy_mapping,
    source="Salamatian et al., SPPM, Algorithms 1 and 2; certified search",
    maps=(SparseMapping,),
    check=check_mapping,
    promise="mutual information under the law of the records, with confidence",
    statistics=(ProfileCounts,),
    columns=_columns,
    prices=True,
    forecast=_forecast,
    suggest=suggest_mapping,
    resumes=True,
    trace=trace_curve,
)
