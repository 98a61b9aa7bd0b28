"""The method "privacy_mapping": SPPM fitted on records, one row of the table of methods."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.special import entr

from privpipe.capabilities import Preview
from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.fitted_names import keep_names
from privpipe.numerics.mapping.held_out_information import expect_held_out_bound
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import FloatArray, IntArray, Method, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted, say_incomplete
from privpipe.sanitizers.grounds import read_grounds, refuse_dependent, say_grounds
from privpipe.sanitizers.mapping import assurance, profiles
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.solving.budgeted import check_budgets, solve_budgeted_mapping
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from privpipe.sanitizers.mapping.solving.released_symbols import charge_symbols
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, find_nearest
from privpipe.sanitizers.mapping.stratified_mapping import StratifiedMapping


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
    """
    table, codes, _ = profiles.make_joint(counts, private)
    if options.most_frequent is not None and options.most_frequent < len(codes):
        table, codes = _keep_frequent(table, codes, options)
    table = profiles.smooth_table(table, codes, profiles.choose_smoothing(table, codes))
    return table / table.sum(), codes


def _keep_frequent(
    table: FloatArray, codes: IntArray, options: PrivacyMappingOptions
) -> tuple[FloatArray, IntArray]:
    """The most frequent profiles, of equals the first; the rest joins the nearest, or goes."""
    ranked = np.argsort(-table.sum(axis=0), kind="stable")
    frequent, rest = np.sort(ranked[: options.most_frequent]), ranked[options.most_frequent :]
    few = table[:, frequent]
    if options.unseen == "nearest":
        nearest = find_nearest(options.distortion, codes[rest], codes[frequent])
        for value, row in enumerate(table[:, rest]):
            few[value] += np.bincount(nearest, row, len(frequent))
    return few, codes[frequent]


def assure_each_variable(
    mapping: SparseMapping, law: assurance.CountedLaw, *, confidence: float, held_out: float = 0.5
) -> SparseMapping:
    """The mapping with a promise about each private variable.

    Parameters
    ----------
    mapping, law, confidence, held_out
        As of `assure_mapping`; the confidence is of all promises together.

    Returns
    -------
    mapping
        Its guarantee's number bounds the information about all variables together, nats; the
        parameters `<variable>_plug_in` and `<variable>_at_most` are those of each.
    """
    n_variables = law.private.shape[1]
    # All promises hold together: a union bound over the variables and their combination.
    given = {"confidence": 1 - (1 - confidence) / (n_variables + 1), "held_out": held_out}
    whole = assurance.assure_mapping(mapping, law, **given)
    numbers, words = dict(whole.guarantee.parameters) | {"confidence": confidence}, []
    for k, column in enumerate(law.schema.confidential[:n_variables]):
        one = law.select_variable(k)
        nats = measure_information(np.asarray(mapping.mapping @ one.joint.T))
        alone = assurance.assure_mapping(replace(mapping, information=nats), one, **given).guarantee
        numbers[f"{column.name}_plug_in"] = nats
        numbers[f"{column.name}_at_most"] = float(alone.number or 0.0)
        words.append(f"{assurance.round_up(float(alone.number or 0.0))} about {column.name}")
    statement = say_grounds(
        "budgets_statement",
        level=f"{confidence:.4g}".removeprefix("0"),
        each=", ".join(words),
        whole=assurance.round_up(float(whole.guarantee.number or 0.0)),
        numbers=numbers,
        ended=mapping.stopped,
        unbounded=assurance.say_unbounded(numbers),
    )
    guarantee = replace(whole.guarantee, parameters=tuple(numbers.items()), statement=statement)
    return replace(whole, guarantee=guarantee)


