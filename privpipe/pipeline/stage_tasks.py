"""The stages as tasks of Prefect within a flow run, and as plain calls elsewhere.

Inside a stage chunks are futures of Dask, never tasks of Prefect. Exceptions are ours.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

from distributed import span
from prefect import artifacts, settings, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.cluster.workers.progress import Progress
from privpipe.pipeline.operations.prefect_server import notify_prefect
from privpipe.pipeline.runs.run import Cleaned, Run
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages import check, clean, diagnosis, publish, train
from privpipe.pipeline.stages.audit.audit_stage import audit_stage
from privpipe.pipeline.stages.gate import check_gated, gate_stage
from privpipe.store.access.location import shown

R = TypeVar("R")


class Held:
    """Hides a value: Prefect neither walks through nor stores what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Held(...)"


def as_task(function: Callable[..., R], name: str) -> Callable[..., R]:
    """A stage as a Prefect task: no cache, no stored result, sealed errors."""

    def stage(*held: Held) -> Held:
        return Held(run_sealed(function, *(item.value for item in held)))

    # By default Prefect hashes inputs for its cache, and ours hold opened collections.
    wrapped = task(name=name, cache_policy=NO_CACHE, persist_result=False)(stage)

    def call(*args: Any) -> R:
        # The name is the group of the stage's tasks on Dask's dashboard.
        with span(name):
            if FlowRunContext.get() is None:
                return function(*args)
            return cast(R, wrapped(*map(Held, args)).value)

    return call


def _in_flow() -> bool:
    """Whether Prefect runs this, as a flow or as one of its tasks, where it shows no flow."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def pass_gate(
    run: Run, cleaned: Cleaned, findings: Mapping[str, Any], enforced: bool, watch: Watch
) -> dict[str, Any]:
    """Judge the findings, and stop a run whose gate stays closed.

    Raises
    ------
    GateError
        With the sentence of the gate, where it is `enforced`.
    """
    if watch.now.link:  # for operators: what is published of an audit leaves it out
        findings = {**findings, "about": {**findings["about"], "prefect run": watch.now.link}}
    judged = gate_stage(run, cleaned, findings, diagnosis.lead_out)
    # Reported before a closed gate ends the run: automations wait for refusals.
    report_gate(run.run_id, judged["gate"])
    watch.judge(str(judged["gate"]["state"]))
    if enforced:
        if judged["gate"]["state"] == "failed":  # why, where whoever is called looks first
            report_summary(run.report_url, judged)
        check_gated(judged)
    return judged


def report_gate(run_id: str, gate: Mapping[str, Any]) -> None:
    """The event that automations wait for; nothing outside a flow."""
    if _in_flow():
        resource = {"prefect.resource.id": f"privpipe.run.{run_id}"}
        said = {"state": gate["state"], "sentence": gate["sentence"]}
        notify_prefect(emit_event, event="privpipe.gate", resource=resource, payload=said)


SOON: Any = {settings.PREFECT_API_REQUEST_TIMEOUT: 5, settings.PREFECT_CLIENT_MAX_RETRIES: 0}
"""For a beat: a server that hangs must not make a run silent to others."""


def open_bar(release_url: str) -> Callable[[Progress], object]:
    """What moves the bar that Prefect's page of the run shows; it does nothing outside a flow.

    The bar is made here, where Prefect knows the run; whoever moves it may be another thread.
    """
    name = release_url.rstrip("/").rpartition("/")[2]
    make = artifacts.create_progress_artifact
    if not (bar := _in_flow() and notify_prefect(make, 0.0, "privpipe-progress", name)):
        return id

    def move(now: Progress) -> None:
        moved = ArtifactUpdate(data=now.percent, description=f"{name}: {now.state}, {now.stage}")
        brief = settings.temporary_settings(SOON)
        with suppress(Exception), brief, get_client(sync_client=True) as client:
            client.update_artifact(bar, moved)  # Prefect's own function leaves its client open

    return move


def report_summary(report_url: str, findings: Mapping[str, Any]) -> None:
    """The Markdown that Prefect's page of the run shows; nothing outside a flow."""
    if not _in_flow():
        return
    from privpipe.report.release_page import write_audit_markdown  # templates are slow to load

    # Names of groups are values of records: they stay in the report.
    said = write_audit_markdown({**findings, "groups": None})
    page = f"Report: {shown(report_url)}/report.html\n\n{said}"
    notify_prefect(artifacts.create_markdown_artifact, page, key="privpipe-summary")


check_task = as_task(check.check_stage, "check")
prove_task = as_task(train.prove_sources, "prove")
train_task = as_task(train.train_stage, "train")
clean_task = as_task(clean.clean_stage, "clean")
audit_task = as_task(audit_stage, "audit")
gate_task = as_task(pass_gate, "gate")
publish_task = as_task(publish.publish_stage, "publish")
