"""The officer's page: one sheet of 18 fields about a release, as HTML and as data.

For those who decide whether data may leave the house. What a run knows it fills in; what only the
controller knows is read from ``[about]``; the rest is marked. The three risks of fields 9 to 11 are
those of WP216 (Article 29 Working Party, Opinion 05/2014).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from privpipe.report.audit_text import (
    ABOUT,
    list_unwritten,
    say_gate,
    say_judged,
    say_neighbours,
    say_proof,
)
from privpipe.report.first_screen import (
    list_exposed,
    name_size,
    say_line,
    say_linkage,
    say_reliance,
)
from privpipe.report.page import PageSection, render_page
from privpipe.report.tables import format_number, show_limits

Findings = Mapping[str, Any]

YOURS = "yours to write"
"""What is said where neither the run nor ``[about]`` knows."""

MOST_LISTED = 20
"""Groups and variables that a field lists."""

NOT_COVERED = "not measured by this run"


@dataclass(frozen=True)
class SheetEntry:
    """A line of a field.

    Parameters
    ----------
    name
        Its heading.
    source
        A key of ``[about]``, or what the findings say, which may be nothing.
    """

    name: str
    source: str | Callable[[Findings], str]


@dataclass(frozen=True)
class SheetField:
    """One of the 18.

    Parameters
    ----------
    title
        Its heading.
    maps_to
        Where other frameworks require the same.
    entries
        Its lines.
    """

    title: str
    maps_to: str
    entries: tuple[SheetEntry, ...]


def describe_sheet(findings: Findings) -> dict[str, Any]:
    """The sheet as data.

    Returns
    -------
    sheet
        ``fields`` (number, title, maps_to, entries with name, value and who filled it: "run",
        "controller", "yours to write", or "no one"), ``filled_by_run`` (share of the fields in
        which the run filled something) and ``missing`` (keys of ``[about]`` that say nothing).
    """
    declared = findings.get("declared") or {}
    found: list[dict[str, Any]] = []
    for number, one in enumerate(FIELDS, start=1):
        entries = [_fill(entry, findings, declared) for entry in one.entries]
        head = {"number": number, "title": one.title, "maps_to": one.maps_to}
        found.append(head | {"entries": entries})
    by_run = sum(any(entry["by"] == "run" for entry in one["entries"]) for one in found)
    return {
        "verdict": say_line(findings),
        "fields": found,
        "filled_by_run": round(by_run / len(found), 3),
        "missing": list_unwritten(declared),
    }


def render_officer_page(findings: Findings, *, version: str = "") -> str:
    """The sheet as HTML, to be printed.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.
    version
        Version of the package, for the footer.
    """
    sheet = describe_sheet(findings)
    rows = [
        {
            "field": "" if position else f"{one['number']}. {one['title']}",
            "item": entry["name"],
            "entry": entry["value"],
            "by": entry["by"].partition(" ")[0],
        }
        for one in sheet["fields"]
        for position, entry in enumerate(one["entries"])
    ]
    serves = [{"field": one["title"], "serves": one["maps_to"]} for one in sheet["fields"]]
    sections = [
        PageSection("The 18 fields", "", rows),
        PageSection("What each field serves", "", serves, folded=True),
    ]
    missing = ", ".join(sheet["missing"]) or "nothing"
    return render_page(
        "For the data-protection officer",
        sections,
        verdict=findings["adversaries"]["verdict"],
        verdict_text=say_line(findings).partition(": ")[2],
        verdict_name=say_line(findings).partition(":")[0],
        facts={"Yours to write, in [about]": missing},
        version=version,
    )


def _fill(entry: SheetEntry, findings: Findings, declared: Mapping[str, str]) -> dict[str, str]:
    """One line and who filled it."""
    if isinstance(entry.source, str):
        value = declared.get(entry.source, "")
        hint = f"{YOURS}: {ABOUT[entry.source]}"
        by = "controller" if value else YOURS
        return {"name": entry.name, "value": value or hint, "by": by}
    value = entry.source(findings)
    # What a run could know and this one did not measure is no one's to write, and not filled.
    return {"name": entry.name, "value": value or NOT_COVERED, "by": "run" if value else "no one"}


def _about(name: str) -> Callable[[Findings], str]:
    return lambda findings: str((findings.get("about") or {}).get(name, ""))


def _count(findings: Findings) -> str:
    released = findings.get("release")
    said = f"{released['n_records']:,} released. " if released else ""
    return said + say_judged(findings)


def _say_unit(findings: Findings) -> str:
    parameters = findings.get("parameters") or {}
    subject, most = parameters.get("subject"), parameters.get("records_per_subject")
    if not subject:
        return "one record; several records of a person are counted apart"
    return f"one person, by {subject}; " + (
        f"at most {most} records of each" if most else "any number of records of each"
    )


def _say_parameters(findings: Findings) -> str:
    given = (findings.get("parameters") or {}).get("method") or {}
    return ", ".join(f"{name} = {value}" for name, value in given.items())


def _say_promise(findings: Findings) -> str:
    about = findings.get("about") or {}
    said = str(about.get("guarantee") or about.get("noise") or "no promise in advance")
    # A bound on the utility says nothing of privacy, whatever the word for it.
    is_privacy = not said.startswith(("utility_bound", "exact_up_to", "no promise"))
    return said if is_privacy else f"none about privacy. About utility: {said}"


def _say_unprotected(findings: Findings) -> str:
    withheld = findings["adversaries"].get("n_withheld")
    rows = f" {withheld:,} rows of the sample are withheld, which shows." if withheld else ""
    return " ".join(list_exposed(findings)[1:]) + rows


def _say_composition(findings: Findings) -> str:
    known = findings.get("differences") or ()
    said = "; ".join(map(str, known)) or "no earlier model differs by single records"
    return f"attempt {findings.get('attempt', 1)} at these records; {said}"


def _say_singling_out(findings: Findings) -> str:
    rows = [
        row
        for row in findings["adversaries"].get("table") or ()
        if row["status"] == "measured" and str(row["score"]).startswith("tpr")
    ]
    mine = [row for row in rows if row["source"] not in ("raw", "raw groups", "noise", "wanted")]
    if not mine:
        return ""
    worst = max(mine, key=lambda row: row["gain_upper"] or 0.0)
    gain = show_limits(
        worst, "gain", (findings.get("gate") or {}).get("limits", {}).get("exposed_max") or 1.0
    )
    rate = str(worst["score"]).rpartition("_")[2]
    return (
        f"{worst['target']}: {gain} of the records claimed rightly at a false-claim rate of {rate}"
    )


def _say_inference(findings: Findings) -> str:
    said = [
        f"{one['target']}: {one['verdict']}, gain {show_limits(one, 'gain')} "
        f"({name_size(one['gain'])}), allowed {format_number(one['allowed'])}"
        for one in findings["adversaries"]["decisions"][:MOST_LISTED]
    ]
    return "; ".join(said)


def _say_worst_group(findings: Findings) -> str:
    views = (findings.get("privacy") or {}).get("released") or {}
    groups = views.get("complete_privacy_by_target") or {}
    if not groups:
        return ""
    name = min(groups, key=lambda one: float(groups[one]))
    return f"{name}: {groups[name]:.0%} of its records are predicted no better than the mean record"


def _say_adversaries(findings: Findings) -> str:
    names = list((findings["adversaries"].get("options") or {}).get("adversaries") or ())
    power = findings["adversaries"].get("power_sentence", "")
    return f"{say_reliance(findings)} Models: {', '.join(names) or 'none'}. {power}".strip()


def _say_risk(findings: Findings) -> str:
    decisions = findings["adversaries"]["decisions"]
    upper = [one["gain_upper"] for one in decisions if one["gain_upper"] is not None]
    mean = [one["gain"] for one in decisions if one["gain"] is not None]
    if not upper:
        return ""
    average = format_number(sum(mean) / len(mean)) if mean else "-"
    return f"gain at most {format_number(max(upper))}; average over variables {average}"


def _say_thresholds(findings: Findings) -> str:
    limits = (findings.get("gate") or {}).get("limits") or {}
    weaker = (findings.get("gate") or {}).get("weaker") or ()
    said = ", ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    return said + (f". Weaker than usual: {'; '.join(weaker)}" if weaker else "")


def _say_utility(findings: Findings) -> str:
    said = [
        f"{name}: {one['score']} raw {show_limits(one['raw'])}, released "
        f"{show_limits(one['released'])}"
        for name, one in (findings.get("utility") or {}).items()
        if "score" in one
    ]
    return "; ".join(said[:MOST_LISTED])


def _say_hazards(findings: Findings) -> str:
    proofs = [
        say(findings[key])
        for key, say in (("neighbours", say_neighbours), ("proof", say_proof))
        if findings.get(key)
    ]
    usual = (
        "Floating point: promised numbers hold with rounding. Retries repeat the same draws. "
        "Times of tasks and sizes of files are seen by operators."
    )
    return " ".join([usual, *proofs, *findings.get("warnings", ())])


def _say_verdict(findings: Findings) -> str:
    gate = f" Gate {say_gate(findings)}" if findings.get("gate") else ""
    return f"{say_line(findings)}{gate}"


def _say_approver(findings: Findings) -> str:
    approval = (findings.get("gate") or {}).get("approval")
    if not approval:
        return "no one overrode the gate"
    return f"{approval['name']}, {approval['approved']}: {approval['reason']}"


_STEPS = "DPIA (GDPR Art. 35(7)"
FIELDS = (
    SheetField(
        "Controller, purpose, recipients",
        f"{_STEPS}a); ISO/IEC 27559 context",
        (
            SheetEntry("Controller", "controller"),
            SheetEntry("Purpose", "purpose"),
            SheetEntry("Recipients", "recipients"),
        ),
    ),
    SheetField(
        "Records",
        f"{_STEPS}a); ISO/IEC 27559 data",
        (
            SheetEntry("Source", "source"),
            SheetEntry("Digest of the source", _about("source")),
            SheetEntry("Records", _count),
            SheetEntry("Persons", "persons"),
            SheetEntry("Period", "period"),
            SheetEntry("Special categories", "special_categories"),
        ),
    ),
    SheetField(
        "Unit of protection", "NIST SP 800-226 unit of privacy", (SheetEntry("Unit", _say_unit),)
    ),
    SheetField(
        "Trust model",
        "NIST SP 800-226 trust model",
        (
            SheetEntry("Who sees raw records and keys", "trust"),
            SheetEntry("By design", lambda _: "central: records go from store to worker to store"),
        ),
    ),
    SheetField(
        "Method",
        "NIST SP 800-188 technique; deployments registry",
        (
            SheetEntry("Method", _about("method")),
            SheetEntry("Parameters", _say_parameters),
            SheetEntry("Digest of the model", _about("model")),
            SheetEntry("Versions", _about("versions")),
        ),
    ),
    SheetField(
        "Promise",
        "NIST SP 800-226 guarantee; deployments registry",
        (SheetEntry("In words", _say_promise), SheetEntry("Under which law", "law")),
    ),
    SheetField(
        "What is unprotected",
        "NIST SP 800-226 hazards",
        (SheetEntry("Unprotected", _say_unprotected),),
    ),
    SheetField(
        "Other releases",
        "NIST SP 800-226 composition; ISO/IEC 27559 context",
        (SheetEntry("Composition", _say_composition),),
    ),
    SheetField("Singling out", "WP216 risk 1", (SheetEntry("Exposed", _say_singling_out),)),
    SheetField("Linkability", "WP216 risk 2", (SheetEntry("Linkage", say_linkage),)),
    SheetField(
        "Inference",
        "WP216 risk 3; EDPB Opinion 28/2024",
        (SheetEntry("By variable", _say_inference), SheetEntry("Worst group", _say_worst_group)),
    ),
    SheetField(
        "Adversaries",
        "ISO/IEC 27559 identifiability; EDPB Opinion 28/2024",
        (SheetEntry("Knowledge, cost, power", _say_adversaries),),
    ),
    SheetField(
        "Risk and threshold",
        f"{_STEPS}c); ISO/IEC 27559 identifiability",
        (
            SheetEntry("Maximum and average", _say_risk),
            SheetEntry("Threshold", _say_thresholds),
            SheetEntry("Who set it", "threshold_set_by"),
        ),
    ),
    SheetField(
        "Utility and bias",
        f"{_STEPS}b); NIST SP 800-226 utility",
        (SheetEntry("Utility", _say_utility),),
    ),
    SheetField("Hazards", "NIST SP 800-226 hazards", (SheetEntry("Hazards", _say_hazards),)),
    SheetField(
        "Residual risk",
        f"{_STEPS}d)",
        (
            SheetEntry("Likelihood, severity, measures", "residual_risk"),
            SheetEntry("As measured", _say_risk),
        ),
    ),
    SheetField(
        "Erasure and review",
        "ISO/IEC 27559 governance",
        (
            SheetEntry(
                "Erasure", lambda _: "`privpipe erase` removes records and what was made of them"
            ),
            SheetEntry("Review", "review_date"),
            SheetEntry("Started", _about("started")),
        ),
    ),
    SheetField(
        "Decision",
        "NIST SP 800-188 disclosure review; DPIA advice",
        (
            SheetEntry("Verdict", _say_verdict),
            SheetEntry("Approver", _say_approver),
            SheetEntry("Advice of the officer", "advice"),
            SheetEntry("Signature and date", lambda _: "________________________"),
        ),
    ),
)
"""The sheet; numbers are places in it."""
