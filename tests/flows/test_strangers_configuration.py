"""Configurations that a stranger has made: a pipe, a device, nested without end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.errors import FormatError, OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.store.arrays.layout import read_header


def test_read_options__waits_at_no_pipe_and_reads_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.toml")
    for place in (str(tmp_path / "run.toml"), "/dev/zero", str(tmp_path)):
        with pytest.raises(OptionError, match="cannot be read"):
            read_options(place)


def test_read_options__nested_without_end_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[collection]\npath = " + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(OptionError, match="nested deeper"):
        read_options(str(config))
    config.write_text("#" * 2**21 + "\n[collection]\n")
    with pytest.raises(OptionError):
        read_options(str(config))


def test_read_header__nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.zarr").mkdir()
    (tmp_path / "r.zarr" / "zarr.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(RecursionError):
        json.loads((tmp_path / "r.zarr" / "zarr.json").read_text())
    with pytest.raises(FormatError) as refused:
        run_sealed(read_header, str(tmp_path / "r.zarr"), "release")
    assert refused.value.exit_code == 4
