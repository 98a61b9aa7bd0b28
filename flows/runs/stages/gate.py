"""The gate between audit and publish: what the audit must show, or nothing is published.

Unknown never passes. A failed gate keeps the workspace: a corrected limit goes on with the attacks
already measured, and `privpipe approve` overrides it once, for exactly what was found.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fsspec

from privpipe.attacks.kinds.verdicts.judgement import SCORE_WORDS, is_of_release
from privpipe.errors import GateError
from privpipe.store.access.location import join
from privpipe.store.arrays.headers import companion_url
from privpipe.store.releases.release import ReleasePlan, digest_receipts, read_ledger
from privpipe_flows.runs.approval import read_approval, write_case
from privpipe_flows.runs.configuration.run_options import GateSection
from privpipe_flows.runs.run import Run, find_attack_options
from privpipe_flows.runs.stages.weaker_limits import list_weaker_limits

__all__ = ["check_gated", "gate_stage", "judge_findings"]

OPEN = ("passed", "approved", "not gated")
"""States of a gate through which a release may go."""


@dataclass(frozen=True)
class Complaint:
    """One thing that keeps the gate closed.

    Parameters
    ----------
    code
        "leaks", "unproven", "unknown", "membership", "utility", "linkage", "required" or
        "regression".
    reason
        In a sentence: what, both numbers.
    """

    code: str
    reason: str


def gate_stage(
    run: Run, plan: ReleasePlan, findings: Mapping[str, Any], previous: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Judge the findings, and look for an approval of exactly these.

    Parameters
    ----------
    run, plan
        The run and its release, finished and audited.
    findings
        Of the audit.
    previous
        Findings of the release named by ``[gate] previous``; None where none is named.

    Returns
    -------
    findings
        With ``gate``: its state ("passed", "failed", "approved" or "not gated"), sentence,
        complaints, limits, those that ask less than usual, and approval. Where it failed, what
        may be approved is recorded.
    """
    section = run.options.gate
    complaints = judge_findings(findings, section, previous)
    ways_out = find_ways_out(findings, run) if complaints else ""
    gate: dict[str, Any] = {
        "state": "passed",
        "sentence": _say(complaints, weaker := list_weaker_limits(run.options)),
        "ways_out": ways_out,
        "complaints": [{"code": one.code, "reason": one.reason} for one in complaints],
        "limits": section.model_dump(mode="json", exclude={"previous"}),
        "weaker": weaker,
        "approval": None,
    }
    if not section.enforce:
        gate["state"] = "not gated"
    elif complaints:
        digest = digest_case(run, plan, findings, complaints)
        write_case(run.release_url, digest, gate["sentence"])
        approval = read_approval(run.release_url, digest)
        gate |= {"state": "approved" if approval else "failed", "approval": approval}
    return {**findings, "gate": gate}


def check_gated(findings: Mapping[str, Any]) -> None:
    """Let findings pass whose gate is open.

    Raises
    ------
    GateError
        If the gate failed, with its sentence, or if there was none.
    """
    gate = findings.get("gate") or {"state": "none", "complaints": []}
    if gate["state"] in OPEN:
        return
    if gate["state"] == "none":
        raise GateError("The release did not go through its gate.", code="ungated")
    codes = [one["code"] for one in gate["complaints"]]
    raise GateError(
        gate["sentence"],
        remedy=f"Nothing was published; the workspace is kept, and the next run goes on with the "
        f"attacks already measured. {gate['ways_out']}",
        code=codes[0],
    )


def judge_findings(
    findings: Mapping[str, Any], section: GateSection, previous: Mapping[str, Any] | None = None
) -> list[Complaint]:
    """All that keeps a release from being published; none where the gate is open.

    Parameters
    ----------
    findings
        Of the audit.
    section
        Limits.
    previous
        Findings of the release to compare with.
    """
    found = [
        *_judge_adversaries(findings["adversaries"]),
        *_judge_utility(findings, section.utility_loss_max),
        *_judge_kinds(_list_kinds(findings), section),
    ]
    if previous is not None:
        found += _judge_regression(findings, previous, section.regression_max)
    return found


def _judge_adversaries(found: Mapping[str, Any]) -> Iterator[Complaint]:
    """Every variable that is not safe; the worst verdicts first."""
    order = ("leaks", "unknown", "unproven")
    bad = [one for one in found["decisions"] if one["verdict"] != "safe"]
    for one in sorted(bad, key=lambda one: order.index(one["verdict"])):
        yield Complaint(one["verdict"], one["reason"])
    if not bad and found["verdict"] != "safe":
        yield Complaint(found["verdict"], f"The audit is {found['verdict']}: {found['reason']}.")


