"""What a fitted mapping promises about the law of its records, not about their counts.

The chance to fail is shared by bounds that hold together. They are on the information, on the mean
distortion and on the worst cases, all from records held out. Without these nothing judges the
mapping: the first two say the most there is. What the fitted counts say stays beside them as
`plug_in`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from privpipe.errors import GuaranteeError, InputError, printable
from privpipe.numerics.mapping import held_out_information, law_bounds, worst_case
from privpipe.numerics.mapping.held_out_information import find_needed_records
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.protocols import Column, FloatArray, Guarantee, IntArray, ShardSchema
from privpipe.sanitizers.grounds import say_grounds, say_promise
from privpipe.sanitizers.mapping import profiles
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

# Per private value (Krichevsky and Trofimov): no prior of 0, and 1 / prior stays small.
_PRIOR_RECORDS = 0.5
# How the chance to fail is shared among the bounds that are all computed.
_SHARES = {"held_out": 0.75, "distortion": 0.2, "worst": 0.05}
# What is promised beside the information where it is finite.
_LIMITS = ("distortion_at_most", "pointwise_leakage_at_most", "posterior_odds_at_most")
# Of the most there is: bounds of few records vary, and a target near it would be met by chance.
_SOME = 0.75


@dataclass(frozen=True, eq=False)
class CountedLaw:
    """Counts of independent records of one law, of which some chose a mapping and others judge it.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        From `fitted`, smoothed or not: what the mapping was fitted on.
    private : (n_private, n_private_variables)
        Its private values: all that occur among `fitted` and `fresh`, sorted.
    fitted, fresh
        The mapping is no function of `fresh`.
    schema
        Of the records: it says how many profiles and private values there may be.
    """

    joint: FloatArray
    private: IntArray
    fitted: ProfileCounts
    fresh: ProfileCounts
    schema: ShardSchema

    @property
    def n_private(self) -> int:
        """Private values that the law may have, by the schema, or those seen."""
        sizes = [column.n_categories for column in self.schema.confidential]
        declared = 0 if None in sizes else math.prod(size or 0 for size in sizes)
        return max(len(self.private), declared)

    @cached_property
    def prior(self) -> FloatArray:
        """Positive, of sum at most 1, from the fitted records; see `find_prior`."""
        _, place = profiles.number_private(self.fitted, self.private)
        counts = np.bincount(place, self.fitted.counts, len(self.private)).astype(np.float64)
        return find_prior(counts, self.n_private)

    @property
    def padded(self) -> FloatArray:
        """The joint with a row of nothing for a private value that no record has."""
        rows = np.zeros((len(self.prior) - len(self.joint), self.joint.shape[1]))
        return np.concatenate([self.joint, rows])

    def select_variable(self, k: int) -> CountedLaw:
        """Of one private variable alone."""
        values, rows = profiles.add_rows(self.joint, self.private[:, k])
        schema = replace(self.schema, confidential=(self.schema.confidential[k],))
        fitted, fresh = (one.select_variable(k) for one in (self.fitted, self.fresh))
        return CountedLaw(rows, values[:, None], fitted, fresh, schema)

    def select_stratum(self, value: int) -> CountedLaw:
        """Given a value of the last attribute, of the others."""
        fitted, fresh = (one.select_value(value) for one in (self.fitted, self.fresh))
        schema = replace(self.schema, attributes=self.schema.attributes[:-1])
        return CountedLaw(self.joint, self.private, fitted, fresh, schema)

    def table(self, mapping: SparseMapping, counts: ProfileCounts) -> FloatArray:
        """Records of each private value and symbol; profiles are those of the alphabet."""
        table = np.zeros((len(self.prior), mapping.n_symbols))
        if counts.n_records:
            _, value = profiles.number_private(counts, self.private)
            symbols = mapping.find_symbols(counts.keys[:, : counts.n_attributes])
            np.add.at(table, (value, symbols), counts.counts)
        return table

    def largest_distance(self, mapping: SparseMapping) -> float:
        """Of any two profiles that the schema allows; infinite where it declares no sizes."""
        sizes = [column.n_categories for column in self.schema.attributes]
        if mapping.distortion_kind == "hamming":
            return float(mapping.n_features_in)
        power = 2 if mapping.distortion_kind == "squared" else 1
        if None in sizes or None in [column.categories for column in self.schema.attributes]:
            return math.inf  # codes without names: the law may have others
        return float(sum((size or 0) ** power for size in sizes))  # codes from -1 on


def assure_mapping(mapping: SparseMapping, law: CountedLaw, *, confidence: float) -> SparseMapping:
    """The mapping with a promise about the law of its records.

    Parameters
    ----------
    mapping
        Fitted on the law's joint.
    law
    confidence
        Of all bounds together.

    Returns
    -------
    mapping
        Its guarantee's number is the bound on the information, nats; the parameters say the rest.
    """
    miss = {name: share * (1 - confidence) for name, share in _SHARES.items()}
    # The order matters: fresh records are looked at only once all shares of the miss are fixed.
    fitted, fresh = (_select_known(mapping, one) for one in (law.fitted, law.fresh))
    n, width = len(fitted.keys), fresh.n_attributes
    # Once: a profile that is unseen is compared with the whole alphabet.
    symbols = mapping.find_symbols(np.concatenate([fitted.keys, fresh.keys])[:, :width])
    nearest = np.hstack([mapping.codes[symbols[n:]], fresh.keys[:, width:]])
    law = replace(law, fresh=replace(fresh, keys=nearest))
    by_others = _bound_held_out(mapping, law, miss["held_out"])
    spent = _bound_distortion(mapping, law, fresh, symbols[n:], miss["distortion"])
    worst = worst_case.measure_worst_cases(law.joint, mapping.mapping)
    if law.fresh.n_records and miss["worst"]:
        table = law.table(mapping, law.fresh)
        worst |= worst_case.bound_worst_cases(law.padded, table, mapping.mapping, miss["worst"])
    numbers = {
        "confidence": confidence,
        "plug_in": mapping.information,
        "optimum_at_least": max(0.0, mapping.lower_bound),
        "n_released": len(np.unique(mapping.released)),
        "held_out": by_others,
        "plug_in_distortion": _measure_distortion(mapping, fitted, symbols[:n]),
        **_keep_bounded({"distortion_at_most": spent}),
        "n_fitted": law.fitted.n_records,
        "n_held_out": law.fresh.n_records,
        **_keep_bounded(worst),
        # What a search proved of several budgets.
        **{name: n for name, n in mapping.guarantee.parameters if name.startswith("budget_")},
    }
    return replace(mapping, guarantee=_promise(by_others, confidence, numbers, mapping.stopped))


def promise_strata(
    maps: Sequence[SparseMapping], strata: IntArray, by: Column, table: FloatArray, level: float
) -> Guarantee:
    """What mappings of strata promise together.

    Parameters
    ----------
    maps
        Each with a promise at an equal share of the chance to fail, of which one is left.
    strata
        Their values of the variable.
    by
        The variable.
    table : (n_private, n_strata)
        Training records of each private value and stratum.
    level
        Confidence of all that is promised.

    Notes
    -----
    Guarantee: with the confidence, two things hold jointly. For each value the information given
    that value is at most its number. Their mean over the law's shares of the values is at most
    ``given_<by>_at_most``. Shares are within `sqrt(2 log(2**k / miss) / n)` of those of n records,
    added up over the k values (Weissman et al. 2003, Theorem 2.1). A mean over them moves at most
    by that distance times half the range of the numbers.
    """
    promises = [one.guarantee for one in maps]
    bounds, said = (
        np.array([one.number for one in promises]),
        [dict(p.parameters) for p in promises],
    )
    n, k, shares = float(table.sum()), len(maps), table.sum(axis=0) / table.sum()
    off = math.sqrt(2 * (k * math.log(2) - math.log(1 - said[0]["confidence"])) / n)
    worst = promises[int(bounds.argmax())]
    given = min(float(shares @ bounds + off / 2 * np.ptp(bounds)), float(bounds.max()))
    alone, names = measure_information(table.T / n), [_name(int(one), by) for one in strata]
    extra = {f"given_{by.name}_at_most": given, f"{by.name}_alone_plug_in": alone}
    numbers = extra | _keep_bounded(_join(said, shares)) | {"confidence": level}
    for name, *of_one in zip(names, shares, bounds, (one.gap for one in maps), strict=True):
        for what, number in zip(("share", "at_most", "gap"), of_one, strict=True):
            numbers[f"{by.name}={name}: {what}"] = float(number)
    statement = say_grounds(
        "strata_statement",
        by=by.name,
        given=round_up(given),
        level=f"{level:.4g}".removeprefix("0"),
        most=round_up(float(bounds.max())),
        k=k,
        worst=names[int(bounds.argmax())],
        alone=alone,
        numbers=numbers,
        off=max(one.gap for one in maps),
        ended="; ".join(f"{why} ({n})" for why, n in Counter(m.stopped for m in maps).items()),
        unbounded=say_unbounded(numbers),
    )
    unit = f"{worst.unit}, given any value of {by.name}"
    return replace(worst, unit=unit, parameters=tuple(numbers.items()), statement=statement)


def _join(said: Sequence[Mapping[str, float]], shares: FloatArray) -> dict[str, float]:
    """Of each number that strata have the sum of counts, the mean under counts, or the worst.

    What holds given any value at most the worst of them, the excepted share included.
    """
    joined = {}
    for name in dict.fromkeys(name for one in said for name in one):
        each = np.array([one.get(name, math.inf) for one in said])
        if name in ("n_released", "n_fitted", "n_held_out"):
            joined[name] = float(each.sum())
        elif name in ("optimum_at_least", "plug_in_distortion") or name.endswith("plug_in"):
            joined[name] = float(shares @ each)
        else:
            joined[name] = float(each.max())
    return joined


def say_unbounded(numbers: Mapping[str, float]) -> str:
    """Which limits a promise lacks, in words; empty where it has all."""
    limits = {name: name.removesuffix("_at_most").replace("_", " ") for name in _LIMITS}
    lacking = ", ".join(words for name, words in limits.items() if name not in numbers)
    return f". Unbounded: {lacking}" if lacking else ""


def _keep_bounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """Without those that are infinite, which no store holds; `say_unbounded` names them."""
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _name(value: int, by: Column) -> str:
    """What a value is called, which is public."""
    names = range(value + 1) if by.categories is None else by.categories
    return "missing" if value < 0 else printable(str(names[value]))


def check_target(
    mapping: SparseMapping,
    solved: SparseMapping,
    law: CountedLaw,
    target: float | None,
    held_out: float,
) -> None:
    """Refuse a mapping whose bound is above the target, and say what would do.

    More records release more symbols: `solved` is the mapping before these were charged.

    Raises
    ------
    GuaranteeError
    """
    found = mapping.guarantee.number
    if target is None or found is None or found <= target:
        return
    tried = [find_needed_records(law.joint, m.mapping, target, held_out) for m in (mapping, solved)]
    needed = min(filter(None, tried), default=None)
    remedy = (
        "By these counts no number of records suffices: at this distortion_budget about "
        f"{mapping.lower_bound:.3g} nats remain. Raise distortion_budget or wanted_information."
        if needed is None
        else f"About {needed:,.0f} training records would do, or fewer profiles (most_frequent)."
    )
    raise GuaranteeError(
        f"the information is at most {found:.3g} nats, and wanted_information is {target:g}; "
        f"{law.fitted.n_records:,} records were fitted.",
        remedy=remedy,
        code="bound-above-wanted",
    )


def refuse_small(law: CountedLaw, small: Sequence[bool], held_out: float) -> None:
    """Raise InputError if nothing can be promised of some values of the last attribute."""
    if not any(small):
        return
    table, codes, _ = profiles.make_joint(law.fitted.without(-1), law.private)
    # Of records as they are, since no mapping is known: at most about as many are needed.
    raw, target = sp.eye_array(len(codes), format="csc"), _SOME * math.log(law.n_private)
    needed = find_needed_records(table / table.sum(), raw, target, held_out or 0.5)
    enough = f"About {needed:,.0f} of each" if needed else "More records"
    raise InputError(
        f"{sum(small)} of the {len(small)} values of {law.schema.attributes[-1].name!r} have too "
        "few records to promise anything.",
        remedy=f"{enough} would do, or fewer with most_frequent. Join these "
        "values with others when you ingest, or leave their records out.",
        code="stratum-small",
    )


def find_prior(counts: FloatArray, n_private: int) -> FloatArray:
    """A positive prior of the private values, with one that no record has where there is room.

    Parameters
    ----------
    counts : (n_known,)
        Fitted records of each private value that occurs anywhere.
    n_private
        Values that there may be.
    """
    given = np.append(counts, 0.0) if n_private > len(counts) else counts
    total = counts.sum() + _PRIOR_RECORDS * max(n_private, len(counts))
    return np.asarray((given + _PRIOR_RECORDS) / total)


def _select_known(mapping: SparseMapping, fresh: ProfileCounts) -> ProfileCounts:
    """Records that the mapping would release; those it refuses end a run."""
    if mapping.unseen == "nearest" or not fresh.n_records:
        return fresh
    known = mapping.find_known(fresh.keys[:, : fresh.n_attributes])
    return replace(fresh, keys=fresh.keys[known], counts=fresh.counts[known])


def _bound_held_out(mapping: SparseMapping, law: CountedLaw, miss: float) -> float:
    """Bound on the information by the records that did not choose the mapping."""
    most = math.log(law.n_private)
    if not law.fresh.n_records or not miss:
        return most
    reference = held_out_information.make_reference(
        law.padded, mapping.mapping, law.prior, law.fitted.n_records, law.fresh.n_records
    )
    table = law.table(mapping, law.fresh)
    found = held_out_information.bound_held_out_information(reference, table, miss)
    # At most the values that were seen: where that is all there is, unseen ones count as well.
    return found if found < math.log(len(table)) else most


def _bound_distortion(
    mapping: SparseMapping, law: CountedLaw, fresh: ProfileCounts, symbols: IntArray, miss: float
) -> float:
    """Upper bound on the mean distortion of records as they are, unseen profiles included."""
    most = law.largest_distance(mapping)
    if not fresh.n_records or not math.isfinite(most) or not miss:
        return most
    spent = _measure_distances(mapping, fresh, symbols)
    # Of a variable between 0 and `most` the variance is at most this; a guess may be any number.
    guess = most * mapping.distortion
    return law_bounds.bound_mean(spent, fresh.counts.astype(np.float64), most, guess, miss)


def _measure_distortion(mapping: SparseMapping, fitted: ProfileCounts, symbols: IntArray) -> float:
    """Mean distortion of the fitted records as they are, joined profiles included."""
    if np.array_equal(mapping.codes[symbols], fitted.keys[:, : fitted.n_attributes]):
        return mapping.distortion
    return float(_measure_distances(mapping, fitted, symbols) @ fitted.counts / fitted.n_records)


def _measure_distances(
    mapping: SparseMapping, counts: ProfileCounts, symbols: IntArray
) -> FloatArray:
    """Mean distortion of each cell's records, unseen profiles released as their nearest."""
    original = counts.keys[:, : counts.n_attributes]
    power = {"hamming": 0, "absolute": 1, "squared": 2}[mapping.distortion_kind]
    spent = np.empty(len(original))
    for cell, symbol in enumerate(symbols):
        pairs = slice(mapping.pointers[symbol], mapping.pointers[symbol + 1])
        away = np.abs(mapping.codes[mapping.released[pairs]] - original[cell]).astype(np.float64)
        spent[cell] = mapping.probabilities[pairs] @ ((away > 0) * away**power).sum(axis=1)
    return spent


def _promise(number: float, confidence: float, numbers: dict[str, float], ended: str) -> Guarantee:
    level = f"{confidence:.4g}".removeprefix("0")
    off = numbers["plug_in"] - numbers["optimum_at_least"]
    given = {"most": round_up(number), "level": level, "numbers": numbers, "off": off}
    unbounded = say_unbounded(numbers)
    statement = say_grounds("mapping_statement", ended=ended, unbounded=unbounded, **given)
    return say_promise("mapping", number, parameters=tuple(numbers.items()), statement=statement)


def round_up(number: float) -> str:
    """Three digits, never less than the number.

    >>> round_up(0.012341), round_up(0.0)
    ('0.0124', '0')
    """
    if number <= 0:
        return "0"
    # Up, since the number is a promise.
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step) * step:.3g}"
