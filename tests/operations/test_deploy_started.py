"""Compose, Kubernetes and units: their processes by their own command lines make a release.

There is no container runtime and no systemd here. Words and variables are read from the files;
ports, folders and names of hosts are those of the test. PostgreSQL is the machine's own, and moto
stands for MinIO. Processes of units start under the filter of system calls of their unit.
"""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.cluster.workers.test_monitoring import read_gauges
from tests.operations.deploy_words import Part, place, read_compose, read_kubernetes, read_units
from tests.operations.whole_cluster import POSTGRES, PROMETHEUS, WholeCluster, wait_for
from tests.operations.whole_runs import check_same, name_of, open_installation, schedule


def count_made(gauges: Path) -> float | None:
    """Releases that were promised and made, as Prometheus reads it."""
    return read_gauges(gauges.read_text()).get(("privpipe_promised_releases", "made"))


READERS: dict[str, Callable[[Path], dict[str, Part]]] = {
    "compose": lambda _: read_compose(),
    "kubernetes": lambda _: read_kubernetes(),
    "systemd": read_units,
}


@pytest.mark.parametrize("kind", READERS)
def test_files__name_each_process_and_no_place_of_the_image_is_left(
    kind: str, tmp_path: Path
) -> None:
    parts = READERS[kind](tmp_path)
    assert {"server", "scheduler", "workers", "runs"} <= set(parts)
    left = re.compile(r"/opt/privpipe|/etc/privpipe|/var/lib/privpipe|\$[({]|0\.0\.0\.0")
    ports = {"server": 1, "scheduler": 2, "dashboard": 3, "prometheus": 4, "exporter": 5}
    for words, given in parts.values():
        texts = [*words, *given.values()]
        assert not left.search(" ".join(place(text, tmp_path, ports, "one") for text in texts))


@pytest.mark.slow
@pytest.mark.skipif(POSTGRES is None, reason="no PostgreSQL")
@pytest.mark.parametrize("kind", READERS)
def test_processes__by_the_command_lines_of_the_files_make_a_release(
    kind: str, tmp_path: Path
) -> None:
    if kind == "systemd" and shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    make = partial(WholeCluster, read=partial(READERS[kind], tmp_path))
    with open_installation(tmp_path, make) as whole:
        started = {name.partition("-")[0] for name in whole.commands} | {"workers"}
        watching = set() if PROMETHEUS else {"prometheus", "exporter", "promises"}
        assert set(whole.parts) - watching <= started, "each part of a file is started"
        at = datetime(2026, 1, 1, tzinfo=UTC)
        assert whole.wait_end(whole.begin("run.toml", at.isoformat()))[0] == "COMPLETED", (
            whole.describe()
        )
        check_same(whole, name_of(at))
        assert b"2 workers" in whole.read_page("privpipe")
        if "promises" in whole.commands:
            schedule(whole, "0 2 * * *", active=True)
            # `deploy` is called where runs are: beside their account.
            account = whole.own["runs"].get(
                "PRIVPIPE_ACCOUNT", whole.environment["PRIVPIPE_ACCOUNT"]
            )
            whole.environment["PRIVPIPE_ACCOUNT"] = account
            whole.command("deploy", "prefect.yaml")
            # It was started before that: compose and Kubernetes ask again each hour.
            whole.kill("promises")
            whole.start("promises")
            gauges = whole.folder / "metrics" / "release.prom"
            wait_for("what is promised", lambda: gauges.exists() and count_made(gauges) is not None)
        if kind == "systemd":  # of its own machine alone; a tunnel leads there
            return
        trusting = ssl.create_default_context(cafile=tmp_path / "certs" / "authority.pem")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"https://127.0.0.1:{whole.ports['dashboard']}/privpipe", verify=trusting)
