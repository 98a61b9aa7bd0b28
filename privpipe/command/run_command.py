"""``privpipe run`` and its parts, ``compare``, ``status``, ``approve`` and ``purge``: releases."""

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from tempfile import NamedTemporaryFile
from typing import Any

import fsspec

from privpipe.command import output
from privpipe.errors import GateError, OptionError, StoreError
from privpipe.pipeline.operations.prefect_server import ephemeral_server, prepare_prefect
from privpipe.pipeline.operations.record_removal import end_exchange
from privpipe.pipeline.runs.approval import approve_release
from privpipe.pipeline.runs.configuration_file import find_release, read_options, read_time
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.trusted_code import confirm_code, remember_code
from privpipe.pipeline.runs.watch import Watch, read_results, write_failure
from privpipe.pipeline.stages import check, clean, forecast
from privpipe.pipeline.stages.increment_check import TimeSpan, check_growing
from privpipe.report import audit_text
from privpipe.report.console import say, tabulate
from privpipe.store.access import generation_log, lease, objects, workspace
from privpipe.store.access.location import exists_file, local_path, shown
from privpipe.store.arrays.layout import companion_url, exists, has_root, read_header
from privpipe.store.collections.growing_collection import purge_collection
from privpipe.store.releases import export, incremental_release


def run_command(
    config: str,
    until: str = "publish",
    time: str = "",
    since: str = "",
    *,
    trust: Sequence[str] = (),
    dry_run: bool = False,
    full: bool = False,
) -> dict[str, Any]:
    """Read and check once, then run the flow with an in-process Prefect unless a server is set.

    Parameters
    ----------
    config
        TOML file.
    until
        Last stage.
    time, since
        Logical time of the run, and with `since` the begin of the span that it fills; ISO 8601.
    trust
        SHA-256 of files of code that the configuration names.
    dry_run
        Only say what would be done.
    full
        Run every attack, even after a certain leak; those that were run before are not repeated.

    Returns
    -------
    results
        What ``run_results.json`` says.
    """
    logical_time = read_time(time) if time else None
    if dry_run:
        from privpipe.command.check_command import dry_run_command

        return dry_run_command(config, logical_time)
    # Before anything is read: the digest is compared when the file is.
    remember_code(trust)
    times = TimeSpan(read_time(since) if since else None, logical_time)
    options = read_options(config, logical_time)
    if full and options.release.incremental:
        problem = "--full is for a release of one run; this one grows by partitions."
        remedy = "Leave it out: the first leak of a part ends its audit."
        raise OptionError(problem, remedy=remedy, code="audit-options")
    # Code of the user's is confirmed before anything imports it.
    confirm_code(options)
    watch, checked, release = Watch(), None, options.release.path
    # Whatever the metadata says is reported in a moment, before Prefect and a cluster start.
    try:
        if options.release.incremental:
            check_growing(options)
        else:
            with watch.checking(options):
                checked = replace(check.check_stage(options), whole_audit=full)
            if workspace.read_state(release) is None and not exists(release):
                # A first run: what a few chunks show ends it now, not after the cluster started.
                found = forecast.check_sample(checked)
                for name, sentence in (("features", found.dependence), ("gate", found.warning)):
                    if sentence:
                        say(f"{name:8s} {sentence}", stderr=True)
    except Exception as error:
        # Also of a run that never began: who scheduled it reads the results.
        write_failure(release, None, error)
        raise
    return run_flow((options, watch, checked), config, until, times)


def run_flow(
    ready: tuple[RunOptions, Watch, Run | None], config: str, until: str, times: TimeSpan
) -> dict[str, Any]:
    """Run the flow of what was read and checked; `config` is what Prefect shows."""
    prepare_prefect()  # Prefect reads its settings when it is imported
    cluster = ready[0].cluster
    if cluster.kind == "local" and cluster.address is None and cluster.workers != 0:
        from privpipe.cluster.workers.processes import begin_forking

        begin_forking()
    from privpipe.flows.release_flow import handing_over, run_pipeline

    try:
        # What was checked is handed over: opened again it could be another collection.
        with ephemeral_server(), handing_over(ready):
            run_pipeline(config, until, times.until, times.since)
    except GateError as error:
        page = f"{shown(companion_url(ready[0].release.path, 'report'))}/report.html"
        if error.code != "drift":
            say(f"report   {page}  shows what decided", stderr=True)
        raise
    return read_results(ready[0].release.path)


