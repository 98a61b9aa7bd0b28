"""What the audit of surrogates found, as markdown: what is kept, attacked, and not protected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from privpipe.report.tables import write_table

__all__ = ["write_surrogate_markdown"]


def write_surrogate_markdown(found: Mapping[str, Any] | None) -> str:
    """Render the findings; nothing where the release is none of surrogates."""
    if found is None:
        return ""
    listed = "\n".join(f"- {line}" for line in found["not_protected"])
    parts = [
        _utility(found["utility"]),
        _attacks(found["attacks"], found.get("controls") or {}),
        f"What is **not protected**:\n\n{listed}",
    ]
    return "\n\n".join(part for part in parts if part)


def _utility(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "What the surrogates keep was not measured: no record was held out."
    rows = [
        {
            "response": f"`{name}`",
            "RMSE, surrogates": f"{masked:.4g}",
            "RMSE, raw records": f"{raw:.4g}",
            "ratio": f"{ratio['estimate']:.4f}",
            "limits": f"{ratio['lower']:.4f} to {ratio['upper']:.4f}",
        }
        for name, masked, raw, ratio in zip(
            found["responses"],
            found["rmse_masked"],
            found["rmse_raw"],
            found["ratio"],
            strict=True,
        )
    ]
    hidden = "".join(
        f"\n\nThe released model explains {share['estimate']:.3f} ({share['lower']:.3f} to "
        f"{share['upper']:.3f}) of the variance of `{name}`, from raw features."
        for name, share in zip(found["hidden"], found["explained"], strict=True)
    )
    asked = ""
    if found.get("coefficients"):
        table = write_table(pd.DataFrame(found["coefficients"]), floatfmt=".6g")
        asked = f"\n\nCoefficients, as [audit] coefficients asks:\n\n{table}"
    return (
        f"Ridge regression of the surrogates beside that of the raw records: coefficients differ "
        f"by eta = {found['eta']:.4f}; on {found['n_records']:,} raw records held out:\n\n"
        f"{write_table(pd.DataFrame(rows), disable_numparse=True)}{hidden}{asked}"
    )


def _attacks(found: Mapping[str, Any], controls: Mapping[str, Any]) -> str:
    rows = [
        {
            "attack": name,
            "on the release": _say(one),
            "on an unsafe control": _say(controls[name]) if name in controls else "-",
        }
        for name, one in sorted(found.items())
    ]
    if not rows:
        return "No attack was run: no record was held out."
    return (
        "Attacks on single records, and the same on an unsafe control made of the same records, "
        "where they must succeed. That these find nothing says nothing of others:\n\n"
        f"{write_table(pd.DataFrame(rows), disable_numparse=True)}"
    )


def _say(one: Mapping[str, Any]) -> str:
    if "failed" in one:
        return f"not measured: {one['failed']}"
    if "recovered" in one:
        mine, chance = one["recovered"], one["by_chance"]
        return (
            f"{mine['estimate']:.1%} of {one['n_attacked']} records recovered (at most "
            f"{mine['upper']:.1%}); by chance {chance['estimate']:.1%}"
        )
    return f"advantage {one['advantage']:.3f}, area under the curve {one['area']['estimate']:.3f}"
