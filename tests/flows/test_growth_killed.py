"""Private masking of a collection that grows, night by night, on two workers: one is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.configuration_file import write_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.models import open_model
from tests.flows.digits_runs import own_prefect
from tests.flows.growing_night import KILLS, drawing_by_zeros
from tests.flows.test_only_worker import Listening, flows_on
from tests.store.serial_run import read_tree
from tests.store.test_private_masking_run import append, options, read_losses

pytestmark = pytest.mark.slow

METHOD: dict[str, Any] = {"bound": {"*": (-4, 4)}, "partitions_at_most": 4, "epsilon": 3.0}


def choose(folder: Path, night: int, workers: int) -> RunOptions:
    chosen = options(folder, f"release_{night}", method=METHOD, gate={"enforce": False})
    chosen = chosen.change("collection", path=str(folder / "growing.zarr"), desired=("sign",))
    return chosen.change("cluster", workers=workers, dashboard="127.0.0.1:0")


def play_here(folder: Path, night: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(folder / "keys"))
    with flows_on(None), drawing_by_zeros(drawn := []):
        release_collection(choose(folder, night, 0), Listening())
    assert len(drawn) == 1


def test_growth__on_two_workers_has_the_same_bytes_and_one_charge_though_one_dies_in_a_night(
    tmp_path: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first night is played here; the command continues it, twice, once with a kill."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    own = own_prefect(str(tmp_path / "prefect"), prefect_home)
    own |= {"PRIVPIPE_PLAIN": "1", "PRIVPIPE_KEYS": str(there / "keys")}
    for night in range(3):
        for folder in (here, there):
            append(folder, night)
        play_here(here, night, monkeypatch)
        if night:
            config = there / "run.toml"
            config.write_text(write_options(choose(there, night, 2), "night"))
            command = [sys.executable, "-m", "tests.flows.growing_night", "run", str(config)]
            done = subprocess.run(
                command,
                env=own | ({KILLS: "1"} if night == 1 else {}),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("killed ") == (night == 1), done.stderr
        else:
            play_here(there, night, monkeypatch)
        # Each partition once, whatever was released of it since.
        assert read_losses(there) == read_losses(here) == [(3.0, 1e-5, 1)] * (night + 1)
        for part in (f"release_{night}.zarr", f"release_{night}.model.zarr"):
            one, other = read_tree(there / part), read_tree(here / part)
            assert one.keys() == other.keys()
            assert {name for name in one if one[name] != other[name]} <= {"zarr.json"}
            assert len(one) > 3
    model: Any = open_model(str(there / "release_2.model.zarr"))
    assert model.n_partitions == 3