def _solve(
    law: assurance.CountedLaw,
    codes: IntArray,
    options: PrivacyMappingOptions,
    price: PriceOracle | None,
    deadline: Deadline,
    n_records: tuple[float, float],
) -> tuple[SparseMapping, SparseMapping]:
    """The mapping of the options for a law, and the same before symbols are charged.

    For so many records that are fitted, and that judge.
    """
    more: dict[str, Any] = {
        "distortion_budget": options.distortion_budget,
        "gap": options.gap,
        "max_seconds": deadline.left,
        "unseen": options.unseen,
        "price": price,
    }
    args = (law.joint, codes, options.distortion)
    if (budgets := options.information_budgets) is not None:
        found = solve_budgeted_mapping(
            *args, private=law.private, information_budgets=budgets, **more
        )
        return found, found
    limits = options.max_posterior_odds, options.max_leakage
    if limits != (None, None):
        more |= dict(zip(("max_posterior_odds", "max_leakage"), limits, strict=True))
        found = solve_constrained_mapping(*args, **more)
        return found, found
    begun = Deadline(np.inf)
    found = solve_privacy_mapping(*args, solver=options.solver, **more)
    if options.solver != "auto" or not min(n_records):
        return found, found
    # The first expected bound would take what is left.
    left = deadline.left if deadline.left >= _TOO_LITTLE * deadline.seconds else 0.0
    expect, more = _expect_from(law.joint, *n_records), {"gap": options.gap, "max_seconds": left}
    # A set of symbols takes about as long as all.
    if left and (spread := getattr(price, "spread", None)):
        n = _count_threads(price, "solve_apart", _SETS * begun.spent, _SETS)
        more["solve_all"] = partial(spread, at_once=n)
    return charge_symbols(found, law.joint, expect, **more), found


def _count_threads(price: Any, work: str, seconds: float, n_tasks: int) -> int:
    """Threads of workers for work of seconds, where a pilot sends it; 0 where it stays here."""
    pays = getattr(price, "pays", None)
    return price.n_threads if pays is not None and pays(work, seconds, n_tasks) else 0


def _expect_from(
    joint: FloatArray, n_fitted: float, n_fresh: float
) -> Callable[[sp.csc_array], float]:
    """What the bound of a mapping will be about, nats."""
    prior = assurance.find_prior(joint.sum(axis=1) * n_fitted, len(joint))
    return partial(expect_held_out_bound, joint, prior=prior, n_fitted=n_fitted, n_fresh=n_fresh)


Shortcomings = dict[str, tuple[float, str]]
"""What is to be warned of, by the name of its sentence: how bad it is, and in words."""

Timed = tuple[assurance.CountedLaw, float]
"""A law, and the seconds that its fit may take."""


def _fit_law(
    timed: Timed, options: PrivacyMappingOptions, price: PriceOracle | None = None
) -> tuple[SparseMapping, Shortcomings]:
    """The mapping that the fitted records choose within seconds, as the others judge it."""
    law, deadline = timed[0], Deadline(timed[1])
    joint, codes = prepare_joint(law.fitted, options, law.private)
    law = replace(law, joint=joint)
    early = _leave_promise(law, len(codes), options, deadline)
    n_records = law.fitted.n_records, law.fresh.n_records
    found, solved = _solve(law, codes, options, price, early, n_records)
    how = assurance.assure_mapping if options.information_budgets is None else assure_each_variable
    assured = how(found, law, confidence=options.confidence, held_out=options.held_out)
    assurance.check_target(assured, solved, law, options.wanted_information, options.held_out)
    short = Shortcomings()
    said, budget = dict(assured.guarantee.parameters), found.distortion_budget
    if (spent := said["plug_in_distortion"]) > max(budget, found.distortion):
        short["joined_profiles"] = spent, say_grounds("joined_profiles", spent=spent, budget=budget)
    most = float(assured.guarantee.number or 0.0)
    entropy = float(entr(joint.sum(axis=1)).sum())
    if most >= entropy > 0 and law.fresh.n_records and not law.schema.groups:
        short["vacuous_bound"] = most, say_grounds("vacuous_bound", most=most, entropy=entropy)
    gap = solved.gap
    if (widest := options.information_budgets) is not None:
        gap = max(widest) * (said["budget_share_at_most"] - said["budget_share_at_least"])
    if gap > options.gap and not {"gap reached", "perfect privacy"} & {*solved.stopped.split(", ")}:
        words = say_grounds("search_stopped", ended=solved.stopped, off=gap, gap=options.gap)
        short["search_stopped"] = gap, words
    return assured, short