def _judge_utility(findings: Mapping[str, Any], limit: float | None) -> Iterator[Complaint]:
    """Wanted predictions that lose more than is allowed, by their best use of the release."""
    if limit is None:
        return
    if not findings["desired"]:
        yield Complaint("utility", "No wanted prediction was measured, and its loss is limited.")
    for name, views in findings["desired"].items():
        raw = _read_score(views.get("raw"))
        kept = [
            value
            for view in ("released", "released, attack retrained")
            if math.isfinite(value := _read_score(views.get(view)))
        ]
        loss = raw - max(kept, default=math.nan)
        # The sample's limits count beside the figure of all judged records, where there are some.
        sampled = (findings.get("utility") or {}).get(name, {}).get("loss")
        most = max(loss, sampled["upper"]) if sampled else loss
        if not most <= limit:
            reach = f", at most {sampled['upper']:.3g}" if sampled else ""
            yield Complaint(
                "utility",
                f"The wanted prediction of {name!r} loses {loss:.3g}{reach}; allowed {limit:g}.",
            )


def _read_score(view: Mapping[str, float] | None) -> float:
    """Accuracy of classes, R squared of numbers; NaN where it is not there."""
    view = view or {}
    return float(view.get("accuracy", view.get("r2", math.nan)))


def _list_kinds(findings: Mapping[str, Any]) -> dict[str, Any]:
    """Kinds of attack that were measured; of a surrogate release membership stands by itself."""
    attacks = dict(findings.get("attacks") or {})
    if (members := findings.get("membership")) is not None:
        attacks["membership"] = {"status": "measured", "report": members}
    return attacks


def _judge_kinds(attacks: Mapping[str, Any], section: GateSection) -> Iterator[Complaint]:
    """Kinds of attack that must have been measured, and what linkage may find."""
    needed = dict.fromkeys(section.require)
    if section.linkage_max is not None:
        needed |= {"linkage": None}
    for kind in needed:
        found = attacks.get(kind) or {"status": "unknown", "reason": "it was not run"}
        if found["status"] != "measured":
            yield Complaint(
                "required", f"The attack by {kind} is required and unknown: {found['reason']}."
            )
        elif kind == "linkage" and section.linkage_max is not None:
            yield from _judge_linkage(found["report"], section.linkage_max)
    members = attacks.get("training_membership") or {}
    if members.get("status") == "measured":
        yield from _judge_membership(members["report"], section)


def _judge_membership(report: Mapping[str, Any], section: GateSection) -> Iterator[Complaint]:
    """A published model that tells whom it learned from; the worst score, if it is beyond."""

    def allow(score: str) -> float:
        exposed = score.startswith("tpr")
        return section.exposed_max if exposed else section.confidential_advantage_max

    worst = max(report["differences"], key=lambda one: one["advantage_lower"] - allow(one["score"]))
    if worst["advantage_lower"] > allow(worst["score"]):
        yield Complaint(
            "membership",
            f"The model tells whom it learned from: {worst['adversary'].replace('_', ' ')} reaches "
            f"{SCORE_WORDS[worst['score']]} of {worst['estimate']:.4g}, an advantage of "
            f"{worst['advantage']:.3g} ({worst['advantage_lower']:.3g} to "
            f"{worst['advantage_upper']:.3g}); allowed {allow(worst['score']):g}.",
        )


def _judge_linkage(report: Mapping[str, Any], limit: float) -> Iterator[Complaint]:
    best = max(report["attacks"], key=lambda one: one["top_1"]["upper"])
    share, chance = best["top_1"], report["chance_1"]
    beyond = share["upper"] - chance
    if not beyond <= limit:
        yield Complaint(
            "linkage",
            f"The release of a known record is found at once ({best['method']} linkage) for "
            f"{share['estimate']:.3g} of the records, at most {share['upper']:.3g} (chance "
            f"{chance:.3g}); allowed {limit:g} beyond chance.",
        )


def _judge_regression(
    findings: Mapping[str, Any], previous: Mapping[str, Any], limit: float
) -> Iterator[Complaint]:
    """Variables of which an adversary may gain more than of the previous release."""
    before = {one["target"]: one for one in previous["adversaries"]["decisions"]}
    for one in findings["adversaries"]["decisions"]:
        new, old = _read_gain(one), _read_gain(before.get(one["target"]))
        if not new - old <= limit:
            yield Complaint(
                "regression",
                f"Of {one['target']!r} an adversary may gain {new:.3g}, of the previous release "
                f"{old:.3g}; allowed {limit:g} more.",
            )


