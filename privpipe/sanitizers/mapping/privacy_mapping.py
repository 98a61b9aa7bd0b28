"""The method "privacy_mapping": SPPM fitted on records, one row of the table of methods."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.fitted_names import keep_names
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle
from privpipe.protocols import Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted, say_incomplete
from privpipe.sanitizers.grounds import refuse_dependent, say_grounds
from privpipe.sanitizers.mapping import mapping_options, profiles
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.solving import assurance, budgeted, law_fit
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, StratifiedMapping


@keep_names
def fit_privacy_mapping(
    shards: Shards,
    options: PrivacyMappingOptions,
    price: PriceOracle | None = None,
    judges: tuple[Shards, float] | None = None,
) -> SparseMapping | StratifiedMapping:
    """Count profiles over the shards and solve for the mapping.

    Parameters
    ----------
    shards
        With the attributes and, as confidential variables, the private ones; arrays without names
        have those of the options, in their order.
    options
    price
        Pricing oracle; in memory when not given.
    judges
        Further records, which bound what it reveals, and about what share of all they are; of
        `shards` so many less do.

    Returns
    -------
    mapping
        Its `stopped` and gap say how near the optimum it is. With `by` one of each value.

    Raises
    ------
    InputError
        If the records have other variables than the options name, there is nothing to count, or a
        variable is not categorical. If a value of `by` has too few records to promise anything; how
        many it needs is said.
    OptionError
        If options do not go together, or no mapping within the budget keeps to limits or budgets.
    GuaranteeError
        If the bound is above `wanted_information`; how many records it needs is said.

    Warns
    -----
    LeftOutWarning
        If records have no private label: they are left out, and how many is said.
    PrivacyWarning
        If the search stopped before the gap was reached, or the bound is not below the entropy of
        the private values. If records of other profiles than the `most_frequent` take the mean
        distortion above the budget.

    Notes
    -----
    Guarantee: with the confidence of the options, two bounds hold jointly under the law that the
    records are independent draws of; see `assurance`. The mutual information of private values and
    released profile is at most ``guarantee.number``. The mean distortion is at most its parameter
    ``distortion_at_most``. With groups, whose records are not independent, there is no promise: its
    kind is "none".

    References
    ----------
    Salamatian et al., SPPM: Sparse Privacy Preserving Mappings.
    """
    check_shards(shards)
    check_unweighted(shards.schema)
    check_programme(options)
    mapping_options.check_independent(options, bool(shards.schema.groups))
    options.check_names(shards.schema)
    counts = _count(shards)
    # Split before anything is chosen: codes, smoothing and mapping come from `fitted` alone.
    apart = 0.0 if judges is None else judges[1]
    fitted, fresh = profiles.split_counts(counts, mapping_options.find_share(options, apart))
    if judges is not None:
        others = judges[0].reduce(ProfileCounts.of)
        counts, fresh = counts.merge(others), fresh.merge(others)
    # Of all records: a value that only those held out have needs its row, too.
    private, _ = profiles.number_private(counts)
    if fitted.n_records == 0:
        problem = "no record has a known private value."
        raise InputError(problem, remedy="Name private variables that are known for some records.")
    for column, values in zip(shards.schema.confidential, private.T, strict=True):
        # Of one value nothing is revealed; but that the law has no other, no record says.
        if (column.n_categories or 0) < 2 and len(np.unique(values)) < 2:
            raise InputError(
                f"All records have one value of {column.name!r}: nothing is known of the others.",
                remedy="Use records of at least two values, or a schema that names all values.",
                code="single_class",
            )
    say_incomplete(counts.n_left_out, counts.n_records + counts.n_left_out, "private")
    law = assurance.CountedLaw(np.empty((0, 0)), private, fitted, fresh, shards.schema)
    timed = law, np.inf if options.max_seconds is None else options.max_seconds
    found: SparseMapping | StratifiedMapping
    if options.by is None:
        found, short = law_fit.fit_law(timed, options, price)
    else:
        strata, short = law_fit.fit_strata(timed, options, price)
        found = StratifiedMapping(*strata)
    if short:
        warnings.warn(" ".join(words for _, words in short.values()), PrivacyWarning, stacklevel=3)
    if shards.schema.groups:
        if isinstance(found, StratifiedMapping):
            found = replace(found, maps=tuple(map(_without_bound, found.maps)))
        found = _without_bound(found)
    return found


def _without_bound(found: Any) -> Any:
    return replace(found, guarantee=refuse_dependent(found.guarantee))


# The chance below which two halves are called different: once in a thousand fits to one law.
_CHANGED = 0.001


def _count(shards: Shards) -> ProfileCounts:
    """Count profiles; warn where the law of the first half of the records is not the second's."""
    # Of partitions that grow no halves are known, and equal records of one person are no change.
    if shards.schema.groups or not (middle := shards.schema.n_records // 2):
        return shards.reduce(ProfileCounts.of)
    halves = shards.reduce(partial(ProfileCounts.of, middle=middle))
    chance, table = profiles.find_change(halves)
    if chance < _CHANGED:
        attributes = [repr(column.name) for column in shards.schema.attributes]
        changed = ["the profiles", "the private values", *attributes][table]
        text = say_grounds("law_changes", changed=changed, chance=chance)
        warnings.warn(text, PrivacyWarning, stacklevel=4)
    return halves.without(0)


def check_mapping(options: PrivacyMappingOptions, schema: ShardSchema) -> None:
    """Raise InputError if an attribute is a number; a private variable may be one, of classes."""
    numbers = [column.name for column in schema.attributes if not column.is_categorical]
    if numbers:
        raise InputError(
            f"{', '.join(map(repr, numbers))} is not categorical: a mapping is between categories.",
            remedy="Name categorical variables, or cut numeric ones into bins: ingest --bins.",
            code="not-categorical",
        )
    check_programme(options, {column.name for column in schema.confidential})


def check_programme(options: PrivacyMappingOptions, confidential: Any = ()) -> None:
    """Raise OptionError for options that do not go together."""
    if options.by in {*options.attributes, *options.private, *confidential}:
        problem = f"[method] by is {options.by!r}, which is confidential or among the attributes."
        remedy = "Name a public variable, which is released as it is, or leave by out."
        raise OptionError(problem, remedy=remedy, code="stratum-variable")
    if options.wanted_information is not None and not options.held_out:
        problem = "wanted_information is about records that judge the mapping, and held_out is 0."
        remedy = "Set held_out = 0.5, or leave wanted_information out."
        raise OptionError(problem, remedy=remedy, code="nothing-judges")
    if options.information_budgets is None:
        return
    budgeted.check_budgets(options.information_budgets, len(options.private))
    others = {
        "max_posterior_odds": options.max_posterior_odds is not None,
        "max_leakage": options.max_leakage is not None,
        'solver = "frank_wolfe"': options.solver != "auto",
    }
    named = ", ".join(name for name, given in others.items() if given)
    if named:
        problem = f"information_budgets does not go with {named}."
        raise OptionError(problem, remedy="Take one of them out.", code="budgets-alone")
