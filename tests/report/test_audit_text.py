"""The verdict as a run says it and as the page opens with it; names of variables are data."""

from __future__ import annotations

from privpipe.report.audit_text import _verdict, say_verdict


def test_say_verdict__gives_the_reason_and_says_where_there_is_none() -> None:
    found = {"adversaries": {"verdict": "leaks", "reason": "'digit' leaks: boosting on ..."}}
    assert say_verdict(found) == "leaks: 'digit' leaks: boosting on ..."
    assert say_verdict({"adversaries": {"verdict": "unknown"}}).startswith("unknown: no adversary")


def test_verdict__lets_no_name_act_as_markup() -> None:
    reason = "'<script>[a](b)*' is unproven, it was not attacked: too rare."
    page = _verdict({"decisions": [{"reason": reason}]}, "unproven")
    assert page.startswith("**Verdict: unproven**")
    assert r"\<script\>\[a\]\(b\)\*" in page
    assert reason in page.replace("\\", "")
    assert "no adversary" in _verdict({"reason": "no adversary was asked for"}, "unknown")
