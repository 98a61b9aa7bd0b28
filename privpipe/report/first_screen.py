"""The first screen: a verdict of one line, what is released, one picture, what is not protected.

Everything is made from ``audit.json``; what an older audit did not measure is said to be unknown.
"""

import math
from collections.abc import Iterator, Mapping

from privpipe.report import page, tables
from privpipe.report.audit_text import Findings, name_verdict, say
from privpipe.report.drawings import Drawing, IntervalRow, draw_intervals

MOST_WORDS = 15
"""Of the verdict's line."""

MOST_DRAWN = 3
"""Targets, and confidential variables, in the picture; the worst first."""

LONGEST_NAME = 24
"""Letters of a variable's name in the line; a longer one is not named there."""


# Twice of guessing is what chance may show; a twentieth of all people are no exception.
LINKABLE = 0.05
"""Share of known records found again, from which on a release is called linkable."""

GUESSED_TWICE = 2.0
"""Times of guessing, below which a share that is found again is chance."""


NARROW = 390
"""Width of the picture, which a telephone shows whole."""

LONGEST_LABEL = 33
"""Letters beside a row of the picture."""

ENDS = {0.0: "guessing", 0.5: "halfway", 1.0: "certain"}
"""Of the picture's scale."""


def make_first_screen(findings: Findings, *, public: bool = False) -> page.FirstScreen:
    """The first screen of an audit.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.
    public
        For everybody: words alone, no figure of an attack and no count.
    """
    drawing = None if public else draw_summary(findings)
    released = say("released", found=findings, about=findings.get("about") or {})
    reliance = say_reliance(findings, public=public)
    exposed = list_exposed(findings, public=public)
    return page.FirstScreen(say_line(findings), released, reliance, exposed, drawing)


def say_line(findings: Findings) -> str:
    """The verdict and whether records are linkable, in at most `MOST_WORDS` words."""
    verdict = str(findings["adversaries"]["verdict"])
    name, what = name_verdict(findings), _name_confidential(findings, verdict)
    tried, linkable = bool(findings["adversaries"].get("decisions")), is_linkable(findings)
    return say("line", verdict=verdict, name=name, what=what, tried=tried, linkable=linkable)


def is_linkable(findings: Findings) -> bool | None:
    """Whether known records are found again in the release; None where that was not measured.

    Surely more than guessing finds, and more than `LINKABLE`, by the upper limit of the strongest.
    """
    found = _find_linkage(findings)
    if found is None:
        return None
    top, chance, _ = found
    upper, lower = top["upper"], top["lower"]
    return bool(upper >= LINKABLE and (lower > chance or upper > GUESSED_TWICE * chance))


def draw_summary(findings: Findings) -> Drawing | None:
    """Target retained, confidential hidden: raw and released on the way from guessing to knowing.

    None where neither was measured.
    """
    rows = [*_draw_targets(findings), *_draw_confidential(findings)]
    if not rows:
        return None
    description = "Target and confidential variables, from raw and from released records. " + (
        "; ".join(f"{row.label} {tables.format_number(row.estimate, 2)}" for row in rows)
    )
    return draw_intervals(rows, allowed=None, description=description, marks=ENDS, width=NARROW)


def _find_linkage(findings: Findings) -> tuple[Mapping[str, float], float, int] | None:
    """Share found by the strongest attack with its limits, that of guessing, included variables."""
    found = (findings.get("attacks") or {}).get("linkage") or {}
    if found.get("status") != "measured":
        return None
    report = found["report"]
    tops = [one["top_1"] for one in report.get("attacks", ())]
    known = [top for top in tops if isinstance(top, dict) and top.get("upper") is not None]
    if not known:
        return None
    top = max(known, key=lambda top: float(top["upper"]))
    return top, float(report.get("chance_1") or 0.0), int(report.get("n_included") or 0)


