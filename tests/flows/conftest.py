"""Prefect with a home and database of its own, and one cluster, for tests of this room."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.pipeline.operations.prefect_server import SETTINGS
from tests.flows.digits_runs import copy_database, release_undisturbed, write_source


@pytest.fixture(scope="package")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary home and server; patient, because a busy machine starts it slowly.

    Returns a copy of its database, empty, for homes that a test's own processes use.
    """
    empty = tmp_path_factory.mktemp("prefect") / "prefect.db"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        from prefect.settings import get_current_settings
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=600):
            url = get_current_settings().server.database.connection_url
            path = url.get_secret_value().removeprefix("sqlite+aiosqlite:///")
            copy_database(Path(path), empty)
            yield empty


@pytest.fixture(scope="module", autouse=True)
def _prefect_of_slow_tests(request: pytest.FixtureRequest) -> None:
    """Slow tests run flows; of the others those that name `prefect_home` or `prefect_url`.

    A server takes nine seconds of a processor, in every process that runs a test of it.
    """
    chosen = (item for item in request.session.items if item.path == request.path)
    if any(item.get_closest_marker("slow") for item in chosen):
        request.getfixturevalue("prefect_home")


@pytest.fixture(scope="package")
def prefect_url(prefect_home: Path) -> str:
    """Of that server, for processes whose own server is not what is looked at."""
    from prefect.settings import get_current_settings

    return str(get_current_settings().api.url)


@pytest.fixture(scope="package", autouse=True)
def ungated() -> Iterator[None]:
    """Runs of hundreds of records, which no gate lets pass; what tests of the gate set back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVPIPE_GATE__ENFORCE", "false")
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection of `digits_runs`; not to be changed."""
    path = tmp_path_factory.mktemp("digits") / "digits.zarr"
    write_source(path)
    return path


@pytest.fixture
def source(digits: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(digits, tmp_path / "digits.zarr"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two workers, for one module: some tests kill or change them."""
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        yield client


@pytest.fixture(scope="session")
def undisturbed(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of the digits when nothing happens."""
    return release_undisturbed(digits, tmp_path_factory.mktemp("undisturbed"))
