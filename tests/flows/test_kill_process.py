"""SIGKILL of real processes: the flow with its workers, the client alone, the audit half done."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from privpipe.cluster.pass_checkpoints import read_checkpoint
from privpipe.errors import OptionError, StoreError
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.store.access.workspace import hold_workspace, workspace_url
from tests.flows.digits_runs import (
    QUICK,
    RUN,
    assert_same,
    make_options,
    own_prefect,
    pick_workers,
    write_config,
)

pytestmark = pytest.mark.slow


def own_certificate(client: Client, folder: Path) -> dict[str, str]:
    """Dask's settings for another process of the owner, who has the cluster's certificate."""
    names = {"ca-file": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}
    settings = {}
    for name, field in names.items():
        path = folder / f"cluster.{name}"
        path.write_text(getattr(client.security, field))
        role = "" if name == "ca-file" else "CLIENT__"
        key = f"DASK_DISTRIBUTED__COMM__TLS__{role}{name.upper().replace('-', '_')}"
        settings[key] = str(path)
    return settings


class Flow:
    """`privpipe run` as a process of its own, with a Prefect of its own.

    Parameters
    ----------
    folder
        Where its configuration and release are.
    source
        The collection.
    cluster
        Further lines of the ``[cluster]`` section.
    database
        Of Prefect, empty.
    prefect_url
        Of a Prefect server; without one it starts its own.
    """

    def __init__(
        self, folder: Path, source: Path, cluster: str, database: Path, prefect_url: str = ""
    ) -> None:
        self.release = folder / "release.zarr"
        self.work = Path(workspace_url(str(self.release)))
        self.config = folder / "run.toml"
        audit = f"adversaries = {json.dumps(QUICK)}"
        write_config(self.config, str(source), str(self.release), audit=audit, cluster=cluster)
        self.environment = own_prefect(
            str(folder / "prefect"), None if prefect_url else database, prefect_url
        )
        self.family: list[psutil.Process] = []
        self.workers: list[psutil.Process] = []
        self.servers: list[psutil.Process] = []

    def stop_when(self, reached: Callable[[Path], bool]) -> subprocess.Popen[bytes]:
        """Start it and hold it (SIGSTOP) as soon as its workspace has reached a point."""
        process = subprocess.Popen(
            [*RUN, str(self.config)], env=self.environment, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while not reached(self.work):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        self.family = psutil.Process(process.pid).children(recursive=True)
        self.workers = pick_workers(self.family)
        self.servers += filter(_is_server, self.family)
        return process

    def finish(self) -> str:
        """Run it to its end; what it said."""
        done = subprocess.run(
            [*RUN, str(self.config)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def run_id(self) -> str:
        return str(json.loads((self.work / "state.json").read_text())["run_id"])

    def end(self) -> None:
        """Remove what a killed flow left, such as Prefect's server."""
        for process in self.family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue


@pytest.fixture
def start(source: Path, tmp_path: Path, prefect_home: Path) -> Iterator[Callable[..., Flow]]:
    flows: list[Flow] = []

    def make(cluster: str, prefect_url: str = "") -> Flow:
        flows.append(Flow(tmp_path, source, cluster, prefect_home, prefect_url))
        return flows[-1]

    yield make
    for flow in flows:
        flow.end()


def first_receipts(work: Path) -> bool:
    return any(work.glob("ledger/*.json"))


def outcomes_of(work: Path) -> list[Path]:
    return sorted(work.glob("kept/*-found"))


def test_run__killed_busy_refused_and_resumed_and_killed_in_the_audit(
    start: Any, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """SIGKILL of the flow at half time, and of the next one in its audit; the third ends.

    The lock dies with each, nothing is visible before, and what was found is not sought again.
    """
    flow = start("workers = 2")
    process = flow.stop_when(first_receipts)
    busy = _is_busy(str(flow.release))
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert busy
    assert not flow.release.exists()
    with pytest.raises(OptionError, match="another configuration"):
        begin_or_resume(check_stage(_other(source, tmp_path)))
    run_id = flow.run_id()
    assert len(flow.workers) == 2
    _, alive = psutil.wait_procs(flow.workers, timeout=30)
    assert not alive  # no worker outlives its flow
    assert len(flow.servers) == 1
    assert not psutil.wait_procs(flow.servers, timeout=30)[1]  # nor its server
    first_family = flow.family
    process = flow.stop_when(lambda work: len(outcomes_of(work)) >= 3)
    flow.family += first_family
    assert flow.run_id() == run_id  # it went on
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert not flow.release.exists()
    kept = [read_checkpoint(str(flow.work / "kept"), file.name) for file in outcomes_of(flow.work)]
    assert f"resume   run {run_id}" in flow.finish()
    assert_same(flow.release, undisturbed)
    assert len(flow.servers) == 2
    assert not psutil.wait_procs(flow.servers, timeout=30)[1]
    report = json.loads((flow.release.parent / "release.report" / "audit.json").read_text())
    rows = report["adversaries"]["table"]
    seconds = {(row["source"], row["adversary"], row["target"]): row["seconds"] for row in rows}
    for outcome in kept:  # another run of an attack takes another time
        attack = outcome.attack
        assert seconds[attack.source, attack.adversary, attack.target] == outcome.seconds


def test_run__a_client_killed_alone_leaves_a_cluster_that_the_next_one_uses(
    start: Any, client: Client, undisturbed: Path, tmp_path: Path, prefect_url: str
) -> None:
    """The cluster lives on elsewhere, with the dead client's tasks; nothing is done twice."""
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    flow = start(f'address = "{client.scheduler.address}"', prefect_url)
    flow.environment |= own_certificate(client, tmp_path)
    process = flow.stop_when(first_receipts)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert not flow.release.exists()
    run_id = flow.run_id()
    assert f"resume   run {run_id}" in flow.finish()
    assert set(client.scheduler_info(n_workers=-1)["workers"]) == workers
    assert_same(flow.release, undisturbed)


def _is_server(process: psutil.Process) -> bool:
    try:
        return "prefect.server.api.server:create_app" in process.cmdline()
    except psutil.Error:
        return False


def _other(source: Path, folder: Path) -> RunOptions:
    return make_options(source, folder, include=["zero"])


def _is_busy(url: str) -> bool:
    try:
        with hold_workspace(url):
            return False
    except StoreError as error:
        return error.code == "busy"
