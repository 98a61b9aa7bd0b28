"""A home for keys; places where nothing is renamed or locked: in memory, a bucket of our own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import fsspec.asyn
import pytest
from zarr.core.sync import sync as zarr_sync

from privpipe.store.keyring import keys as store_keys


@pytest.fixture
def keys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for release keys, not made yet."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "deep" / "keys"))
    yield tmp_path / "deep" / "keys"
    store_keys._received.clear()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server of our own on the loopback."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.delenv("AWS_PROFILE", raising=False)
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        name = f"releases-{uuid.uuid4().hex}"  # moto's buckets outlive its server
        fsspec.filesystem("s3").mkdir(name)
        yield f"s3://{name}"
        _close_sessions()
        running.stop()


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
