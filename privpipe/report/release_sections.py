"""Sections of a release's page, each from its part of ``audit.json``; none where it is missing."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from privpipe.numerics.limits import fix_limits, say_upper
from privpipe.report.audit_text import say_places
from privpipe.report.drawings import Curve, IntervalRow, draw_intervals, draw_roc
from privpipe.report.page import PageSection, tabled
from privpipe.report.tables import format_number, show_limits

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
    """Chunks and partitions that reveal more than the rest, the worst first."""
    if found := findings.get("places"):
        rows = [
            {
                "place": one["place"],
                "column": one["column"],
                "confidential": one["variable"],
                "advantage": _decimals(one["advantage"]),
                "beyond the rest, at least": _decimals(one["excess_lower"]),
            }
            for one in found.get("places", ())
        ]
        yield PageSection("Place by place", say_places(found), rows)


def list_utility(findings: Mapping[str, Any]) -> Iterable[PageSection]:
    """Predictions of the targets, raw and released, with limits."""
    rows = [
        {
            "target": name,
            "score": f"{one['score']} ({one['predictor'].replace('_', ' ')})",
            **{key: show_limits(one[key]) for key in ("raw", "released", "loss")},
            "test records": f"{one['n_test']:,}",
        }
        if "score" in one
        else {"target": name, "score": "-", "raw": f"unknown: {one['reason']}"}
        for name, one in (findings.get("utility") or {}).items()
    ]
    text = (
        "Each target predicted by one model, trained on raw or on released records "
        "and judged on the same held-out ones; the intervals of the loss are paired."
    )
    return tabled("What is retained", rows, text)


def list_privacy(findings: Mapping[str, Any]) -> Iterable[PageSection]:
    """Privacy as Xu et al. measure it, by what predicts."""
    rows = [
        {
            "prediction from": view,
            "e_privacy": format_number(figures["e_privacy"], 4),
            "complete privacy": f"{figures['complete_privacy']:.1%}",
        }
        for view, figures in (findings.get("privacy") or {}).items()
    ]
    return tabled("Privacy of Xu et al.", rows)


def list_included(found: Mapping[str, Any]) -> Iterable[PageSection]:
    """What every included variable reveals by itself."""
    included = found.get("included") or ()
    rows = [
        {
            "included": one["included"],
            "confidential": one["target"],
            "beyond the target": show_limits(one, "gain", one["allowed"]),
            "score": one["score"].replace("_", " "),
            "allowed": format_number(one["allowed"]),
            "reveals more": "yes" if one["tells_more"] else "not shown",
        }
        for one in included
    ]
    revealing = sorted({one["included"] for one in included if one["tells_more"]})
    text = f"{', '.join(revealing)} by itself reveals more than the target." * bool(revealing)
    return tabled("Included variables by themselves", rows, text)


def draw_variable(
    target: str, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> PageSection:
    """The intervals of all attacks on one variable, and ROC curves of the strongest."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    # The largest upper limit decides, so it is what is drawn; of equal ones the first.
    for row in sorted(rows, key=_top, reverse=True):
        if row["status"] == "unknown" or row["score"] in WEIGHED:
            best.setdefault((row["source"], row["adversary"]), row)
    ranked = sorted(best.values(), key=lambda row: (row["source"] in COMPARED, -_top(row)))
    drawings = [
        draw_intervals(
            [_make_interval(row) for row in ranked[:MOST_ROWS]],
            allowed=float(found["options"]["max_advantage"]),
            description=f"What every adversary finds of {target}.",
        )
    ]
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
    label = {"released": adversary, "wanted": SAID["wanted"]}.get(
        source, f"{adversary}, {SAID.get(source, source)}"
    )
    values = [row[name] for name in (key, f"{key}_lower", f"{key}_upper")]
    return IntervalRow(label, kind, *(math.nan if v is None else float(v) for v in values))


def _list_curves(
    target: str, ranked: Sequence[Mapping[str, Any]], roc: Mapping[str, Any]
) -> list[Curve]:
    """Of the release, the raw records and the noise the strongest adversary's."""
    known = {
        (one["source"], one["adversary"]): one["true_positive"]
        for one in roc.get("curves", ())
        if one["target"] == target
    }
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
        tables = [
            v for v in report.values() if isinstance(v, list) and v and isinstance(v[0], dict)
        ]
        text = ", ".join(
            f"{name.replace('_', ' ')} {format_number(value)}"
            for name, value in report.items()
            if isinstance(value, int | float) and tables
        )
        rows = [_flatten(row) for row in (tables[0] if tables else [report])]
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


