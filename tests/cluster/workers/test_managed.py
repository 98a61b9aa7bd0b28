"""Clusters that another system starts: a batch queue whose commands are scripts, and refusals."""

from __future__ import annotations

import gc
import os
import stat
import time
from pathlib import Path

import dask
import psutil
import pytest

from privpipe.cluster.workers import processes
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.errors import ClusterError, OptionError

# As Slurm's: the script is copied, the answer names the job, who cancels it ends its children.
SBATCH = """#!/bin/bash
setsid bash -c "$(cat "${@: -1}")" >"$(dirname "$0")/job.log" 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/bash
for job in "$@"; do kill -TERM -- "-$job" 2>/dev/null; done
exit 0
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A batch queue of this machine, and Dask's configuration of it."""
    pytest.importorskip("dask_jobqueue")
    for name, script in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        command = tmp_path / name
        command.write_text(script)
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def _configure(folder: Path, **more: object) -> dask.config.set:
    given = {"cores": 1, "memory": "1GB", "shared-temp-directory": str(folder)}
    given |= {"scheduler-options": {"host": "127.0.0.1"}} | more
    return dask.config.set({f"jobqueue.slurm.{key}": value for key, value in given.items()})


# Its library closes the files of certificates when they are collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_slurm__jobs_are_workers_behind_tls_and_end_with_the_run(queue: Path) -> None:
    import dask_jobqueue  # noqa: F401  its defaults are read when it is imported

    options = ClusterOptions(kind="slurm", workers=1, dashboard="off", wait_seconds=90)
    with _configure(queue), connect(options) as client:
        assert client.scheduler is not None
        assert client.scheduler.address.startswith("tls://")
        # No stranger's job: a worker process of the queue, not a child of this one.
        pid = client.submit(os.getpid, pure=False).result()
        assert pid != os.getpid()
        assert client.run(os.umask, 0o077)  # prepared as every worker is
    del client
    gc.collect()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline, "a job outlived the run"
        time.sleep(0.1)


# Its library leaves what it had made until then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_slurm__says_what_its_library_misses(queue: Path) -> None:
    import dask_jobqueue  # noqa: F401

    options = ClusterOptions(kind="slurm", workers=1, dashboard="off")
    with _configure(queue, cores=None), pytest.raises(ClusterError, match="cores") as error:
        connect(options).__enter__()
    assert "Dask's configuration" in str(error.value.remedy)
    del error
    gc.collect()


def test_kind__whose_library_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = processes.Manager("no-such-library", "no_such_library", "Cluster")
    monkeypatch.setitem(processes.MANAGERS, "coiled", row)
    with pytest.raises(ClusterError, match="needs no-such-library") as error:
        connect(ClusterOptions(kind="coiled")).__enter__()
    assert error.value.remedy == "Install it with: pip install no-such-library"


def test_kind__whose_scheduler_speaks_no_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open:
        """What a library gives back, of a scheduler that anyone reaches."""

        scheduler_address = "tcp://10.0.0.1:8786"
        closed = False

        def __enter__(self) -> Open:
            return self

        def __exit__(self, *_: object) -> None:
            Open.closed = True

    row = processes.Manager("privpipe", "tests.cluster.workers.test_managed", "Cluster")
    monkeypatch.setitem(processes.MANAGERS, "kubernetes", row)
    monkeypatch.setattr(processes, "import_module", lambda _: type("M", (), {"Cluster": Open}))
    with pytest.raises(OptionError, match="without TLS"):
        connect(ClusterOptions(kind="kubernetes", dashboard="off")).__enter__()
    assert Open.closed


def test_managers__are_what_the_configuration_allows() -> None:
    from privpipe.pipeline.runs.run_options import ClusterSection

    allowed = ClusterSection.model_json_schema()["properties"]["kind"]["enum"]
    assert set(allowed) == {"local", *processes.MANAGERS}
