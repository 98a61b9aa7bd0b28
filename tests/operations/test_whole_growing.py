"""A growing collection is released as it is at that time, as one made in one piece would be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.command import init_command
from privpipe.errors import FormatError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.increment_check import check_growing
from privpipe.store.collections.growing_collection import append_partition, open_whole_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import FileForm, TableSchema
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.column_guess import ColumnPlan
from privpipe.store.sources.reading.source import SourceLayout
from tests.operations.increments import day
from tests.store.serial_run import run_serially, serial_flows

# Chunks of 100 records, which no partition fills evenly.
LAYOUT = IngestOptions(SourceLayout(labels=("late", "party")), chunk_bytes=100 * 5 * 8)
SIZES = (230, 170, 350)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same records in three partitions and in one piece, and gaps in one cell of the second."""
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    rng = np.random.default_rng(3)
    people = pd.DataFrame(rng.normal(size=(sum(SIZES), 5)), columns=list("abcde"))
    people["late"] = np.where(people["a"] > people["b"], "ja", "nein")
    people["party"] = np.where(people["c"] + rng.normal(size=len(people)) / 3 > 0, "x", "y")
    people.loc[300, "d"] = np.nan
    edges = np.cumsum((0, *SIZES))
    for k, (start, stop) in enumerate(pairwise(edges)):
        people[start:stop].to_csv(tmp_path / f"{k}.csv", index=False)
        grown = str(tmp_path / "grown.zarr")
        append_partition(str(tmp_path / f"{k}.csv"), grown, str(k), day(k), LAYOUT)
    people.to_csv(tmp_path / "all.csv", index=False)
    ingest(tmp_path / "all.csv", tmp_path / "whole.zarr", LAYOUT)
    return tmp_path


def make_options(folder: Path, name: str) -> RunOptions:
    return RunOptions(
        collection={
            "path": str(folder / f"{name}.zarr"),
            "desired": ["late"],
            "confidential": ["party"],
        },
        method={"name": "null_space", "utility_budget": 0.05, "ridge": 0.01},
        release={"path": str(folder / f"{name}.release.zarr"), "nonfinite": "impute"},
        audit={"holdout": 0.4, "adversaries": []},
        gate={"enforce": False},
        cluster={"workers": 0},
    )


@pytest.mark.slow
def test_run__releases_all_partitions_as_it_releases_them_in_one_piece(folder: Path) -> None:
    with serial_flows():
        for name in ("grown", "whole"):
            run_serially(make_options(folder, name))
    grown, whole = (
        open_release(str(folder / f"{name}.release.zarr"))["features"].to_numpy()
        for name in ("grown", "whole")
    )
    assert len(grown) == sum(SIZES)
    # Categories are numbered alike and chunks are cut alike, so sums are those of one piece.
    np.testing.assert_allclose(grown, whole, rtol=1e-12)


def test_init__proposes_a_run_of_a_growing_collection_that_check_takes(folder: Path) -> None:
    out = folder / "privpipe.toml"
    found = init_command.init_command(
        str(folder / "grown.zarr"),
        str(out),
        method="leace",
        desired=["late"],
        confidential=["party"],
        release="",
    )
    assert found["complete"]
    options = read_options(str(out))
    assert options.release.nonfinite == "impute"
    assert check_stage(options).collection.n_records == sum(SIZES)


def test_init__knows_whose_the_records_of_a_growing_collection_are(tmp_path: Path) -> None:
    """What the schema of its table says was lost: releases were judged as of one record each."""
    rng = np.random.default_rng(4)
    people = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    people["late"], people["who"] = people["a"] > 0, np.arange(400) // 4
    plans = {name: ColumnPlan("number", "feature") for name in "abc"}
    plans |= {"late": ColumnPlan("boolean", "variable"), "who": ColumnPlan("number", "subject")}
    options = IngestOptions(schema=TableSchema(FileForm(), plans))
    grown = str(tmp_path / "grown.zarr")
    for k in range(2):
        people[k * 200 : (k + 1) * 200].to_csv(tmp_path / f"{k}.csv", index=False)
        append_partition(str(tmp_path / f"{k}.csv"), grown, str(k), day(k), options)
    found = init_command.init_command(
        grown, "-", method="pca", desired=["late"], confidential=[], release=""
    )
    assert 'subject = "who"' in found["text"]


def test_check__an_incremental_release_learns_from_what_does_not_grow(folder: Path) -> None:
    options = make_options(folder, "grown")
    grown = options.collection.path
    loose = {"confidential_advantage_max": 0.9, "exposed_max": 0.9, "must_find": 1.0}
    content = options.model_dump(mode="json") | {"gate": loose}
    content["audit"]["adversaries"] = ["least_squares"]
    content["training"] = {"path": grown}
    content["release"]["incremental"] = True
    content["release"]["nonfinite"] = "fail"
    with pytest.raises(
        FormatError, match="not a privpipe collection but a growing collection"
    ) as found:
        check_growing(RunOptions.model_validate(content))
    assert "a folder in" in found.value.remedy
    assert "grown.zarr/partitions" in found.value.remedy
    first = open_whole_collection(grown).sealed.url
    content["training"] = {"path": first}
    check_growing(RunOptions.model_validate(content))
