"""The gate between audit and publish: what the audit must show, or nothing is published.

Unknown never passes. A failed gate keeps the workspace: a corrected limit resumes with the
attacks already measured, and `privpipe approve` overrides it once, for exactly what was found.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from privpipe.attacks.adversaries.attack_options import JOINT
from privpipe.attacks.threats.verdicts.judgement import SCORE_WORDS, say_source
from privpipe.errors import GateError, GuaranteeError
from privpipe.numerics.limits import Figure, say_limits
from privpipe.pipeline.runs import history, spend
from privpipe.pipeline.runs.approval import read_approval, write_case
from privpipe.pipeline.runs.run import Cleaned, Run
from privpipe.pipeline.runs.run_options import GateSection, RunOptions, Section
from privpipe.pipeline.stages.report_writing import write_report
from privpipe.report.audit_text import Findings, read_texts, say
from privpipe.store.arrays.blocks import digest_receipts
from privpipe.store.keyring.account_chain import Kind, append_link
from privpipe.store.releases.release_writing import ReleasePlan, drop_refused, read_ledger

OPEN = ("passed", "approved", "not gated")
"""States of a gate through which a release may go."""


CONSTANT = "The released features do not vary: all records are released alike."
"""They hide everything, and no verdict should praise them."""


@dataclass(frozen=True)
class Complaint:
    """One thing that keeps the gate closed.

    Parameters
    ----------
    code
        "leaks", "unproven", "unknown", "not-protected", "membership", "utility", "constant",
        "place", "group" or "difference".
    reason
        In a sentence: what, both numbers.
    """

    code: str
    reason: str


LeadOut = Callable[[Run, Findings, list[Complaint]], dict[str, Any]]
"""What would let a release pass that is refused: further keys of the gate's findings."""


def gate_stage(
    run: Run, cleaned: Cleaned, findings: Findings, lead_out: LeadOut | None = None
) -> dict[str, Any]:
    """Judge the findings, look for an approval of exactly these, and write the report.

    Parameters
    ----------
    run, cleaned
        The run and its release, finished and audited.
    findings
        Of the audit.
    lead_out
        What is tried where the gate stays closed; see `diagnosis`.

    Returns
    -------
    findings
        With ``gate``: its state ("passed", "failed", "approved" or "not gated"), sentence,
        complaints, limits, those that demand less than usual, and approval. Where it failed, what
        may be approved is recorded.
    """
    section, weaker = run.options.gate, list_weaker_limits(run.options)
    complaints = judge_findings(findings, section)
    state, approval = "passed", None
    sentence = say("refusal", complaints=[one.reason for one in complaints], weaker=weaker)
    if not section.enforce:
        state = "not gated"
    elif complaints:
        # The case is written before an approval is looked for: whoever approves signs the digest
        # that lies there, and an approval of anything else raises. The chain of the account notes
        # either decision, so that no one can say later that this was never refused.
        digest = digest_case(run, cleaned.plan, findings, complaints)
        write_case(run.release_url, digest, sentence)
        approval = read_approval(run.release_url, digest)
        note = {"run": run.run_id, "case": digest}
        if approval is not None:
            note |= {"name": approval["name"], "approved": approval["approved"]}
        kind: Kind = "refusal" if approval is None else "approval"
        append_link(run.sketches.account, kind, note)
        state = "approved" if approval else "failed"
    gate = {
        "state": state,
        "sentence": sentence,
        "ways_out": "",
        "complaints": [asdict(one) for one in complaints],
        "limits": section.model_dump(mode="json"),
        "weaker": weaker,
        "approval": approval,
    }
    if state == "failed" and lead_out is not None:
        gate |= lead_out(run, findings, complaints)
    judged = {**findings, "gate": gate}
    history.write_attempt(run, judged)
    write_report(run, judged)  # of a refused release too: it shows what decided
    return judged


