"""Workers of other versions than the driver's are refused before any work."""

from __future__ import annotations

import pytest
from distributed import Client

from privpipe.cluster.workers import connection
from privpipe.errors import ClusterError


def test_check_versions__names_worker_and_library(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has another one; the workers are processes of their own."""
    connection.check_versions(client)
    real = connection.version
    monkeypatch.setattr(connection, "version", lambda n: "9.9" if n == "zarr" else real(n))
    with pytest.raises(
        ClusterError, match=r"worker tls://\S+ has zarr \S+ instead of 9\.9"
    ) as told:
        connection.check_versions(client)
    assert told.value.code == "versions"
    assert "constraints.txt" in told.value.remedy
