"""Before any work: could this gate be passed at all, and by how many held-out records?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fsspec

from privpipe.attacks.adversaries.attack_options import (
    ALONE,
    TOGETHER,
    AttackOptions,
    choose_readers,
)
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.statistics.scores import EXPOSURES
from privpipe.attacks.threats.recovery import count_needed_trials
from privpipe.attacks.threats.verdicts.detectable_effect import (
    ROOM,
    plan_needed_records,
    plan_reach,
)
from privpipe.attacks.threats.verdicts.judgement import SCORE_WORDS
from privpipe.attacks.threats.verdicts.record_decisions import (
    RECORD_ATTACKS,
    halve_level,
    share_level,
)
from privpipe.errors import OptionError, StoreError
from privpipe.numerics.limits import say_upper
from privpipe.pipeline.runs.earlier import count_earlier
from privpipe.pipeline.runs.run import MOST_RECORDS, Run, find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.protocols import Column, Method
from privpipe.sanitizers import METHODS
from privpipe.store.access.location import join, shown
from privpipe.store.arrays.headers import companion_url, exists, read_header
from privpipe.store.collections.collection import Collection


def plan_membership_reach(options: AttackOptions, n_members: int, n_others: int) -> float:
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
    >>> round(plan_membership_reach(AttackOptions(), 20_000, 8_000), 3)
    0.041
    """
    level = share_level(options).level
    mine, others = (
        measure_exact_interval(n // 2, n, level=level)
        for n in (max(1, n_members // 2), max(1, n_others // 4))
    )
    return min(1.0, mine.upper - others.lower)


def plan_recovery_reach(options: AttackOptions, n_members: int) -> float:
    """Upper limit of the share of records recovered where none of so many attacked ones is."""
    return measure_exact_interval(0, max(1, n_members), level=share_level(options).level).upper


def plan_needed_others(options: AttackOptions, n_members: int, most: int) -> float:
    """Held-out records with which a guess at who is in would be within its limit.

    Infinite where not even `most` are enough.
    """
    low, high = 4, most
    if plan_membership_reach(options, n_members, high) > options.max_advantage:
        return math.inf
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        enough = plan_membership_reach(options, n_members, middle) <= options.max_advantage
        low, high = (low, middle) if enough else (middle, high)
    return high


HOLDOUT = 0.5
"""Share held out where the default share is too few records to show anything."""

UNPROTECTED = (
    "surrogates carry exact coefficients, so that single records are not protected: whoever knows "
    "all others solves for the one that is left, and so does whoever has a release without it"
)

UNGATED = "or set [gate] enforce = false, which publishes it as not gated"


@dataclass(frozen=True)
class GateNeeds:
    """What the gate asks of the number of held-out records.

    Parameters
    ----------
    variable, score
        Of the limit that asks for most; of surrogates, it may be what is asked of single records.
    n_needed
        Held-out records with which a release that tells nothing of the variable would pass;
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
        """Whether a release that tells nothing passes by more than chance."""
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
        If nothing confidential is attacked, the held-out records are too few, or the previous
        release is of other variables.
    StoreError, FormatError
        If the previous release cannot be read.
    """
    options, method, training = run.options, run.method, run.training
    if not options.gate.enforce:
        return
    read_previous(options, training)
    _check_required(options, method, training)
    why, way = "", "Name what is to be attacked"
    if method.releases == "surrogate" and not _mixes_records(method):
        why = "what a surrogate release tells of confidential variables is not judged"
    elif not training.confidential and method.releases != "surrogate":
        why = "no variable is named as confidential, so that nothing would be shown"
    elif method.releases == "surrogate" and not options.audit.holdout > 0:
        why = "[audit] holdout is 0, so that no record is known to be in no surrogate"
        way = "Hold records out"
    elif not options.audit.adversaries and training.confidential:
        why = "[audit] adversaries is empty, so that nothing would be attacked"
    elif _mixes_records(method) and options.gate.single_records != "unprotected":
        why = UNPROTECTED
        way = 'Accept that by name, with [gate] single_records = "unprotected"'
    if why:
        raise OptionError(
            f"The gate cannot be passed: {why}; unknown never passes."
            if why != UNPROTECTED
            else f"The gate cannot be passed: {why}.",
            remedy=f"{way}, {UNGATED}.",
            code="gate-cannot-pass",
        )
    n_earlier = 0 if method.releases == "surrogate" else count_earlier(run)
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


def _check_required(options: RunOptions, method: Method, training: Collection) -> None:
    """Kinds of attack that this release cannot be given: they would be unknown for ever."""
    surrogate, codes = method.releases == "surrogate", bool(training.attributes)
    held_out = options.audit.holdout > 0
    why = {
        "membership": "" if surrogate else "its records are not surrogates",
        "training_membership": "" if held_out else "[audit] holdout is 0",
        "information": "" if codes else "it releases no codes",
        "drift": "" if options.training else "it is judged by its own records",
    }
    for kind in options.gate.require:
        reason = why.get(kind, "")
        if surrogate and kind != "membership":
            reason = "its records are surrogates of nobody"
        if reason:
            raise OptionError(
                f"[gate] require names {kind!r}, which cannot be measured of this release: "
                f"{reason}.",
                remedy="Leave it out; unknown never passes.",
                code="gate-cannot-pass",
            )


def _mixes_records(method: Method) -> bool:
    """Whether the surrogates are sums of records, which the audit judges."""
    return any(hasattr(one, "sum_records") for one in method.maps)


def plan_gate(
    options: RunOptions,
    training: Collection,
    rarest: Mapping[str, float] | None = None,
    n_earlier: int = 0,
) -> GateNeeds | None:
    """What the limit that asks for most asks for; None where nothing is attacked.

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
    """What every limit asks for, of all that is attacked.

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
    if _mixes_records(METHODS[options.method.name]):
        # Confidential variables and single records are two questions to one release: each has half
        # of the level, so that both answers hold together.
        attacked = halve_level(attacked)
        found = _plan_records(attacked, n_records, n_held_out)
    return found + _plan_variables(options, attacked, training, n_held_out, rarest, n_earlier)


def _plan_records(attacked: AttackOptions, n_records: int, n_held_out: int) -> list[GateNeeds]:
    """What the attacks on single records ask for."""
    n_members, n_others = (min(n, MOST_RECORDS) for n in (n_records - n_held_out, n_held_out))
    level = share_level(attacked).level
    n_targets = min(n_members, count_needed_trials(attacked.max_exposed, level))
    recovered = plan_recovery_reach(attacked, n_targets)
    return [
        GateNeeds(
            RECORD_ATTACKS["tracing"],
            "advantage",
            plan_needed_others(attacked, n_members, MOST_RECORDS),
            n_others,
            len(RECORD_ATTACKS),
            attacked.max_advantage,
            plan_membership_reach(attacked, n_members, n_others),
        ),
        GateNeeds(
            RECORD_ATTACKS["outlying_record"],
            "share_recovered",
            # Records of the fit are attacked; of few, fewer. However many are held out.
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
    """What the attacks on confidential variables ask for."""
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
            reaches = plan_reach(attacked, score, max(20, int(n_test * even)), **given)
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
    needs more records. They stand in the configuration and in the release. `rarest` and
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
        # In hundredths and rounded up, with room: a release that tells nothing passes by more than
        # the chance of one sample.
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
    """Keys and values as they would stand in a configuration.

    >>> write_keys({("audit", "holdout"): 0.5, ("gate", "exposed_max"): 0.03})
    '[audit] holdout = 0.5, [gate] exposed_max = 0.03'
    """
    return ", ".join(f"[{section}] {key} = {value}" for (section, key), value in keys.items())


def count_attacks(options: RunOptions, column: Column, has_desired: bool, n_earlier: int) -> int:
    """Attacks on readings of the release, as far as the configuration tells."""
    attacked, release = find_attack_options(options), options.release
    beside = bool(release.include) or release.partitions or options.training is None
    beside &= METHODS[options.method.name].releases == "rows"  # surrogates stand beside nobody
    readings = [
        "released",
        "bits",
        "surroundings",
        *["everything"] * beside,
        *["joined"] * has_desired,
    ]
    readings += [f"{ALONE}{name}" for name in release.include]
    readings += [f"{TOGETHER}{k}" for k in range(n_earlier)]
    kind = column.is_categorical
    return sum(len(choose_readers(reading, kind, attacked)) for reading in readings)


def _read_audit(url: str) -> Mapping[str, Any]:
    """The whole audit beside a release; what its header says of it where that is not there."""
    with suppress(OSError, ValueError):
        report = join(companion_url(url, "report"), "audit.json")
        with fsspec.open(report, encoding="utf-8", mode="rt") as file:
            found: Mapping[str, Any] = json.load(file)
        return found
    header: Mapping[str, Any] = read_header(url, "release")["audit"]
    return header


def read_previous(options: RunOptions, training: Collection) -> Mapping[str, Any] | None:
    """Findings of the release named by ``[gate] previous``; None where none is named.

    Raises
    ------
    StoreError
        If it is not there.
    OptionError
        If its audit does not speak of every confidential variable.
    """
    url = options.gate.previous
    if url is None:
        return None
    if not exists(url):
        raise StoreError(
            f"[gate] previous names {shown(url)}, where there is no release.",
            remedy="Name a published release, or leave it out.",
            code="missing",
        )
    findings = _read_audit(url)
    judged = {one["target"] for one in findings["adversaries"].get("decisions", ())}
    missing = [column.name for column in training.schema.confidential if column.name not in judged]
    if missing:
        raise OptionError(
            f"[gate] previous names {shown(url)}, whose audit did not judge "
            f"{', '.join(map(repr, missing))}.",
            remedy="Name a release of the same confidential variables, or leave it out.",
            code="other-variables",
        )
    return findings
