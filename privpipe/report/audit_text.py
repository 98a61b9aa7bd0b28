"""The audit's findings as a markdown page and as the rows of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from privpipe.errors import printable
from privpipe.numerics.limits import say_lower, say_upper
from privpipe.report.surrogate_text import write_surrogate_markdown
from privpipe.report.tables import write_table


def tabulate_predictions(findings: Mapping[str, Any]) -> pd.DataFrame:
    """One row per variable and way to predict it.

    Returns
    -------
    table
        Columns: role, variable, prediction, accuracy, F1, R2, RMSE (empty where they do not
        apply).
    """
    rows = [
        {
            "role": "wanted" if role == "desired" else role,
            "variable": name,
            "prediction": view,
            "accuracy": figures.get("accuracy"),
            "F1": figures.get("f1"),
            "R2": figures.get("r2"),
            "RMSE": figures.get("rmse"),
        }
        for role in ("desired", "confidential")
        for name, views in (findings.get(role) or {}).items()
        for view, figures in views.items()
    ]
    columns = ["role", "variable", "prediction", "accuracy", "F1", "R2", "RMSE"]
    return pd.DataFrame(rows, columns=columns).dropna(axis=1, how="all")


def write_audit_markdown(findings: Mapping[str, Any]) -> str:
    """Render the findings as markdown."""
    parts = [
        "# Audit",
        say_judged(findings),
        _verdict(findings["adversaries"], name_verdict(findings)),
        _gate(findings),
        _promise(findings),
        _proof(findings),
        say_unseen(findings.get("unseen")),
        _utility(findings.get("e_utility")),
        say_neighbours(findings.get("neighbours")),
        _places(findings.get("places")),
        write_surrogate_markdown(findings.get("surrogate"), write_table),
        _privacy(findings.get("privacy") or {}),
        _predictions(findings),
        _adversaries(findings["adversaries"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _predictions(findings: Mapping[str, Any]) -> str:
    """How well each variable is predicted; nothing of a release whose rows are nobody's."""
    table = tabulate_predictions(findings)
    if table.empty:
        return ""
    return (
        f"{write_table(table, floatfmt='.3f')}\n\n"
        "The attack in these tables is least squares, retrained on released records in the "
        "coordinates they show (Xu et al. 2017, algorithm 3)."
    )


def say_unknown(found: Mapping[str, int]) -> str:
    """Categories that no training record has, by column; their names are values of records."""
    if not found:
        return ""
    each = [f"{n} of {name!r}" for name, n in found.items()]
    return f"Categories that no training record has: {', '.join(each)}."


def say_judged(findings: Mapping[str, Any]) -> str:
    """Which records were judged, how many, and what the adversaries' sample is of."""
    if "n_records" not in findings:
        return str(findings["basis"])
    groups = f" of {findings['n_groups']:,} groups" if findings.get("n_groups") else ""
    sample = findings["adversaries"].get("sample_sentence")
    return f"{findings['basis']} {findings['n_records']:,} records{groups} judged." + (
        f" Adversaries were given a sample: {sample}." if sample else ""
    )


def say_unseen(found: Mapping[str, Any] | None) -> str:
    """Records released as the nearest profile the fit has seen, in words; counts alone."""
    if found is None:
        return ""
    share = found["n_records"] / max(1, found["n_released"])
    return (
        f"{found['n_records']:,} of {found['n_released']:,} released records ({share:.1%}) have a "
        "profile that the mapping does not know; each was treated as the nearest one it knows. "
        + say_unknown(found.get("unknown_categories", {}))
    ).strip()


def say_neighbours(found: Mapping[str, Any] | None) -> str:
    """The promise of differential privacy beside what a distinguishing test reached."""
    if found is None:
        return ""
    return (
        f"Promised is a privacy loss of {found['promised']:g} for every record. A test that told "
        f"two chosen records apart by {found['n_releases']:,} releases of each shows that it is "
        f"at least {found['epsilon_floor']:.3g}; that it is no more rests on proof alone."
    )


