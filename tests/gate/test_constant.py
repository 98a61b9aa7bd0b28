"""A release whose features do not vary is called what it is, whatever method made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import GateError
from privpipe.pipeline.stages.audit.audit_places import is_constant
from privpipe.pipeline.stages.check import check_stage
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.layout import ArrayPlan
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.gate.test_broken_releases import break_map
from tests.store.serial_run import run_serially, serial_flows


@pytest.mark.slow
def test_gate__keeps_back_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_map(monkeypatch, lambda raw, released: np.full_like(released, -0.5))
    write_records(str(tmp_path / "records.zarr"), make_records())
    with serial_flows(), pytest.raises(GateError, match="features do not vary"):
        run_serially(make_leaky_options(tmp_path, method={"name": "leace"}))


Change = Callable[[np.ndarray], None]


def _change_last(x: np.ndarray) -> None:
    x[-1, 1] = -0.4999


def _withhold(x: np.ndarray) -> None:
    x[::3] = np.nan


@pytest.mark.parametrize(
    ("change", "constant"), [(lambda x: None, True), (_withhold, True), (_change_last, False)]
)
def test_is_constant__reads_on_until_a_value_differs(
    tmp_path: Path, change: Change, constant: bool
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records())
    run = check_stage(make_leaky_options(tmp_path))
    plan = ReleasePlan("0" * 8, run.release_url, (ArrayPlan("features", (2500, 2), 1000, "<f8"),))
    prepare_release(plan)
    x = np.full((2500, 2), -0.5)
    change(x)
    for chunk in range(3):
        rows = slice(*plan.chunks.rows(chunk))
        write_block(plan.data_url, plan.arrays, chunk, {"features": x[rows]}, plan.run)
    assert is_constant(run, plan) == constant
