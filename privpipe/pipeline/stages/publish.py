"""The publish stage: model, report, and last of all the release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from importlib.metadata import version
from typing import Any

from privpipe.cluster.events import Event, Listener, ignore
from privpipe.odds import MEANINGLESS, say_odds
from privpipe.pipeline.runs.earlier import note_release
from privpipe.pipeline.runs.resume import check_unchanged
from privpipe.pipeline.runs.run import (
    Run,
    Trained,
    digest_options,
    find_training,
    list_versions,
    now,
)
from privpipe.pipeline.runs.spend import confirm_loss
from privpipe.pipeline.stages.gate import check_gated
from privpipe.pipeline.stages.prove import describe_proof
from privpipe.protocols import Guarantee
from privpipe.report.audit_text import write_audit_markdown
from privpipe.report.pages.published_findings import (
    hide_small_count,
    publish_findings,
    publish_guarantee,
    say_promised,
)
from privpipe.sanitizers.utility_summary import UtilitySummary
from privpipe.store.access.location import drop_unfinished, join
from privpipe.store.access.text import write_file
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.headers import exists
from privpipe.store.keyring.partition_keys import forget_keys
from privpipe.store.models.artifacts import publish_model
from privpipe.store.releases.release import ReleasePlan, publish_release


def publish_stage(
    run: Run,
    trained: Trained,
    plan: ReleasePlan,
    receipts: Mapping[int, Receipt],
    findings: Mapping[str, Any],
    listener: Listener = ignore,
) -> None:
    """Make everything visible; the release itself last, in one step.

    Raises
    ------
    GateError
        If the findings did not pass the gate.
    StoreError
        If the records that were cleaned or judged are no longer those of the start, or the
        release cannot be entered into the register of releases.
    """
    check_gated(findings)
    check_unchanged(run)
    chain = note_release(run, trained.model_digest)
    if exists(run.work_model_url):  # otherwise a run died between this line and the next
        publish_model(run.work_model_url, run.model_url)
    header = _header(run, trained, findings) | _describe_records(run, trained, plan)
    header["account"] = chain.describe()
    header["n_withheld"] = count_withheld(receipts)
    n_objects = plan.chunks.n_chunks * len(plan.arrays)
    listener(Event("publish", "begins", n_objects, "objects"))
    publish_release(
        plan, receipts, header, lambda n: listener(Event("publish", "advances", n, "objects"))
    )
    confirm_loss(run, trained)
    if run.method.forgets_keys:
        forget_keys(run.run_id)
    listener(Event("publish", "ends", unit="objects"))


def merge_utility(receipts: Mapping[int, Receipt]) -> UtilitySummary | None:
    """What cleaning cost all records, from the receipts; None where the map does not measure it."""
    found = [receipt.utility for receipt in receipts.values() if receipt.utility is not None]
    return reduce(lambda left, right: left.merge(right), found) if found else None


def count_withheld(receipts: Mapping[int, Receipt]) -> int | None:
    """Rows that hold nothing, for the header; None where they are few."""
    return hide_small_count(sum(receipt.withheld for receipt in receipts.values()))


def count_unseen(receipts: Mapping[int, Receipt]) -> int | None:
    """Records released as their nearest known profile; None where a map knows no profiles."""
    found = [receipt.unseen for receipt in receipts.values() if receipt.unseen is not None]
    return sum(found) if found else None


def write_report(run: Run, findings: Mapping[str, Any]) -> None:
    """Write the audit beside the release-to-be; it holds whether or not that is published."""
    content = json.dumps(findings, indent=1)
    drop_unfinished(run.report_url)  # of runs that were killed
    write_file(join(run.report_url, "audit.json"), content)
    write_file(join(run.report_url, "audit.md"), write_audit_markdown(findings))
    write_pages(run.report_url, json.loads(content))


def write_pages(report_url: str, findings: Mapping[str, Any]) -> None:
    """Render ``report.html`` for operators and ``public.html`` for everybody."""
    from privpipe.report.pages import release_page  # Matplotlib is slow to load

    pages = {
        "report.html": release_page.render_release_page,
        "public.html": release_page.render_public_page,
    }
    for name, render in pages.items():
        write_file(join(report_url, name), render(findings, version=version("privpipe")))


def describe_run(run: Run, trained: Trained) -> dict[str, str]:
    """What an audit is of, for its report: no path, no value of a record."""
    return {
        "method": f"{run.method.name} ({run.method.source})",
        _name_promise(trained.guarantee): _say_guarantee(trained.guarantee),
        "run": run.run_id,
        "started": run.state.started,
        "source": run.collection.digest,
        "model": trained.model_digest,
        "versions": ", ".join(f"{name} {number}" for name, number in list_versions().items()),
    }


def _describe_records(run: Run, trained: Trained, plan: ReleasePlan) -> dict[str, Any]:
    """What of the source's own description is released, by allow-list; see store/DESIGN.md."""
    schema = run.collection.schema_of_records
    same_features = trained.reads == "features" and (
        trained.keeps_features or plan.basis is not None
    )
    cut = run.options.release.partitions and trained.n_records is None
    partitions = schema.partitions if cut else ()
    return {
        "feature_names": list(trained.feature_names or schema.feature_names)
        if same_features
        else [],
        "partitions": [partition.n_records for partition in partitions],
    }


def _name_promise(guarantee: Guarantee) -> str:
    """The heading of what is promised; a promise that means nothing has none."""
    means_nothing = guarantee.kind == "local_dp" and not (guarantee.number or 0) < MEANINGLESS
    return "noise" if means_nothing else "guarantee"


def _say_guarantee(guarantee: Guarantee) -> str:
    """A guarantee in a line, without what says nothing."""
    number = "" if guarantee.number is None else f" {say_promised(guarantee.number)}"
    promised = guarantee.kind != "none"
    odds = say_odds(guarantee.number or 0) if guarantee.kind == "local_dp" else ""
    parts = [
        guarantee.statement or ("" if promised else "no promise for single records"),
        f"{guarantee.kind}{number} {guarantee.unit}".strip() if promised else "",
        odds,
        guarantee.scope if promised else "",
        guarantee.theorem,
        guarantee.assumptions,
        f"delta {say_promised(guarantee.delta)}" if guarantee.delta else "",
        f"protects {guarantee.protects}" if promised else "",
        ", ".join(f"{name} {value:g}" for name, value in guarantee.parameters),
    ]
    return "; ".join(filter(None, parts))


def _header(run: Run, trained: Trained, findings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": run.method.name,
        "method_source": run.method.source,
        "options": run.method_options(),
        "options_sha256": digest_options(run.options),
        "guarantee": publish_guarantee(trained.guarantee),
        "promise": trained.guarantee.statement or None,
        "source_digest": run.collection.digest,
        "training_digest": find_training(run),
        **describe_proof(run),
        "model_digest": trained.model_digest,
        "versions": list_versions(),
        "started": run.state.started,
        "published": now(),
        "audit": publish_findings(findings),
    }
