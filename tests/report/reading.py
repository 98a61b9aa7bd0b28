"""The reading test: ten statements about a release, answered from its first screen alone.

``python -m tests.report.reading AUDIT.json`` prints each with the answer that the values of the
audit give and the one that a reader finds. The reader is literal: it knows what the cues are, sees
the words of the first screen and the numbers of its picture, and nothing else.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privpipe.report.release_page import render_release_page

Findings = dict[str, Any]


@dataclass(frozen=True)
class Statement:
    """What is said, whether it is true by the values, and what a reader finds (None: nothing)."""

    said: str
    is_true: Callable[[Findings], bool]
    find: Callable[[str], bool | None]


def read_first_screen(page: str) -> str:
    """The words before the details, with the descriptions of pictures."""
    body = page.partition("<body>")[2].partition("<h2>What was judged, and how")[0]
    body = re.sub(r'aria-label="([^"]*)"', r">\1<", body)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def _by_cues(true: str, false: str) -> Callable[[str], bool | None]:
    """Whether one of two cues is there; both or neither answer nothing."""

    def find(text: str) -> bool | None:
        found = bool(re.search(true, text)), bool(re.search(false, text))
        return None if found[0] == found[1] else found[0]

    return find


def _mark(text: str, role: str, view: str) -> float | None:
    found = re.search(rf"{role} [^:;]*: {view} (-?[\d.e-]+)", text)
    return float(found[1].rstrip(".")) if found else None


def _compare(
    one: tuple[str, str], other: tuple[str, str], apart: float
) -> Callable[[str], bool | None]:
    """Whether the first mark of the picture is so far right of the second."""

    def find(text: str) -> bool | None:
        values = [_mark(text, *which) for which in (one, other)]
        return None if None in values else bool(values[0] - values[1] > apart)  # type: ignore[operator]

    return find


def _decision(findings: Findings) -> dict[str, Any]:
    ranked = sorted(findings["adversaries"]["decisions"], key=lambda one: -one["gain_upper"])
    found: dict[str, Any] = ranked[0]
    return found


def _share(findings: Findings, view: str) -> float:
    [one, *_] = findings["utility"].values()
    return float((one[view]["estimate"] - one["guess"]) / (1 - one["guess"]))


def _is_linkable(findings: Findings) -> bool:
    """By the figures; what was not measured counts as linkable."""
    if (found := findings["attacks"].get("linkage", {})).get("status") != "measured":
        return True
    tops = [one["top_1"] for one in found["report"]["attacks"]]
    upper, lower = max((one["upper"], one["lower"]) for one in tops)
    chance = found["report"]["chance_1"]
    return bool(upper >= 0.05 and (lower > chance or upper > 2 * chance))


STATEMENTS = (
    Statement(
        "The audit says that what is confidential stays within the limits.",
        lambda f: bool(f["adversaries"]["verdict"] == "safe"),
        _by_cues(r"stays? within the limits", r"Leaks|Unproven|Unknown|Not protected:"),
    ),
    Statement(
        "It is safe by limits as strict as usual.",
        lambda f: f["adversaries"]["verdict"] == "safe" and not f["gate"].get("weaker"),
        _by_cues(r"\bSafe\s?:", r"weaker limits|Leaks|Unproven|Unknown|Not protected:"),
    ),
    Statement(
        "Whoever holds the raw records may find many of them again.",
        _is_linkable,
        _by_cues(r"Linkable:|was not measured: take", r"finds few of them again"),
    ),
    Statement(
        "The release predicts the confidential variable less well than the raw records do.",
        lambda f: bool(_decision(f)["control_advantage"] > _decision(f)["advantage"]),
        _compare(("confidential", "raw"), ("confidential", "released"), 0.0),
    ),
    Statement(
        "The prediction of the target loses more than a tenth of the way to certainty.",
        lambda f: _share(f, "raw") - _share(f, "released") > 0.1,
        _compare(("target", "raw"), ("target", "released"), 0.1),
    ),
    Statement(
        "The release reveals more of the confidential variable than the target alone does.",
        lambda f: bool(_decision(f)["advantage"] > _decision(f)["wanted_advantage"]),
        _compare(("confidential", "released"), ("confidential", "by target"), 0.0),
    ),
    Statement(
        "Variables that no one named are protected as well.",
        lambda f: False,
        _by_cues(r"protects all", r"not protected.*Variables that were not named"),
    ),
    Statement(
        "More than a thousand records are released.",
        lambda f: bool(f["release"]["n_records"] > 1000),
        lambda text: (
            None
            if (found := re.search(r"Released ([\d,]+) records", text)) is None
            else int(found[1].replace(",", "")) > 1000
        ),
    ),
    Statement(
        "The verdict covers readers who hold the raw records.",
        lambda f: False,
        _by_cues(r"Readers with the raw", r"Readers without the raw records|No one: do not rely"),
    ),
    Statement(
        "The release hides the target.",
        lambda f: False,
        _by_cues(r"hides the target", r"the release is meant to reveal it"),
    ),
)


def answer_all(findings: Findings) -> list[tuple[str, bool, bool | None]]:
    """Each statement, its truth, and what a reader of the first screen says."""
    text = read_first_screen(render_release_page(findings))
    return [(one.said, one.is_true(findings), one.find(text)) for one in STATEMENTS]


def main(audit: str) -> None:
    """Print them, and how many are right."""
    rows = answer_all(json.loads(Path(audit).read_text()))
    for said, true, found in rows:
        print(f"{said}  true: {true}  read: {found}")
    print(f"{sum(true == found for _, true, found in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main(sys.argv[1])
