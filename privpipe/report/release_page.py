"""The page of a release: verdict and gate first, then what they rest on and what they do not say.

There are two of one audit. One has all of it, for those who run the pipeline. The other is for
everybody, and no small count can be worked out from it. Both hold numbers about records and names
of variables, no value of a record and no path. Both are made again from ``audit.json`` alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from privpipe.report import audit_text, first_screen, suppression
from privpipe.report.audit_text import Findings
from privpipe.report.page import PageSection, render_markdown, render_page
from privpipe.report.release_sections import MOST_FIGURES, draw_variable, list_kinds, write_sections
from privpipe.report.tables import Rows, format_number, summarise_attacks

TEXTS = audit_text.read_texts("release_page.yaml")
"""Meanings of terms, why training stopped, and what is not promised."""


def list_training(findings: Findings) -> Iterator[PageSection]:
    """How the descent ended, and a table of every task's loss at its start and end."""
    found = findings.get("training")
    if not found:
        return
    history = np.array(found["history"], np.float64)
    at = dict(zip(found["columns"], history.T, strict=True))
    rows = [
        {
            "task": name,
            "loss at the start": format_number(at[f"loss_{name}"][0]),
            "at the end": format_number(at[f"loss_{name}"][-1]),
            "constant guess": "-" if name.startswith("loss:") else format_number(guess),
        }
        for name, guess in zip(found["tasks"], found["baselines"], strict=True)
    ]
    text = audit_text.say(
        "learned",
        n_iterations=len(history) - 1,
        n_rounds=int(at["rounds"][-1]),
        gap=float(at["inner_gap"][-1]),
        stopped=TEXTS["stopped"].get(found["stopped"], found["stopped"]),
        bound=found["bound"],
        gained=float(at["phi"][0] - at["phi"].min()),
    )
    yield PageSection("How it was learned", text, rows, True)


FORMAT = 1
"""Version of ``audit.json``, whose schema is ``templates/audit.schema.json``."""

# What was not measured may be worse than what was.
WORST = ("leaks", "unknown", "unproven", "not protected", "safe")


def render_release_page(findings: Findings, *, version: str = "") -> str:
    """The page for operators, as HTML.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.
    version
        Version of the package, for the footer.
    """
    listed, facts = _list_sections(findings, drawn=True), _facts(findings)
    return _render(findings, listed, public=False, facts=facts, version=version)


def render_public_page(findings: Findings, *, version: str = "") -> str:
    """The page for everybody: verdict, gate, limits and guarantee, no small count.

    Counts below `suppression.SMALL` are left out, and another beside each, so that none can be
    worked out from a sum. Shares are rounded until they reveal no small count.
    """
    gate = findings.get("gate") or {}
    said = f"{gate.get('state', 'none')}.{audit_text.say_weaker(gate)}"
    facts = {"Gate": f"{said}{audit_text.say_attempt(findings)}"} | _public_facts(findings)
    listed = _list_public_sections(findings)
    return _render(findings, listed, public=True, facts=facts, version=version)


def _render(found: Findings, listed: Iterable[PageSection], *, public: bool, **more: Any) -> str:
    verdict, sections = found["adversaries"]["verdict"], [*listed, *_closing_sections(found)]
    screen, terms = first_screen.make_first_screen(found, public=public), TEXTS["glossary"]
    return render_page("Release", sections, verdict=verdict, screen=screen, terms=terms, **more)


def write_audit_markdown(findings: Findings) -> str:
    """The sections without pictures and glossary, of an audit or of what is published of it."""
    verdict = first_screen.say_line(findings)
    if "options" in findings["adversaries"]:
        listed, facts = [*_list_sections(findings, drawn=False)], _facts(findings)
    else:  # the header of a release
        listed, facts = [*_list_public_sections(findings)], _public_facts(findings)
    listed += write_sections("not_protected", findings)
    return render_markdown("Audit", listed, verdict=verdict, facts=facts)


