"""Sections on surrogates that are sums of records: what they retain, and what they give away."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from privpipe.numerics.limits import fix_limits, say_upper
from privpipe.report.page import PageSection


def list_surrogate_model(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Utility on held-out raw records, and every attack on records beside its unsafe control."""
    found = findings.get("surrogate")
    if found is None:
        return
    utility = found["utility"]
    if utility is None:
        yield PageSection("What the surrogates keep", say_surrogate_model(None))
    else:
        table = tabulate_errors(utility)
        yield PageSection("What the surrogates keep", say_surrogate_model(utility), table=table)
        if utility["hidden"]:
            text = "Shares of variance that its answers to raw features explain."
            table = tabulate_explained(utility)
            yield PageSection("What the released model reveals", text, table=table, folded=True)
    yield PageSection(
        "Attacks on single records",
        "On an unsafe control made of the same records each must succeed. That these find nothing "
        "says nothing of others.",
        table=tabulate_controls(found["attacks"], found.get("controls") or {}),
        folded=True,
    )


def list_not_protected(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What a release gives away by design; it holds no number, and so is for everybody."""
    if found := findings.get("surrogate"):
        table = pd.DataFrame({"not protected": list(found["not_protected"])})
        yield PageSection(
            "What is not protected", "Given away by design, or not promised:", table=table
        )


def say_surrogate_model(found: Mapping[str, Any] | None) -> str:
    """How near the model of the surrogates is to that of the raw records, in a sentence."""
    if found is None:
        return "What the surrogates keep was not measured: no record was held out."
    return (
        f"Ridge regression of the surrogates against that of the raw records: coefficients differ "
        f"by eta = {found['eta']:.4f}; on {found['n_records']:,} raw records held out:"
    )


def tabulate_explained(found: Mapping[str, Any]) -> pd.DataFrame:
    """What the released model explains of each confidential variable."""
    rows = [
        {
            "hidden": name,
            "explained": f"{share['estimate']:.3f}",
            "limits": fix_limits(share["lower"], share["upper"], 3),
        }
        for name, share in zip(found["hidden"], found["explained"], strict=True)
    ]
    return pd.DataFrame(rows)


def tabulate_errors(found: Mapping[str, Any]) -> pd.DataFrame:
    """Errors of both models, a row per response."""
    rows = [
        {
            "response": name,
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


def _say(one: Mapping[str, Any]) -> str:
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
