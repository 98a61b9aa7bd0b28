"""What another user of this machine finds of a local cluster: closed doors."""

from __future__ import annotations

import ast
import http.client
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import distributed
import psutil
import pytest
from bokeh.client import pull_session
from distributed import Client, Security

from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.dashboard import check_dashboard
from privpipe.errors import OptionError

ATTACK = """
import asyncio, sys
from distributed import Client, Security, connect

async def run_code(address, security):
    async with Client(address, security=security, asynchronous=True, timeout=8) as client:
        return await client.run_on_scheduler(lambda: "code ran")

async def ask(address, security):
    arguments = security.get_connection_args("client")
    arguments.pop("require_encryption", None)
    comm = await connect(address, timeout=8, **arguments)
    await comm.write({"op": "identity", "reply": True})
    return "answered with " + str(await comm.read())

async def outcome(attempt):
    try:
        return await asyncio.wait_for(attempt, 10)
    except BaseException as error:
        return type(error).__name__

async def attack(address):
    plain, closed = "tcp://" + address, "tls://" + address
    attempts = [ask(plain, Security()), ask(closed, Security.temporary())]
    attempts += [run_code(plain, None), run_code(closed, Security.temporary())]
    return await asyncio.gather(*map(outcome, attempts))

async def main():
    found = await asyncio.gather(*map(attack, sys.argv[1:]))
    for address, outcomes in zip(sys.argv[1:], found):
        print(address, outcomes, flush=True)
    import os
    os._exit(0)  # clients that never connected may wait long for their end

asyncio.run(main())
"""


def doors(client: Client) -> list[tuple[int, tuple[str, int]]]:
    """Everything that this process and its children listen on for the cluster."""
    workers = client.run(lambda dask_worker: dask_worker.address)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [
        (process.pid, tuple(door.laddr))
        for process in family
        for door in process.net_connections(kind="inet")
        if door.status == psutil.CONN_LISTEN
    ]
    assert len(workers) == 2
    return found  # type: ignore[return-value]


@pytest.mark.slow
def test_connect__nobody_without_the_certificate_reaches_any_process(client: Client) -> None:
    """As a process of its own, which knows all ports and nothing else."""
    addresses = [f"{host}:{port}" for _, (host, port) in doors(client)]
    assert len(addresses) >= 6  # scheduler, its pages, two nannies, two workers
    assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", ATTACK, *addresses],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    results = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(results) == set(addresses)
    for outcome in results.values():
        assert all("Error" in kind for kind in ast.literal_eval(outcome)), outcome


def test_connect__a_certificate_is_asked_for(client: Client) -> None:
    """TLS without any certificate: the handshake may end, but nothing is answered."""
    address = urlsplit(client.scheduler.address)
    try:
        answered = _talk((str(address.hostname), int(address.port or 0)))
    except OSError:  # as ssl.SSLError is
        answered = b""
    assert answered == b""


def _talk(address: tuple[str, int]) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, timeout=10) as raw, context.wrap_socket(raw) as wrapped:
        wrapped.sendall(bytes(64))
        return wrapped.recv(1)


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    body = b'{"n": 1}' if method != "GET" else None
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


def routes_of(client: Client) -> set[str]:
    """All paths the scheduler knows, from its own list; with what the prefix is."""
    found = client.run_on_scheduler(_list_routes)
    assert any(path.endswith("/status") for path in found)
    return found  # type: ignore[no-any-return]


def _list_routes(dask_scheduler: Any) -> set[str]:
    application = dask_scheduler.http_application
    found = set()
    for inner in [application, *application.applications]:
        found |= set(getattr(inner, "app_paths", ()))
        waiting = [inner.default_router, inner.wildcard_router]
        for router in waiting:
            for rule in router.rules:
                if hasattr(rule.target, "rules"):
                    waiting.append(rule.target)
                elif hasattr(rule.matcher, "regex"):
                    found.add(re.sub(r"\(.*?\)", "x", rule.matcher.regex.pattern.rstrip("$")))
    return found


MORE = (
    "/", "//", "/status", "/sitemap.json", "/health", "/metrics", "/info/main/workers.html",
    "/info/main/logs.html", "/info/logs.html", "/json/index.html", "/json/counts.json",
    "/api/v1", "/api/v1/retire_workers", "/api/v1/get_workers", "/api/v1/adaptive_target",
    "/eventstream", "/proxy/80/127.0.0.1/", "/statics/css/base.css", "/static/js/bokeh.min.js",
    "/individual-task-stream", "/..", "/%2e%2e/status", "/?x=/status",
)  # fmt: skip