def _leave_promise(
    law: assurance.CountedLaw, n_symbols: int, options: PrivacyMappingOptions, deadline: Deadline
) -> Deadline:
    """The deadline of the search, before that by what the promise will take.

    It is forecast by fitted records alone: the mapping must be no function of the others.
    """
    prepared, n = deadline.spent, (law.fitted.n_records, law.fresh.n_records)
    if min(n) and deadline.seconds < np.inf:
        _expect_from(law.joint, *n)(sp.eye_array(n_symbols, format="csc"))
    # It looks profiles up as the joint did, and bounds what it found; with budgets of each as well.
    one = prepared + _BOUNDS * (deadline.spent - prepared)
    return deadline.end_earlier(one * (1 + len(options.information_budgets or ())))


def _fit_strata(
    timed: Timed, options: PrivacyMappingOptions, price: PriceOracle | None
) -> tuple[StratifiedMapping, Shortcomings]:
    """A mapping for each value of the last attribute, within the budget and with a promise."""
    law, deadline = timed[0], Deadline(timed[1])
    by, whole = law.schema.attributes[-1], law.fitted.merge(law.fresh)
    table, strata, _ = profiles.make_joint(whole.without(slice(-1)), law.private)
    reveals_all = len(table) > 1 and ((table > 0).sum(axis=0) == 1).all()
    if reveals_all or by.name != options.by:
        what = "reveals the private value" if reveals_all else "is not the last attribute"
        problem = f"[method] by is {options.by!r}, which {what}."
        remedy = "Name a public variable, the last of the attributes, or leave by out."
        raise InputError(problem, remedy=remedy, code="stratum-variable")
    # A mapping depends on whole numbers alone: any number of workers gives the same bits.
    laws = [law.select_stratum(one) for one in strata[:, 0]]
    assurance.refuse_small(law, [not one.fitted.n_records for one in laws], options.held_out)
    share = 1 - (1 - options.confidence) / (len(strata) + 1)
    fit = partial(_fit_law, options=replace(options, confidence=share))
    maps, short = zip(*_fit_each(fit, laws, price, deadline), strict=True)
    if law.fresh.n_records:  # else nothing is judged, by choice
        most = math.log(law.n_private)
        assurance.refuse_small(law, [m.guarantee.number >= most for m in maps], options.held_out)
    guarantee = assurance.promise_strata(maps, strata[:, 0], by, table, options.confidence)
    worst = Shortcomings()
    for name in dict.fromkeys(name for one in short for name in one):
        bad = sorted(one[name] for one in short if name in one)
        how_many = say_grounds("of_strata", n=len(bad), k=len(strata), by=by.name)
        worst[name] = bad[-1][0], f"{bad[-1][1]} {how_many}"
    return StratifiedMapping(strata[:, 0].copy(), maps, guarantee), worst


def _fit_each(
    fit: Callable[[Timed], Any],
    laws: Sequence[assurance.CountedLaw],
    price: Any,
    deadline: Deadline,
) -> list[tuple[SparseMapping, Shortcomings]]:
    """Fit all within one deadline: each has its part by its profiles, and what others left."""
    sizes = np.array([len(one.fitted.keys) for one in laws], float)
    order = np.argsort(sizes, kind="stable").tolist()
    begun = Deadline(np.inf)
    profiles.make_joint(laws[order[0]].fitted)  # a pilot: a small part of the smallest
    seconds = _PILOT * begun.spent * sizes.sum() / max(sizes.min(), 1.0)
    n_threads = _count_threads(price, "solve_apart", seconds, len(laws))
    # What small ones do not need passes on to large ones.
    rest = {k: sizes[order[at:]].sum() for at, k in enumerate(order)}
    if n_threads:
        loads = np.zeros(n_threads)
        for k in order[::-1]:  # as they will be taken: the largest first, each by who is free
            loads[loads.argmin()] += sizes[k]
        order, rest = order[::-1], dict.fromkeys(order, loads.max())
    tasks = ((laws[k], deadline.left * float(sizes[k] / rest[k])) for k in order)
    spread = getattr(price, "spread", None)
    solved = spread(fit, tasks, None if n_threads else 0) if spread else map(fit, tasks)
    found = dict(zip(order, solved, strict=True))
    return [found[k] for k in range(len(laws))]


