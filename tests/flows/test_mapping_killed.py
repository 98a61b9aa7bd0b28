"""`privpipe run` of a mapping on two worker processes, one of which is killed in a search."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.flows.digits_runs import RUN, assert_same, own_prefect, pick_workers
from tests.flows.test_methods import write_profiles
from tests.flows.test_pipeline import configure

pytestmark = pytest.mark.slow

METHOD = """name = "privacy_mapping"
attributes = ["a0", "a1", "a2"]
private = ["private"]
distortion_budget = 0.3
pricing = "cluster"
solver = "frank_wolfe"
gap = 1e-6
"""


def configure_mapping(folder: Path, cluster: str) -> str:
    folder.mkdir()
    write_profiles(str(folder / "records.zarr"), 4000)
    audit = 'holdout = 0.4\nadversaries = ["naive_bayes"]\n[gate]\nenforce = false'
    nothing = dict.fromkeys(("desired", "confidential", "include"), "[]")
    return configure(folder, **nothing, method=METHOD, audit=audit, cluster=cluster)


def kill_worker(parent: int) -> int:
    """SIGKILL of a worker of a command."""
    one, _ = pick_workers(psutil.Process(parent).children(recursive=True))
    one.kill()
    return one.pid


def test_run__of_a_mapping_is_the_same_though_a_worker_process_dies_between_rounds(
    tmp_path: Path, prefect_home: Path
) -> None:
    """The search is spread in rounds: one of two workers is killed when its first are told."""
    environment = own_prefect(str(tmp_path / "prefect"), prefect_home) | {"PRIVPIPE_PLAIN": "1"}
    quiet = configure_mapping(tmp_path / "quiet", "workers = 0")
    subprocess.run([*RUN, quiet], env=environment, check=True, capture_output=True, timeout=300)
    config = configure_mapping(tmp_path / "killed", "workers = 2")
    killed, said = 0, list[str]()
    with subprocess.Popen(
        [*RUN, config], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if not killed and "rounds/s" in line:
                killed = kill_worker(process.pid)
    assert process.returncode == 0, "".join(said)
    assert killed, "".join(said)
    stages = [line.split(maxsplit=2)[:2] for line in said]
    trained = stages.index(["train", "4,000"])
    at = next(k for k, line in enumerate(said) if "rounds/s" in line)
    assert at < trained, "the search had ended"
    assert_same(tmp_path / "killed" / "release.zarr", tmp_path / "quiet" / "release.zarr")