def test_dashboard__without_its_path_nothing_is_there(client: Client) -> None:
    link = urlsplit(client.dashboard_link)
    prefix = link.path.removesuffix("/status")
    root = f"http://{link.netloc}"
    assert len(prefix) > 30
    known = {path.removeprefix(prefix) for path in routes_of(client)}
    wrong = prefix[:-1] + ("y" if prefix.endswith("x") else "x")
    for path in sorted(known | set(MORE)):
        for guess in ("", prefix[:-1], wrong, prefix.lower() + "x", "/x" + prefix):
            for method in ("GET", "POST") if guess == "" else ("GET",):
                status, body = ask(f"{root}{guess}{path}", method)
                assert status == 404, (guess, path)
                assert prefix.strip("/").encode() not in body
                assert b"worker" not in body.lower()
    assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2


def test_dashboard__websockets_and_whole_addresses_are_refused_too(client: Client) -> None:
    link = urlsplit(client.dashboard_link)
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Origin": f"http://{link.netloc}",
    }
    for path in ("/status/ws", "/eventstream", "/individual-task-stream/ws"):
        assert ask(f"http://{link.netloc}{path}", **upgrade)[0] == 404
    connection = http.client.HTTPConnection(link.netloc, timeout=10)
    connection.putrequest("GET", f"http://{link.netloc}/status", skip_host=True)
    connection.putheader("Host", link.netloc)
    connection.endheaders()
    assert connection.getresponse().status == 404
    connection.close()
    with pytest.raises(OSError, match="not valid"):
        pull_session(url=f"http://{link.netloc}/status")


@pytest.mark.slow
def test_dashboard__works_for_its_owner(client: Client) -> None:
    """The printed page, what it loads, the list of workers, and its websocket."""
    link = str(client.dashboard_link)
    status, page = ask(link)
    assert status == 200
    loaded = {
        urljoin(link, found.decode())
        for found in re.findall(rb"""(?:href|src)=["']([^"'#]+)["']""", page)
    }
    ours = {url for url in loaded if urlsplit(url).netloc == urlsplit(link).netloc}
    # The first measures the machine; of the others Dask's own layout fails (KeyError) as soon as
    # tasks of one name depend on tasks of another that were handed over by reference.
    for left_out in ("hardware", "groups", "individual-groups"):
        ours -= {urljoin(link, left_out)}
    assert any(urlsplit(url).path.endswith(".js") for url in ours)
    answers = {urlsplit(url).path.rpartition("/")[2]: ask(url)[0] for url in ours}
    assert {page: code for page, code in answers.items() if code != 200} == {}
    status, workers = ask(urljoin(link, "info/main/workers.html"))
    assert status == 200
    assert workers.count(b"127.0.0.1") >= 2
    session = pull_session(url=link)
    assert session.document.roots
    session.close()


def test_connect__leaves_no_key_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it runs: the key is in memory, its file lives while it is loaded."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        assert not keys_in(tmp_path)
        assert isinstance(client.security, Security)
        assert "PRIVATE" not in repr(client.security)
    assert not keys_in(tmp_path)


def keys_in(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if b"PRIVATE KEY" in path.read_bytes()]


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:8787", "[::]:8787", "[::1]:8787", ":8787", "8787", "", "192.0.2.7:0", "::", "*:1",
     "127.0.0.1", "127.0.0.1:", "127.0.0.1:eighty", "127.0.0.1:70000", "127.0.0.1:-1",
     "127.0.0.1:80,0.0.0.0:81", "0.0.0.0:81,127.0.0.1:80", "localhost.example.org:8787",
     "http://127.0.0.1:8787", socket.gethostname() + ":8787", " 127.0.0.1:8787", "127.1:80"],
)  # fmt: skip
def test_check_dashboard__refuses_what_others_reach(address: str) -> None:
    with pytest.raises(OptionError, match=r"\[cluster\] dashboard = .* is refused") as caught:
        check_dashboard(address)
    assert "127.0.0.1:8787" in (caught.value.remedy or "")
    with pytest.raises(OptionError), connect(ClusterOptions(dashboard=address)):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:8787", "127.0.0.1:0", "localhost:1", "127.1.2.3:9"])
def test_check_dashboard__takes_this_machine(address: str) -> None:
    check_dashboard(address)


def test_attack__succeeds_on_a_cluster_as_dask_starts_it() -> None:
    """The attack is one: it runs code in a scheduler without certificates."""
    with distributed.LocalCluster(
        n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1"
    ) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", ATTACK, cluster.scheduler.address.removeprefix("tcp://")],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    assert "code ran" in done.stdout