def check_gated(findings: Findings) -> None:
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
    remedy = f"Nothing was published. {gate['ways_out']}"
    raise GateError(gate["sentence"], remedy=remedy, code=gate["complaints"][0]["code"])


@contextmanager
def dropping_refused(release_url: str) -> Iterator[None]:
    """Remove the arrays of a release that is refused, where others may list them; see DESIGN.md.

    Raises
    ------
    GateError, GuaranteeError
        The refusal, with what could not be removed.
    """
    try:
        yield
    except (GateError, GuaranteeError) as error:
        if not (left := drop_refused(release_url)):
            raise
        # Without what it was raised from: a refusal is said once.
        raise type(error)(error.message, remedy=f"{left} {error.remedy}", code=error.code) from None


def judge_findings(findings: Findings, section: GateSection) -> list[Complaint]:
    """All that keeps a release from being published; none where the gate is open.

    Parameters
    ----------
    findings
        Of the audit.
    section
        Limits.
    """
    members = (findings.get("attacks") or {}).get("training_membership")
    return [
        *_judge_adversaries(findings["adversaries"], section),
        *([Complaint("constant", CONSTANT)] if findings.get("constant") else ()),
        *_judge_places(findings, section.confidential_advantage_max),
        *_judge_groups(findings.get("groups") or {}),
        *_judge_utility(findings, section.utility_loss_max),
        *(() if members is None else _judge_membership(members, section)),
        *(Complaint("difference", said) for said in findings.get("differences", ())),
    ]


def _judge_adversaries(found: Mapping[str, Any], section: GateSection) -> Iterator[Complaint]:
    """Every variable that is not safe, the worst verdicts first; what is accepted is not judged."""
    order = ("leaks", "unknown", "unproven", "not protected")
    passes = ("safe", *["not protected"] * (section.single_records == "unprotected"))
    bad = [one for one in found["decisions"] if one["verdict"] not in passes]
    for one in sorted(bad, key=lambda one: order.index(one["verdict"])):
        said = say_decision(one, int(found.get("n_records") or 0))
        yield Complaint(one["verdict"].replace(" ", "-"), said)
    if not bad and found["verdict"] not in passes:
        yield Complaint(found["verdict"], f"The audit is {found['verdict']}: {found['reason']}.")


def _judge_places(findings: Findings, limit: float) -> Iterator[Complaint]:
    """Chunks and partitions that surely reveal more than the rest, by more than is allowed."""
    found = findings.get("places") or {}
    if found.get("status") == "unknown":
        yield Complaint("place", f"Which places reveal more is unknown: {found['reason']}.")
    for one in found.get("places", ()):
        if not one["excess_lower"] <= limit:  # so written that NaN does not pass
            yield Complaint("place", say("place", one=one, limit=limit))


def _judge_groups(found: Mapping[str, Any]) -> Iterator[Complaint]:
    """Variables that leak, or were not attacked, of a group: its name is a value, and not said."""
    for row in found.get("rows", ()):
        if row["verdict"] in ("leaks", "unknown"):
            where = f"In one of {found['n_groups']} groups, which the officer's page names,"
            yield Complaint("group", f"{where} {say_decision(row, row['n_records'])}")


def check_places(found: Mapping[str, Any], section: GateSection) -> None:
    """Stop a part of a growing release of which a place reveals more than is allowed.

    Raises
    ------
    GateError
        With the worst place.
    """
    measured = {"places": {"places": found.get("places", ())}}
    worst = next(_judge_places(measured, section.confidential_advantage_max), None)
    if worst is not None and section.enforce:
        raise GateError(
            worst.reason,
            remedy="The part was not published. Look at this place of the source, release without "
            "the column, or allow more in [gate] confidential_advantage_max.",
            code="place",
        )


