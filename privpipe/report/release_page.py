"""The page of a release: verdict and gate first, then what they rest on and what they do not say.

Two of one audit: all of it for those who run the pipeline, and one for everybody, from which no
small count can be worked out. Both hold numbers about records and names of variables, no value of
a record and no path; both are made again from ``audit.json`` alone.
"""

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import pandas as pd

from privpipe.report.audit_text import (
    name_verdict,
    say_attempt,
    say_gate,
    say_judged,
    say_neighbours,
    say_proof,
    say_unseen,
    say_weaker,
    tabulate_predictions,
)
from privpipe.report.page import PageSection, render_markdown, render_page
from privpipe.report.release_sections import (
    draw_variable,
    list_distortion,
    list_included,
    list_kinds,
    list_places,
    list_power,
    list_privacy,
    list_utility,
    list_warnings,
)
from privpipe.report.suppression import (
    SMALL,
    coarsen,
    coarsen_limit,
    find_shown_size,
    suppress_sizes,
)
from privpipe.report.surrogate_sections import list_not_protected, list_surrogate_model
from privpipe.report.tables import format_number, summarise_attack_table
from privpipe.report.training_sections import list_training

FORMAT = 1
"""Version of ``audit.json``, whose schema is `read_audit_schema`."""

MOST_FIGURES = 30
"""Variables that are drawn; of more the table is enough."""

# What was not measured may be worse than what was.
WORST = ("leaks", "unknown", "unproven", "not protected", "safe")

GLOSSARY = {
    "accuracy": "share of records whose class is predicted rightly",
    "area under the ROC curve": "how often a record of a class ranks above one of another; a half "
    "is guessing",
    "advantage": "share of the way from guessing (0) to knowing (1)",
    "gain": "the part of an advantage beyond knowing the target, which the release is to keep; "
    "limits count it",
    "true-positive rate at 1 % false positives": "share of records claimed rightly where one "
    "claim of a hundred false ones is made: who is exposed",
    "at most": "upper confidence limit; all limits of all verdicts hold together",
    "e_utility": "squared change of the target's prediction for a record",
    "noise of equal utility": "the raw records with Laplace noise under which the target's "
    "prediction works as well as from the release: what plain noise would hide",
    "complete privacy": "share of records whose confidential label is predicted no better than "
    "from the mean record",
    "would have found": "share of records of the smallest planted leak that 19 of 20 such "
    "audits find",
    "not gated": "published whatever the audit found",
    "not protected": "given away by what the release is: no attack that fails could show more",
}

NOT_PROMISED = (
    "The audit speaks of the adversaries that are named, of a sample of this size, and of this "
    "confidence; a stronger adversary, or one who knows more of a person, may find more. It says "
    "nothing of variables that were not named as confidential, nor of this release together with "
    "others that neither [audit] earlier names nor the register beside the account of losses."
)


def read_audit_schema() -> dict[str, Any]:
    """The JSON schema of ``audit.json``."""
    text = resources.files("privpipe.report").joinpath("templates/audit.schema.json")
    schema: dict[str, Any] = json.loads(text.read_text("utf-8"))
    return schema


def render_release_page(findings: Mapping[str, Any], *, version: str = "") -> str:
    """The page for operators, as HTML.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.
    version
        Version of the package, for the footer.
    """
    return render_page(
        "Release",
        [*_list_sections(findings, drawn=True), *_closing_sections(findings)],
        verdict=findings["adversaries"]["verdict"],
        verdict_name=name_verdict(findings),
        verdict_text=_headline(findings),
        facts=_facts(findings),
        version=version,
    )


def render_public_page(findings: Mapping[str, Any], *, version: str = "") -> str:
    """The page for everybody: verdict, gate, limits and guarantee, no small count.

    Counts below `suppression.SMALL` are left out, and another beside each, so that none can be
    worked out from a sum; shares are rounded until they reveal no small count.
    """
    gate = findings.get("gate") or {}
    return render_page(
        "Release",
        [*_list_public_sections(findings), *_closing_sections(findings)],
        verdict=findings["adversaries"]["verdict"],
        verdict_name=name_verdict(findings),
        verdict_text=f"Gate: {gate.get('state', 'none')}.{say_weaker(gate)}{say_attempt(findings)}",
        facts=_public_facts(findings),
        version=version,
    )


def write_audit_markdown(findings: Mapping[str, Any]) -> str:
    """The sections without pictures and glossary, of an audit or of what is published of it."""
    verdict = f"{name_verdict(findings)}: {_headline(findings)}"
    if "options" in findings["adversaries"]:
        sections, facts = [*_list_sections(findings, drawn=False)], _facts(findings)
    else:  # the header of a release
        sections, facts = [*_list_public_sections(findings)], _public_facts(findings)
    sections += list_not_protected(findings)
    return render_markdown("Audit", sections, verdict=verdict, facts=facts)


