"""The method "privacy_mapping": SPPM fitted on records, one row of the table of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from privpipe.capabilities import Preview
from privpipe.numerics.mapping.pricing.pair_pricing import PriceOracle
from privpipe.protocols import Method, Role, Shards
from privpipe.sanitizers.arrays import say_incomplete
from privpipe.sanitizers.mapping.assurance import check_wanted, forecast_needed
from privpipe.sanitizers.mapping.joint_of_records import prepare_joint
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions, check_mapping
from privpipe.sanitizers.mapping.mapping_task import MappingTask
from privpipe.sanitizers.mapping.profile_forecast import (
    ProfileForecast,
    forecast_profiles,
    suggest_mapping,
)
from privpipe.sanitizers.mapping.profiles import ProfileCounts, split_counts
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from privpipe.sanitizers.names import keep_names

_FORECAST_SECONDS = 20.0


@keep_names
def fit_privacy_mapping(
    shards: Shards,
    options: PrivacyMappingOptions,
    price: PriceOracle | None = None,
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
    OptionError
        If options do not go together, or no mapping within the budget keeps to limits or budgets.
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
    task = MappingTask.of(shards, options)
    say_incomplete(
        task.counts.n_left_out, task.counts.n_records + task.counts.n_left_out, "private"
    )
    assured = task.assure(task.solve(options, price), options)
    check_wanted(
        assured,
        task.joint,
        task.fitted,
        options.wanted_information,
        options.held_out,
        shards.schema,
    )
    return assured


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
    needs_labels=lambda _: (frozenset({"confidential"}),),
    columns=_columns,
    prices=True,
    forecast=_forecast,
    suggest=suggest_mapping,
)
