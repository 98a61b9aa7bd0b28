"""What a run costs is measured on its first chunks, and nothing of that stays."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.errors import InputError
from privpipe.flows.pilot import Cost, forecast_cost
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from tests.commands.conftest import Command
from tests.store.serial_run import make_options, read_tree, write_small_collection

NOISY = {"name": "noisy", "epsilon": 1.0, "threshold": 1.0, "centre": False}


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = str(tmp_path / "records.zarr")
    write_small_collection(path)
    return path


def options_of(source: str, **more: Any) -> RunOptions:
    options = make_options(source, str(Path(source).with_name("release.zarr")))
    return RunOptions(**options.model_dump() | more)


def test_forecast_cost__grows_with_the_records_alone(source: str) -> None:
    run = check_stage(options_of(source))
    one = forecast_cost(run, 10**6)
    assert 0 <= one.hours < 10
    # A record is 5 numbers of 8 bytes, and three variables; what is stored is compressed.
    assert 20e6 < one.bytes_read < 4e9
    assert 20e6 < one.bytes_written < 4e9
    assert one.scheduler_hours == pytest.approx(2 * 7e-3 * 2_500 / 3600)


@pytest.mark.parametrize("method", ["null_space", "noisy"])
def test_forecast_cost__charges_nothing_and_leaves_nothing(
    method: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMP", "TMPDIR", "TEMP"):
        monkeypatch.setenv(name, str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    (tmp_path / "temporary").mkdir()
    account = Path(os.environ["PRIVPIPE_ACCOUNT"])
    more = {"method": NOISY} if method == "noisy" else {}
    run = check_stage(options_of(source, **more))
    before = read_tree(tmp_path) | read_tree(account)
    forecast_cost(run, 10**6)
    assert read_tree(tmp_path) | read_tree(account) == before
    assert os.environ["PRIVPIPE_KEYS"] == str(tmp_path / "keys")


def test_forecast_cost__wants_chunks_to_measure_by(tmp_path: Path) -> None:
    path = str(tmp_path / "few.zarr")
    write_small_collection(path, n_records=90)
    run = check_stage(options_of(path))
    with pytest.raises(InputError, match="2 chunks are too few"):
        forecast_cost(run, 10**6)


def test_check__says_what_records_would_cost(source: str, tmp_path: Path, command: Command) -> None:
    config = tmp_path / "my.toml"
    config.write_text(
        f'[collection]\npath = "{source}"\ndesired = ["wanted"]\nconfidential = ["secret"]\n'
        '[method]\nname = "null_space"\nutility_budget = 0.05\nridge = 0.01\n'
        f'[release]\npath = "{tmp_path / "release.zarr"}"\n[audit]\nadversaries = []\n'
    )
    code, out, _ = command("check", config, "--cost-of", "1e10", "--price", "0.04", "--json")
    found = json.loads(out)["cost"]
    assert not code
    assert found["n_records"] == 10**10
    # Of so few records the processor's clock may not move between two pilots.
    assert all(np.isfinite(value) and value >= 0 for value in found.values())
    assert found["bytes_read"] > 0 < found["bytes_written"]
    said = Cost(**found).describe(0.04)
    assert "10,000,000,000 records" in said
    assert "at 0.04 an hour" in said
