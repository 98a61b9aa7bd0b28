"""``privpipe run``: the main job from a configuration file."""

from __future__ import annotations

from flows.prefect_home import prepare_prefect

__all__ = ["run_command"]


def run_command(config: str) -> None:
    """Check the file, then run the flow with an in-process Prefect unless a server is set."""
    prepare_prefect()
    # Whatever the metadata tells is told in a moment, before Prefect and a cluster start.
    from flows.check import check_stage
    from flows.options import read_options

    check_stage(read_options(config))
    from flows.pipeline import run_pipeline

    run_pipeline(config)
