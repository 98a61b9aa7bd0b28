"""The verdict as a run says it and as the Markdown opens with it; names of variables are data."""

from __future__ import annotations

from privpipe.report.audit_text import say_verdict
from privpipe.report.page import PageSection, render_markdown, unescape_markdown


def test_say_verdict__gives_the_reason_and_says_where_there_is_none() -> None:
    found = {"adversaries": {"verdict": "leaks", "reason": "'digit' leaks: boosting on ..."}}
    assert say_verdict(found) == "leaks: 'digit' leaks: boosting on ..."
    assert say_verdict({"adversaries": {"verdict": "unknown"}}).startswith("unknown: no adversary")


def test_markdown__lets_no_name_act_as_markup() -> None:
    reason = "'<script>[a](b)*' is unproven, it was not attacked: too rare."
    page = render_markdown(
        "Audit", [PageSection("<b>", reason)], verdict=f"unproven: {reason}", facts={"run": "a_b"}
    )
    assert page.startswith("# Audit\n\n**unproven: ")
    assert r"\<script\>\[a\]\(b\)\*" in page
    assert r"## \<b\>" in page
    assert reason in unescape_markdown(page)
    assert "a_b" in unescape_markdown(page)
