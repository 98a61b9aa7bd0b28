"""A scheduler and workers as `deploy/` starts them, and an S3 server, as processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import dask

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.connection import ClusterOptions
from privpipe.cluster.workers.processes import write_configuration

__all__ = ["deployed_cluster", "s3_server"]

PRELOAD = str(Path(__file__).parents[2] / "deploy" / "preload.py")


@contextmanager
def deployed_cluster(folder: Path, workers: int) -> Iterator[ClusterOptions]:
    """Processes behind TLS; Dask of this process knows their certificates meanwhile."""
    make_certificates(folder / "certs")
    config = write_configuration(folder / "certs")
    port = _free_port()
    environment = os.environ | {
        "DASK_CONFIG": str(config),
        "PYTHONPATH": os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH")))),
    }
    address = f"tls://127.0.0.1:{port}"
    scheduler = f"scheduler --host 127.0.0.1 --port {port} --protocol tls"
    worker = f"worker {address} --nworkers {workers} --nthreads 1 --memory-limit 2GiB"
    running = [
        _start(folder, f"{scheduler} --dashboard-address 127.0.0.1:0", environment),
        _start(folder, f"{worker} --no-dashboard --local-directory {folder}/scratch", environment),
    ]
    try:
        _wait(port, running[0])
        # Beside what Dask has by itself, as DASK_CONFIG would be: `set` alone drops the rest.
        theirs = dask.config.merge(dask.config.config, dask.config.collect([str(config)], env={}))
        with dask.config.set(theirs):
            yield ClusterOptions(address=address, wait_seconds=120)
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def _start(folder: Path, words: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words.split(), "--preload", PRELOAD],
            env=environment,
            stdout=log,
            stderr=log,
        )


@contextmanager
def s3_server() -> Iterator[str]:
    """A moto server in a process of its own; the environment says its address meanwhile."""
    port = _free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    names = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        _wait(port, process)
        with patch.dict(os.environ, names):
            yield names["AWS_ENDPOINT_URL"]
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("a process of the benchmark did not start")