def _list_sections(findings: Findings, *, drawn: bool) -> Iterator[PageSection]:
    """All that is known, what decided first."""
    found = findings["adversaries"]
    ranked = _rank(found)
    given = {"ranked": ranked, "predictions": _list_predictions(findings)}
    names = "gate decided utility predictions losses privacy warnings groups places included"
    yield from write_sections(names, findings, **given)
    cells = found.get("table") or ()
    worst = [one["target"] for one in ranked[:MOST_FIGURES]]
    for target in worst if drawn else ():
        if rows := [row for row in cells if row["target"] == target]:
            yield draw_variable(target, rows, found)
    yield from list_kinds(findings.get("attacks") or {})
    yield from write_sections("power distortion of_surrogates explained single_records", findings)
    yield from list_training(findings)
    yield from _attack_sections(cells, worst)


def _list_public_sections(findings: Findings) -> Iterator[PageSection]:
    """What everybody may read."""
    yield from write_sections(
        "judged retained",
        findings,
        ranked=_rank(findings["adversaries"]),
        predictions=_list_predictions(findings),
        n_judged=int(findings.get("n_groups") or findings.get("n_records") or 0),
    )


def _list_predictions(findings: Findings) -> list[dict[str, Any]]:
    """Every prediction of least squares, by what it reads."""
    return [
        {"role": role, "variable": name, "view": view, **figures}
        for role in ("desired", "confidential")
        for name, views in (findings.get(role) or {}).items()
        for view, figures in views.items()
    ]


def _facts(findings: Findings) -> dict[str, str]:
    found, about = findings["adversaries"], findings.get("about") or {}
    facts = {"Judged": audit_text.say("judged", found=findings).removeprefix("Judged ")}
    if "gate" in findings:
        state = audit_text.say_gate({"gate": {**findings["gate"], "sentence": ""}}).strip()
        facts["Gate"] = f"{state}{audit_text.say_attempt(findings)}"
    facts |= {str(name).capitalize(): str(value) for name, value in about.items()}
    if "n_records" in found:
        facts["Records attacked"] = f"{found['n_records']:,} of {found['n_given']:,}"
        facts["Withheld by the release"] = f"{found['n_withheld']:,}"
    more = {"canaries": "Epsilon, audited", "proof": "Features", "unseen": "Unseen profiles"}
    said = {key: audit_text.say(key, found=findings[key]) for key in more if findings.get(key)}
    return facts | {more[key]: text for key, text in said.items()}


def _public_facts(findings: Findings) -> dict[str, str]:
    found, about = findings["adversaries"], findings.get("about") or {}
    known = ("method", "guarantee", "noise", "proof")
    facts = {"Judged": str(findings["basis"]).removeprefix("Judged ")}
    facts |= {name.capitalize(): str(about[name]) for name in known if name in about}
    return facts | _cover(found) | suppression.suppress_sizes(found)


def _cover(found: Mapping[str, Any]) -> dict[str, str]:
    """What the sample is of, without counts that are small or differ by few."""
    sample = found.get("sample")
    if sample is None:
        return {}
    drawn, of = sample["n_records"], sample["of_records"]
    # The difference is a count too: the records that were not drawn.
    small = suppression.SMALL
    shown = min(drawn, of) >= small and (of == drawn or of - drawn >= small)
    records = f"{drawn:,} of {of:,} records, of " if shown else ""
    return {
        "Sample": f"{records}{sample['n_chunks']:,} of {sample['of_chunks']:,} chunks and "
        f"{sample['n_partitions']:,} of {sample['of_partitions']:,} partitions"
    }


def _rank(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Decisions, the worst first: by verdict, then by how far a limit reaches beyond its own."""

    def rank(one: Mapping[str, Any]) -> tuple[int, float]:
        known = one["gain_upper"] is not None and one["allowed"] is not None
        return WORST.index(one["verdict"]), -(one["gain_upper"] - one["allowed"] if known else 1.0)

    return sorted(found["decisions"], key=rank)


def _attack_sections(cells: Rows, worst: Sequence[str]) -> Iterator[PageSection]:
    """Every attack on the worst variables; of hundreds the others are in ``audit.json`` alone."""
    shown = [cell for cell in cells if cell["target"] in worst] if worst else cells
    text = ""
    if len(shown) < len(cells):
        n_variables = len({cell["target"] for cell in cells})
        text = f"Of the {len(worst)} worst variables; those of all {n_variables} are in audit.json."
    if rows := summarise_attacks(shown):
        yield PageSection("All attacks", text, rows, folded=True)


def _closing_sections(findings: Findings) -> Iterator[PageSection]:
    yield from write_sections("limits not_protected", findings)
    yield PageSection("What this does not promise", TEXTS["not_promised"])
