"""Whole runs with ``[cluster] workers = 0``: the same records draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.flows.release_flow import run_pipeline
from privpipe.records.schema import ChunkPlan, CollectionSchema, Partition, Variable
from privpipe.store.collections.writing import write_collection
from privpipe.store.releases.lazy_release import open_release

SIZES = (4, 3)
DAYS = {"monday": 240, "tuesday": 170, "wednesday": 100}


def write_days(url: Path, days: Sequence[str], chunk_rows: int) -> None:
    """Categorical records of some days, which are partitions."""
    parts = [_draw_day(day) for day in days]
    edges = np.cumsum([0, *(DAYS[day] for day in days)]).tolist()
    partitions = tuple(
        Partition(day, edge, DAYS[day]) for day, edge in zip(days, edges, strict=False)
    )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    categories = {f"a{j}": tuple(f"c{k}" for k in range(size)) for j, size in enumerate(SIZES)}
    schema = CollectionSchema(
        n_records=edges[-1],
        n_features=0,
        dtype="float32",
        chunk_rows=chunk_rows,
        variables=tuple(
            Variable(name, "int8", categories.get(name, ("no", "yes"))) for name in columns
        ),
        partitions=partitions,
    )
    plan = ChunkPlan(edges[-1], chunk_rows)
    rows = [slice(*plan.rows(chunk)) for chunk in range(plan.n_chunks)]
    write_collection(
        str(url),
        schema,
        [
            {name: values[some] for name, values in columns.items()}
            | {"features": np.empty((some.stop - some.start, 0), np.float32)}
            for some in rows
        ],
    )


def _draw_day(day: str) -> dict[str, Any]:
    random = np.random.default_rng(sorted(DAYS).index(day))
    columns = {
        f"a{j}": random.integers(0, size, DAYS[day]).astype(np.int8) for j, size in enumerate(SIZES)
    }
    noise = random.random(DAYS[day]) < 0.1
    return columns | {"private": ((columns["a1"] + noise) % 3 == 0).astype(np.int8)}


def release_days(folder: Path, days: Sequence[str], chunk_rows: int) -> dict[str, np.ndarray]:
    """Released codes by day; the mapping is learned from a collection that stays the same."""
    folder.mkdir()
    write_days(folder / "learned.zarr", ("monday", "wednesday"), 100)
    write_days(folder / "records.zarr", days, chunk_rows)
    config = folder / "run.toml"
    config.write_text(
        f'[collection]\npath = "{folder}/records.zarr"\n'
        f'[training]\npath = "{folder}/learned.zarr"\n'
        '[method]\nname = "privacy_mapping"\nattributes = ["a0", "a1"]\nprivate = ["private"]\n'
        f'distortion_budget = 0.5\n[release]\npath = "{folder}/release.zarr"\n'
        "[audit]\nholdout = 0.4\nadversaries = []\n[cluster]\nworkers = 0\n"
    )
    run_pipeline(str(config))
    release = open_release(str(folder / "release.zarr"), verify=True)
    codes = np.column_stack([release[f"a{j}"].values for j in range(len(SIZES))])
    edges = np.cumsum([DAYS[day] for day in days])[:-1]
    return dict(zip(days, np.split(codes, edges), strict=True))


@pytest.mark.slow
def test_run__the_same_records_draw_the_same_however_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three chunkings, two orders, one partition more: old partitions keep what they drew."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    first = release_days(tmp_path / "first", ("monday", "tuesday"), 128)
    raw = np.column_stack([_draw_day("monday")[f"a{j}"] for j in range(len(SIZES))])
    assert (first["monday"] != raw).any()  # something is drawn
    cases = {
        "smaller": (("monday", "tuesday"), 33),
        "whole": (("monday", "tuesday"), 410),
        "turned": (("tuesday", "monday"), 128),
        "appended": (("monday", "tuesday", "wednesday"), 128),
    }
    for name, (days, chunk_rows) in cases.items():
        found = release_days(tmp_path / name, days, chunk_rows)
        for day, codes in first.items():
            np.testing.assert_array_equal(found[day], codes, err_msg=f"{name}: {day}")
