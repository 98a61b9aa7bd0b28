"""Sections of a release's page, each from its part of ``audit.json``; none where it is missing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from privpipe.report.audit_text import say_places, tabulate_places
from privpipe.report.drawings import Curve, IntervalRow, draw_intervals, draw_roc
from privpipe.report.page import PageSection
from privpipe.report.tables import format_limits, format_number

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


def list_warnings(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What decides nothing and should be known."""
    if warnings := findings.get("warnings"):
        yield PageSection("Warnings", " ".join(warnings))


def list_places(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Chunks and partitions that reveal more than the rest."""
    if said := say_places(found := findings.get("places")):
        table = tabulate_places(found)
        yield PageSection("Place by place", said, table=None if table.empty else table)


def list_utility(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Predictions of the targets, raw and released, with limits."""
    rows = []
    for name, one in (findings.get("utility") or {}).items():
        if "score" not in one:
            rows.append({"target": name, "score": "-", "raw": f"unknown: {one['reason']}"})
            continue
        rows.append(
            {
                "target": name,
                "score": f"{one['score']} ({one['predictor'].replace('_', ' ')})",
                **{key: _limits(one[key]) for key in ("raw", "released", "loss")},
                "test records": f"{one['n_test']:,}",
            }
        )
    if rows:
        text = (
            "Each target predicted by one model, trained on raw or on released records "
            "and judged on the same held-out ones; the limits of the loss are those of pairs."
        )
        yield PageSection("What is retained", text, table=_frame(rows))


def list_privacy(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Privacy as Xu et al. measure it, by what predicts."""
    rows = [
        {
            "prediction from": view,
            "e_privacy": format_number(figures["e_privacy"], 4),
            "complete privacy": f"{figures['complete_privacy']:.1%}",
        }
        for view, figures in (findings.get("privacy") or {}).items()
    ]
    if rows:
        yield PageSection("Privacy of Xu et al.", table=_frame(rows))


def list_included(found: Mapping[str, Any]) -> Iterator[PageSection]:
    """What every included variable reveals by itself."""
    rows = [
        {
            "included": one["included"],
            "confidential": one["target"],
            "beyond the target": _limits_of(one, "gain", one["allowed"]),
            "score": one["score"].replace("_", " "),
            "allowed": format_number(one["allowed"]),
            "reveals more": "yes" if one["tells_more"] else "not shown",
        }
        for one in found.get("included") or ()
    ]
    if rows:
        revealing = sorted({row["included"] for row in rows if row["reveals more"] == "yes"})
        text = f"{', '.join(revealing)} by itself reveals more than the target." * bool(revealing)
        yield PageSection("Included variables by themselves", text, table=_frame(rows))


def draw_variable(
    target: str, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> PageSection:
    """The intervals of all attacks on one variable, and ROC curves of the strongest."""
    allowed = float(found["options"]["max_advantage"])
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] == "unknown" or row["score"] in WEIGHED:
            key = (row["source"], row["adversary"])
            # The largest upper limit decides, so it is what is drawn.
            if key not in best or _top(row) > _top(best[key]):
                best[key] = row
    ranked = sorted(best.values(), key=lambda row: (row["source"] in COMPARED, -_top(row)))
    intervals = [_make_interval(row) for row in ranked[:MOST_ROWS]]
    drawings = [
        draw_intervals(
            intervals, allowed=allowed, description=f"What every adversary finds of {target}."
        )
    ]
    curves = list(_list_curves(target, ranked, found.get("roc") or {}))
    if curves:
        drawings.append(draw_roc(curves, description=f"ROC curves of attacks on {target}."))
    text = (
        "Round marks are gains beyond the target by reading the release, others advantages "
        "by what it is compared with; limits hold together. Below, true against false positives."
    )
    return PageSection(target, text, drawings=tuple(drawings))


def _top(row: Mapping[str, Any]) -> float:
    value = row["gain_upper"]
    # Unknown ranks first: it is what the reader must see.
    return math.inf if value is None else float(value)


def _make_interval(row: Mapping[str, Any]) -> IntervalRow:
    source, adversary = row["source"], row["adversary"].replace("_", " ")
    kind, key = ("compared", "advantage") if source in COMPARED else ("of-release", "gain")
    label = f"{adversary}, {SAID.get(source, source)}"
    if source == "released":
        label = adversary
    elif source == "wanted":
        label = SAID[source]
    values = [row[name] for name in (key, f"{key}_lower", f"{key}_upper")]
    return IntervalRow(label, kind, *(math.nan if v is None else float(v) for v in values))


def _list_curves(
    target: str, ranked: Sequence[Mapping[str, Any]], roc: Mapping[str, Any]
) -> Iterator[Curve]:
    """Of the release, the raw records and the noise the strongest adversary's."""
    known = {
        (one["source"], one["adversary"]): one["true_positive"]
        for one in roc.get("curves", ())
        if one["target"] == target
    }
    seen = set()
    for row in ranked:
        group = row["source"] if row["source"] in COMPARED else "release"
        if group == "wanted":  # a few answers rank next to nothing
            continue
        curve = known.get((row["source"], row["adversary"]))
        if group in seen or curve is None:
            continue
        seen.add(group)
        kind = "compared" if group in COMPARED else "of-release"
        label = f"{SAID.get(group, 'release')}: {row['adversary'].replace('_', ' ')}"
        yield Curve(label, kind, roc["false_positive"], curve)


def list_kinds(attacks: Mapping[str, Any]) -> Iterator[PageSection]:
    """Attacks beside inference: a table each, numbers with their limits."""
    for kind, found in attacks.items():
        title = kind.replace("_", " ").capitalize()
        if found["status"] != "measured":
            yield PageSection(f"{title}: unknown", f"The attack failed: {found['reason']}.")
            continue
        report = found["report"]
        rows = next((v for v in report.values() if _is_table(v)), [report])
        text = ", ".join(
            f"{name.replace('_', ' ')} {_number(value)}"
            for name, value in report.items()
            if isinstance(value, int | float) and rows[0] is not report
        )
        yield PageSection(title, text, table=_frame([_flatten(row) for row in rows]), folded=True)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _flatten(row: Mapping[str, Any]) -> dict[str, str]:
    """Numbers and limits as text; longer lists and the limits' own columns are left out."""
    cells: dict[str, str] = {}
    for name, value in row.items():
        base, _, end = name.rpartition("_")
        # Limits are in the cell of their value.
        if end in ("lower", "upper") and base in row:
            continue
        if f"{name}_lower" in row:
            cells[name] = _limits_of(row, name)
        elif isinstance(value, dict) and "estimate" in value:
            cells[name] = _limits(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            cells[name] = format_number(value)
        elif isinstance(value, str):
            cells[name] = value.replace("_", " ")
    return {name.replace("_", " "): cell for name, cell in cells.items()}


def list_power(found: Mapping[str, Any]) -> Iterator[PageSection]:
    """What of planted leaks the audit finds."""
    rows = [
        {
            "confidential": one["target"],
            "leak": one["leak"],
            "smallest found, share of records": "none tried"
            if one["size"] is None
            else format_number(one["size"]),
            "by": one["adversary"].replace("_", " "),
            "enough": "yes" if one["finds"] else "no",
        }
        for one in found.get("power") or ()
    ]
    if rows:
        text = "Leaks of known size were planted in a copy of the released sample."
        yield PageSection("What would have been found", text, table=_frame(rows), folded=True)


def list_distortion(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """How far each feature moved, in units of its own deviation."""
    found = findings.get("distortion")
    if not found:
        return
    rows = [
        {
            "feature": one["feature"],
            "root mean squared change": format_number(one["rms"]),
            "in deviations": "-" if one["relative"] is None else format_number(one["relative"]),
        }
        for one in found["features"][:MOST_ROWS]
    ]
    spread = ", ".join(format_number(value) for value in found["quartiles"])
    text = (
        f"Change of {found['n_features']:,} features in units of their own deviation, the largest "
        f"first; least, quartiles and largest: {spread}."
    )
    yield PageSection("Distortion", text, table=_frame(rows), folded=True)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else format_number(value)


def _limits(found: Mapping[str, float]) -> str:
    return format_limits(found["estimate"], found["lower"], found["upper"])


def _limits_of(row: Mapping[str, Any], name: str, allowed: float = math.nan) -> str:
    value, lower, upper = (row[key] for key in (name, f"{name}_lower", f"{name}_upper"))
    if None in (value, lower, upper):
        return "-"
    return format_limits(value, lower, upper, allowed)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).fillna("")