def _judge_utility(findings: Findings, limit: float | None) -> Iterator[Complaint]:
    """Target predictions that lose more than is allowed, by their best use of the release."""
    if limit is None:
        return
    if not findings["desired"]:
        yield Complaint("utility", "No target prediction was measured, and its loss is limited.")
    for name, views in findings["desired"].items():
        # The sample's limits count beside the figure of all judged records, where there are some.
        measured = [_measure_loss(views)]
        if (sampled := (findings.get("utility") or {}).get(name)) is not None:
            measured.append(Figure.read(sampled.get("loss")))
        worst = max(measured, key=lambda one: one.over(limit))
        if not worst.within(limit):
            loss = worst.say(limit)
            problem = f"The target prediction of {name!r} loses {loss}; allowed {limit:g}."
            yield Complaint("utility", problem)


def _measure_loss(views: Mapping[str, Any]) -> Figure:
    """What the best use of the release loses; unknown where either side is."""

    def read_score(view: str) -> float:
        """Accuracy of classes, R squared of numbers; NaN where it is not there."""
        found = views.get(view) or {}
        return float(found.get("accuracy", found.get("r2", math.nan)))

    # Whoever uses the release may train again on it: the better of both ways counts.
    scores = [read_score(view) for view in ("released", "released, attack retrained")]
    best = max((value for value in scores if math.isfinite(value)), default=math.nan)
    loss = read_score("raw") - best
    return Figure(loss, loss, loss, "it was not measured on raw and released records")


def _judge_membership(found: Mapping[str, Any], section: GateSection) -> Iterator[Complaint]:
    """Whether a published model may reveal whom it learned from; the score farthest beyond."""
    report = found.get("report") or {"differences": ()}
    unknown = []
    if found["status"] != "measured":
        unknown.append(found.get("reason", "it was not measured"))
    elif not report["differences"]:
        unknown.append("nothing was scored")
    # An adversary that failed may have been the one that succeeds: the rest cannot answer for it.
    if report.get("n_unknown"):
        unknown.append(f"{report['n_unknown']} adversaries failed")
    for why in unknown:
        yield Complaint("membership", f"Whom the model learned from is unknown: {why}.")

    def allow(one: Mapping[str, Any]) -> float:
        exposed = str(one["score"]).startswith("tpr")
        return section.exposed_max if exposed else section.confidential_advantage_max

    def exceed(one: Mapping[str, Any]) -> float:
        # In units of its own limit, since that of exposures is a tenth of that of advantages by
        # default: else the sentence would name the larger number and not the worse one. A limit
        # of 0 is allowed, and anything beyond it is far beyond.
        return Figure.read(one, "advantage").over(allow(one)) / max(allow(one), 1e-6)

    worst = max(report["differences"], key=exceed, default=None)
    if worst and not (figure := Figure.read(worst, "advantage")).within(limit := allow(worst)):
        given = {"score": SCORE_WORDS[worst["score"]], "figure": figure, "limit": limit}
        yield Complaint("membership", say("membership", worst=worst, **given))


SHORT_SCORES: Mapping[str, str] = read_texts("words.yaml")["short_scores"]
"""Scores as a sentence with their numbers names them."""


def say_score(score: str) -> str:
    """A score in a word or some.

    >>> say_score("auc"), say_score("balanced_accuracy")
    ('AUC', 'balanced accuracy')
    """
    return SHORT_SCORES.get(score, score.replace("_", " "))


def say_decision(decision: Mapping[str, Any], n_records: int) -> str:
    """A verdict on a variable: the score that decides, its limits, and what is allowed of it."""
    found = [decision.get(key) for key in ("gain", "gain_lower", "gain_upper", "allowed")]
    lower, upper, allowed = (math.nan if one is None else float(one) for one in found[1:])
    # Where every limit holds something else withdrew "safe", and the reason says what.
    if decision["verdict"] not in ("leaks", "unproven") or None in found or upper <= allowed:
        return str(decision["reason"])
    given = {"score": say_score(decision["score"]), "source": say_source(decision["source"])}
    given["limits"] = say_limits(lower, upper, allowed)
    return say("decision", one=decision, n_records=n_records, **given)


