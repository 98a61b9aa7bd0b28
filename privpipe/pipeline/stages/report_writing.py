"""The report of a run: what was judged, for operators and for everybody."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import yaml

from privpipe.pipeline.runs.run import Run, Trained, list_versions
from privpipe.promises import CHARGED, MEANINGLESS, say_nats, say_odds
from privpipe.protocols import Guarantee
from privpipe.report.published_findings import name_proof, say_parameter, say_promised
from privpipe.store.access import location, objects
from privpipe.store.collections.growing_collection import count_gaps


def write_report(run: Run, findings: Mapping[str, Any]) -> None:
    """Write the audit beside the release-to-be; it holds whether or not that is published."""
    content = json.dumps(findings, indent=1)
    objects.drop_unfinished(run.report_url)  # of runs that were killed
    objects.write_file(location.join(run.report_url, "audit.json"), content)
    # From what is stored, as who renders them again does: tuples are lists there.
    write_pages(run.report_url, json.loads(content))


def write_pages(report_url: str, findings: Mapping[str, Any]) -> None:
    """Render ``audit.md`` and ``report.html`` for operators, ``public.html`` for everybody.

    ``officer.html``, ``.json`` and ``.yaml`` are the sheet for who decides.
    """
    from privpipe.report import officer_page, release_page  # templates are slow to load

    made_by, sheet = version("privpipe"), officer_page.describe_sheet(findings)
    pages = {
        "audit.md": release_page.write_audit_markdown(findings),
        "report.html": release_page.render_release_page(findings, version=made_by),
        "public.html": release_page.render_public_page(findings, version=made_by),
        "officer.html": officer_page.render_officer_page(findings, version=made_by),
        "officer.json": json.dumps(sheet, indent=1, ensure_ascii=False),
        "officer.yaml": yaml.safe_dump(sheet, sort_keys=False, allow_unicode=True, width=100),
    }
    for name, page in pages.items():
        objects.write_file(location.join(report_url, name), page)


def describe_run(run: Run, trained: Trained) -> dict[str, str]:
    """What an audit is of, for its report: no path, no value of a record."""
    return {
        "method": f"{run.method.name} ({run.method.source})",
        _name_promise(trained.guarantee): _say_guarantee(trained.guarantee),
        **name_proof(trained.guarantee),
        "run": run.run_id,
        "started": run.state.started,
        "source": run.collection.digest,
        "model": trained.model_digest,
        "versions": ", ".join(f"{name} {number}" for name, number in list_versions().items()),
    }


def describe_parameters(run: Run) -> dict[str, Any]:
    """What a user chose, for the officer's sheet: no path, no value of a record."""
    chosen = asdict(run.options.method)
    # Tables of a method are values of its own kind, and too long for a sheet; files are places.
    plain = {name: v for name, v in chosen.items() if isinstance(v, str | int | float)}
    return {
        "method": {name: v for name, v in plain.items() if "module" not in name and v != ""},
        "subject": run.options.collection.subject,
        "records_per_subject": run.options.privacy.records_per_subject,
        "gaps": [run.options.release.nonfinite, *count_gaps(run.collection.url)],
    }


def _name_promise(guarantee: Guarantee) -> str:
    """The heading of what is promised; a promise that means nothing has none."""
    means_nothing = guarantee.kind in CHARGED and not (guarantee.number or 0) < MEANINGLESS
    return "noise" if means_nothing else "guarantee"


def _say_guarantee(guarantee: Guarantee) -> str:
    """A guarantee in a line, without what says nothing."""
    number = "" if guarantee.number is None else f" {say_promised(guarantee.number)}"
    promised = guarantee.kind != "none"
    say = {**dict.fromkeys(CHARGED, say_odds), "information_bound": say_nats}.get(guarantee.kind)
    parts = [
        guarantee.statement or ("" if promised else "no promise for single records"),
        f"{guarantee.kind}{number} {guarantee.unit}".strip() if promised else "",
        "" if say is None else say(guarantee.number or 0),
        guarantee.scope if promised else "",
        guarantee.theorem,
        guarantee.assumptions,
        f"delta {say_promised(guarantee.delta)}" if guarantee.delta else "",
        f"protects {guarantee.protects}" if promised else "",
        ", ".join(f"{name} {say_parameter(name, value)}" for name, value in guarantee.parameters),
    ]
    return "; ".join(filter(None, parts))
