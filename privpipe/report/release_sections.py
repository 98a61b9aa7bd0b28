"""Sections of a release's page, each of its part of ``audit.json``; none where it is missing."""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from privpipe.numerics.limits import fix_limits, say_upper
from privpipe.report import suppression
from privpipe.report.audit_text import fill, read_texts, say, sentences
from privpipe.report.drawings import Curve, IntervalRow, draw_intervals, draw_roc
from privpipe.report.page import PageSection
from privpipe.report.tables import Rows, format_number, name_size, show_limits

WEIGHED = ("accuracy", "auc", "r2")
"""Scores that are drawn: of each attack the one whose upper limit is the largest."""

COMPARED = ("raw", "raw groups", "noise", "wanted")
"""Sources for comparison; all others are readings of the release."""

SAID = {
    "raw": "raw records",
    "raw groups": "raw records of one group",
    "noise": "noise of equal utility",
    "wanted": "target alone",
}

MOST_ROWS = 40
"""Features whose distortion is listed, and attacks that are drawn, of each variable."""

MOST_FIGURES = 30
"""Variables that are drawn; of more the table is enough."""


def write_sections(names: str, findings: Mapping[str, Any], **given: Any) -> Iterator[PageSection]:
    """Sections of ``templates/release_sections.yaml``, as they are described there.

    Parameters
    ----------
    names
        Of the sections, in order.
    findings
        What ``audit.json`` holds.
    given
        What else they are made of.
    """
    known = given | {"findings": findings, "found": findings["adversaries"]}
    known |= {key: findings.get(key) or {} for key in ("gate", "surrogate")}
    for name in names.split():
        about = read_texts("release_sections.yaml")[name]
        if not _compile(about.get("when", "true"))(known):
            continue
        cells = [
            {column: fill(text, known | {"one": one}) for column, text in about["rows"].items()}
            for one in _compile(about.get("each", "()"))(known)
        ]
        nothing = ("", "-") if about.get("only_used") else ("",)
        used = {column for row in cells for column, cell in row.items() if cell not in nothing}
        rows = [{column: cell for column, cell in row.items() if column in used} for row in cells]
        if rows or "when" in about:
            text = fill(about.get("text", ""), known)
            yield PageSection(about["title"], text, rows, about.get("folded", False))


@cache
def _compile(expression: str) -> Any:
    return sentences().compile_expression(expression, undefined_to_none=False)


def draw_variable(target: str, rows: Rows, found: Mapping[str, Any]) -> PageSection:
    """The intervals of all attacks on one variable, and ROC curves of the strongest."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    # The largest upper limit decides, so it is what is drawn; of equal ones the first.
    for row in sorted(rows, key=_top, reverse=True):
        if row["status"] == "unknown" or row["score"] in WEIGHED:
            best.setdefault((row["source"], row["adversary"]), row)
    ranked = sorted(best.values(), key=lambda row: (row["source"] in COMPARED, -_top(row)))
    bars = [_make_interval(row) for row in ranked[:MOST_ROWS]]
    allowed = float(found["options"]["max_advantage"])
    about = f"What every adversary finds of {target}."
    drawings = [draw_intervals(bars, allowed=allowed, description=about)]
    if curves := _list_curves(target, ranked, found.get("roc") or {}):
        drawings.append(draw_roc(curves, description=f"ROC curves of attacks on {target}."))
    text = (
        "Round marks: gain over the target, by reading the release. Diamonds: advantage by what "
        "it is compared with. The intervals are simultaneous. Below: ROC curves."
    )
    return PageSection(target, text, drawings=tuple(drawings))


def _top(row: Mapping[str, Any]) -> float:
    # Unknown ranks first: it is what the reader must see.
    return math.inf if row["gain_upper"] is None else float(row["gain_upper"])


def _make_interval(row: Mapping[str, Any]) -> IntervalRow:
    source, adversary = row["source"], row["adversary"].replace("_", " ")
    kind, key = ("compared", "advantage") if source in COMPARED else ("of-release", "gain")
    usual = f"{adversary}, {SAID.get(source, source)}"
    label = {"released": adversary, "wanted": SAID["wanted"]}.get(source, usual)
    values = [row[name] for name in (key, f"{key}_lower", f"{key}_upper")]
    return IntervalRow(label, kind, *(math.nan if v is None else float(v) for v in values))


def _list_curves(target: str, ranked: Rows, roc: Mapping[str, Any]) -> list[Curve]:
    """Of the release, the raw records and the noise the strongest adversary's."""
    mine = [one for one in roc.get("curves", ()) if one["target"] == target]
    known = {(one["source"], one["adversary"]): one["true_positive"] for one in mine}
    curves: dict[str, Curve] = {}
    for row in ranked:
        group = row["source"] if row["source"] in COMPARED else "release"
        true_positive = known.get((row["source"], row["adversary"]))
        # Of the target alone a few answers rank next to nothing.
        if group == "wanted" or group in curves or true_positive is None:
            continue
        label = f"{SAID.get(group, 'release')}: {row['adversary'].replace('_', ' ')}"
        kind = "compared" if group in COMPARED else "of-release"
        points = list(zip(roc["false_positive"], true_positive, strict=True))
        curves[group] = Curve(label, kind, points)
    return list(curves.values())


def list_kinds(attacks: Mapping[str, Any]) -> Iterator[PageSection]:
    """Attacks beside inference: a table each, numbers with their limits."""
    for kind, found in attacks.items():
        title = kind.replace("_", " ").capitalize()
        if found["status"] != "measured":
            yield PageSection(f"{title}: unknown", f"The attack failed: {found['reason']}.")
            continue
        report = found["report"]
        lists = [v for v in report.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        text = ", ".join(
            f"{name.replace('_', ' ')} {format_number(value)}"
            for name, value in report.items()
            if isinstance(value, int | float) and lists
        )
        rows = [_flatten(row) for row in (lists[0] if lists else [report])]
        yield PageSection(title, text, rows, folded=True)


def _flatten(row: Mapping[str, Any]) -> dict[str, str]:
    """Numbers and limits as text; longer lists and the limits' own columns are left out."""
    cells: dict[str, str] = {}
    for name, value in row.items():
        base, _, end = name.rpartition("_")
        # Limits are in the cell of their value.
        if end in ("lower", "upper") and base in row:
            continue
        if f"{name}_lower" in row:
            cells[name] = show_limits(row, name)
        elif isinstance(value, dict) and "estimate" in value:
            cells[name] = show_limits(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            cells[name] = format_number(value)
        elif isinstance(value, str):
            cells[name] = value.replace("_", " ")
    return {name.replace("_", " "): cell for name, cell in cells.items()}


def say_attack(one: Mapping[str, Any]) -> str:
    """What came of an attack on single records, in a line."""
    return say("attack", one=one, say_upper=say_upper)


sentences().filters.update(number=format_number, limits=show_limits)
sentences().globals.update(
    zip=zip,
    fix_limits=fix_limits,
    name_size=name_size,
    say_attack=say_attack,
    coarsen=suppression.coarsen,
    coarsen_limit=suppression.coarsen_limit,
    find_shown_size=suppression.find_shown_size,
    MOST_FIGURES=MOST_FIGURES,
    MOST_ROWS=MOST_ROWS,
)