REMEDIES: Mapping[str, str] = read_texts("words.yaml")["remedies"]
"""By the code of a complaint that no other method of the ladder answers."""


JOINED: str = read_texts("words.yaml")["earlier"]["decides"]


def find_remedies(findings: Findings, complaints: list[Complaint]) -> list[str]:
    """What has to change whatever the method is."""
    leaking = dict.fromkeys(
        repr(one["included"])
        for one in findings["adversaries"].get("included", ())
        if one["gain_lower"] is not None and one["gain_lower"] > one["allowed"]
    )
    said = [f"Release without {', '.join(leaking)}, which leaks by itself."] if leaking else []
    bad = [o for o in findings["adversaries"].get("decisions", ()) if o["verdict"] != "safe"]
    said += [JOINED] * any(str(one.get("source")).startswith(JOINT) for one in bad)
    codes = dict.fromkeys(one.code for one in complaints)
    return said + [REMEDIES[code] for code in codes if code in REMEDIES]


def digest_case(
    run: Run, plan: ReleasePlan, findings: Findings, complaints: list[Complaint]
) -> str:
    """SHA-256 of what somebody approves: this run, these records, these findings and limits."""
    # Complaints are sentences with the number that was measured and its limit: whoever approves
    # them approves no others. Receipts bind the bytes, `desired` what the release is good for.
    case = {
        "run": run.run_id,
        "options": run.state.options_sha256,
        "source": run.collection.digest,
        "model": run.state.model_digest,
        "records": digest_receipts([one for one in read_ledger(plan) if one.run == plan.run]),
        "complaints": [[one.code, one.reason] for one in complaints],
        "desired": findings["desired"],
    }
    return hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()


LARGER = ("confidential_advantage_max", "exposed_max", "must_find", "drift_max")
"""Keys of [gate] of which a larger number, or none, demands less: more is allowed."""

SMALLER = ("level", "holdout", "max_records")
"""Keys of [audit] of which a smaller number demands less."""

NAMED = ("subject", "uninformative", "vouched")
"""Keys by which something is not judged at all. `subject`: which record of a subject is which.
`uninformative`: whether raw records reveal a variable. `vouched`: whether what was not judged
leaks."""


def list_weaker_limits(options: RunOptions) -> list[str]:
    """Each key that demands less than its default, with its value and the usual one.

    Whoever runs the pipeline may set each limit to what was measured; whoever reads the release
    must see that.

    Returns
    -------
    weaker
        As ``exposed_max 0.06 (usually 0.01)``; empty where all is as strict as usual.
    """
    gate, audit = options.gate, options.audit
    found = [*_find_numbers(gate, LARGER, 1), *_find_numbers(audit, SMALLER, -1)]
    if gate.single_records != (usual := GateSection().single_records):
        found.append(f"single_records {gate.single_records} (usually {usual})")
    if missing := [one for one in type(audit)().adversaries if one not in audit.adversaries]:
        found.append(f"adversaries without {', '.join(missing)}")
    for name in NAMED:
        if value := options.collection.subject if name == "subject" else getattr(audit, name):
            shown = value if isinstance(value, str) else ", ".join(value)
            found.append(f"{name} {shown} (usually none)")
    if options.privacy.ephemeral == "accept" and spend.is_promised_across_runs(options):
        found.append("ephemeral accept (usually refuse)")
    if audit.disowned:  # a run, or the last name of a place: no path is published
        last = [one.rstrip("/").rpartition("/")[2] for one in audit.disowned]
        found.append(f"earlier releases disowned: {', '.join(last)}")
    return found


def _find_numbers(section: Section, keys: tuple[str, ...], sign: int) -> Iterator[str]:
    usual = type(section)()
    for name in keys:
        value, default = getattr(section, name), getattr(usual, name)
        if default is not None and (value is None or sign * value > sign * default):
            yield f"{name} {'none' if value is None else f'{value:g}'} (usually {default:g})"
