"""``privpipe run`` and its parts: the main job, whole or up to a stage."""

from __future__ import annotations

from flows.prefect_home import prepare_prefect

__all__ = ["resume_command", "run_command"]


def run_command(config: str, until: str = "publish") -> None:
    """Check the file, then run the flow with an in-process Prefect unless a server is set."""
    prepare_prefect()
    # Whatever the metadata tells is told in a moment, before Prefect and a cluster start.
    from flows.check import check_stage
    from flows.options import read_options

    check_stage(read_options(config))
    from flows.pipeline import run_pipeline

    run_pipeline(config, until)


def resume_command(config: str) -> None:
    """Go on with an interrupted run.

    Raises
    ------
    OptionError
        If there is none.
    """
    from flows.options import read_options
    from privpipe.errors import OptionError
    from privpipe.store.location import shown
    from privpipe.store.workspace import read_state

    release = read_options(config).release.path
    if read_state(release) is None:
        raise OptionError(
            f"There is no interrupted run of {shown(release)}.",
            remedy="Start one with `privpipe run`.",
            code="nothing-to-resume",
        )
    run_command(config)
