"""What is put where values are missing: means of what is there, of records that the fit sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.missing_values import KnownSums, fill_preview, fill_training
from privpipe.pipeline.stages.check import check_stage
from privpipe.protocols import Shard
from tests.flows.test_pipeline import configure
from tests.standard import write_standard

GAPS: Any = {(n, n % 3): np.nan for n in range(0, 300, 2)} | {(7, 1): np.inf}


def test_means__are_of_what_is_there_whatever_the_chunks() -> None:
    x = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.inf], [8.0, 7.0, np.nan]])
    first, second, third = (KnownSums.of(Shard(x[i : i + 1])) for i in range(3))
    assert first.merge(second).merge(third).means == (4.0, 6.0, 0.0)  # none of the last is known


@pytest.mark.parametrize("rows", [40, 300])
def test_fill_training__is_of_the_records_that_are_not_held_out(tmp_path: Path, rows: int) -> None:
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=rows, cells=GAPS)
    run = check_stage(read_options(configure(tmp_path, nonfinite="impute")))
    filled = fill_training(run, Executor())
    bare = replace(run.training.keeping(run.split, "fit"), only_finite=False)
    x = np.vstack([shard.features for shard in bare.shards()])
    expected = np.nanmean(np.where(np.isfinite(x), x, np.nan), axis=0)
    assert len(x) < 300
    assert filled.training.fill == pytest.approx(expected, rel=1e-12)
    seen = np.vstack([shard.features for shard in filled.training.shards()])
    assert len(seen) == 300
    assert seen[7, 1] == filled.training.fill[1]
    assert fill_training(run, Executor()).training.fill == filled.training.fill


@pytest.mark.parametrize("nonfinite", ["fail", "withhold"])
def test_fill__is_none_where_nothing_is_imputed(tmp_path: Path, nonfinite: str) -> None:
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40, cells=GAPS)
    run = check_stage(read_options(configure(tmp_path, nonfinite=nonfinite)))
    assert fill_training(run, Executor()) is run
    assert fill_preview(run.options, run.training) is run.training
