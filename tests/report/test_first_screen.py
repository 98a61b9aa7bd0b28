"""The first screen: a line of 15 words, ten statements answered from it, nothing small shown."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from privpipe.report.first_screen import (
    MOST_WORDS,
    is_linkable,
    make_first_screen,
    say_line,
    say_linkage,
)
from privpipe.report.release_page import render_public_page, render_release_page
from tests.report.reading import STATEMENTS, answer_all, read_first_screen

AUDIT = Path(__file__).with_name("audit.json")
"""Of `privpipe demo` with 17,970 records."""


@pytest.fixture
def findings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(AUDIT.read_text())
    return found


def set_linkage(findings: dict[str, Any], estimate: float, lower: float, upper: float) -> None:
    top = {"estimate": estimate, "lower": lower, "upper": upper}
    for one in findings["attacks"]["linkage"]["report"]["attacks"]:
        one["top_1"] |= top


CASES = ("as it is", "linkable", "unmeasured", "leaks", "unproven", "unknown", "useless", "strict")


def change(findings: dict[str, Any], case: str) -> dict[str, Any]:
    found = copy.deepcopy(findings)
    adversaries = found["adversaries"]
    if case in ("leaks", "unproven", "unknown"):
        adversaries["verdict"] = adversaries["decisions"][0]["verdict"] = case
        found["gate"]["state"] = "failed"
    if case == "linkable":
        set_linkage(found, 0.98, 0.97, 0.99)
    if case == "unmeasured":
        found["attacks"]["linkage"] = {"status": "unknown", "reason": "worker"}
    if case == "useless":
        found["utility"]["zero"]["released"] = {"estimate": 0.9, "lower": 0.88, "upper": 0.92}
        adversaries["decisions"][0] |= {"advantage": 0.1, "advantage_lower": 0.0}
    if case == "strict":
        found["gate"]["weaker"] = []
    return found


@pytest.mark.parametrize("case", CASES)
def test_reading__of_the_first_screen_alone_answers_at_least_nine_of_ten(
    findings: dict[str, Any], case: str
) -> None:
    rows = answer_all(change(findings, case))
    assert len(rows) == 10
    wrong = [said for said, true, read in rows if true != read]
    assert len(wrong) <= 1, wrong


def test_reading__can_fail_and_each_statement_that_may_be_false_is_so_somewhere(
    findings: dict[str, Any],
) -> None:
    """A screen of another release answers wrongly; truths follow the values, not the text."""
    truths = [[true for _, true, _ in answer_all(change(findings, case))] for case in CASES]
    n_both = sum({*column} == {True, False} for column in zip(*truths, strict=True))
    assert n_both >= 5
    text = read_first_screen(render_release_page(change(findings, "leaks")))
    linkable = change(findings, "linkable")
    assert sum(one.is_true(linkable) != one.find(text) for one in STATEMENTS) >= 3


@pytest.mark.parametrize("name", ["x", "how often a person smokes", "n" * 200, "<b>", "a:b"])
@pytest.mark.parametrize("n", [1, 40])
def test_line__has_at_most_fifteen_words_whatever_the_names(
    findings: dict[str, Any], name: str, n: int
) -> None:
    for case in CASES:
        found = change(findings, case)
        [one, *_] = found["adversaries"]["decisions"]
        found["adversaries"]["decisions"] = [one | {"target": f"{name}{k}"} for k in range(n)]
        assert len(say_line(found).split()) <= MOST_WORDS, say_line(found)
    found["adversaries"] = {"verdict": "not protected", "decisions": []}
    assert len(say_line(found).split()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("verdict", "targets", "said"),
    [
        ("safe", ("sex", "race"), "2 confidential variables stay within"),
        ("safe", ("sex", "single records"), "'sex' and single records stay within"),
        (
            "unproven",
            ("order", "leace 01234567"),
            "no proof that the release hides 'order' and 1 more",
        ),
        ("unproven", ("order",), "no proof that the release hides 'order'"),
    ],
)
def test_line__counts_as_variables_what_adversaries_guess(
    findings: dict[str, Any], verdict: str, targets: tuple[str, ...], said: str
) -> None:
    decisions = [
        {
            "target": one,
            "verdict": verdict,
            "reason": "-",
            "n_compared": 60 * (one in ("sex", "race")),
        }
        for one in targets
    ]
    findings["adversaries"] |= {"verdict": verdict, "decisions": decisions}
    assert said in say_line(findings)


def test_line__of_a_run_without_adversaries_says_that_none_ran(findings: dict[str, Any]) -> None:
    findings["adversaries"] = {"verdict": "unknown", "decisions": []}
    assert "no adversary ran" in say_line(findings)


@pytest.mark.parametrize(
    ("estimate", "lower", "upper", "linkable"),
    [
        (0.98, 0.97, 0.99, True),
        (0.001, 0.0, 0.004, False),
        (0.04, 0.0, 0.3, True),  # a sample that is too small to say no
        (0.2, 0.1, 0.3, True),
    ],
)
def test_linkable__is_said_unless_it_is_ruled_out(
    findings: dict[str, Any], estimate: float, lower: float, upper: float, linkable: bool
) -> None:
    set_linkage(findings, estimate, lower, upper)
    assert is_linkable(findings) is linkable
    assert ("linkable" in say_line(findings)) is linkable


@pytest.mark.parametrize("n_tried", [None, 0, 1, 2])
def test_linkage__names_what_is_released_as_recorded_only_where_it_was_not_tried(
    findings: dict[str, Any], n_tried: int | None
) -> None:
    findings["release"]["included"] = ["salary", "town"]
    if n_tried is not None:
        findings["attacks"]["linkage"]["report"]["n_included"] = n_tried
    set_linkage(findings, 0.001, 0.0, 0.004)
    is_said = "Not tried: by salary, town, released as recorded." in say_linkage(findings)
    assert is_said is (n_tried != 2)
    set_linkage(findings, 0.98, 0.97, 0.99)
    assert say_linkage(findings).startswith("Linkable: whoever holds the raw records finds them")
    assert "Not tried" not in say_linkage(findings)
    findings["attacks"]["linkage"] = {"status": "unknown", "reason": "worker"}
    assert "Not tried: by salary, town" in say_linkage(findings)


def test_public_first_screen__holds_words_alone(findings: dict[str, Any]) -> None:
    for case in CASES:
        screen = make_first_screen(change(findings, case), public=True)
        assert screen.drawing is None
        assert not re.search(r"\d", " ".join((screen.line, screen.reliance, *screen.exposed)))
        assert "<svg" not in render_public_page(change(findings, case))


def test_first_screen__of_an_audit_of_an_older_version_is_there(findings: dict[str, Any]) -> None:
    del findings["release"], findings["utility"]["zero"]["guess"], findings["attacks"]
    screen = make_first_screen(findings)
    assert "not measured" in screen.exposed[0]
    assert "null_space" in screen.released
    assert "linkability unmeasured" in render_release_page(findings)
