"""``privpipe run`` and its parts: the main job, whole or up to a stage."""

from __future__ import annotations

from typing import Any

from privpipe.errors import GateError
from privpipe.pipeline.serving.prefect_home import blaming_prefect, prepare_prefect
from privpipe.report.console import say
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import companion_url, exists


def run_command(
    config: str, until: str = "publish", time: str = "", since: str = ""
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

    Returns
    -------
    results
        What ``run_results.json`` says.
    """
    prepare_prefect()
    # Whatever the metadata says is reported in a moment, before Prefect and a cluster start.
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.pipeline.runs.logical_time import read_time
    from privpipe.pipeline.runs.results import read_results, write_failure
    from privpipe.pipeline.runs.run import Run
    from privpipe.pipeline.runs.trusted_code import confirm_code
    from privpipe.pipeline.stages.check import check_stage
    from privpipe.pipeline.stages.forecast import check_sample
    from privpipe.pipeline.stages.increment_check import Scope, check_growing
    from privpipe.store.access.holding.workspace import read_state

    logical_time = read_time(time) if time else None
    begin = read_time(since) if since else None
    scope = Scope(begin, logical_time)
    options = read_options(config, logical_time)
    confirm_code(options)
    checked: Run | None = None
    try:
        if options.release.incremental:
            check_growing(options)
        else:
            checked = check_stage(options)
            if read_state(options.release.path) is None and not exists(options.release.path):
                # A first run: what a few chunks tell ends it now, not after the cluster started.
                found = check_sample(checked)
                if found.dependence:
                    say(f"features {found.dependence}", stderr=True)
                if found.warning:
                    say(f"gate     {found.warning}", stderr=True)
    except Exception as error:
        write_failure(options.release.path, None, error)
        raise
    from privpipe.flows.release_flow import handing_over, run_pipeline
    from privpipe.pipeline.serving.prefect_server import own_server

    try:
        with blaming_prefect(), own_server(), handing_over(options, checked):
            run_pipeline(config, until, scope.until, scope.since)
    except GateError:
        page = f"{shown(companion_url(options.release.path, 'report'))}/report.html"
        say(f"report   {page}  shows what decided", stderr=True)
        raise
    return read_results(options.release.path)


def resume_command(config: str) -> dict[str, Any]:
    """Go on with an interrupted run.

    Raises
    ------
    OptionError
        If there is none.
    """
    from privpipe.errors import OptionError
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.store.access.holding.workspace import read_state
    from privpipe.store.access.location import shown

    release = read_options(config).release.path
    if read_state(release) is None:
        raise OptionError(
            f"There is no interrupted run of {shown(release)}.",
            remedy="Start one with `privpipe run`.",
            code="nothing-to-resume",
        )
    return run_command(config)
