"""What a fitted mapping promises about the law of its records, not about their counts.

The chance to fail is shared among three bounds, which hold together: on the information from
records held out, on the information over a ball around the counts (the smaller of the two is the
promise), and on the mean distortion. Without records held out the ball has all of it, and bounds
the distortion too: one event, two means. What the fitted counts say stays beside them as `plug_in`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from privpipe.errors import GuaranteeError
from privpipe.numerics.mapping import held_out_information, law_bounds
from privpipe.numerics.mapping.worst_case import measure_worst_cases
from privpipe.protocols import FloatArray, Guarantee, IntArray, ShardSchema
from privpipe.sanitizers.mapping.profiles import (
    ProfileCounts,
    add_rows,
    number_private,
    split_counts,
)
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

# Per private value (Krichevsky and Trofimov): no prior of 0, and 1 / prior stays small.
_PRIOR_RECORDS = 0.5
# How the chance to fail is shared among the bounds that are all computed.
_SHARES = {"held_out": 0.6, "ball": 0.2, "distortion": 0.2}
# Where no record is held out.
_BALL_ALONE = {"held_out": 0.0, "ball": 1.0, "distortion": 0.0}
_UNIT = "nats of mutual information between private value and released symbol"


def _count_cells(schema: ShardSchema, n_seen: int) -> tuple[int, float]:
    """Private values that a law may have, and pairs of one with a profile.

    From the schema alone, never from what the records hold: the ball's radius is proven for a
    number of cells fixed beforehand. A missing attribute counts as a value; infinitely many cells
    where an attribute declares no size, the values seen where a private variable declares none.
    """
    sizes = [column.n_categories for column in schema.confidential]
    declared = 0 if None in sizes else math.prod(size or 0 for size in sizes)
    n_private = max(n_seen, declared)
    profiles = [column.n_categories for column in schema.attributes]
    if None in profiles:
        return n_private, math.inf
    return n_private, float(n_private * math.prod((size or 0) + 1 for size in profiles))


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

    @cached_property
    def cells(self) -> tuple[int, float]:
        """Private values, and cells, that the law may have, by the schema."""
        return _count_cells(self.schema, len(self.private))

    @cached_property
    def prior(self) -> FloatArray:
        """Positive, of sum at most 1, from the fitted records; see `find_prior`."""
        _, place = number_private(self.fitted, self.private)
        counts = np.bincount(place, self.fitted.counts, len(self.private)).astype(np.float64)
        return find_prior(counts, self.cells[0])

    def select_variable(self, k: int) -> CountedLaw:
        """Of one private variable alone."""
        values, rows = add_rows(self.joint, self.private[:, k])
        schema = replace(self.schema, confidential=(self.schema.confidential[k],))
        fitted, fresh = (one.select_variable(k) for one in (self.fitted, self.fresh))
        return CountedLaw(rows, values[:, None], fitted, fresh, schema)

    def table(self, mapping: SparseMapping, counts: ProfileCounts) -> FloatArray:
        """Records of each private value and symbol, unseen profiles as their nearest."""
        table = np.zeros((len(self.prior), mapping.n_symbols))
        if counts.n_records:
            _, value = number_private(counts, self.private)
            symbols = mapping.find_symbols(counts.keys[:, : counts.n_attributes])
            np.add.at(table, (value, symbols), counts.counts)
        return table

    def largest_distance(self, mapping: SparseMapping) -> float:
        """Of any two profiles that the schema allows; infinite where it declares no sizes."""
        sizes = [column.n_categories for column in self.schema.attributes]
        if mapping.distortion_kind == "hamming":
            return float(mapping.n_features_in)
        power = 2 if mapping.distortion_kind == "squared" else 1
        if None in sizes:
            return math.inf
        return float(sum((size or 0) ** power for size in sizes))  # codes from -1 on


def assure_mapping(
    mapping: SparseMapping, law: CountedLaw, *, confidence: float, held_out: float = 0.5
) -> SparseMapping:
    """The mapping with a promise about the law of its records.

    Parameters
    ----------
    mapping
        Fitted on the law's joint.
    law
    confidence
        Of all bounds together.
    held_out
        Share of the records that judge; 0 leaves all to the ball.

    Returns
    -------
    mapping
        Its guarantee's number is the bound on the information, nats; the parameters say the rest.
    """
    miss = {
        name: share * (1 - confidence)
        for name, share in (_SHARES if held_out > 0 else _BALL_ALONE).items()
    }
    # The order matters: fresh records are looked at only once all shares of the miss are fixed.
    law = replace(law, fresh=_select_known(mapping, law.fresh))
    by_others = _bound_held_out(mapping, law, miss["held_out"])
    ball, spent_in_ball = _bound_over_ball(mapping, law, miss["ball"])
    spent = _bound_distortion(mapping, law, miss["distortion"])
    worst = measure_worst_cases(law.joint, mapping.mapping)
    numbers = {
        "confidence": confidence,
        "plug_in": mapping.information,
        "optimum_at_least": max(0.0, mapping.lower_bound),
        "n_released": len(np.unique(mapping.released)),
        "held_out": by_others,
        "ball": ball,
        "plug_in_distortion": mapping.distortion,
        "distortion_at_most": min(spent, spent_in_ball),
        "n_fitted": law.fitted.n_records,
        "n_held_out": law.fresh.n_records,
        # What is left out is unbounded.
        **{name: number for name, number in worst.items() if math.isfinite(number)},
        # What a search proved of several budgets.
        **{name: n for name, n in mapping.guarantee.parameters if name.startswith("budget_")},
    }
    return replace(mapping, guarantee=_promise(min(by_others, ball), confidence, numbers))


def forecast_needed(
    mapping: SparseMapping,
    joint: FloatArray,
    target: float,
    held_out: float,
    *,
    confidence: float,
    schema: ShardSchema | None,
) -> float | None:
    """About how many training records bring the bound of such a mapping down to `target`.

    Parameters
    ----------
    mapping
        Solved for `joint`.
    joint : (n_private, n_symbols)
    target
        Nats.
    held_out
        Share of the records that is held out; 0 takes the ball around all.
    confidence
    schema
        Of the records; only the ball needs it.

    Returns
    -------
    n_records
        None where no number of records suffices: the mapping itself reveals more.
    """
    used = joint[joint.sum(axis=1) > 0]
    prior = used.sum(axis=1)
    if held_out > 0 or schema is None:
        needed = held_out_information.find_needed_records(
            used, mapping.mapping, prior, target, held_out
        )
    else:
        masses = np.asarray((mapping.mapping @ used.T).T)
        cells, miss = _count_cells(schema, len(used))[1], 1 - confidence
        needed = law_bounds.find_needed_records_of_ball(masses, prior, target, cells, miss)
    return needed if math.isfinite(needed) else None


def check_target(
    mapping: SparseMapping, law: CountedLaw, target: float | None, held_out: float
) -> None:
    """Refuse a mapping whose bound is above the target, and say what would do.

    Raises
    ------
    GuaranteeError
    """
    found = mapping.guarantee.number
    if target is None or found is None or found <= target:
        return
    confidence = dict(mapping.guarantee.parameters)["confidence"]
    needed = forecast_needed(
        mapping, law.joint, target, held_out, confidence=confidence, schema=law.schema
    )
    remedy = (
        f"No number of records suffices: at this distortion_budget about {mapping.lower_bound:.3g} "
        "nats remain. Raise distortion_budget or wanted_information."
        if needed is None
        else f"About {needed:,.0f} training records would do, or fewer profiles (most_frequent)."
    )
    raise GuaranteeError(
        f"the information is at most {found:.3g} nats, and wanted_information is {target:g}; "
        f"{law.fitted.n_records:,} records were fitted.",
        remedy=remedy,
        code="bound-above-wanted",
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
    most = math.log(law.cells[0])
    # Two in each half at least.
    if law.fresh.n_records < 4 or not miss:
        return most
    parts = split_counts(law.fresh, held_out_information.SECOND_PART, "halves")
    first, second = (law.table(mapping, part) for part in parts)
    # A row of nothing for a private value that no record has.
    rows = np.zeros((len(law.prior) - len(law.joint), law.joint.shape[1]))
    reference = held_out_information.make_reference(
        np.concatenate([law.joint, rows]),
        mapping.mapping,
        law.prior,
        law.fitted.n_records,
        law.fresh.n_records,
    )
    return held_out_information.bound_held_out_information(reference, first, second, miss)


def _bound_over_ball(mapping: SparseMapping, law: CountedLaw, miss: float) -> tuple[float, float]:
    """Bounds on information and distortion over a ball.

    Around all counts where the schema's cells are few; else around those held out. All counts chose
    the mapping and its symbols: the ball must then hold every law on the cells that the schema
    allows. Which of the two is decided by the schema alone.
    """
    both, (n_private, n_cells) = law.fitted.merge(law.fresh), law.cells
    most, farthest = math.log(n_private), law.largest_distance(mapping)
    # By the schema and the number of records, never by what they hold: no second look.
    whole = n_cells <= both.n_records
    if not whole:
        both, n_cells = law.fresh, n_private * mapping.n_symbols
    if not both.n_records:
        return most, farthest
    table = law.table(mapping, both)
    masses = np.asarray((mapping.mapping @ (table / table.sum()).T).T)
    radius = law_bounds.find_radius(int(n_cells), both.n_records, miss)
    information = min(most, law_bounds.bound_over_ball(masses, law.prior, radius))
    if not whole or not math.isfinite(farthest):
        return information, farthest
    # The ball holds laws with mass in cells that no record has: these cost the most there is.
    spent = np.append(_measure_distances(mapping, both), farthest)  # and where no record is
    shares = np.append(both.counts / both.n_records, 0.0)
    return information, min(farthest, law_bounds.bound_mean_over_ball(spent, shares, radius))


def _bound_distortion(mapping: SparseMapping, law: CountedLaw, miss: float) -> float:
    """Upper bound on the mean distortion of records as they are, unseen profiles included."""
    most, fresh = law.largest_distance(mapping), law.fresh
    if not fresh.n_records or not math.isfinite(most) or not miss:
        return most
    spent = _measure_distances(mapping, fresh)
    # Of a variable between 0 and `most` the variance is at most this; a guess may be any number.
    guess = most * mapping.distortion
    return law_bounds.bound_mean(spent, fresh.counts.astype(np.float64), most, guess, miss)


def _measure_distances(mapping: SparseMapping, counts: ProfileCounts) -> FloatArray:
    """Mean distortion of each cell's records, unseen profiles released as their nearest."""
    original = counts.keys[:, : counts.n_attributes]
    symbols = mapping.find_symbols(original)
    return np.array(
        [_mean_distance(mapping, int(s), row) for s, row in zip(symbols, original, strict=True)]
    )


