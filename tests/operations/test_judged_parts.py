"""Every part of a growing release is judged on its own records, where they carry labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import GateError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.incremental_release import read_incremental
from privpipe.store.sources.reading.source import SourceLayout
from tests.operations.increments import day, release

NAMES = ("wanted", "secret", "club")
LAYOUT = IngestOptions(
    layout=SourceLayout(features=("x",), labels=NAMES), categorical=NAMES, chunk_bytes=500 * 3 * 8
)


def write(folder: Path, name: str, n: int, seed: int, *, leaks: bool = False) -> str:
    random = np.random.default_rng(seed)
    secret, wanted, club = random.integers(0, 2, (3, n)).astype("int8")
    x = random.normal(size=(n, 3)) + 4 * np.column_stack([wanted, secret, np.zeros(n)])
    path = str(folder / f"{name}.npz")
    np.savez(path, x=x, wanted=wanted, secret=secret, club=secret if leaks else club)
    return path


@pytest.mark.slow
def test_increment__judges_a_later_part_on_its_own_records(tmp_path: Path) -> None:
    grow = str(tmp_path / "grow.zarr")
    ingest(write(tmp_path, "training", 1500, 0), str(tmp_path / "training.zarr"), LAYOUT)
    options = RunOptions(
        collection={"path": grow, "desired": ["wanted"], "confidential": ["secret"]},
        training={"path": str(tmp_path / "training.zarr")},
        method={"name": "leace"},
        release={"path": str(tmp_path / "release.zarr"), "include": ["club"], "incremental": True},
        cluster={"workers": 0},
        audit={"holdout": 0.5, "adversaries": ["least_squares", "naive_bayes"]},
        gate={
            "confidential_advantage_max": 0.5,
            "exposed_max": 0.5,
            "must_find": 1.0,
            "drift_max": 5.0,
        },
    )
    append_partition(write(tmp_path, "one", 1500, 1), grow, "one", day(0), LAYOUT)
    assert release(options) == "published"
    for name, number, leaks in (("two", 1, False), ("three", 2, True)):
        path = write(tmp_path, name, 1500, number + 1, leaks=leaks)
        append_partition(path, grow, name, day(number), LAYOUT)
        if leaks:
            with pytest.raises(GateError, match="'secret' leaks"):
                release(options)
        else:
            assert release(options) == "published"
    found = read_incremental(str(tmp_path / "release.zarr"))
    assert found is not None
    assert len(found[1].parts) == 2
