"""Before any work: could this gate be passed at all, and by how many held-out records?"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privpipe.attacks.adversaries.attack_options import (
    ALONE,
    JOINT,
    AttackOptions,
    choose_adversaries,
)
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.statistics.scores import EXPOSURES
from privpipe.attacks.threats.attack_table import RECORD_ATTACKS
from privpipe.attacks.threats.record_decisions import halve_level, share_level
from privpipe.attacks.threats.record_recovery import count_needed_trials
from privpipe.attacks.threats.verdicts.detectable_effect import (
    ROOM,
    plan_guess_limit,
    plan_needed_records,
)
from privpipe.attacks.threats.verdicts.judgement import SCORE_WORDS
from privpipe.errors import OptionError
from privpipe.numerics.limits import say_upper
from privpipe.pipeline.runs.earlier import count_earlier
from privpipe.pipeline.runs.run import MOST_RECORDS, Run, find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.protocols import Column
from privpipe.sanitizers import METHODS
from privpipe.store.collections.collection import Collection


def limit_guess(options: AttackOptions, n_members: int, n_others: int) -> float:
    """Upper limit of the advantage of a mere guess at who is in a surrogate release.

    Parameters
    ----------
    options
        With the level that all attacks on single records share.
    n_members, n_others
        Records of the fit and held-out ones that the attack is given. Half of the first are
        judged by, and of the others a quarter: tracing takes every second for the population.

    Examples
    --------
    >>> round(limit_guess(AttackOptions(), 20_000, 8_000), 3)
    0.041
    """
    level = share_level(options).level
    mine, others = (
        measure_exact_interval(n // 2, n, level=level)
        for n in (max(1, n_members // 2), max(1, n_others // 4))
    )
    return min(1.0, mine.upper - others.lower)


HOLDOUT = 0.5
"""Share held out where the default share is too few records to show anything."""

UNPROTECTED = (
    "surrogates carry exact coefficients, so that single records are not protected: whoever knows "
    "all others solves for the one that is left, and so does whoever has a release without it"
)

UNGATED = "or set [gate] enforce = false, which publishes it as not gated"


@dataclass(frozen=True)
class GateNeeds:
    """How many held-out records the gate needs.

    Parameters
    ----------
    variable, score
        Of the limit that needs most; of surrogates, it may be the one of single records.
    n_needed
        Held-out records with which a release that reveals nothing of the variable would pass;
        infinite where none are enough.
    n_held_out
        Different records that are held out at most.
    n_intervals
        Of the variable, which share the level.
    limit
        The limit.
    reaches
        How far the upper limit of a mere guess goes with the records there are.
    """

    variable: str
    score: str
    n_needed: float
    n_held_out: int
    n_intervals: int
    limit: float
    reaches: float

    @property
    def can_pass(self) -> bool:
        return self.reaches <= self.limit

    @property
    def has_room(self) -> bool:
        """Whether a release that reveals nothing passes by more than chance."""
        return ROOM * self.reaches <= self.limit

    def describe(self) -> str:
        """In a sentence."""
        finite = math.isfinite(self.n_needed)
        needed = f"about {self.n_needed:,.0f}" if finite else "no number of"
        words = SCORE_WORDS.get(self.score, f"a {self.score.replace('_', ' ')}")
        score = words.partition(" ")[2]  # without its article
        return (
            f"{needed} different held-out records show that an adversary's gain in "
            f"{score} of {self.variable!r} is within {self.limit:g} (of {self.n_intervals} "
            f"intervals that hold together); at most {self.n_held_out:,} are held out, with which "
            f"the upper limit of even a guess is "
            f"{say_upper(self.reaches, self.limit)}."
        )


def check_gate(run: Run) -> None:
    """Refuse a gate that no release could pass.

    Raises
    ------
    OptionError
        If nothing confidential is attacked, or the held-out records are too few.
    """
    options, training = run.options, run.training
    if not options.gate.enforce:
        return
    mixes, way = run.method.releases == "surrogate", "Name what is to be attacked"
    why, unknown = "", "; unknown never passes"
    if not training.confidential and not mixes:
        why = "no variable is named as confidential, so that nothing would be shown"
    elif mixes and not options.audit.holdout > 0:
        why = "[audit] holdout is 0, so that no record is known to be in no surrogate"
        way = "Hold records out"
    elif not options.audit.adversaries and training.confidential:
        why = "[audit] adversaries is empty, so that nothing would be attacked"
    elif mixes and options.gate.single_records != "unprotected":
        why, unknown = UNPROTECTED, ""
        way = 'Accept that by name, with [gate] single_records = "unprotected"'
    if why:
        raise OptionError(
            f"The gate cannot be passed: {why}{unknown}.",
            remedy=f"{way}, {UNGATED}.",
            code="gate-cannot-pass",
        )
    n_earlier = 0 if mixes else count_earlier(run)
    needs = plan_gate(options, training, n_earlier=n_earlier)
    # Refused is what cannot pass whatever is released. What passes by chance alone (`has_room`) is
    # the operator's to risk, and only said.
    if needs is not None and not needs.can_pass:
        keys = write_keys(suggest_gate(options, training, n_earlier=n_earlier))
        raise OptionError(
            f"The gate cannot be passed: {needs.describe()}",
            remedy=f"So many records can show: {keys}. Or "
            "train on more records, name fewer [audit] adversaries, "
            f"{UNGATED}.",
            code="gate-cannot-pass",
        )


def plan_gate(
    options: RunOptions,
    training: Collection,
    rarest: Mapping[str, float] | None = None,
    n_earlier: int = 0,
) -> GateNeeds | None:
    """What the limit that needs most needs; None where nothing is attacked.

    Parameters
    ----------
    options, training, rarest, n_earlier
        As of `plan_limits`.
    """
    found = plan_limits(options, training, rarest, n_earlier)
    return max(
        found, key=lambda one: (not one.can_pass, not one.has_room, one.n_needed), default=None
    )


def plan_limits(
    options: RunOptions,
    training: Collection,
    rarest: Mapping[str, float] | None = None,
    n_earlier: int = 0,
) -> list[GateNeeds]:
    """What every limit needs, of all that is attacked.

    Of a release of surrogates that are sums of records, confidential variables and single records
    share the level.

    Parameters
    ----------
    options, training
    rarest
        Share of the rarest class that counts, by variable, where it is known: what shows of a
        class is shown by its own records, so that n records of which one in ten is of it count
        as two in ten would of two classes alike. Without it, classes are of one size.
    n_earlier
        Earlier releases that are joined with this one.
    """
    attacked = find_attack_options(options)
    n_records, share = training.schema_of_records.n_records, options.audit.holdout
    n_held_out = int(n_records * share) if share else n_records
    found: list[GateNeeds] = []
    if METHODS[options.method.name].releases == "surrogate":
        # Confidential variables and single records are two questions to one release: each has half
        # of the level, so that both answers hold together.
        attacked = halve_level(attacked)
        found = _plan_records(attacked, n_records, n_held_out)
    return found + _plan_variables(options, attacked, training, n_held_out, rarest, n_earlier)


def _plan_records(attacked: AttackOptions, n_records: int, n_held_out: int) -> list[GateNeeds]:
    """What the attacks on single records need."""
    n_members, n_others = (min(n, MOST_RECORDS) for n in (n_records - n_held_out, n_held_out))

    def is_enough(n_others: int) -> bool:
        return limit_guess(attacked, n_members, n_others) <= attacked.max_advantage

    found = bisect_left(range(MOST_RECORDS), True, key=is_enough)  # more are never compared
    # Records of the fit are attacked, however many are held out; of few, fewer. Where none is
    # recovered, this share of records still may be.
    level = share_level(attacked).level
    n_targets = max(1, min(n_members, count_needed_trials(attacked.max_exposed, level)))
    recovered = measure_exact_interval(0, n_targets, level=level).upper
    return [
        GateNeeds(
            RECORD_ATTACKS["tracing"],
            "advantage",
            found if found < MOST_RECORDS else math.inf,
            n_others,
            len(RECORD_ATTACKS),
            attacked.max_advantage,
            limit_guess(attacked, n_members, n_others),
        ),
        GateNeeds(
            RECORD_ATTACKS["outlying_record"],
            "share_recovered",
            0 if recovered <= attacked.max_exposed else math.inf,
            n_others,
            len(RECORD_ATTACKS),
            attacked.max_exposed,
            recovered,
        ),
    ]


def _plan_variables(
    options: RunOptions,
    attacked: AttackOptions,
    training: Collection,
    n_held_out: int,
    rarest: Mapping[str, float] | None,
    n_earlier: int,
) -> list[GateNeeds]:
    """What the attacks on confidential variables need."""
    n_held_out = min(n_held_out, attacked.max_records)
    # Not below the 20 records from which `plan_needed_records` searches: both reckon alike.
    n_test = max(20, min(int(n_held_out * attacked.test_share), attacked.max_test))
    columns = training.schema.confidential
    uneven = {name: share for name, share in (rarest or {}).items() if share > 0}
    # The same for all variables of so many classes of such a size.
    alike = {(c.n_categories, uneven.get(c.name)): c for c in reversed(columns)}
    found = []
    for column in alike.values():
        # n records of which one in ten is of the rarest of two classes show as much of it as n / 5
        # of two classes alike: only scores that are made of classes one by one suffer from that.
        fill = min(1.0, (column.n_categories or 1) * uneven.get(column.name, 1.0))
        given: dict[str, Any] = {
            "n_attacks": count_attacks(options, column, bool(training.desired), n_earlier),
            "n_classes": column.n_categories,
            "n_variables": len(columns),
        }
        for score, needed in plan_needed_records(attacked, **given).items():
            even = fill if score == "auc" or score in EXPOSURES else 1.0
            reaches = plan_guess_limit(attacked, score, max(20, int(n_test * even)), **given)
            needed /= even
            n_scores = len(attacked.deciding("classes" if column.is_categorical else "numbers"))
            n_intervals = given["n_attacks"] * n_scores
            limit = attacked.allowed(score)
            found.append(
                GateNeeds(column.name, score, needed, n_held_out, n_intervals, limit, reaches)
            )
    return found


def suggest_gate(
    options: RunOptions,
    training: Collection,
    rarest: Mapping[str, float] | None = None,
    n_earlier: int = 0,
) -> dict[tuple[str, str], Any]:
    """Keys to write into a configuration; none where the limits can be shown with some room.

    The limits are those that this number of records can show, no smaller: whoever wants less
    needs more records. They are in the configuration and in the release. `rarest` and
    `n_earlier` as of `plan_limits`.
    """
    if _find_short(options, training, rarest, n_earlier) is None:
        return {}
    found: dict[tuple[str, str], Any] = {}
    if 0 < options.audit.holdout < HOLDOUT:  # 0 audits all records
        found["audit", "holdout"] = HOLDOUT
        audit = options.audit.model_copy(update={"holdout": HOLDOUT})
        options = options.model_copy(update={"audit": audit})
    gate = options.gate
    for _ in range(2):  # one limit is of exposure, the other of advantage
        needs = _find_short(options, training, rarest, n_earlier)
        if needs is None:
            break
        is_share = needs.score.startswith(("tpr", "share"))
        key = "exposed_max" if is_share else "confidential_advantage_max"
        # In hundredths and rounded up, with room: what reveals nothing passes by more than chance.
        found["gate", key] = min(1.0, math.ceil(100 * ROOM * needs.reaches) / 100)
        gate = gate.model_copy(update={key: found["gate", key]})
        options = options.model_copy(update={"gate": gate})
    return found


def _find_short(
    options: RunOptions, training: Collection, rarest: Mapping[str, float] | None, n_earlier: int
) -> GateNeeds | None:
    """The limit that most lacks room between it and what a mere guess reaches; None if none."""
    short = [one for one in plan_limits(options, training, rarest, n_earlier) if not one.has_room]
    return max(short, key=lambda one: one.reaches / one.limit, default=None)


def write_keys(keys: Mapping[tuple[str, str], Any]) -> str:
    """Keys and values as a configuration would have them.

    >>> write_keys({("audit", "holdout"): 0.5, ("gate", "exposed_max"): 0.03})
    '[audit] holdout = 0.5, [gate] exposed_max = 0.03'
    """
    return ", ".join(f"[{section}] {key} = {value}" for (section, key), value in keys.items())


def count_attacks(options: RunOptions, column: Column, has_desired: bool, n_earlier: int) -> int:
    """Attacks on readings of the release, as far as the configuration shows."""
    attacked, release = find_attack_options(options), options.release
    has_more = bool(release.include) or release.partitions or options.training is None
    # Surrogates have no included variable, order or partition of a record beside them.
    has_more &= METHODS[options.method.name].releases == "rows"
    readings = [
        "released",
        "bits",
        "surroundings",
        *["everything"] * has_more,
        *["joined"] * has_desired,
    ]
    readings += [f"{ALONE}{name}" for name in release.include]
    readings += [f"{JOINT}{k}" for k in range(n_earlier)]
    kind = column.is_categorical
    return sum(len(choose_adversaries(reading, kind, attacked)) for reading in readings)
