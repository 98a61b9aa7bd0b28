"""Given to `dask scheduler --preload` and `dask worker --preload`: private files, no core dumps."""

from __future__ import annotations

from typing import Any

from privpipe.cluster.workers.dashboard import add_page, prepare_server

add_page()  # before the scheduler serves its pages


def dask_setup(server: Any) -> None:
    """Called by Dask before the scheduler or worker serves."""
    prepare_server(server)
