"""``privpipe tradeoff``: the curve is what it says, and goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from privpipe.command.tradeoff_command import tradeoff_command
from privpipe.errors import OptionError
from tests.flows.test_methods import configure, configure_mapping, write_profiles
from tests.standard import write_standard


def test_tradeoff__draws_the_curve_and_solves_no_point_twice(tmp_path: Path) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 2000)
    config = configure_mapping(tmp_path, 0.5)
    answer = tradeoff_command(config, 4, str(tmp_path / "curve"), as_json=True)
    points = answer["points"]
    assert json.loads((tmp_path / "curve" / "tradeoff.json").read_text())["points"] == points
    assert (tmp_path / "curve" / "tradeoff.png").read_bytes()[:4] == b"\x89PNG"
    assert points[0]["plug_in"] == pytest.approx(points[0]["identity"], abs=1e-3)
    assert points[-1]["plug_in"] <= 1e-3
    for point in points:
        assert point["lower_bound"] <= point["plug_in"] <= point["upper_bound"]
        assert point["plug_in"] <= point.get("exponential", 1.0) + 1e-3
    (folder,) = (tmp_path / "curve").glob("points-*")
    times = {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}
    assert len(times) == 4
    shutil.rmtree(folder / "0002.model.zarr")  # as if it had been killed before its third point
    again = tradeoff_command(config, 4, str(tmp_path / "curve"), as_json=True)
    assert again["points"] == points
    now = {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}
    assert [name for name in times if times[name] != now[name]] == ["0002.model.zarr"]


def test_tradeoff__refuses_methods_without_a_curve(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 200, chunk_rows=100)
    config = configure(tmp_path, desired='["late"]', confidential='["party"]', include="[]")
    with pytest.raises(OptionError, match="no trade-off curve"):
        tradeoff_command(config, 3, str(tmp_path / "curve"), as_json=True)
