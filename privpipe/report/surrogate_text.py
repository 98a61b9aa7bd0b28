"""What the audit of surrogates found, as markdown: what is kept, attacked, and not protected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from privpipe.numerics.limits import fix_limits, say_upper

TableWriter = Callable[..., str]
"""Writes a table as Markdown, with options of `DataFrame.to_markdown`."""


def write_surrogate_markdown(found: Mapping[str, Any] | None, write_table: TableWriter) -> str:
    """Render the findings; nothing where the release is none of surrogates."""
    if found is None:
        return ""
    listed = "\n".join(f"- {line}" for line in found["not_protected"])
    parts = [
        _utility(found["utility"], write_table),
        _attacks(found["attacks"], found.get("controls") or {}, write_table),
        f"What is **not protected**:\n\n{listed}",
    ]
    return "\n\n".join(part for part in parts if part)


def say_kept(found: Mapping[str, Any] | None) -> str:
    """How near the model of the surrogates is to that of the raw records, in a sentence."""
    if found is None:
        return "What the surrogates keep was not measured: no record was held out."
    return (
        f"Ridge regression of the surrogates beside that of the raw records: coefficients differ "
        f"by eta = {found['eta']:.4f}; on {found['n_records']:,} raw records held out:"
    )


def tabulate_hidden(found: Mapping[str, Any]) -> pd.DataFrame:
    """What the released model tells of each hidden variable."""
    rows = [
        {
            "hidden": name,
            "explained": f"{share['estimate']:.3f}",
            "limits": fix_limits(share["lower"], share["upper"], 3),
        }
        for name, share in zip(found["hidden"], found["explained"], strict=True)
    ]
    return pd.DataFrame(rows)


def tabulate_kept(found: Mapping[str, Any], *, quote: str = "`") -> pd.DataFrame:
    """Errors of both models, a row per response."""
    rows = [
        {
            "response": f"{quote}{name}{quote}",
            "RMSE, surrogates": f"{masked:.4g}",
            "RMSE, raw records": f"{raw:.4g}",
            "ratio": f"{ratio['estimate']:.4f}",
            "limits": fix_limits(ratio["lower"], ratio["upper"], 4),
        }
        for name, masked, raw, ratio in zip(
            found["responses"], found["rmse_masked"], found["rmse_raw"], found["ratio"], strict=True
        )
    ]
    return pd.DataFrame(rows)


def tabulate_coefficients(found: Mapping[str, Any]) -> pd.DataFrame:
    """Coefficients of both models side by side."""
    return pd.DataFrame(found["coefficients"])


def tabulate_controls(found: Mapping[str, Any], controls: Mapping[str, Any]) -> pd.DataFrame | None:
    """Every attack on the release and on its unsafe control; None where none was run."""
    rows = [
        {
            "attack": name.replace("_", " "),
            "on the release": _say(one),
            "on an unsafe control": _say(controls[name]) if name in controls else "-",
        }
        for name, one in sorted(found.items())
    ]
    return pd.DataFrame(rows) if rows else None


def _utility(found: Mapping[str, Any] | None, write_table: TableWriter) -> str:
    if found is None:
        return say_kept(None)
    hidden = "".join(
        f"\n\nThe released model explains {share['estimate']:.3f} "
        f"({fix_limits(share['lower'], share['upper'], 3)}) of the variance of `{name}`, from "
        "raw features."
        for name, share in zip(found["hidden"], found["explained"], strict=True)
    )
    asked = ""
    if found.get("coefficients"):
        table = write_table(tabulate_coefficients(found), floatfmt=".6g")
        asked = f"\n\nCoefficients, as [audit] coefficients asks:\n\n{table}"
    table = write_table(tabulate_kept(found), disable_numparse=True)
    return f"{say_kept(found)}\n\n{table}{hidden}{asked}"


def _attacks(
    found: Mapping[str, Any], controls: Mapping[str, Any], write_table: TableWriter
) -> str:
    table = tabulate_controls(found, controls)
    if table is None:
        return "No attack was run: no record was held out."
    return (
        "Attacks on single records, and the same on an unsafe control made of the same records, "
        "where they must succeed. That these find nothing says nothing of others:\n\n"
        f"{write_table(table, disable_numparse=True)}"
    )


def _say(one: Mapping[str, Any]) -> str:
    if "failed" in one:
        return f"not measured: {one['failed']}"
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