def say_places(found: Mapping[str, Any] | None) -> str:
    """How many places were compared with the rest, and what could not be, in some sentences."""
    if found is None:
        return ""
    missing = ", ".join(repr(name) for name in found["not_looked"])
    if found["status"] != "measured":
        return f"Which places reveal more than the rest is not known: {found['reason']}."
    said = (
        f"Each of {found['n_chunks']:,} chunks, each of {found['n_partitions']:,} partitions and "
        f"neighbouring chunks together were compared with the rest, by single columns: "
        f"{found['n_found']:,} places surely reveal more."
    )
    blind = {name: n for name, n in found["blind"].items() if n}
    for name, n in blind.items():
        said += f" {n:,} chunks by themselves hold too little to show a copy of {name!r}."
    return said + (f" Of {missing} nothing is known: the released records lack it." * bool(missing))


def tabulate_places(found: Mapping[str, Any] | None) -> pd.DataFrame:
    """The places that reveal more than the rest, the worst first; empty where none does."""
    rows = [
        {
            "place": one["place"],
            "column": one["column"],
            "confidential": one["variable"],
            "advantage": _number(one["advantage"]),
            "beyond the rest, at least": _number(one["excess_lower"]),
        }
        for one in (found or {}).get("places", ())
    ]
    return pd.DataFrame(rows)


def _places(found: Mapping[str, Any] | None) -> str:
    table = tabulate_places(found)
    if table.empty:
        return _escape(say_places(found))
    table = table.map(lambda cell: _escape(printable(cell)))
    return f"{_escape(say_places(found))}\n\n{write_table(table, disable_numparse=True)}"


def say_verdict(findings: Mapping[str, Any]) -> str:
    """The verdict with its reason in a sentence, for the last line of a run."""
    reason = findings["adversaries"].get("reason") or "no adversary succeeded"
    return f"{name_verdict(findings)}: {reason}"


def name_verdict(findings: Mapping[str, Any]) -> str:
    """The verdict in a word or some: "safe" alone is said by limits as strict as usual only."""
    verdict = str(findings["adversaries"]["verdict"])
    is_weaker = verdict == "safe" and (findings.get("gate") or {}).get("weaker")
    return "safe within weaker limits" if is_weaker else verdict


def say_gate(findings: Mapping[str, Any]) -> str:
    """What became of the gate, in a sentence."""
    gate = findings["gate"]
    if gate["state"] == "passed":
        return f"passed: every limit holds.{say_weaker(gate)}"
    if gate["state"] == "approved":
        by = gate["approval"]
        return f"overridden by {by['name']} ({by['reason']}), {by['approved']}. {gate['sentence']}"
    if gate["state"] == "not gated":
        return f"not gated: [gate] enforce is false. {gate['sentence']}"
    return f"failed. {gate['sentence']}"


def say_attempt(findings: Mapping[str, Any]) -> str:
    """How often these records were judged, to follow a sentence; nothing where that is unknown."""
    number = findings.get("attempt")
    if number is None:
        return ""
    return f" Attempt {number} at a release of these records: attempts share the level."


def say_weaker(gate: Mapping[str, Any]) -> str:
    """Which limits ask less than usual, to follow a sentence; nothing where none does."""
    weaker = gate.get("weaker")
    return f" Weaker than usual: {'; '.join(weaker)}." if weaker else ""


def _gate(findings: Mapping[str, Any]) -> str:
    if "gate" not in findings:
        return ""
    return f"**Gate** {_escape(printable(say_gate(findings) + say_attempt(findings)))}"


def _promise(findings: Mapping[str, Any]) -> str:
    """The guarantee in a line."""
    text = (findings.get("about") or {}).get("guarantee")
    return f"**Promise** {_escape(printable(str(text)))}" if text else ""


def say_proof(found: Mapping[str, Any] | None) -> str:
    """What is proved of the released features in place of attacks on them; nothing where not."""
    if found is None:
        return ""
    return (
        "proved: the released features reveal no more than the target prediction, of which they "
        f"are a function by the model {found['model'][:16]}, for {found['theorem']}; verified bit "
        f"by bit on {found['n_records']:,} records. What the target prediction itself reveals is "
        "not proved: adversaries read it in place of the features, with the order, withheld rows "
        "and included variables, and the limits hold for that."
    )


