"""What a header says of an audit: verdicts and limits, no count of a few records."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from privpipe.pipeline.stages.report_writing import _say_guarantee
from privpipe.protocols import Guarantee
from privpipe.report.audit_text import say_gate
from privpipe.report.published_findings import hide_small_count, publish_findings, publish_guarantee
from privpipe.report.release_page import render_public_page, write_audit_markdown

LEAKS = "'secret' leaks: boosted trees claim 2/4501 records rightly."


def make_findings(**gate: Any) -> dict[str, Any]:
    decision = {
        "target": "secret",
        "verdict": "leaks",
        "reason": LEAKS,
        "gain_upper": 0.0004443457,
        "allowed": 0.01,
        "estimate": 0.0004443457,
    }
    return {
        "format_version": 1,
        "about": {"method": "leace", "guarantee": "none", "run": "01234567"},
        "basis": "Judged on the released records.",
        "n_records": 4501,
        "n_groups": None,
        "adversaries": {
            "verdict": "leaks",
            "reason": LEAKS,
            "decisions": [decision],
            "n_records": 4501,
            "n_seen": 2,
            "table": [{"target": "secret", "count": 2}],
        },
        "desired": {"wanted": {"raw": {"accuracy": 0.9973339}}},
        "confidential": {"secret": {"raw": {"accuracy": 0.50022217}}},
        "privacy": {"released": {"e_privacy": 0.25}},
        "gate": {
            "state": "not gated",
            "sentence": LEAKS,
            "ways_out": LEAKS,
            "complaints": [
                {"code": "leaks", "reason": LEAKS},
                {"code": "difference", "reason": "the release leace 01234567"},
            ],
            "limits": {"exposed_max": 0.01},
            "weaker": ["must_find 1 (usually 0.3)"],
            "approval": None,
            **gate,
        },
    }


def test_publish__leaves_out_every_number_of_few_records() -> None:
    published = publish_findings(make_findings())
    told = json.dumps(published)
    for number in ("4501", "2/", "0.00044", "0.9973", "0.5002", "01234567", "n_seen", "table"):
        assert number not in told
    assert set(published) == {
        "format_version", "about", "basis", "adversaries", "desired", "gate"
    }  # fmt: skip
    gate = published["gate"]
    assert gate["sentence"].startswith("The gate stays closed. 'secret' leaks.")
    assert gate["sentence"].endswith("Beyond its limits: difference.")
    assert gate["weaker"] == ["must_find 1 (usually 0.3)"]
    assert published["adversaries"]["decisions"][0]["allowed"] == 0.01
    text = write_audit_markdown(published)
    assert "secret" in text
    assert "4501" not in text
    assert "not gated" in say_gate(published)


@pytest.mark.parametrize("state", ["passed", "not gated"])
def test_publish__of_an_open_gate_says_what_was_weaker(state: str) -> None:
    gate = publish_findings(make_findings(state=state, complaints=[]))["gate"]
    assert gate["sentence"].startswith("The gate is open: every limit holds. Weaker than usual")


def test_publish__rounds_a_limit_as_the_page_does_and_never_down() -> None:
    findings = make_findings()
    decision = findings["adversaries"]["decisions"][0]
    for upper, allowed in ((0.251, 0.35), (0.251, 0.252), (0.0004, 0.01)):
        decision |= {"gain_upper": upper, "allowed": allowed}
        [said] = publish_findings(findings)["adversaries"]["decisions"]
        assert upper <= said["gain_upper"] <= allowed
        page = render_public_page(findings | {"n_records": 4501})
        assert f">{said['gain_upper']:g}<" in page.replace("\n", "").replace(" ", "")


def test_hide_small_count__shows_none_and_many() -> None:
    assert [hide_small_count(n) for n in (None, 0, 1, 9, 10)] == [None, 0, None, None, 10]


def test_publish_guarantee__says_what_the_page_says_and_never_less() -> None:
    numbers = (("plug_in", 0.1234564), ("leak_at_most", 0.1234564), ("grid", 2.0**-21))
    for number in (0.1234561, 1 / 3, 10.0, 3.0000001):
        promise = Guarantee(
            "local_dp",
            number,
            "nats",
            "every record",
            "A theorem",
            "",
            1e-31 / 3,
            "record",
            numbers,
        )
        published = publish_guarantee(promise)
        assert number <= published["number"] <= number * (1 + 1e-5)
        assert published["delta"] >= promise.delta
        parts = dict(published["parameters"])
        assert parts == {"plug_in": 0.123456, "leak_at_most": 0.123457, "grid": 2.0**-21}
        said = set(map(float, re.findall(r"\d[\d.e+-]*\d|\d", _say_guarantee(promise))))
        assert {published["number"], published["delta"], 0.123456, 0.123457, 4.76837e-07} <= said
