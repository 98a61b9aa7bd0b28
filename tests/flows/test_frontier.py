"""The frontier: filters of one collection, audited alike; interrupted, it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privpipe.command.frontier_command import frontier_command
from privpipe.errors import OptionError
from privpipe.flows.frontier import plan_points
from tests.motion import draw_windows, write_windows

CONFIGURATION = """
[collection]
path = "{folder}/windows.zarr"
desired = ["sex"]
confidential = ["activity"]
[method]
name = "pca"
n_filtered = 1
[release]
path = "{folder}/release.zarr"
[audit]
holdout = {holdout}
adversaries = ["least_squares"]
[cluster]
workers = 0
"""


def configure(folder: Path, holdout: float = 0.5) -> str:
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(folder=folder, holdout=holdout))
    return str(config)


def test_frontier__goes_on_and_says_what_every_filter_keeps_and_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_CACHE", str(tmp_path / "cache"))
    write_windows(str(tmp_path / "windows.zarr"), draw_windows(20, 30), 200)
    config, out = configure(tmp_path), str(tmp_path / "out")
    given = {"out": out, "widths": "1", "tradeoffs": "10,1", "as_json": True}
    learned: list[str] = []
    from privpipe.flows import frontier

    learn = frontier._learn

    cold = "minimax (n_filtered 1, adversary logistic, tradeoff 10.0)"
    warm = "minimax (n_filtered 1, adversary logistic, tradeoff 1.0)"

    def stop_before_warm(point, *args):  # type: ignore[no-untyped-def]
        if point.name == warm:
            raise KeyboardInterrupt
        learned.append(point.name)
        return learn(point, *args)

    monkeypatch.setattr(frontier, "_learn", stop_before_warm)
    with pytest.raises(KeyboardInterrupt):
        frontier_command(config, **given)
    done = set(learned)
    assert cold in done
    learned[:] = []
    starts: dict[str, bool] = {}

    def count(point, *args):  # type: ignore[no-untyped-def]
        learned.append(point.name)
        starts[point.name] = args[-1] is not None
        return learn(point, *args)

    monkeypatch.setattr(frontier, "_learn", count)
    found = frontier_command(config, **given)
    assert not done & set(learned)
    assert starts[warm]
    assert not list((tmp_path / "cache").rglob("*.zarr"))
    assert json.loads((tmp_path / "out" / "frontier.json").read_text()) == found
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    points = {point["name"]: point for point in found["points"]}
    assert len(points) == len(found["points"]) == 12
    assert {p["status"] for p in points.values()} == {"measured"}
    assert points[warm]["starts_from"] == cold
    assert [p["starts_from"] for p in points.values() if p["method"] != "minimax"] == [None] * 8
    raw, strong = points["raw"], points[cold]
    for point in (raw, strong):
        target = point["target"]["sex"]["released"]
        assert target["lower"] <= target["estimate"] <= target["upper"]
        assert target["estimate"] > 0.9
        assert "activity" in point["private"]


@pytest.mark.parametrize("other", ["level = 0.9", "max_records = 60", 'decides = ["accuracy"]'])
def test_frontier__counts_only_steps_that_these_settings_use(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points judged at another level were said to be done, and were even shown as this one's."""
    monkeypatch.setenv("PRIVPIPE_CACHE", str(tmp_path / "cache"))
    write_windows(str(tmp_path / "windows.zarr"), draw_windows(10, 20), 100)
    config = Path(configure(tmp_path))
    usual = config.read_text()
    from privpipe.flows import frontier

    learn, learned = frontier._learn, 0

    def stop_after(point, *args):  # type: ignore[no-untyped-def]
        nonlocal learned
        if learned == 2:
            raise KeyboardInterrupt
        learned += 1
        return learn(point, *args)

    def run(text: str) -> str:
        nonlocal learned
        learned = 0
        config.write_text(text)
        with pytest.raises(KeyboardInterrupt):
            frontier_command(
                str(config), out=str(tmp_path / "out"), tradeoffs="10", widths="1", as_json=True
            )
        return capsys.readouterr().err

    monkeypatch.setattr(frontier, "_learn", stop_after)
    assert "going on" not in run(usual)
    changed = usual.replace("[cluster]", f"{other}\n[cluster]")
    assert "going on" not in run(changed)
    assert "going on: 2 of 10 steps were done before" in run(changed)
    assert "going on: 2 of 10 steps were done before" in run(usual)


def test_frontier__workers_have_a_place_for_what_they_spill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With workers of its own it ended in FileNotFoundError: no run had made a workspace."""
    monkeypatch.setenv("PRIVPIPE_CACHE", str(tmp_path / "cache"))
    config = Path(configure(tmp_path))
    config.write_text(config.read_text().replace("workers = 0", "workers = 1"))
    write_windows(str(tmp_path / "windows.zarr"), draw_windows(20, 30), 200)

    def stop(*args):  # type: ignore[no-untyped-def]
        (scratch,) = (tmp_path / "cache").rglob("dask")
        assert scratch.is_dir()
        assert scratch.stat().st_mode & 0o77 == 0
        raise KeyboardInterrupt

    monkeypatch.setattr("privpipe.command.frontier_command.measure_frontier", stop)
    with pytest.raises(KeyboardInterrupt):
        frontier_command(
            str(config), out=str(tmp_path / "out"), tradeoffs="10", widths="1", as_json=True
        )
    assert not list((tmp_path / "cache").rglob("dask"))
    assert sorted(tmp_path.iterdir()) == [
        tmp_path / n for n in ("cache", "run.toml", "windows.zarr")
    ]


def test_frontier__what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    write_windows(str(tmp_path / "windows.zarr"), draw_windows(4, 10), 20)
    given = {"out": str(tmp_path), "tradeoffs": "10", "as_json": True}
    with pytest.raises(OptionError, match="holdout is 0"):
        frontier_command(configure(tmp_path, 0.0), widths="1", **given)
    for widths, match in (("97", "no filter of"), ("two", "not a list of numbers")):
        with pytest.raises(OptionError, match=match):
            frontier_command(configure(tmp_path), widths=widths, **given)
    assert plan_points(9, (2,), (1.0,), (("logistic",),))[0].name == "raw"