def _name_confidential(findings: Findings, verdict: str) -> str:
    """What the verdict is about: the variable, of several how many, or two that are none."""
    decisions = findings["adversaries"]["decisions"]
    blamed = [one for one in decisions if one["verdict"] == verdict] or decisions
    # An order, an earlier release or single records are no variables: adversaries guess none.
    if len(blamed) > 1 and all(one.get("n_compared") for one in blamed):
        return f"{len(blamed)} confidential variables"
    [first, *others] = [one["target"] for one in blamed] or ["what is confidential"]
    # A name of several words would make the line longer than it may be.
    short = blamed and len(first) <= LONGEST_NAME and len(first.split()) == 1
    more = others if others == ["single records"] else [f"{len(others)} more"] * bool(others)
    return " and ".join([f"'{first}'" if short else "what is confidential", *more])


def say_reliance(findings: Findings, *, public: bool = False) -> str:
    """Against whom the verdict holds, or why it holds against no one."""
    parts = {"adversaries": findings["adversaries"], "gate": findings.get("gate") or {}}
    return say("reliance", found=findings, public=public, **parts)


def list_exposed(findings: Findings, *, public: bool = False) -> tuple[str, ...]:
    """What is not protected, the linkability of records first."""
    return (say_linkage(findings, public=public), *_list_unprotected(findings))


def _list_unprotected(findings: Findings) -> Iterator[str]:
    for name in list(findings.get("desired") or ())[:MOST_DRAWN]:
        yield f"{name}: the release is meant to reveal it, and all that follows from it."
    if surrogate := findings.get("surrogate"):
        yield from (f"{one}." for one in surrogate.get("not_protected", ()))
    yield "Variables that were not named as confidential."
    if findings.get("differences"):
        yield "Single records, from whoever also holds an earlier model of nearly the same records."
    else:
        yield "This release together with others that the audit does not know."


def say_linkage(findings: Findings, *, public: bool = False) -> str:
    """What whoever holds the raw records finds again."""
    top, chance, n_tried = _find_linkage(findings) or (None, None, 0)
    included = (findings.get("release") or {}).get("included") or ()
    given = {"public": public, "top": top, "chance": chance}
    untried = included if n_tried < len(included) else ()
    return say("linkage", linkable=is_linkable(findings), untried=untried, **given)


def _draw_targets(findings: Findings) -> Iterator[IntervalRow]:
    """Raw and released, as shares of the way from guessing to always right."""
    measured = {n: v for n, v in (findings.get("utility") or {}).items() if "score" in v}
    for name, one in list(measured.items())[:MOST_DRAWN]:
        guess = float(one.get("guess") or 0.0)
        for view, kind in (("raw", "compared"), ("released", "of-release")):
            cells = (one[view][key] for key in ("estimate", "lower", "upper"))
            values = (math.nan if v is None else (v - guess) / (1 - guess) for v in cells)
            yield IntervalRow(_label("target", name, view), kind, *values)


def _draw_confidential(findings: Findings) -> Iterator[IntervalRow]:
    """Raw, released and what the target alone reveals, by the score that decided."""
    found = findings["adversaries"]
    ranked = sorted(found["decisions"], key=lambda one: -(one.get("gain_upper") or math.inf))
    for one in ranked[:MOST_DRAWN]:
        name = one["target"]
        mine = [row for row in found.get("table") or () if row["target"] == name]
        known = [row for row in mine if row["status"] == "measured"]
        rows = [row for row in known if row["score"] == one.get("score")]
        if one.get("advantage") is None:
            continue
        for said, kind, source in (
            ("raw", "compared", "raw"),
            ("released", "of-release", ""),
            ("by target", "compared", "wanted"),
        ):
            label = _label("confidential", name, said)
            mine = [row for row in rows if row["source"] == source]
            best = max(mine, key=lambda row: row["advantage"], default=None)
            if shown := (best if source else one):
                cells = (shown[key] for key in ("advantage", "advantage_lower", "advantage_upper"))
                yield IntervalRow(label, kind, *(math.nan if v is None else v for v in cells))


def _label(role: str, name: str, view: str) -> str:
    """A row's name, of which a long variable's name gives way."""
    rest = LONGEST_LABEL - len(role) - len(view) - 3
    return f"{role} {name if len(name) <= rest else f'{name[: rest - 1]}…'}: {view}"
