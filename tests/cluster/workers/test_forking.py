"""Workers are forked from one process that has imported what they need, and share nothing else."""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
import stat
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.processes import MODULES, prepare_forking

pytestmark = pytest.mark.skipif(not prepare_forking(), reason="workers are not forked here")


def look(names: list[str]) -> dict[str, Any]:
    """What a worker is, before it has worked."""
    return {
        "parent": os.getppid(),
        "modules": [name in sys.modules for name in names],
        "environment": [os.environ.get(name) for name in ("OMP_NUM_THREADS", "PRIVPIPE_TOLD")],
        "drawn": [np.random.random(), random.random(), secrets.token_hex(8)],  # noqa: NPY002
    }


def test_connect__forks_workers_that_share_modules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["sklearn.ensemble", "numba", "privpipe.cluster.passes.cleaning_pass"]
    options = ClusterOptions(workers=2, dashboard="127.0.0.1:0")
    seen: list[dict[str, Any]] = []
    for told in ("first", "second"):  # the fork server of the second is that of the first
        monkeypatch.setenv("PRIVPIPE_TOLD", told)
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        with connect(options) as client:
            found = list(client.run(look, names).values())
        assert [one["environment"] for one in found] == [["1", told]] * 2
        seen += found
    [parent] = {one["parent"] for one in seen}
    assert parent != os.getpid()
    assert all(all(one["modules"]) for one in seen)
    for drawn in zip(*(one["drawn"] for one in seen), strict=True):
        assert len(set(drawn)) == len(seen)
    server = psutil.Process(parent)
    assert server.ppid() == os.getpid()
    threads = [Path(f"/proc/{parent}/task/{one.id}/comm").read_text() for one in server.threads()]
    # A lock that a thread holds would stay locked in a fork; jemalloc's gives its own back.
    assert threads.count("jemalloc_bg_thd\n") == len(threads) - 1
    assert not server.net_connections("inet")
    assert server.environ()["PYTHONSAFEPATH"] == "1"  # else it would import from its folder


def test_connect__nobody_else_reaches_the_fork_server() -> None:
    """Whoever speaks to it runs code (CVE-2022-42919): its socket lies where no one else can go."""
    before = dict(os.environ)
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        [parent] = client.run(os.getppid).values()
    # A nanny sets PYTHONSAFEPATH and threads here: what this process started later had them, too.
    assert dict(os.environ) == before
    names = {one.laddr for one in psutil.Process(parent).net_connections("unix") if one.laddr}
    assert names
    for name in names:
        assert not name.startswith(("\0", "@")), "an abstract socket is open to everybody"
        assert stat.S_IMODE(Path(name).parent.stat().st_mode) == 0o700
        assert Path(name).parent == Path(util.get_temp_dir())


@pytest.mark.parametrize("name", MODULES)
def test_modules__are_there(name: str) -> None:
    """One that was renamed would be left out in silence."""
    assert importlib.util.find_spec(name) is not None
