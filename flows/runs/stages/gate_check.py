"""Before any work: could this gate be passed at all, and by how many held-out records?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privpipe.attacks.adversaries.readers import ALONE, TOGETHER, choose_readers
from privpipe.attacks.kinds.verdicts.needed import plan_needed_records, plan_reach
from privpipe.errors import OptionError, StoreError
from privpipe.protocols import Column, Method
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import exists, read_header
from privpipe.store.collections.collection import Collection
from privpipe_flows.runs.configuration.run_options import RunOptions
from privpipe_flows.runs.run import Run, find_attack_options
from privpipe_flows.runs.stages.earlier import count_earlier

__all__ = ["GateNeeds", "check_gate", "plan_gate", "read_previous"]

UNGATED = "or set [gate] enforce = false, which publishes it as not gated"


@dataclass(frozen=True)
class GateNeeds:
    """What the gate asks of the number of held-out records.

    Parameters
    ----------
    variable, score
        Of the limit that asks for most.
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

    def describe(self) -> str:
        """In a sentence."""
        needed = f"{self.n_needed:,.0f}" if self.n_needed < float("inf") else "more than any"
        return (
            f"about {needed} different held-out records show {self.score.replace('_', ' ')} of "
            f"{self.variable!r} to be within {self.limit:g} (of {self.n_intervals} intervals that "
            f"hold together); at most {self.n_held_out:,} are held out, with which even a guess "
            f"reaches up to {self.reaches:.3g}."
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
    why = ""
    if method.releases == "surrogate" and not _mixes_records(method):
        why = "what a surrogate release tells of confidential variables is not judged"
    elif not training.confidential and method.releases != "surrogate":
        why = "no variable is named as confidential, so that nothing would be shown"
    elif not options.audit.adversaries:
        why = "[audit] adversaries is empty, so that nothing would be attacked"
    if why:
        raise OptionError(
            f"The gate cannot be passed: {why}; unknown never passes.",
            remedy=f"Name what is to be attacked, {UNGATED}.",
            code="gate-cannot-pass",
        )
    if not training.confidential:
        return  # single records are attacked; how many are needed, the audit says
    needs = plan_gate(options, training, count_earlier(run))
    if not needs.can_pass:
        raise OptionError(
            f"The gate cannot be passed: {needs.describe()}",
            remedy="Hold out more ([audit] holdout) or train on more records, name fewer "
            "[audit] adversaries, allow more ([gate] confidential_advantage_max, exposed_max), "
            f"{UNGATED}.",
            code="gate-cannot-pass",
        )


def _check_required(options: RunOptions, method: Method[Any], training: Collection) -> None:
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


def _mixes_records(method: Method[Any]) -> bool:
    """Whether the surrogates are sums of records, which the audit judges."""
    return any(hasattr(one, "sum_records") for one in method.maps)


def plan_gate(options: RunOptions, training: Collection, n_earlier: int = 0) -> GateNeeds:
    """What the limit that asks for most asks for, of all confidential variables.

    Parameters
    ----------
    options, training
        The configuration, and the records that judge.
    n_earlier
        Earlier releases that are joined with this one.
    """
    attacked = find_attack_options(options)
    n_records, share = training.schema_of_records.n_records, options.audit.holdout
    n_held_out = min(int(n_records * share) if share else n_records, attacked.max_records)
    n_test = max(20, min(int(n_held_out * attacked.test_share), attacked.max_test))
    columns = training.schema.confidential
    alike = {column.n_categories: column for column in reversed(columns)}
    found = []
    for column in alike.values():  # the same for all variables of so many classes
        given: dict[str, Any] = {
            "n_attacks": _count_attacks(options, column, bool(training.desired), n_earlier),
            "n_classes": column.n_categories,
            "n_variables": len(columns),
        }
        for score, needed in plan_needed_records(attacked, **given).items():
            reaches = plan_reach(attacked, score, n_test, **given)
            n_scores = len(attacked.deciding("classes" if column.is_categorical else "numbers"))
            n_intervals = given["n_attacks"] * n_scores
            limit = attacked.allowed(score)
            found.append(
                GateNeeds(column.name, score, needed, n_held_out, n_intervals, limit, reaches)
            )
    return max(found, key=lambda one: (not one.can_pass, one.n_needed))


def _count_attacks(options: RunOptions, column: Column, has_desired: bool, n_earlier: int) -> int:
    """Attacks on readings of the release, as far as the configuration tells."""
    attacked, release = find_attack_options(options), options.release
    beside = bool(release.include) or release.partitions or options.training is None
    readings = ["released", "bits", *["everything"] * beside, *["joined"] * has_desired]
    readings += [f"{ALONE}{name}" for name in release.include]
    readings += [f"{TOGETHER}{k}" for k in range(n_earlier)]
    kind = column.is_categorical
    return sum(len(choose_readers(reading, kind, attacked)) for reading in readings)


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
    findings: Mapping[str, Any] = read_header(url, "release")["audit"]
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
