"""The report on a release that another tool made: the same first screen, a table of all attacks."""

from collections.abc import Mapping
from typing import Any

from privpipe.report.audit_text import read_texts, say
from privpipe.report.drawings import IntervalRow, draw_intervals
from privpipe.report.page import FirstScreen, PageSection
from privpipe.report.tables import Rows, format_limits, format_number

WORDS: Mapping[str, str] = read_texts("words.yaml")["unaligned"]


def say_unaligned(report: Any) -> str:
    """The verdict in at most 15 words."""
    return f"{WORDS[report.verdict]}."


def describe_attacks(report: Any) -> list[dict[str, str]]:
    """A row for each attack, the worst first."""
    return [
        {
            "attack": f"{one.attack} {one.column}".strip(),
            "verdict": one.verdict,
            "members": format_number(one.members),
            "controls": format_number(one.controls),
            "excess": format_limits(one.members - one.controls, one.lower, one.upper),
            "allowed": format_number(one.allowed),
        }
        for one in sorted(report.attacks, key=lambda a: (list(WORDS).index(a.verdict), -a.lower))
    ]


def screen_unaligned(report: Any, retained: Rows) -> tuple[FirstScreen, list[PageSection]]:
    """First screen and sections of the page."""
    rows = [
        IntervalRow(f"{a.attack} {a.column}".strip(), "of-release", excess, a.lower, a.upper)
        for a, excess in ((one, one.members - one.controls) for one in report.attacks)
    ]
    screen = FirstScreen(
        say_unaligned(report),
        say("unaligned_released", report=report),
        say("unaligned", report=report)
        if report.verdict == "safe"
        else "No one: do not rely on it.",
        (
            *(f"{name}: not in the release; what else reveals it." for name in report.unread),
            *(
                f"{name}: keys of persons, or row numbers of two tables?"
                for name in report.undecided
            ),
            "Columns of the release that no column of the raw records is like.",
            "What the whole population has in common, which controls reveal as well.",
            "This release together with others.",
        ),
        draw_intervals(rows, allowed=None, description="Excess on members over controls."),
    )
    text = say("unaligned_attacks", report=report)
    sections = [PageSection("All attacks", text, describe_attacks(report))]
    if retained:
        target = [{key: str(value) for key, value in one.items()} for one in retained]
        said = "A model trained on raw or on released rows, judged on the held-out records."
        sections.append(PageSection("What is retained", said, target))
    return screen, sections