def list_power(found: Mapping[str, Any]) -> Iterable[PageSection]:
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
    text = "Leaks of known size were planted in a copy of the released sample."
    return tabled("What would have been found", rows, text, folded=True)


def list_distortion(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """How far each feature moved, in units of its own deviation."""
    if found := findings.get("distortion"):
        rows = [
            {
                "feature": one["feature"],
                "root mean squared change": format_number(one["rms"]),
                "in deviations": format_number(one["relative"]),
            }
            for one in found["features"][:MOST_ROWS]
        ]
        text = (
            f"Change of {found['n_features']:,} features in units of their own deviation, the "
            "largest first; least, quartiles and largest: "
            f"{', '.join(map(format_number, found['quartiles']))}."
        )
        yield PageSection("Distortion", text, rows, folded=True)


def list_surrogate_model(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What surrogates that are sums retain: utility on raw records that were held out, attacks."""
    found = findings.get("surrogate")
    if found is None:
        return
    utility = found["utility"]
    if utility is None:
        text = "What the surrogates keep was not measured: no record was held out."
        yield PageSection("What the surrogates keep", text)
    else:
        text = (
            "Ridge regression of the surrogates against that of the raw records: coefficients "
            f"differ by eta = {utility['eta']:.4f}; on {utility['n_records']:,} raw records held "
            "out:"
        )
        yield PageSection("What the surrogates keep", text, _list_errors(utility))
        text = "Shares of variance that its answers to raw features explain."
        rows = [
            {"hidden": name} | _with_limits("explained", share, 3)
            for name, share in zip(utility["hidden"], utility["explained"], strict=True)
        ]
        yield from tabled("What the released model reveals", rows, text, folded=True)
    controls = found.get("controls") or {}
    rows = [
        {
            "attack": name.replace("_", " "),
            "on the release": _say_attack(one),
            "on an unsafe control": _say_attack(controls[name]) if name in controls else "-",
        }
        for name, one in sorted(found["attacks"].items())
    ]
    text = (
        "On an unsafe control made of the same records each must succeed. That these find nothing "
        "says nothing of others."
    )
    yield PageSection("Attacks on single records", text, rows, folded=True)


def list_not_protected(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What a release gives away by design; it holds no number, and so is for everybody."""
    if found := findings.get("surrogate"):
        rows = [{"not protected": one} for one in found["not_protected"]]
        yield PageSection("What is not protected", "Given away by design, or not promised:", rows)


def _list_errors(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Errors of both models, a row per response."""
    names = ("responses", "rmse_masked", "rmse_raw", "ratio")
    return [
        {"response": name, "RMSE, surrogates": f"{masked:.4g}", "RMSE, raw records": f"{raw:.4g}"}
        | _with_limits("ratio", ratio, 4)
        for name, masked, raw, ratio in zip(*(found[name] for name in names), strict=True)
    ]


def _with_limits(name: str, found: Mapping[str, float], decimals: int) -> dict[str, str]:
    limits = fix_limits(found["lower"], found["upper"], decimals)
    return {name: f"{found['estimate']:.{decimals}f}", "limits": limits}


def _say_attack(one: Mapping[str, Any]) -> str:
    if "failed" in one:
        return f"not measured: {one['failed']}"
    # A share of one record is 0 or 1: the cosine says how near it came.
    if one.get("n_attacked") == 1:
        hit = "found" if one["recovered"]["estimate"] else "not found"
        return f"{hit} (cosine {one['cosine']:.2f})"
    if "recovered" in one:
        mine, chance = one["recovered"], one["by_chance"]
        return (
            f"{mine['estimate']:.1%} of {one['n_attacked']} records recovered (at most "
            f"{say_upper(100 * mine['upper'])}%); by chance {chance['estimate']:.1%}"
        )
    return f"advantage {one['advantage']:.3f}, area under the curve {one['area']['estimate']:.3f}"


def _decimals(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