def _read_gain(decision: Mapping[str, Any] | None) -> float:
    value = (decision or {}).get("gain_upper")
    return math.nan if value is None else float(value)


def find_ways_out(findings: Mapping[str, Any], run: Run) -> str:
    """What would let this very release pass, as far as it was measured."""
    ways = ["Sanitise more strongly (another [method] or budget)"]
    if passing := _find_compared(run):
        ways[0] = f"Take what `privpipe compare` found to pass: {passing}"
    if telling := _find_telling(findings["adversaries"]):
        ways.insert(0, f"Release without {telling}, which leaks by itself")
        ways[1] = f"or {ways[1][0].lower()}{ways[1][1:]}"
    if measured := _find_limits(findings["adversaries"], run):
        ways.append(f"or allow what was measured: [gate] {measured}")
    ways.append(
        "or override this once: privpipe approve RELEASE --name NAME --reason REASON; "
        "[gate] enforce = false publishes as not gated"
    )
    return ", ".join(ways) + "."


def _find_compared(run: Run) -> str:
    """Methods that a comparison of this very collection found to pass these limits."""
    url = join(companion_url(run.release_url, "compare"), "compare.json")
    try:
        with fsspec.open(url, encoding="utf-8", mode="rt") as file:
            comparison = json.load(file)
        asked = run.options.gate.model_dump(mode="json", exclude={"previous"})
        if comparison["source"] != run.collection.digest or comparison["limits"] != asked:
            return ""
        passing = [one["label"] for one in comparison["entries"] if one.get("would_pass")]
    except (OSError, ValueError, KeyError, TypeError):  # none was made, or it is damaged
        return ""
    return ", ".join(map(str, passing))


def _find_telling(found: Mapping[str, Any]) -> str:
    """Included variables that by themselves tell more than is allowed."""
    told = [one["included"] for one in found.get("included", ()) if _is_beyond(one)]
    return ", ".join(repr(name) for name in dict.fromkeys(told))


def _is_beyond(one: Mapping[str, Any]) -> bool:
    return one["gain_lower"] is not None and one["gain_lower"] > one["allowed"]


def _find_limits(found: Mapping[str, Any], run: Run) -> str:
    """The least limits, in hundredths, with which every variable would be safe.

    Nothing where there are none: of an audit that misses a planted leak whatever its size.
    """
    options = find_attack_options(run.options)
    rows = [row for row in found.get("table", ()) if is_of_release(row["source"])]
    if not rows or any(row["status"] != "measured" for row in rows):
        return ""
    judged = {row["target"] for row in rows}
    if any(one["target"] not in judged for one in found["decisions"]):
        return ""  # a variable that could not be attacked passes no limit
    limits = {"confidential_advantage_max": 0.0, "exposed_max": 0.0}
    for row in rows:
        if row["score"] not in options.deciding(row["kind"]):
            continue
        if row["gain_upper"] is None:
            return ""
        name = "exposed_max" if row["score"].startswith("tpr") else "confidential_advantage_max"
        limits[name] = max(limits[name], row["gain_upper"])
    shown = {name: min(1.0, math.ceil(100 * x) / 100) for name, x in limits.items()}
    missed = [one["size"] for one in found.get("power", ()) if not one["finds"]]
    if None in missed:
        return ""
    if missed:
        shown["must_find"] = max(missed)
    return ", ".join(f"{name} = {limit:g}" for name, limit in shown.items())


def _say(complaints: list[Complaint], weaker: list[str]) -> str:
    if not complaints:
        less = f" Weaker than usual: {'; '.join(weaker)}." if weaker else ""
        return f"The gate is open: every limit holds.{less}"
    shown = " ".join(one.reason for one in complaints[:3])
    more = f" {len(complaints) - 3} further complaints are in the report." * (len(complaints) > 3)
    return f"The gate stays closed. {shown}{more}"


def digest_case(
    run: Run, plan: ReleasePlan, findings: Mapping[str, Any], complaints: list[Complaint]
) -> str:
    """SHA-256 of what somebody approves: this run, these records, these findings and limits."""
    receipts = [one for one in read_ledger(plan) if one.run == plan.run]
    case = {
        "run": run.run_id,
        "options": run.state.options_sha256,
        "source": run.collection.digest,
        "model": run.state.model_digest,
        "records": digest_receipts(receipts),
        "complaints": [[one.code, one.reason] for one in complaints],
        "desired": findings["desired"],
    }
    return hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()
