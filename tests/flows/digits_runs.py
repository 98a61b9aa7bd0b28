"""The runs that tests of kills and damage disturb: digits in many small chunks."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.command.demo_command import write_digits
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.audit.audit_stage import audit_stage
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import clean_stage, plan_release
from privpipe.pipeline.stages.gate import gate_stage
from privpipe.pipeline.stages.publish import publish_stage
from privpipe.pipeline.stages.train import train_stage
from privpipe.store.access.workspace import hold_workspace, workspace_url
from privpipe.store.releases.published import check_release

N_RECORDS = 1797 * 3
CHUNK_ROWS = 128
"""43 chunks in 6 tasks."""

QUICK = ("least_squares", "logistic", "naive_bayes")
"""Adversaries that are trained in seconds."""


RUN = (sys.executable, "-c", "from privpipe.command import main; main()", "run")
"""The command, to be followed by a configuration."""

CONFIGURATION = """
[collection]
path = "{source}"
desired = ["zero"]
confidential = ["digit"]
subject = "original"
[method]
name = "null_space"
utility_budget = 0.01
ridge = 0.01
[release]
path = "{release}"
[audit]
holdout = 0.2
{audit}
[gate]
enforce = false
[cluster]
dashboard = "127.0.0.1:0"
{cluster}
"""


def write_config(
    config: Path, source: str, release: str, *, audit: str = "", cluster: str = ""
) -> None:
    """Write the configuration of `make_options` for the command, with further lines."""
    content = CONFIGURATION.format(source=source, release=release, audit=audit, cluster=cluster)
    config.write_text(content)


def own_prefect(home: str, database: Path | None = None, url: str = "") -> dict[str, str]:
    """Environment of a command with a Prefect of its own, which finds what this process finds.

    Its home gets a copy of a database, if one is given: to make one takes a hundred migrations.
    Where a server's URL is given it has the home alone, and starts no server.
    """
    if database is not None:
        Path(home).mkdir(parents=True)
        copy_database(database, Path(home) / "prefect.db")
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    own |= {"PREFECT_API_URL": url} if url else {}
    return {**own, "PREFECT_HOME": home, "PYTHONPATH": os.pathsep.join(sys.path)}


def copy_database(path: Path, copy: Path) -> None:
    """What is stored in a database that may be in use."""
    with closing(sqlite3.connect(path)) as made, closing(sqlite3.connect(copy)) as new:
        made.backup(new)


def pick_workers(family: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Dask's workers among the processes below a command: spawned, or forked by a fork server."""

    def says(process: psutil.Process | None, word: str) -> bool:
        try:
            return process is not None and word in " ".join(process.cmdline())
        except psutil.Error:
            return False

    return [
        one
        for one in family
        if says(one, "spawn_main")
        or (says(one, "forkserver import main") and says(_parent(one), "forkserver import main"))
    ]


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None


def write_source(path: Path) -> None:
    """A collection of many small chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privpipe.command.demo_command.plan_chunk_rows", lambda *_: CHUNK_ROWS)
        write_digits(str(path), N_RECORDS)


def make_options(source: Path, folder: Path, **release: Any) -> RunOptions:
    return RunOptions(
        collection={
            "path": str(source),
            "desired": ["zero"],
            "confidential": ["digit"],
            "subject": "original",
        },
        method={"name": "null_space", "utility_budget": 0.01, "ridge": 0.01},
        release={"path": str(folder / "release.zarr"), **release},
        audit={"holdout": 0.2, "adversaries": ["least_squares"]},
        gate={"enforce": False},
        cluster={"workers": 2, "dashboard": "127.0.0.1:0"},
    )


def release_undisturbed(source: Path, folder: Path) -> Path:
    """What a release of the digits is when nothing happens."""
    run = check_stage(make_options(source, folder))
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        executor = Executor()  # all executors give the same bits
        trained = train_stage(run, executor)
        plan = plan_release(run, trained)
        cleaned = clean_stage(run, trained, plan, executor)
        findings = audit_stage(run, trained, cleaned, executor)
        publish_stage(run, trained, cleaned, gate_stage(run, cleaned, findings), executor.listener)
    return folder / "release.zarr"


def assert_same(release: Path, undisturbed: Path) -> None:
    """Every byte but the manifest's."""
    check_release(str(release), verify=True)
    names = sorted(str(p.relative_to(release)) for p in release.rglob("*") if p.is_file())
    assert names == sorted(
        str(p.relative_to(undisturbed)) for p in undisturbed.rglob("*") if p.is_file()
    )
    different = [
        name for name in names if (release / name).read_bytes() != (undisturbed / name).read_bytes()
    ]
    assert different == ["zarr.json"]
    assert not os.path.lexists(workspace_url(str(release)))
