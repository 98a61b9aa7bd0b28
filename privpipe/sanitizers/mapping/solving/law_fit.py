"""From counted profiles to mappings within one limit of seconds, with what they promise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import entr

from privpipe.errors import InputError
from privpipe.numerics.mapping.held_out_information import expect_held_out_bound
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, count_threads
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import FloatArray, Guarantee, IntArray
from privpipe.sanitizers.grounds import say_grounds
from privpipe.sanitizers.mapping import profiles
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.solving import assurance, budgeted, constrained, released_symbols
from privpipe.sanitizers.mapping.solving.assurance import CountedLaw
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, find_nearest

# Of one expected bound: what a promise takes, beside looking profiles up.
_BOUNDS = 20.0
# Sets of symbols that are tried, usually; and what a fit takes of reading its counts, at least.
_SETS, _PILOT = 4, 200.0
# Of a limit.
_TOO_LITTLE = 0.05


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
    mapping: SparseMapping, law: CountedLaw, *, confidence: float
) -> SparseMapping:
    """The mapping with a promise about each private variable.

    Parameters
    ----------
    mapping, law, confidence
        As of `assure_mapping`; the confidence is of all promises together.

    Returns
    -------
    mapping
        Its guarantee's number bounds the information about all variables together, nats; the
        parameters `<variable>_plug_in` and `<variable>_at_most` are those of each.
    """
    n_variables = law.private.shape[1]
    # All promises hold together: a union bound over the variables and their combination.
    each = 1 - (1 - confidence) / (n_variables + 1)
    whole = assurance.assure_mapping(mapping, law, confidence=each)
    numbers, words = dict(whole.guarantee.parameters) | {"confidence": confidence}, []
    for k, column in enumerate(law.schema.confidential[:n_variables]):
        one = law.select_variable(k)
        nats = measure_information(np.asarray(mapping.mapping @ one.joint.T))
        told = replace(mapping, information=nats)
        alone = assurance.assure_mapping(told, one, confidence=each).guarantee
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


def solve_law(
    law: CountedLaw,
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
        found = budgeted.solve_budgeted_mapping(
            *args, private=law.private, information_budgets=budgets, **more
        )
        return found, found
    limits = options.max_posterior_odds, options.max_leakage
    if limits != (None, None):
        more |= dict(zip(("max_posterior_odds", "max_leakage"), limits, strict=True))
        found = constrained.solve_constrained_mapping(*args, **more)
        return found, found
    begun = Deadline(np.inf)
    found = solve_privacy_mapping(*args, solver=options.solver, **more)
    if options.solver != "auto" or not min(n_records):
        return found, found
    # The first expected bound would take what is left.
    left = deadline.left if deadline.left >= _TOO_LITTLE * deadline.seconds else 0.0
    expect, more = expect_from(law.joint, *n_records), {"gap": options.gap, "max_seconds": left}
    # A set of symbols takes about as long as all.
    if left and (spread := getattr(price, "spread", None)):
        n = count_threads(price, _SETS * begun.spent, _SETS)
        more["solve_all"] = partial(spread, at_once=n)
    return released_symbols.charge_symbols(found, law.joint, expect, **more), found


def expect_from(
    joint: FloatArray, n_fitted: float, n_fresh: float
) -> Callable[[sp.csc_array], float]:
    """What the bound of a mapping will be about, nats."""
    prior = assurance.find_prior(joint.sum(axis=1) * n_fitted, len(joint))
    return partial(expect_held_out_bound, joint, prior=prior, n_fitted=n_fitted, n_fresh=n_fresh)


Shortcomings = dict[str, tuple[float, str]]
"""What is to be warned of, by the name of its sentence: how bad it is, and in words."""

Timed = tuple[CountedLaw, float]
"""A law, and the seconds that its fit may take."""


def fit_law(
    timed: Timed, options: PrivacyMappingOptions, price: PriceOracle | None = None
) -> tuple[SparseMapping, Shortcomings]:
    """The mapping that the fitted records choose within seconds, as the others judge it."""
    law, deadline = timed[0], Deadline(timed[1])
    joint, codes = prepare_joint(law.fitted, options, law.private)
    law = replace(law, joint=joint)
    early = _leave_promise(law, len(codes), options, deadline)
    n_records = law.fitted.n_records, law.fresh.n_records
    found, solved = solve_law(law, codes, options, price, early, n_records)
    how = assurance.assure_mapping if options.information_budgets is None else assure_each_variable
    assured = how(found, law, confidence=options.confidence)
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
    law: CountedLaw, n_symbols: int, options: PrivacyMappingOptions, deadline: Deadline
) -> Deadline:
    """The deadline of the search, before that by what the promise will take.

    It is forecast by fitted records alone: the mapping must be no function of the others.
    """
    prepared, n = deadline.spent, (law.fitted.n_records, law.fresh.n_records)
    if min(n) and deadline.seconds < np.inf:
        expect_from(law.joint, *n)(sp.eye_array(n_symbols, format="csc"))
    # It looks profiles up as the joint did, and bounds what it found; with budgets of each as well.
    one = prepared + _BOUNDS * (deadline.spent - prepared)
    return deadline.end_earlier(one * (1 + len(options.information_budgets or ())))


def fit_strata(
    timed: Timed, options: PrivacyMappingOptions, price: PriceOracle | None
) -> tuple[tuple[IntArray, tuple[SparseMapping, ...], Guarantee], Shortcomings]:
    """Values of the last attribute, a mapping for each within the budget, and the promise."""
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
    fit = partial(fit_law, options=replace(options, confidence=share))
    maps, short = zip(*fit_each(fit, laws, price, deadline), strict=True)
    if law.fresh.n_records:  # else nothing is judged, by choice
        most = math.log(law.n_private)
        assurance.refuse_small(law, [m.guarantee.number >= most for m in maps], options.held_out)
    guarantee = assurance.promise_strata(maps, strata[:, 0], by, table, options.confidence)
    worst = Shortcomings()
    for name in dict.fromkeys(name for one in short for name in one):
        bad = sorted(one[name] for one in short if name in one)
        how_many = say_grounds("of_strata", n=len(bad), k=len(strata), by=by.name)
        worst[name] = bad[-1][0], f"{bad[-1][1]} {how_many}"
    return (strata[:, 0].copy(), maps, guarantee), worst


def fit_each(
    fit: Callable[[Timed], Any], laws: Sequence[CountedLaw], price: Any, deadline: Deadline
) -> list[tuple[SparseMapping, Shortcomings]]:
    """Fit all within one deadline: each has its part by its profiles, and what others left."""
    sizes = np.array([len(one.fitted.keys) for one in laws], float)
    order = np.argsort(sizes, kind="stable").tolist()
    begun = Deadline(np.inf)
    profiles.make_joint(laws[order[0]].fitted)  # a pilot: a small part of the smallest
    seconds = _PILOT * begun.spent * sizes.sum() / max(sizes.min(), 1.0)
    n_threads = count_threads(price, seconds, len(laws))
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
