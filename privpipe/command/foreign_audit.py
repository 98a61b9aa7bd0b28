"""``privpipe audit RAW RELEASED``: a release that another tool made, attacked without any order."""

import json
from importlib.metadata import version
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats import unaligned_release
from privpipe.attacks.threats.unaligned_release import draw_rows, measure_retained_target
from privpipe.errors import GateError, OptionError
from privpipe.protocols import Names
from privpipe.report.console import say, tabulate
from privpipe.report.page import render_page
from privpipe.report.unaligned_sections import describe_attacks, say_unaligned, screen_unaligned
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import write_file
from privpipe.store.sources.plain_tables import read_table

MOST_KNOWN = 15_000
"""Members, and controls, that are looked up: enough to show the usual limits."""


def audit_foreign(
    raw: str, released: str, *, holdout: str, desired: Names, confidential: Names, subject: str = ""
) -> dict[str, Any]:
    """Attack the release, write report and page beside it, and hold it to the usual limits.

    Raises
    ------
    OptionError
        If no holdout is given, or no table has a column that is named.
    GateError
        If a limit is exceeded, or is not shown to hold.
    """
    if not holdout:
        problem = "Without records that the release was not made from, no attack can be judged."
        remedy = "Keep some records out before the release is made; give them by --holdout."
        raise OptionError(problem, remedy=remedy, code="no-holdout")
    members, controls = (draw_rows(read_table(url), MOST_KNOWN) for url in (raw, holdout))
    for name in (*desired, *confidential, *([subject] if subject else [])):
        if name not in members or name not in controls:
            problem = f"There is no column {name!r} in the raw records and the holdout."
            remedy = f"They have: {', '.join(map(str, members))}."
            raise OptionError(problem, remedy=remedy, code="no-column")
    usual = AttackOptions()
    limits = usual.max_exposed, usual.max_advantage
    how: dict[str, Any] = {"confidential": confidential, "subject": subject, "level": usual.level}
    report = unaligned_release.attack_unaligned(
        members, controls, lambda: read_table(released), limits=limits, **how
    )
    sample = draw_rows(read_table(released), unaligned_release.MOST_SAMPLED)
    retained = [measure_retained_target(members, sample, controls, name) for name in desired]
    folder = f"{released.rstrip('/')}.audit"
    findings = json.loads(report.to_json()) | {"format_version": 1, "target": retained}
    screen, sections = screen_unaligned(report, retained)
    about: dict[str, Any] = {"verdict": report.verdict, "version": version("privpipe")}
    page = render_page("Release of another tool", sections, screen=screen, **about)
    write_file(join(folder, "audit.json"), json.dumps(findings, indent=1))
    write_file(join(folder, "report.html"), page)
    say(say_unaligned(report), sections[0].text, tabulate(describe_attacks(report)))
    say(f"report   {shown(join(folder, 'report.html'))}")
    if report.verdict != "safe":
        hint = ""
        if report.undecided:
            hint = f"Drop what are row numbers: {', '.join(report.undecided)}. "
        if report.uncompared:
            named = ", ".join(report.uncompared)
            hint += f"Give {named} in RAW and in --holdout as released, or release without. "
        raise GateError(
            say_unaligned(report),
            remedy=f"{hint}See {shown(folder)}/report.html. A release "
            "of other records, with more noise or fewer columns, may pass; unproven needs more "
            "records in RAW and --holdout.",
            code="foreign-release",
        )
    return {"verdict": report.verdict, "report": shown(folder)}