def apply_command(
    model: str, source: str, dest: str, vouch: Sequence[str] = (), *, stdout: bool = False
) -> dict[str, Any]:
    """Clean the next file with a stored model; called again it does what is missing, or nothing.

    With `stdout` all messages go to stderr, and the exported file to stdout as well.
    """
    is_whole = dest.rstrip("/").endswith(".zarr")
    if stdout and is_whole:
        raise OptionError("--stdout needs a file.", remedy="Name a .csv or .parquet file as DEST.")
    release = dest if is_whole else f"{dest.rpartition('.')[0]}.zarr"
    _ = is_whole or export.is_folder(dest)  # refuses what cannot be written before anything is done
    prepare_prefect()  # flows import Prefect
    from privpipe.flows.apply_flow import check_application

    with output.talking_on_stderr() if stdout else nullcontext():
        given = _store_stdin(release) if source == "-" else source
        options, checked = check_application(model, given, release, vouch)
        # An earlier call has ended, its file included: a scheduler that calls again is right.
        is_done = exists(release) and exists_file(dest)
        ready, n_written = (options, Watch(), checked), None
        results = run_flow(ready, dest, "publish", TimeSpan())
        if not (is_whole or is_done):
            n_written = export.export_release(release, dest)
            say(f"export   {shown(dest)}: {n_written:,} records")
    if stdout:
        with fsspec.open(dest, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    if source == "-":
        warning = f"keep     {shown(given)} private, or remove it: these are the raw records"
        say(warning, stderr=stdout)
    return {**results, "model": shown(model), "source": shown(given), "exported": n_written}


def _store_stdin(release: str) -> str:
    """Standard input as a private file beside a release, named by its content."""
    stem = local_path(release)
    if stem is None:
        raise OptionError("- reads stdin to a file beside DEST.", remedy="Name a local DEST.")
    first, digest = sys.stdin.buffer.read(2**20), hashlib.sha256()
    with NamedTemporaryFile(dir=os.path.dirname(stem) or ".", delete=False) as file:
        piece = first
        while piece:
            digest.update(piece)
            file.write(piece)
            piece = sys.stdin.buffer.read(2**20)
    kind = "parquet" if first.startswith(b"PAR1") else "csv"
    # Not named as the release is: what is handed over by its name holds no raw record.
    folder, name = os.path.split(stem.removesuffix(".zarr"))
    path = os.path.join(folder, f"raw-{name}.{digest.hexdigest()[:12]}.{kind}")
    # The same file stays: when it was written is part of what it is known by.
    os.unlink(file.name) if os.path.exists(path) else os.rename(file.name, path)
    return path


def resume_command(config: str) -> dict[str, Any]:
    """Resume an interrupted run.

    Raises
    ------
    OptionError
        If there is none.
    """
    release = read_options(config).release.path
    if workspace.read_state(release) is None:
        problem = f"There is no interrupted run of {shown(release)}."
        remedy = "Start one with `privpipe run`."
        raise OptionError(problem, remedy=remedy, code="nothing-to-resume")
    return run_command(config)


NOTED = {"run": "run_id", "stage": "stage", "started": "started", "chunks": "n_chunks"}
"""What `status` repeats of the state of a run, by its own names; None where there is none."""


def status_command(release: str) -> dict[str, Any]:
    """Say how far the run of a release is.

    Raises
    ------
    StoreError, FormatError
        If something else is at the place.
    """
    release = find_release(release)
    state = workspace.read_state(release)
    begun, running = workspace.has_workspace(release), workspace.is_held(release)
    # A first incremental run makes folders before there is anything to read in them. Whatever else
    # is there is no release, and reported as an error.
    there = has_root(release) if begun else exists(release)
    grown = generation_log.newest_kind(release) == "release"
    published = grown or (there and bool(read_header(release, "release")))
    content = {
        "release": shown(release),
        "published": published,
        "running": running,
        "interrupted": begun and not running,
        **{key: getattr(state, name, None) for key, name in NOTED.items()},
        "chunks_done": clean.read_progress(release, state.run_id) if state else None,
    }
    at_gate = state is not None and state.stage == "gate"
    how = "refused by the gate, or interrupted there" if at_gate else "interrupted"
    how = "running" if running else f"{how}; `privpipe run` resumes it"
    if running and local_path(release) is None:
        # Of a lease only its end is known: of one that was killed that comes later.
        whole = lease.LEASE_SECONDS
        left = min(lease.find_left(workspace.workspace_url(release)), whole)
        content |= {"heard_seconds_ago": whole - left, "lease_seconds_left": left}
        how = audit_text.say("leased", whole=whole, left=left)
    if state is None:
        said = ["published"] * published + [how] * begun
        say(f"{shown(release)}: {'; '.join(said) or 'nothing here'}")
        return content
    stage = f"stage {state.stage}, {content['chunks_done']} of {state.n_chunks or '?'} chunks"
    say(f"{shown(release)}: {how}. Run {state.run_id}, started {state.started}, {stage}.")
    return content


def approve_command(release: str, name: str, reason: str) -> dict[str, Any]:
    """Approve what the gate of a release refused.

    Raises
    ------
    OptionError, StoreError
        If there is nothing to approve, or a run is writing.
    """
    release = find_release(release)
    approval = approve_release(release, name, reason)
    say(f"approved by {approval['name']}: {approval['reason']}\n{approval['sentence']}")
    say("`privpipe run` publishes it; the approval is stored in the release.")
    return {"release": shown(release), **approval}


def purge_command(release: str) -> dict[str, Any]:
    """Remove what an interrupted run left; a running one and a published release stay.

    Raises
    ------
    StoreError
        If a run is writing, or nothing is at a place that is named.
    """
    given, release = release, find_release(release)
    # An erasure that was killed between two places is ended first: its workspace is not a
    # run's.
    end_exchange(release)
    if purge_collection(release):
        say(f"{shown(release)}: partitions that no generation names removed")
        return {"release": shown(release), "removed": True}
    found = incremental_release.purge_parts(release) | workspace.purge_workspace(release)
    # Of a configuration the release may not be begun yet.
    if not found and given == release and not exists(release) and not objects.list_names(release):
        problem = f"There is nothing at {shown(release)}, and no workspace beside it."
        raise StoreError(problem, remedy="Check the place.", code="not-found")
    what = "workspace removed" if found else "there was no workspace; nothing removed"
    say(f"{shown(release)}: {what}")
    return {"release": shown(release), "removed": found}


def audit_command(
    config: str, released: str, *, full: bool = False, target: Sequence[str], **others: Any
) -> dict[str, Any]:
    """Audit a run, or a release of another tool where one is given; others are its options.

    Raises
    ------
    OptionError
        If options of the one are given for the other.
    """
    if released and not full:
        from privpipe.command.foreign_audit import audit_foreign

        return audit_foreign(config, released, desired=target, **others)
    if released or target or any(others.values()):
        raise OptionError(
            "--target, --confidential, --holdout, --subject are for RELEASED, --full is not.",
            remedy="Give it: privpipe audit RAW RELEASED --holdout OTHERS --confidential NAMES.",
            code="audit-options",
        )
    return run_command(config, until="audit", full=full)


def compare_command(config: str, vary: Sequence[str] = ()) -> dict[str, Any]:
    """Compare the entries of a configuration and show one table.

    Parameters
    ----------
    config
        TOML file.
    vary
        Options of methods with values to compare, as ``utility_budget=0.01,0.1``.
    """
    from privpipe.flows.comparison import compare_collection
    from privpipe.report.comparison_page import tabulate_comparison  # draws: slow to load

    options = read_options(config)
    confirm_code(options)
    comparison = compare_collection(options, Watch(), dict(map(_read_values, vary)))
    place = shown(companion_url(options.release.path, "compare"))
    say(tabulate(tabulate_comparison(comparison)))
    say(f"page     {place}/compare.html\njson     {place}/compare.json\nNothing was published.")
    return {"comparison": comparison, "page": f"{place}/compare.html"}


def _read_values(text: str) -> tuple[str, list[Any]]:
    """An option and its values, which are written as in the configuration.

    >>> _read_values("utility_budget=0.01,0.1"), _read_values('start="zero","rand"')
    (('utility_budget', [0.01, 0.1]), ('start', ['zero', 'rand']))
    """
    key, _, values = text.partition("=")
    try:
        found = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        found = []
    if not found:
        raise OptionError(
            f"--vary {text} names no values.",
            remedy="Write values as in the configuration: --vary utility_budget=0.01,0.1, or "
            '--vary \'start="zero","rand"\'.',
        )
    return key.strip(), found