def _proof(findings: Mapping[str, Any]) -> str:
    text = say_proof(findings.get("proof"))
    return f"**Features** {_escape(text)}" if text else ""


def _verdict(found: Mapping[str, Any], name: str) -> str:
    """The verdict and the sentence of every variable."""
    decisions = found.get("decisions") or []
    lines = [f"- {_escape(one['reason'])}" for one in decisions]
    return "\n".join([f"**Verdict: {name}**", "", *(lines or [_escape(found["reason"])])])


def _escape(text: str) -> str:
    """Names of variables are data: nothing in them may act as markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~])", r"\\\1", text)


def unescape_markdown(text: str) -> str:
    r"""Markdown for a terminal, where no backslash hides a sign.

    >>> unescape_markdown(r"local\_dp, a\|b")
    'local_dp, a|b'
    """
    return re.sub(r"\\([\\`*_{}\[\]<>()#+!|~])", r"\1", text)


def _adversaries(found: Mapping[str, Any]) -> str:
    """What decided for each variable, and its strongest adversaries on raw records."""
    if not found.get("decisions"):
        return ""
    if "options" not in found:  # of a published release
        names = {"target": "confidential", "gain_upper": "gain at most", "allowed": "allowed"}
        shown = pd.DataFrame(found["decisions"])[["target", "verdict", "gain_upper", "allowed"]]
        return write_table(shown.rename(columns=names), floatfmt=".3g")
    rows = [
        {
            "confidential": one["target"],
            "verdict": one["verdict"],
            "read": one["source"],
            "adversary": one["strongest"],
            "score": one["score"],
            "estimate": _number(one["estimate"]),
            "limits": _say_range(one["lower"], one["upper"]),
            "guessing": _number(one["baseline"]),
            "advantage": _number(one["advantage"]),
            "at least": _say_end(say_lower, one["advantage_lower"]),
            "at most": _say_end(say_upper, one["advantage_upper"]),
            "beyond the wanted answer": _number(one["gain"]),
            "beyond, at most": _say_end(say_upper, one["gain_upper"], one["allowed"]),
            "allowed": _number(one["allowed"]),
            "on raw records": _number(one["control_advantage"]),
            "intervals": one["n_compared"],
        }
        for one in found["decisions"]
    ]
    table = write_table(pd.DataFrame(rows), disable_numparse=True)
    options = found["options"]
    power = f"\n\n{_escape(found['power_sentence'])}" if found.get("power_sentence") else ""
    return (
        f"What decided, on {found['n_records']:,} held-out records. An advantage is the "
        "share of the way from guessing to knowing; of a true-positive rate it is the share of "
        "records claimed rightly beyond the false alarms. Limits count what is gained beyond "
        "knowing the wanted answer, which was to be kept. A variable leaks where the lower limit "
        "of a gain is above what is allowed, and is safe where every upper limit is within it; all "
        f"verdicts hold together with confidence {options['level']:g}:\n\n{table}{power}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _say_end(
    say: Callable[[float, float], str], value: float | None, allowed: float | None = None
) -> str:
    """One limit, on its safe side; a dash for none."""
    return say(*(math.nan if one is None else float(one) for one in (value, allowed)))


def _say_range(lower: float | None, upper: float | None) -> str:
    return f"{_say_end(say_lower, lower)} to {_say_end(say_upper, upper)}"


def _utility(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return (
        f"Loss of utility per record (budget {found['budget']:g} squared units of the desired "
        f"prediction): mean {found['mean']:.6g}, largest {found['largest']:.6g}, "
        f"{found['share_at_budget']:.1%} of the records at the budget, "
        f"{found['n_above_budget']} above it."
    )


def _privacy(found: Mapping[str, Mapping[str, Any]]) -> str:
    if not found:
        return ""
    table = pd.DataFrame(
        [
            {
                "prediction from": view,
                "e_privacy": figures["e_privacy"],
                "complete privacy": f"{figures['complete_privacy']:.1%}",
            }
            for view, figures in found.items()
        ]
    )
    return write_table(table, floatfmt=".4g")