# Of one expected bound: what a promise takes, beside looking profiles up.
_BOUNDS = 2.5
# Sets of symbols that are tried, usually; and what a fit takes of reading its counts, at least.
_SETS, _PILOT = 4, 200.0
# Of a limit.
_TOO_LITTLE = 0.05
# Of the records to be released: with more the mapping was learned from others.
_MANY_NEW = 0.05
# `check` answers while somebody waits; a coarser gap would do for a forecast.
_FORECAST_SECONDS = 20.0


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
        If the records have other variables than the options name, there is nothing to count, a
        variable is not categorical, or a value of `by` has too few records to promise anything; how
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
        If the search stopped before the gap was reached, the bound is not below the entropy of the
        private values, or records of other profiles than the `most_frequent` take the mean
        distortion above the budget.

    Notes
    -----
    Guarantee: with the confidence of the options, the mutual information of private values and
    released profile is at most ``guarantee.number`` under the law that the records are
    independent draws of, and the mean distortion at most its parameter
    ``distortion_at_most``; see `assurance`. With groups, whose records are not independent, there
    is no promise: its kind is "none".

    References
    ----------
    Salamatian et al., SPPM: Sparse Privacy Preserving Mappings.
    """
    check_shards(shards)
    check_unweighted(shards.schema)
    check_programme(options)
    check_independent(options, bool(shards.schema.groups))
    options.check_names(shards.schema)
    counts = _count(shards)
    # Split before anything is chosen: codes, smoothing and mapping come from `fitted` alone.
    apart = 0.0 if judges is None else judges[1]
    fitted, fresh = profiles.split_counts(counts, _find_share(options, apart))
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
    found, short = (_fit_law if options.by is None else _fit_strata)(timed, options, price)
    if short:
        text = " ".join(words for _, words in short.values())
        warnings.warn(text, PrivacyWarning, stacklevel=3)
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


def _find_share(options: PrivacyMappingOptions, apart: float) -> float:
    """Share of the records to hold out, where a share of all is held out before."""
    return max(0.0, options.held_out - apart) / (1 - apart)


@dataclass(frozen=True)
class ProfileForecast:
    """How many records a mapping will not know.

    Parameters
    ----------
    n_profiles
        Different profiles it will know.
    n_fitted
        Training records they come from.
    n_records, n_unseen
        Records looked at for the release, and those of other profiles.
    exact
        Whether these are all records; otherwise a few chunks, and more training records know
        more profiles.
    policy
        What the configuration says becomes of them.
    wanted_information
        Nats that the bound must not exceed; None without such a target.
    n_needed
        Training records that bring the bound down to it; None where no number does.
    has_subjects
        Whether several records may be of one person, and so no bound is promised.
    n_new
        Of the unseen those whose profile no training record has, however rare.
    most, entropy
        About what will be promised of the value of fewest records, and what its private values
        hold in all, nats; None where nothing is promised.
    """

    about: ClassVar[str] = "profiles"

    n_profiles: int
    n_fitted: int
    n_records: int
    n_unseen: int
    exact: bool
    policy: str
    wanted_information: float | None = None
    n_needed: float | None = None
    has_subjects: bool = False
    n_new: int = 0
    most: float | None = None
    entropy: float = 0.0

    def describe(self) -> str:
        """In words, counts alone."""
        share, new = (n / max(1, self.n_records) for n in (self.n_unseen, self.n_new))
        said = [
            say_grounds("profiles" if self.exact else "profiles_of_some", self=self, share=share)
        ]
        if self.n_unseen:
            said[0] += say_grounds(f"unseen_{self.policy}")
        if new > _MANY_NEW:
            said.append(say_grounds("many_new", new=new))
        if self.has_subjects:
            said.append(read_grounds()["promises"]["dependent"]["statement"].capitalize())
        elif self.most is not None:
            name = (
                "promise_forecast_vacuous" if self.most >= self.entropy > 0 else "promise_forecast"
            )
            said.append(say_grounds(name, self=self))
        if self.wanted_information is not None and not self.has_subjects:
            said.append(
                say_grounds("bound_fails" if self.n_needed is None else "bound_needs", self=self)
            )
        return f"{'. '.join(said)}."


def _forecast(preview: Preview, options: PrivacyMappingOptions) -> ProfileForecast | None:
    """Count profiles in a few chunks as the fit will."""
    counts = reduce(ProfileCounts.merge, map(ProfileCounts.of, preview.read_training()))
    share = _find_share(options, preview.held_out)
    fitted, _ = profiles.split_counts(counts, share)
    if fitted.n_records == 0:
        return None
    check_independent(options, preview.has_subjects)
    values = np.unique(fitted.keys[:, fitted.n_attributes - 1])
    parts = [fitted] if options.by is None else [fitted.select_value(one) for one in values]
    laws = [prepare_joint(part, options) for part in parts]
    codes = np.concatenate([law[1] for law in laws])
    if options.by is not None:
        codes = np.column_stack([codes, np.repeat(values, [len(law[1]) for law in laws])])
    table = preview.read_attributes()
    known = codes, fitted.keys[:, : fitted.n_attributes]
    n_unseen, n_new = (_count_unknown(one, table) for one in known)
    sizes = len(codes), fitted.n_records, len(table), n_unseen
    found = ProfileForecast(*sizes, preview.is_whole, options.unseen, n_new=n_new)
    found = replace(found, has_subjects=preview.has_subjects)
    judging = max(options.held_out, preview.held_out)
    if preview.has_subjects or not judging:
        return found
    # The value of the fewest records needs the most of all records, and is promised the least.
    fewest = min(range(len(parts)), key=lambda k: parts[k].n_records)
    (joint, few), share = laws[fewest], parts[fewest].n_records / fitted.n_records
    entropy, target = float(entr(joint.sum(axis=1)).sum()), options.wanted_information
    gap = max(options.gap, 0.1 * target if target else 1e-3 * entropy)
    # Limits and budgets cost more than what is forecast without them.
    plain = replace(options, gap=gap, information_budgets=None, solver="auto")
    plain = replace(plain, max_posterior_odds=None, max_leakage=None)
    n = share * (preview.n_training or fitted.n_records / (1 - judging))
    n_records = (1 - judging) * n, judging * n
    law = assurance.CountedLaw(joint, few, fitted, fitted, ShardSchema(0))
    charged, mapping = _solve(law, few, plain, None, Deadline(_FORECAST_SECONDS), n_records)
    # A promise is at most what the private values could hold, whatever the records.
    most = min(_expect_from(joint, *n_records)(charged.mapping), math.log(max(2, len(joint))))
    found = replace(found, most=most, entropy=entropy)
    if target is None:
        return found
    needed = assurance.forecast_needed(mapping.mapping, joint, target, options.held_out)
    return replace(found, wanted_information=target, n_needed=needed and needed / share)


def _count_unknown(profiles_: IntArray, table: IntArray) -> int:
    """Records whose profile is none of these."""
    # Profiles come first: the records whose profile occurs among these first rows are known.
    both = np.concatenate([profiles_, table])
    _, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return int((first[place.ravel()[len(profiles_) :]] >= len(profiles_)).sum())


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


def check_independent(options: PrivacyMappingOptions, grouped: bool) -> None:
    """Raise OptionError for a target of the bound where several records are of one person."""
    if options.wanted_information is not None and grouped:
        raise OptionError(
            "wanted_information is given, and records of one person are not independent.",
            remedy="Leave wanted_information out, or give one record of each person and no subject "
            "(in Python: no groups).",
            code="dependent-records",
        )


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
    check_budgets(options.information_budgets, len(options.private))
    others = {
        "max_posterior_odds": options.max_posterior_odds is not None,
        "max_leakage": options.max_leakage is not None,
        'solver = "frank_wolfe"': options.solver != "auto",
    }
    named = ", ".join(name for name, given in others.items() if given)
    if named:
        problem = f"information_budgets does not go with {named}."
        raise OptionError(problem, remedy="Take one of them out.", code="budgets-alone")


METHOD = Method(
    options=PrivacyMappingOptions,
    fit=fit_privacy_mapping,
    source="Salamatian et al., SPPM, Algorithms 1 and 2; certified search",
    maps=(SparseMapping, StratifiedMapping),
    check=check_mapping,
    promise="mutual information under the law of the records, with confidence",
    statistics=(ProfileCounts,),
    forecast=_forecast,
)
