"""A home for keys; places where nothing is renamed or locked: in memory, a bucket of our own."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import fsspec.asyn
import pytest
from zarr.core.sync import sync as zarr_sync

from tests.store.fault_proxy import FaultProxy, run_proxy


@pytest.fixture
def keys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for release keys, not made yet."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "deep" / "keys"))
    return tmp_path / "deep" / "keys"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server of our own on the loopback."""
    with _serve_moto() as host, _use(f"http://{host}"):
        yield _make_bucket()


@pytest.fixture(scope="module", params=["moto", "other"])
def faulty_bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, FaultProxy]]:
    """A bucket behind a proxy that does as it is told, of two servers (see `serve_other`)."""
    if request.param == "moto":
        server = _serve_moto()
    elif "PRIVPIPE_TEST_S3" not in os.environ:
        pytest.skip("PRIVPIPE_TEST_S3 names no second server")
    else:
        server = serve_other(os.environ["PRIVPIPE_TEST_S3"], tmp_path_factory.mktemp("s3"))
    with server as host, run_proxy(host) as proxy, _use(proxy.url):
        yield _make_bucket(), proxy


@contextmanager
def serve_other(command: str, folder: Path) -> Iterator[str]:
    """Another S3 server, by a command that says {port} and {folder}; its ``host:port``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word.format(port=port, folder=folder) for word in shlex.split(command)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _serve_moto() -> Iterator[str]:
    """Its S3 alone: for all services each request would look through the list of them, twice."""
    application = pytest.importorskip("moto.moto_server.werkzeug_app")
    from moto.server import MotoRequestHandler
    from werkzeug.serving import make_server

    class Silent(MotoRequestHandler):
        def log_request(self, *_: object) -> None:
            """Nobody reads it."""

    served = application.create_backend_app("s3")
    running = make_server("127.0.0.1", 0, served, threaded=True, request_handler=Silent)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


@contextmanager
def _use(endpoint: str) -> Iterator[None]:
    """Make s3fs speak to a server, with few attempts of its own: a test waits for each."""
    pytest.importorskip("s3fs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "S3RVER")  # what s3rver knows; others take any
        patch.setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        _close_sessions()
        yield
        _close_sessions()


def _make_bucket() -> str:
    name = f"releases-{uuid.uuid4().hex}"  # moto's buckets outlive its server
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


def _close_sessions() -> None:
    """s3fs leaves its sessions open; a warning when they are collected would fail some test."""
    from s3fs import S3FileSystem

    for file_system in list(S3FileSystem._cache.values()):
        if file_system._s3 is None:
            continue
        if file_system.asynchronous:
            zarr_sync(file_system._s3.close())
        else:
            fsspec.asyn.sync(file_system.loop, file_system._s3.close)
    S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """A new folder in memory or in the bucket."""
    name = uuid.uuid4().hex
    if request.param == "memory":
        return f"memory://{name}"
    return f"{request.getfixturevalue('bucket')}/{name}"