def _mean_distance(mapping: SparseMapping, symbol: int, original: IntArray) -> float:
    pairs = slice(mapping.pointers[symbol], mapping.pointers[symbol + 1])
    away = np.abs(mapping.codes[mapping.released[pairs]] - original).astype(np.float64)
    power = {"hamming": 0, "absolute": 1, "squared": 2}[mapping.distortion_kind]
    distances = ((away > 0) * away**power).sum(axis=1)
    return float(mapping.probabilities[pairs] @ distances)


def _promise(number: float, confidence: float, numbers: dict[str, float]) -> Guarantee:
    level = f"{confidence:.4g}".removeprefix("0")
    return Guarantee(
        kind="information_bound",
        number=number,
        unit=_UNIT,
        scope="in expectation",
        theorem="held-out bound by betting (Waudby-Smith and Ramdas 2024) on a variational form of "
        "the information, or the worst law of a likelihood ball (Agrawal 2020, Theorem 1.2)",
        assumptions="Records, those fitted, held out and released, are independent draws of one "
        "law.",
        parameters=tuple(numbers.items()),
        statement=f"at most {round_up(number)} nats with confidence {level} about the law of "
        f"these records (the fitted counts alone would say {numbers['plug_in']:.3g}, and "
        f"{numbers['optimum_at_least']:.3g} is the least within the distortion budget)",
    )


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
