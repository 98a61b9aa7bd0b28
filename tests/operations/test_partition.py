"""Two hosts, as network namespaces, whose network fails and comes back.

Needs root and iproute2, and minutes: runs where PRIVPIPE_TEST_PARTITION is set. One host is this
one; the other has a namespace of its own, and both share a file system.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.processes import write_configuration
from tests.operations.whole_cluster import ROOT, wait_for
from tests.store.serial_run import read_tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "PRIVPIPE_TEST_PARTITION" not in os.environ, reason="PRIVPIPE_TEST_PARTITION"
    ),
]

HERE, THERE, PORT = "10.177.0.1", "10.177.0.2", 18786

CONFIG = """
[collection]
path = "records.zarr"
desired = ["wanted"]
confidential = ["secret"]
[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01
[release]
path = "{name}.zarr"
[cluster]
{cluster}
[audit]
holdout = 0.4
adversaries = []
[gate]
enforce = false
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """This host and another one, with a line between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"privpipe{os.getpid()}"
        self.line = f"pp{os.getpid() % 10**6}"
        self.running: list[subprocess.Popen[bytes]] = []
        ip("netns", "add", self.name)
        ip("link", "add", self.line, "type", "veth", "peer", "name", "far", "netns", self.name)
        ip("addr", "add", f"{HERE}/30", "dev", self.line)
        for words in ("addr add 10.177.0.2/30 dev far", "link set far up", "link set lo up"):
            ip("-n", self.name, *words.split())
        self.heal()
        make_certificates(folder / "certs", (HERE, THERE))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DASK"))}
        self.environment = kept | {
            "DASK_CONFIG": str(write_configuration(folder / "certs")),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
            "DO_NOT_TRACK": "1",
        }

    def cut(self) -> None:
        """No packet goes through."""
        ip("link", "set", self.line, "down")

    def heal(self) -> None:
        ip("link", "set", self.line, "up")

    def start(self, words: str, *, there: bool = False) -> subprocess.Popen[bytes]:
        """A command on one of the hosts."""
        where = ["ip", "netns", "exec", self.name] if there else []
        program, *rest = words.split()
        command = [*where, str(Path(sys.executable).with_name(program)), *rest]
        with open(self.folder / "log", "ab") as log:
            started = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(started)
        return started

    def scheduler(self, *, there: bool = False) -> None:
        host = THERE if there else HERE
        self.start(
            f"dask scheduler --host {host} --port {PORT} --protocol tls "
            f"--dashboard-address 127.0.0.1:0 --preload {ROOT}/deploy/preload.py",
            there=there,
        )

    def worker(self, scheduler: str, *, there: bool = False) -> subprocess.Popen[bytes]:
        host = THERE if there else HERE
        return self.start(
            f"dask worker tls://{scheduler}:{PORT} --host {host} --nworkers 1 --nthreads 1 "
            "--memory-limit 1GiB --no-dashboard "
            f"--local-directory scratch-{host} --preload {ROOT}/deploy/preload.py",
            there=there,
        )

    def run(self, name: str, cluster: str) -> subprocess.Popen[bytes]:
        """The command, on this host."""
        path = self.folder / f"{name}.toml"
        path.write_text(CONFIG.format(name=name, cluster=cluster))
        return self.start(f"privpipe run {path.name}")

    def wait_cleaning(self, name: str) -> None:
        chunks = self.folder / f".{name}.zarr.privpipe" / "release" / "features" / "c"
        wait_for("chunks", lambda: len(list(chunks.glob("*/*"))) >= 5, 150)

    def close(self) -> None:
        for process in self.running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
        ip("netns", "del", self.name)
        subprocess.run(["ip", "link", "del", self.line], check=False, capture_output=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    try:
        random = np.random.default_rng(5)
        x = random.normal(size=(4_000, 5))
        np.savez(
            tmp_path / "records.npz",
            x=x,
            wanted=x @ [1.0, -1.0, 0.5, 0.0, 0.0] + random.normal(size=4_000) / 10,
            secret=(x @ [0.0, 1.0, 1.0, -1.0, 0.3] > 0).astype(np.int8),
        )
        ingest = (
            "privpipe ingest records.npz records.zarr --features x "
            "--labels wanted,secret --categorical secret --chunk-mib 0.0003"
        )
        assert found.start(ingest).wait(120) == 0, (tmp_path / "log").read_text()[-2000:]
        assert found.run("reference", "workers = 0").wait(180) == 0
        yield found
    finally:
        found.close()


def read_records(folder: Path, name: str) -> dict[str, bytes]:
    """The chunks and receipts of a release; its root holds run and times."""
    tree = read_tree(folder / f"{name}.zarr")
    return {key: value for key, value in tree.items() if key != "zarr.json"}


def test_partition__of_a_host_of_workers_costs_time_alone(hosts: Hosts) -> None:
    """Its worker is given up, its chunks go to the other; healed, a supervisor starts it again."""
    hosts.scheduler()
    hosts.worker(HERE)
    far = hosts.worker(HERE, there=True)
    run = hosts.run("release", f'address = "tls://{HERE}:{PORT}"')
    hosts.wait_cleaning("release")
    hosts.cut()
    time.sleep(45)
    hosts.heal()
    if far.poll() is not None:
        hosts.worker(HERE, there=True)
    assert run.wait(150) == 0, (hosts.folder / "log").read_text()[-3000:]
    wanted = read_records(hosts.folder, "reference")
    assert len(wanted) > 100
    assert read_records(hosts.folder, "release") == wanted


def test_partition__from_the_scheduler_ends_the_run_and_the_next_goes_on(hosts: Hosts) -> None:
    hosts.scheduler(there=True)
    hosts.worker(THERE, there=True)
    hosts.worker(THERE, there=True)
    cluster = f'address = "tls://{THERE}:{PORT}"'
    run = hosts.run("release", cluster)
    hosts.wait_cleaning("release")
    hosts.cut()
    assert run.wait(150) == 5  # ClusterError
    said = (hosts.folder / "log").read_text()
    assert "error[scheduler-lost]" in said or "error[task-lost]" in said
    assert not (hosts.folder / "release.zarr").exists()
    assert list((hosts.folder / ".release.zarr.privpipe" / "ledger").iterdir())
    hosts.heal()
    assert hosts.run("release", cluster).wait(150) == 0
    assert read_records(hosts.folder, "release") == read_records(hosts.folder, "reference")
