"""Commands that read a release which grows: what they say is true of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.estimate import estimate
from privpipe.command.check_command import check_command, dry_run_command
from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from tests.operations.increments import append, configure, release


def grow(folder: Path, n_days: int) -> None:
    rng = np.random.default_rng(4)
    for number in range(n_days):
        append(folder, f"day {number}", rng.normal(size=(60, 3)), number)


def test_check__of_a_healthy_growing_release_finds_it_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the release "exists and is of another configuration", and to remove it."""
    options = configure(tmp_path)
    grow(tmp_path, 2)
    for _ in range(2):  # before its first generation, and after
        check_command(str(tmp_path / "run.toml"))
        dry_run_command(str(tmp_path / "run.toml"))
        assert "is in order" in capsys.readouterr().out
        release(options)


def test_check__refuses_a_growing_release_that_run_refuses(tmp_path: Path) -> None:
    configure(tmp_path)
    grow(tmp_path, 1)
    path = tmp_path / "run.toml"
    train = f'[training]\npath = "{tmp_path}/training.zarr"\n'
    path.write_text(path.read_text().replace(train, ""))
    with pytest.raises(OptionError, match="trains on the collection, which grows"):
        check_command(str(path))


def test_estimate__of_a_growing_release_finds_its_model(tmp_path: Path) -> None:
    configure(tmp_path)
    path = tmp_path / "run.toml"
    noisy = 'name = "noisy"\nepsilon = 12.0\nthreshold = 3.0\ncentre = false\n'
    usual = 'name = "null_space"\nutility_budget = 0.05\nridge = 0.01\n'
    path.write_text(path.read_text().replace(usual, noisy))
    grow(tmp_path, 2)
    release(read_options(str(path)))
    found = estimate(str(tmp_path / "release.zarr"), "means")
    assert len(found) == 3
    assert all(abs(one.value) < 1 for one in found)
