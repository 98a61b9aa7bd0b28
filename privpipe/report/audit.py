"""The audit's findings as a markdown page and as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

__all__ = ["tabulate_predictions", "write_audit_markdown"]


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
        for name, views in findings[role].items()
        for view, figures in views.items()
    ]
    columns = ["role", "variable", "prediction", "accuracy", "F1", "R2", "RMSE"]
    return pd.DataFrame(rows, columns=columns).dropna(axis=1, how="all")


def write_audit_markdown(findings: Mapping[str, Any]) -> str:
    """Render the findings as markdown."""
    parts = [
        "# Audit",
        f"{findings['basis']} {findings['n_records']:,} records judged"
        + (f" ({findings['n_groups']:,} different ones)." if findings.get("n_groups") else "."),
        _utility(findings["e_utility"]),
        _privacy(findings["privacy"]),
        tabulate_predictions(findings).to_markdown(index=False, floatfmt=".3f"),
        "The attack in these tables is least squares, retrained on released records in the "
        "coordinates they show (Xu et al. 2017, algorithm 3).",
        _adversaries(findings["adversaries"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _adversaries(found: Mapping[str, Any]) -> str:
    """The strongest adversary per variable, released against raw."""
    if not found.get("strongest"):
        return f"Adversaries: {found['verdict']} ({found.get('reason', 'none succeeded')})."
    rows = [
        {
            "confidential": variable,
            "records": source,
            "strongest adversary": best["adversary"],
            "score": best["score"],
            "estimate": best["estimate"],
            "interval": f"{best['lower']:.3f} to {best['upper']:.3f}",
            "guessing": best["baseline"],
        }
        for variable, sources in found["strongest"].items()
        for source, best in sources.items()
    ]
    table = pd.DataFrame(rows).to_markdown(index=False, floatfmt=".3f")
    return (
        f"Adversaries on {found['n_records']:,} different held-out records (verdict at the limit "
        f"of the report: {found['verdict']}); the strongest of each kind of records:\n\n{table}"
    )


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
    return table.to_markdown(index=False, floatfmt=".4g")
