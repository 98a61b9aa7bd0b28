"""One Prefect server for all tests of the flows, in a home of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.prefect_home import prepare_prefect


@pytest.fixture(scope="session", autouse=True)
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The home of a Prefect that lives as long as the tests."""
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("prefect")
    patch.setenv("PREFECT_HOME", str(home))
    prepare_prefect()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield str(home)
    patch.undo()
