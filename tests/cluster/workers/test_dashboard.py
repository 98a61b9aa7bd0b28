"""Dashboards that others could reach: by certificate, or not at all."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import distributed
import pytest
from distributed import Scheduler

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.dashboard import check_dashboard, guard_pages
from privpipe.cluster.workers.processes import write_configuration
from privpipe.errors import ClusterError, OptionError

PRELOAD = Path(__file__).parents[3] / "deploy" / "preload.py"
TLS = "distributed.scheduler.dashboard.tls"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a cluster, and of a stranger beside them."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder / "ours")
    make_certificates(folder / "foreign")
    write_configuration(folder / "ours")
    return folder


def settings(certs: Path) -> dict[str, str]:
    ours = certs / "ours"
    names = {"cert": "scheduler.pem", "key": "scheduler.key", "ca-file": "authority.pem"}
    return {f"{TLS}.{key}": str(ours / name) for key, name in names.items()}


def start(kind: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process as a supervisor would start it."""
    left = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "MALLOC"))}
    command = [sys.executable, "-m", "dask", kind, *arguments, "--preload", str(PRELOAD)]
    return subprocess.Popen(command, env=left | environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def port(certs: Path) -> Iterator[int]:
    """Of the dashboard of a scheduler that listens to other machines, as it is deployed."""
    environment = {"DASK_CONFIG": str(certs / "ours" / "dask.yaml")}
    for name, value in settings(certs).items():
        spelt = name.removeprefix("distributed.").replace(".", "__").replace("-", "_")
        environment[f"DASK_DISTRIBUTED__{spelt.upper()}"] = value
    process = start(
        "scheduler",
        *("--host", "127.0.0.1", "--port", "0", "--protocol", "tls"),
        *("--dashboard-address", "0.0.0.0:0"),
        environment=environment,
    )
    try:
        assert process.stderr is not None
        said, found = "", None
        while found is None and (line := process.stderr.readline()):
            said += line
            found = re.search(r"dashboard at:\s+https://[^:]+:(\d+)", line)
        assert found, said
        for line in process.stderr:
            if "Run preload setup" in line:
                break
        yield int(found[1])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, context: ssl.SSLContext | None, path: str = "/health") -> int:
    """Status of an answer; whatever refuses is an OSError or no answer of HTTP."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def trusting(certs: Path, who: str = "", authority: str = "ours") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certs / authority / "authority.pem")
    if who:
        context.load_cert_chain(certs / f"{who}.pem", certs / f"{who}.key")
    return context


def test_https__answers_who_shows_a_certificate_of_the_authority(port: int, certs: Path) -> None:
    for path in ("/health", "/status", "/privpipe", "/metrics"):
        assert ask(port, trusting(certs, "ours/client"), path) == 200


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(lambda _: ssl.create_default_context(), id="without the authority"),
        pytest.param(lambda c: trusting(c, "foreign/client", "foreign"), id="another authority"),
        pytest.param(lambda c: trusting(c), id="without a certificate"),
        pytest.param(lambda c: trusting(c, "foreign/client"), id="with a foreign certificate"),
        pytest.param(lambda _: None, id="plain http"),
    ],
)
def test_https__refuses_everybody_else(
    port: int, certs: Path, stranger: Callable[[Path], ssl.SSLContext | None]
) -> None:
    """Either side may be the one that refuses: a browser without the authority does so itself."""
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(port, stranger(certs))
    assert ask(port, trusting(certs, "ours/client")) == 200


def open_pages(address: str, **config: str) -> list[int]:
    """Statuses of the pages of a scheduler after it was guarded, by a client of this machine."""

    async def look() -> list[int]:
        options = {"dashboard_address": address, "port": 0, "host": "127.0.0.1"}
        async with Scheduler(dashboard=False, **options) as scheduler:  # type: ignore[no-untyped-call]
            number = scheduler.http_server.port
            try:
                guard_pages(scheduler)
            except ClusterError:
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.to_thread(ask, number, None)
                raise
            return [await asyncio.to_thread(ask, number, None)]

    with dask.config.set(config):
        return asyncio.run(look())


def test_guard__plain_pages_stay_on_this_machine() -> None:
    assert open_pages("127.0.0.1:0") == [200]
    with pytest.raises(ClusterError, match=r"plain http at 0\.0\.0\.0"):
        open_pages("0.0.0.0:0")
    with pytest.raises(ClusterError, match="plain http"):
        open_pages(":0")


def test_guard__https_without_an_authority_is_refused(certs: Path) -> None:
    some = {name: value for name, value in settings(certs).items() if "ca-file" not in name}
    with pytest.raises(ClusterError, match="no authority"):
        open_pages("127.0.0.1:0", **some)


def test_connect__refuses_a_scheduler_that_shows_itself_to_everybody() -> None:
    """One that was started without the preload."""
    with (
        distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="0.0.0.0:0"
        ) as cluster,
        pytest.raises(ClusterError, match="has no login") as refused,
        connect(ClusterOptions(address=cluster.scheduler.address)),
    ):
        pass
    assert refused.value.code == "open-dashboard"


def test_preload__ends_a_process_that_is_refused() -> None:
    """Dask logs what a preload raises and goes on; the worker must not."""
    process = start(
        "worker",
        *("tcp://127.0.0.1:1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"),
        environment={},
    )
    _, said = process.communicate(timeout=120)
    assert process.returncode == ClusterError.exit_code
    assert "error[worker-environment]" in said


def test_check_dashboard__takes_https_with_certificates_only(certs: Path) -> None:
    with pytest.raises(OptionError, match="no cert, no key, no ca-file"):
        check_dashboard("https://0.0.0.0:8787")
    with dask.config.set(settings(certs)):
        check_dashboard("https://0.0.0.0:8787")
        for wrong in ("https://:8787", "https://a,b:1", "https://u@h:1", "https://h", "off:1"):
            with pytest.raises(OptionError):
                check_dashboard(wrong)
        with pytest.raises(OptionError):
            check_dashboard("0.0.0.0:8787")
    check_dashboard("off")


def test_local_cluster__serves_by_certificate_or_not_at_all(certs: Path) -> None:
    with (
        dask.config.set(settings(certs)),
        connect(ClusterOptions(workers=1, dashboard="https://127.0.0.1:0")) as client,
    ):
        link = str(client.dashboard_link)
        assert link.startswith("https://127.0.0.1:")
        host, _, path = link.removeprefix("https://").partition("/")
        number = int(host.rpartition(":")[2])
        assert ask(number, trusting(certs, "ours/client"), f"/{path}") == 200
        assert ask(number, trusting(certs, "ours/client"), "/status") == 404
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(number, trusting(certs), f"/{path}")
    with connect(ClusterOptions(workers=1, dashboard="off")) as client:
        assert not client.dashboard_link
        assert client.run_on_scheduler(_serves_nothing)
        assert client.submit(sum, [1, 2]).result() == 3


def _serves_nothing(dask_scheduler: Scheduler) -> bool:
    return "dashboard" not in dask_scheduler.services
