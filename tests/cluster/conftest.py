"""One small cluster for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from privpipe.cluster.workers.connection import ClusterOptions, connect


@pytest.fixture(scope="package")
def client() -> Iterator[Client]:
    """Two workers on this machine, started as the pipeline starts them."""
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        yield client
