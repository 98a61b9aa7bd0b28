"""One local cluster for all tests of the distribution layer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from privpipe.dist.cluster import ClusterOptions, connect


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A client of two workers."""
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        yield client
