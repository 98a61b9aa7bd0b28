"""The main job as a Prefect flow: check, train, clean, audit, gate, publish.

Stages are plain functions wrapped as tasks and called directly; inside them chunks are Dask
futures, never Prefect tasks. Parameters are paths, results are receipts, exceptions are ours.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from prefect import flow

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.cluster.executors.dask_executor import open_executor
from privpipe.cluster.executors.executor import Executor
from privpipe.flows.increment_flow import release_increment
from privpipe.pipeline import stage_tasks
from privpipe.pipeline.operations.prefect_server import outlive_reader
from privpipe.pipeline.runs import resume, spend, tracing, trusted_code
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import Run, cluster_options, find_training
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch, write_failure, write_results
from privpipe.pipeline.stages import clean, gate, train
from privpipe.pipeline.stages.audit.audit_stage import describe_unseen
from privpipe.pipeline.stages.increment_check import TimeSpan
from privpipe.report import audit_text, first_screen
from privpipe.store.access import workspace
from privpipe.store.access.location import shown
from privpipe.store.keyring.keys import forget_keys

EVERYTHING = TimeSpan()

STAGES = ("train", "clean", "audit", "publish")
"""What a run does after its check, in order."""


@flow(name="privpipe", log_prints=False, persist_result=False, validate_parameters=False)
def run_pipeline(
    config_path: str,
    until: str = "publish",
    logical_time: datetime | None = None,
    since: datetime | None = None,
) -> str:
    """Sanitise the collection of a configuration file; returns the path of the release.

    Parameters
    ----------
    config_path
        The configuration.
    until
        Last stage to do; the work so far stays in the workspace, where the next run resumes.
    logical_time
        Fills ``{logical_time}`` in ``[release] path``; an incremental release takes
        partitions up to it.
    since
        First logical time of a backfill.
    """
    if "PREFECT__FLOW_RUN_ID" in os.environ:  # started by a worker, which may die
        outlive_reader()
    given = _HANDED.get() or (read_options(config_path, logical_time), Watch(), None)
    options, watch, checked = given
    times = TimeSpan(since, logical_time)
    return run_sealed(release_collection, options, watch, until, times, checked)


_HANDED = ContextVar[tuple[RunOptions, Watch, Run | None] | None]("handed", default=None)
"""What the command has read and checked before Prefect started. It is no parameter of the flow:
parameters are sent to Prefect's server, and a run holds open collections."""


@contextmanager
def handing_over(ready: tuple[RunOptions, Watch, Run | None]) -> Iterator[None]:
    """Within it the flow takes these in place of reading and checking the file again."""
    token = _HANDED.set(ready)
    try:
        yield
    finally:
        _HANDED.reset(token)


def release_collection(
    options: RunOptions,
    watch: Watch,
    until: str = "publish",
    times: TimeSpan = EVERYTHING,
    checked: Run | None = None,
) -> str:
    """Run, and record how it ended beside the release.

    Parameters
    ----------
    options, watch
    until
        Last stage to do.
    times
        Partitions that an incremental release is made of; a whole one is made of all.
    checked
        What the check stage made of the options, where that was done before.
    """
    name = watch.now.deployment or options.release.path.rstrip("/").rpartition("/")[2]
    watch.move = stage_tasks.open_bar(options.release.path)
    try:
        with (
            tracing.open_span("run", release=name),
            tracing.reporting_lineage(options, name, watch.say),
            watch.beating(options.release.path, options.privacy.most_epsilon),
        ):
            outcome = _begin(options, watch, until, times, checked)
    except BaseException as error:  # Ctrl-C, too, or Prefect cancels the run
        write_failure(options.release.path, watch, error)
        raise
    write_results(options.release.path, watch, outcome)
    return options.release.path


def _begin(given: RunOptions, watch: Watch, until: str, times: TimeSpan, ready: Run | None) -> str:
    trusted_code.confirm_code(given)
    if given.privacy.ephemeral == "refuse":
        fleeting = spend.list_fleeting(given)
        watch.say(*(f"account  {one}: later runs do not know of this one" for one in fleeting))
    if given.release.incremental:
        return release_increment(given, watch, times)
    return _release(given, watch, until, ready)