def _list_sections(findings: Mapping[str, Any], *, drawn: bool) -> Iterator[PageSection]:
    """All that is known, what decided first."""
    found = findings["adversaries"]
    yield from _gate_sections(findings)
    yield PageSection("What decided", _say_all(findings), table=_decisions(found))
    yield from _utility_sections(findings)
    yield from list_privacy(findings)
    yield from list_warnings(findings)
    yield from list_places(findings)
    yield from list_included(found)
    if drawn:
        yield from _figures(findings)
    yield from list_kinds(findings.get("attacks") or {})
    yield from list_power(found)
    yield from list_distortion(findings)
    yield from list_surrogate_model(findings)
    yield from list_training(findings, drawn=drawn)
    yield from _attack_sections(found)


def _list_public_sections(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What everybody may read."""
    table = _public_decisions(findings["adversaries"])
    yield PageSection("What was judged", table=table)
    if findings["desired"]:
        n = int(findings.get("n_groups") or findings.get("n_records") or 0)
        text = "Shares are rounded until they reveal no small number of records."
        yield PageSection("What is retained", text, table=_public_predictions(findings, n))


def _headline(findings: Mapping[str, Any]) -> str:
    """The verdict's reason in one sentence, and what became of the gate; complaints come below."""
    reason = findings["adversaries"].get("reason") or "No adversary succeeded."
    gate = findings.get("gate")
    if gate is None:
        return reason
    said = say_gate({"gate": {**gate, "sentence": ""}}).strip()
    return f"{reason} Gate {said}{say_attempt(findings)}"


def _gate_sections(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What closed the gate, or would have, and the remedies that were measured."""
    gate = findings.get("gate") or {}
    if complaints := gate.get("complaints"):
        few = complaints[:MOST_FIGURES]
        rows = [{"kind": one["code"], "complaint": one["reason"]} for one in few]
        more = len(complaints) - len(few)
        text = f"{gate['ways_out']}{f' {more} more are in audit.json.' if more else ''}"
        yield PageSection("What the gate refuses", text, table=pd.DataFrame(rows))


def _facts(findings: Mapping[str, Any]) -> dict[str, str]:
    found, about = findings["adversaries"], findings.get("about") or {}
    facts = {"Judged": say_judged(findings).removeprefix("Judged ")}
    facts |= {str(name).capitalize(): str(value) for name, value in about.items()}
    if "n_records" in found:
        facts["Records attacked"] = f"{found['n_records']:,} of {found['n_given']:,}"
        facts["Withheld by the release"] = f"{found['n_withheld']:,}"
    if neighbours := say_neighbours(findings.get("neighbours")):
        facts["Neighbours distinguished"] = neighbours
    if proof := say_proof(findings.get("proof")):
        facts["Features"] = proof
    if unseen := say_unseen(findings.get("unseen")):
        facts["Unseen profiles"] = unseen
    return facts


def _public_facts(findings: Mapping[str, Any]) -> dict[str, str]:
    found, about = findings["adversaries"], findings.get("about") or {}
    known = ("method", "guarantee", "noise", "proof")
    facts = {"Judged": str(findings["basis"]).removeprefix("Judged ")}
    facts |= {name.capitalize(): str(about[name]) for name in known if name in about}
    return facts | _cover(found) | suppress_sizes(found)


def _cover(found: Mapping[str, Any]) -> dict[str, str]:
    """What the sample is of, without counts that are small or differ by few."""
    sample = found.get("sample")
    if sample is None:
        return {}
    drawn, of = sample["n_records"], sample["of_records"]
    # The difference is a count too: the records that were not drawn.
    shown = min(drawn, of) >= SMALL and (of == drawn or of - drawn >= SMALL)
    records = f"{drawn:,} of {of:,} records, of " if shown else ""
    return {
        "Sample": f"{records}{sample['n_chunks']:,} of {sample['of_chunks']:,} chunks and "
        f"{sample['n_partitions']:,} of {sample['of_partitions']:,} partitions"
    }


def _rank(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Decisions, the worst first: by verdict, then by how far a limit reaches beyond its own."""

    def rank(one: Mapping[str, Any]) -> tuple[int, float]:
        known = one["gain_upper"] is not None and one["allowed"] is not None
        excess = one["gain_upper"] - one["allowed"] if known else 1.0
        return WORST.index(one["verdict"]), -excess

    return sorted(found["decisions"], key=rank)


def _decisions(found: Mapping[str, Any]) -> pd.DataFrame | None:
    """What decided for each variable, the worst first."""
    rows = [
        {
            "variable": one["target"],
            "verdict": one["verdict"],
            "adversary": f"{one['strongest'].replace('_', ' ')}, {one['source']}".strip(", "),
            "score": one["score"].replace("_", " "),
            "estimate": _number(one["estimate"]),
            "guessing": _number(one["baseline"]),
            "advantage": _number(one["advantage"]),
            "gain": _number(one["gain"]),
            "at least": _number(one["gain_lower"]),
            "at most": _number(one["gain_upper"]),
            "allowed": _number(one["allowed"]),
            "raw records": _number(one["control_advantage"]),
            "equal noise": _number(one["noise_advantage"]),
            "target alone": _number(one["wanted_advantage"]),
        }
        for one in _rank(found)
    ]
    return pd.DataFrame(rows) if rows else None


def _public_decisions(found: Mapping[str, Any]) -> pd.DataFrame | None:
    n = find_shown_size(found)
    rows = [
        {
            "variable": one["target"],
            "verdict": one["verdict"],
            "gain at most": coarsen_limit(one["gain_upper"], one["allowed"], n),
            "allowed": _number(one["allowed"]),
        }
        for one in _rank(found)
    ]
    return pd.DataFrame(rows) if rows else None


def _public_predictions(findings: Mapping[str, Any], n: int) -> pd.DataFrame:
    table = pd.DataFrame(
        [
            {
                "target": name,
                "predicted from": view,
                "accuracy": coarsen(figures.get("accuracy"), n),
                "R squared": coarsen(figures.get("r2"), n),
            }
            for name, views in findings["desired"].items()
            for view, figures in views.items()
        ]
    )
    said = [name for name in table.columns if not (table[name] == "-").all()]
    return table[said]


def _say_all(findings: Mapping[str, Any]) -> str:
    """Reasons that neither the banner nor the gate has said, and what the columns are."""
    found = findings["adversaries"]
    # Said above: the same sentence twice reads as two findings.
    said = {one["reason"] for one in (findings.get("gate") or {}).get("complaints", ())}
    said.add(str(found.get("reason")))
    few = [one["reason"] for one in found["decisions"][:MOST_FIGURES]]
    sentences = " ".join(reason for reason in few if reason not in said)
    columns = (
        "Gain is the advantage beyond knowing the target, and what limits count; the last "
        "columns are advantages on what the release is compared with."
    )
    return f"{sentences} {found.get('power_sentence', '')} {columns}".strip()


def _utility_sections(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    yield from list_utility(findings)
    table = tabulate_predictions(findings)
    if not table.empty:
        yield PageSection(
            "Utility against privacy",
            "Every variable predicted by least squares, retrained on what is read; with what is "
            "known from the target alone, and from nothing.",
            table=table.map(lambda cell: _number(cell) if isinstance(cell, float) else cell),
        )
    if findings.get("e_utility"):
        items = findings["e_utility"].items()
        rows = {
            "figure": [str(k).replace("_", " ") for k, _ in items],
            "value": [_number(v) for _, v in items],
        }
        yield PageSection("Loss of utility per record (e_utility)", table=pd.DataFrame(rows))


def _figures(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """The interval figure and the ROC of each variable, the worst first."""
    found = findings["adversaries"]
    for one in _rank(found)[:MOST_FIGURES]:
        rows = [row for row in found.get("table", ()) if row["target"] == one["target"]]
        if rows:
            yield draw_variable(one["target"], rows, found)


def _attack_sections(found: Mapping[str, Any]) -> Iterator[PageSection]:
    """Every attack on the worst variables; of hundreds the others are in ``audit.json`` alone."""
    table = _read_table(found)
    if table is None:
        return
    worst = [one["target"] for one in _rank(found)[:MOST_FIGURES]]
    shown = table[table["target"].isin(worst)] if worst else table
    text = ""
    if len(shown) < len(table):
        n_variables = table["target"].nunique()
        text = f"Of the {len(worst)} worst variables; those of all {n_variables} are in audit.json."
    yield PageSection("All attacks", text, table=summarise_attack_table(shown), folded=True)


def _read_table(found: Mapping[str, Any]) -> pd.DataFrame | None:
    if not found.get("table"):
        return None
    table = pd.DataFrame(found["table"])
    numbers = [name for name in table.columns if name in NUMBERS]
    # null in JSON: columns of numbers and None are objects to pandas.
    return table.astype(dict.fromkeys(numbers, float))


NUMBERS = {
    "estimate",
    "lower",
    "upper",
    "baseline",
    "advantage",
    "advantage_lower",
    "advantage_upper",
    "gain",
    "gain_lower",
    "gain_upper",
}


def _closing_sections(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    gate = findings.get("gate")
    if gate is not None:
        limits = {key: str(value) for key, value in gate["limits"].items()}
        table = pd.DataFrame({"limit": list(limits), "value": list(limits.values())})
        yield PageSection("Limits of the gate", table=table, folded=True)
    words = pd.DataFrame({"figure": list(GLOSSARY), "is": list(GLOSSARY.values())})
    yield PageSection("What the figures are", table=words, folded=True)
    yield from list_not_protected(findings)
    yield PageSection("What this does not promise", NOT_PROMISED)


def _number(value: int | float | None) -> str:
    """Counts in full, other numbers to a few digits; a dash for none."""
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else f"{value:,}"
