"""The officer's page: one sheet of 18 fields about a release, as HTML and as data.

For those who decide whether data may leave the house. What a run knows it fills in; what only the
controller knows is read from ``[about]``; the rest is marked. The fields and what they say are in
``templates/officer_sheet.yaml``. The three risks of fields 9 to 11 are those of WP216. That is
Opinion 05/2014 of the Article 29 Working Party.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any

from privpipe.report import audit_text, first_screen, page, release_sections, tables
from privpipe.report.audit_text import Findings, fill, read_texts, sentences

YOURS = "yours to write"
"""What is said where neither the run nor ``[about]`` knows."""

MOST_LISTED = 20
"""Groups and variables that a field lists."""

NOT_COVERED = "not measured by this run"


def describe_sheet(findings: Findings) -> dict[str, Any]:
    """The sheet as data.

    Returns
    -------
    sheet
        - ``fields``: number, title, maps_to, and entries with name, value and who filled it ("run",
          "controller", "yours to write", or "no one").
        - ``filled_by_run``: share of the fields in which the run filled something.
        - ``missing``: keys of ``[about]`` that say nothing.
    """
    found = [
        {"number": number, "title": one["title"], "maps_to": one["maps_to"]}
        | {"entries": [_fill(name, says, findings) for name, says in one["entries"].items()]}
        for number, one in enumerate(read_texts("officer_sheet.yaml"), start=1)
    ]
    by_run = sum(any(entry["by"] == "run" for entry in one["entries"]) for one in found)
    return {
        "verdict": first_screen.say_line(findings),
        "fields": found,
        "filled_by_run": round(by_run / len(found), 3),
        "missing": audit_text.list_unwritten(findings.get("declared") or {}),
    }


def render_officer_page(findings: Findings, *, version: str = "") -> str:
    """The sheet as HTML, to be printed.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.
    version
        Version of the package, for the footer.
    """
    sheet = describe_sheet(findings)
    rows = [
        {
            "field": "" if position else f"{one['number']}. {one['title']}",
            "item": entry["name"],
            "entry": entry["value"],
            "by": entry["by"].partition(" ")[0],
        }
        for one in sheet["fields"]
        for position, entry in enumerate(one["entries"])
    ]
    serves = [{"field": one["title"], "serves": one["maps_to"]} for one in sheet["fields"]]
    return page.render_page(
        "For the data-protection officer",
        [
            page.PageSection("The 18 fields", "", rows),
            page.PageSection("What each field serves", "", serves, folded=True),
        ],
        verdict=findings["adversaries"]["verdict"],
        verdict_text=sheet["verdict"].partition(": ")[2],
        verdict_name=sheet["verdict"].partition(":")[0],
        facts={"Yours to write, in [about]": ", ".join(sheet["missing"]) or "nothing"},
        version=version,
    )


def _fill(name: str, source: Mapping[str, str], findings: Findings) -> dict[str, str]:
    """One line and who filled it."""
    if key := source.get("declared"):
        value = (findings.get("declared") or {}).get(key, "")
        hint = f"{YOURS}: {audit_text.ABOUT[key]}"
        return {"name": name, "value": value or hint, "by": "controller" if value else YOURS}
    parts = {key: findings.get(key) or {} for key in ("about", "parameters", "gate")}
    adversaries = findings["adversaries"]
    value = fill(source["found"], parts | {"findings": findings, "adversaries": adversaries})
    # What a run could know and this one did not measure is no one's to write, and not filled.
    return {"name": name, "value": value or NOT_COVERED, "by": "run" if value else "no one"}


def _find_most_exposed(findings: Findings) -> Mapping[str, Any] | None:
    """The attack on the release that claims the most records rightly at few false claims."""
    table = findings["adversaries"].get("table") or ()
    rates = [row for row in table if str(row["score"]).startswith("tpr")]
    rows = [row for row in rates if row["status"] == "measured"]
    mine = [row for row in rows if row["source"] not in release_sections.COMPARED]
    return max(mine, key=lambda row: row["gain_upper"] or 0.0, default=None)


def _find_cost(findings: Findings) -> str:
    """What the adversaries took; a row per score names the seconds of its attack again."""
    of = ("target", "source", "adversary")
    table = findings["adversaries"].get("table") or ()
    spent = {tuple(row[key] for key in of): row.get("seconds") or 0.0 for row in table}
    if not spent:
        return ""
    total, longest = (tables.format_number(found(spent.values())) for found in (sum, max))
    return f"{len(spent)} attacks took {total} seconds in all, the longest {longest}. "


def _round_up(value: float) -> str:
    """Three digits of a number that is said to be the most."""
    return str(Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(value).normalize())


sentences().globals.update(
    round_up=_round_up,
    find_cost=_find_cost,
    audit_text=audit_text,
    first_screen=first_screen,
    tables=tables,
    find_most_exposed=_find_most_exposed,
    MOST_LISTED=MOST_LISTED,
)