def _release(options: RunOptions, watch: Watch, until: str, checked: Run | None) -> str:
    """The stages in order. What a stopped run leaves in its workspace the next one resumes."""
    url = options.release.path
    if checked is None:
        with watch.checking(options):
            checked = stage_tasks.check_task(options)
    if resume.is_published(options, checked.collection) and not workspace.has_workspace(url):
        watch.say(f"done     {shown(url)} is already published; nothing to do")
        return "nothing to do"
    with workspace.hold_workspace(url):
        if resume.is_published(options, checked.collection):  # a run that died while it tidied up
            _end_published(options, checked)
            return "nothing to do"
        run, resumed = resume.begin_or_resume(checked)
        watch.run_id = run.run_id
        if resumed:
            watch.say(f"resume   run {run.run_id} of {run.state.started}, stage {run.state.stage}")
        with open_executor(cluster_options(options), run.run_id, watch.hear) as executor:
            watch.say(f"cluster  {executor.describe()}")
            with watch.working(executor), gate.dropping_refused(url):
                findings = _work(run, executor, watch, until)
        if until != "publish" or findings is None:
            watch.say(f"stopped  after {until}; `privpipe run` resumes")
            watch.say(*(say_findings(findings) if findings is not None else ()))
            return "stopped"
        workspace.remove_workspace(url)
    stage_tasks.report_summary(run.report_url, findings)
    watch.say(*say_end(run, findings))
    return "published"


def _end_published(options: RunOptions, checked: Run) -> None:
    """Do what a run that died after its release was visible had still to do."""
    known = workspace.read_state(options.release.path)
    # None where the run died in the middle of removing its workspace: all was confirmed by then.
    if known is not None:
        spend.confirm_loss(checked, known.run_id)
        if checked.options.method.forgets_keys:
            forget_keys(known.run_id)
    workspace.remove_workspace(options.release.path)


def _work(run: Run, executor: Executor, watch: Watch, until: str) -> dict[str, Any] | None:
    """Train, clean, audit, gate and publish; None when stopped before the audit."""
    last = STAGES.index(until)
    if not train.has_receipts(run):
        with watch.stage("prove", "collections without receipts: every byte, once"):
            run = stage_tasks.prove_task(run, executor)
    with watch.stage("train", f"{run.training.n_records:,} records"):
        trained = stage_tasks.train_task(run, executor)
    plan = clean.plan_release(run, trained)
    n_chunks, n = plan.chunks.n_chunks, plan.chunks.n_records
    # Before the first chunk: whoever resumes has to clean the rest by this very model.
    run = resume.begin_stage(run, "clean", model_digest=trained.model_digest, n_chunks=n_chunks)
    if find_training(run) != run.training.digest:
        watch.say(f"model    {audit_text.say('model_again')}")
    if trained.guarantee.statement:
        watch.say(f"promise  {trained.guarantee.statement}")
    if last == 0:
        return None
    with watch.stage("clean", f"{n:,} records in {n_chunks} chunk{'s' * (n_chunks != 1)}"):
        cleaned = stage_tasks.clean_task(run, trained, plan, executor)
    run = resume.begin_stage(run, "audit")
    if (unseen := describe_unseen(run, cleaned)) is not None:
        watch.say(f"         {audit_text.say('unseen', found=unseen)}")
    if last == 1:
        return None
    with watch.stage("audit", "held-out records, attack retrained"):
        findings = stage_tasks.audit_task(run, trained, cleaned, executor)
    if last > 2:
        run = resume.begin_stage(run, "gate")
    with watch.stage("gate", "limits of [gate]"):
        findings = stage_tasks.gate_task(run, cleaned, findings, last > 2, watch)
    if last == 2:
        return findings
    run = resume.begin_stage(run, "publish")
    with watch.stage("publish", shown(run.release_url)):
        stage_tasks.publish_task(run, trained, cleaned, findings, watch.hear)
    watch.publish()
    return findings


def say_findings(findings: Mapping[str, Any]) -> tuple[str, ...]:
    """What was found, in the columns of the stages above it."""
    return (
        f"judged   {audit_text.say('judged', found=findings)}",
        f"gate     {audit_text.say_gate(findings)}",
        f"verdict  {first_screen.say_line(findings)}",
        f"because  {findings['adversaries'].get('reason') or 'no adversary succeeded'}",
    )


def say_end(run: Run, findings: Mapping[str, Any]) -> Iterator[str]:
    """Lines in the columns of the stages above them."""
    report = shown(run.report_url)
    yield f"done     release {shown(run.release_url)}"
    yield from say_findings(findings)
    yield f"open     {report}/report.html  the report, for you: it holds small counts"
    yield f"         {report}/public.html  the report, for everybody"
    yield f"         {shown(run.model_url)}  the model, for records to come; keep it private"
    yield f"next     privpipe open {shown(run.release_url)}"
