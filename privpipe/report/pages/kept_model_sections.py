"""Sections on surrogates that are sums of records: the model they keep, and what they give away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from privpipe.report.pages.page import PageSection
from privpipe.report.surrogate_text import (
    say_kept,
    tabulate_coefficients,
    tabulate_controls,
    tabulate_hidden,
    tabulate_kept,
)


def list_kept_model(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """Utility on held-out raw records, and every attack on records beside its unsafe control."""
    found = findings.get("surrogate")
    if found is None:
        return
    utility = found["utility"]
    if utility is None:
        yield PageSection("What the surrogates keep", say_kept(None))
    else:
        table = tabulate_kept(utility, quote="")
        yield PageSection("What the surrogates keep", say_kept(utility), table=table)
        if utility["hidden"]:
            text = "Shares of variance that its answers to raw features explain."
            table = tabulate_hidden(utility)
            yield PageSection("What the released model tells", text, table=table, folded=True)
        if utility.get("coefficients"):
            table = tabulate_coefficients(utility)
            yield PageSection(
                "Coefficients, as [audit] coefficients asks", table=table, folded=True
            )
    yield PageSection(
        "Attacks on single records",
        "On an unsafe control made of the same records each must succeed. That these find nothing "
        "says nothing of others.",
        table=tabulate_controls(found["attacks"], found.get("controls") or {}),
        folded=True,
    )


def list_not_protected(findings: Mapping[str, Any]) -> Iterator[PageSection]:
    """What a release gives away by design; it holds no number, and so is for everybody."""
    import pandas as pd  # slow to load

    if found := findings.get("surrogate"):
        table = pd.DataFrame({"not protected": list(found["not_protected"])})
        yield PageSection(
            "What is not protected", "Given away by design, or not promised:", table=table
        )
