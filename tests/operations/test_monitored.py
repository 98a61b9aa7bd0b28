"""Prometheus itself watches a scheduler that is started as `deploy/compose.yaml` says.

Command lines, settings, scrape and rules are those of the files, with ports and folders of the test
and shorter waits. The programs are of Debian's package prometheus (`make prometheus`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from distributed import Client
from distributed.security import Security

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.processes import write_configuration
from privpipe.cluster.workers.progress import PROMISED, RELEASED, ShowProgress
from tests.operations.test_alerts import ROOT, RUN, TOOLS
from tests.operations.whole_cluster import free_port, wait_for

DEPLOY = ROOT / "deploy"
PROMETHEUS = shutil.which("prometheus") or shutil.which("prometheus", path=TOOLS)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROMETHEUS is None, reason="make prometheus")]


class Watched:
    """Scheduler, workers and Prometheus of compose.yaml, as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in ("8786", "8787", "9090")}
        make_certificates(folder / "certs")
        self.dask_config = write_configuration(folder / "certs")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        alerts = re.sub(r"for: \d+[mh]", "for: 1s", (DEPLOY / "alerts.yaml").read_text())
        (folder / "alerts.yaml").write_text(alerts)
        config = self.place((DEPLOY / "prometheus.yaml").read_text()).replace("15s", "1s")
        (folder / "prometheus.yaml").write_text(config)
        self.services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    def place(self, text: str) -> str:
        """With the test's ports and folders; nothing beyond this machine is listened at."""
        for name, port in self.ports.items():
            text = re.sub(rf"\b{name}\b", str(port), text)
        for given, here in (
            ("/opt/privpipe/deploy", str(DEPLOY)),
            ("/etc/privpipe/certs", str(self.folder / "certs")),
            ("/etc/prometheus", str(self.folder)),
            ("=/prometheus", f"={self.folder}/stored"),
            ("/var/lib/privpipe", str(self.folder)),
            ("0.0.0.0", "127.0.0.1"),
            ("scheduler:", "127.0.0.1:"),
        ):
            text = text.replace(given, here)
        return text

    def start(self, name: str) -> None:
        service = self.services[name]
        words = shlex.split(self.place(service["command"]))
        if name == "prometheus":
            words = [
                str(PROMETHEUS),
                *words,
                f"--web.listen-address=127.0.0.1:{self.ports['9090']}",
            ]
        own = {k: v for k, v in os.environ.items() if not k.startswith("DASK")}
        own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        given = {k: self.place(v) for k, v in (service.get("environment") or {}).items()}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                env={**own, **given, "DASK_CONFIG": str(self.dask_config)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def query(self, expression: str) -> list[dict[str, str]]:
        """Labels of the series that there are now."""
        url = f"http://127.0.0.1:{self.ports['9090']}/api/v1/query"
        try:
            found = httpx.get(url, params={"query": expression}, timeout=10).json()
        except (httpx.HTTPError, ValueError):
            return []
        return [one["metric"] for one in found.get("data", {}).get("result", ())]

    def list_firing(self) -> set[str]:
        return {one["alertname"] for one in self.query('ALERTS{alertstate="firing"}')}


def read_panels() -> list[tuple[str, str]]:
    """Titles and expressions of Grafana's boards and of KEDA, of the run that is shown.

    What `privpipe gaps` and a gate write is on no scheduler here.
    """
    scaled = yaml.safe_load((DEPLOY / "kubernetes" / "scaling.yaml").read_text())["spec"]
    found = [("scaling", str(scaled["triggers"][0]["metadata"]["query"]))]
    for path in sorted((DEPLOY / "grafana" / "boards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$run", RUN.run)
                if not any(name in expression for name in (PROMISED, RELEASED)):
                    found.append((f"{path.stem}: {panel['title']}", expression))
    return found


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    try:
        for name in ("scheduler", "workers", "prometheus"):
            found.start(name)
        yield found
    finally:
        for name in list(found.processes):
            found.kill(name)


def test_compose__is_watched_by_certificate_and_its_accidents_are_noticed(watched: Watched) -> None:
    wait_for("a scrape", lambda: watched.query('up{job="privpipe"} == 1'), 90)
    wait_for("workers", lambda: watched.query("sum(dask_scheduler_workers) == 2"), 90)
    pages = f"https://127.0.0.1:{watched.ports['8787']}"
    trusting = ssl.create_default_context(cafile=watched.folder / "certs" / "authority.pem")
    with pytest.raises(httpx.HTTPError):  # without the certificate of a client
        httpx.get(f"{pages}/privpipe", verify=trusting)
    trusting.load_cert_chain(
        *(watched.folder / "certs" / f"client.{end}" for end in ("pem", "key"))
    )
    assert httpx.get(f"{pages}/privpipe", verify=trusting).status_code == httpx.codes.OK
    certs = watched.folder / "certs"
    security = Security(
        tls_ca_file=str(certs / "authority.pem"),
        tls_client_cert=str(certs / "client.pem"),
        tls_client_key=str(certs / "client.key"),
        require_encryption=True,
    )
    address = f"tls://127.0.0.1:{watched.ports['8786']}"
    with Client(address, security=security, set_as_default=False) as client:
        client.register_plugin(ShowProgress())
        DaskExecutor(client, RUN.run).show(RUN)
        [seen] = wait_for("the run", lambda: watched.query("privpipe_run_state"), 30)
    assert (seen["release"], seen["run"], seen["state"]) == ("people.zarr", "0badcafe", "running")
    for title, expression in read_panels():
        wait_for(title, lambda asked=expression: watched.query(asked), 30)
    assert watched.list_firing() == set()
    # The driver is gone without a word; then the workers, then the scheduler.
    wait_for("silent", lambda: watched.list_firing() == {"PrivpipeSilent"}, 120)
    watched.kill("workers")
    wait_for("no workers", lambda: "PrivpipeNoWorkers" in watched.list_firing(), 90)
    watched.kill("scheduler")
    wait_for("no scheduler", lambda: "PrivpipeNoScheduler" in watched.list_firing(), 90)
