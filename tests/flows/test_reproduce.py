"""Reproductions: verdicts per cell, one registry, and figures that can be listed for free."""

from __future__ import annotations

import inspect
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from flows.reproduce import registry, steps
from flows.reproduce.registry import FIGURES, PaperFigure, run_reproduction
from flows.reproduce.result import CELL_SCHEMA, Reproduction, compare_cell
from flows.reproduce.steps import Steps, expect_steps, step
from privpipe.errors import InputError, OptionError
from privpipe.report.style import render_svg

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("runs", "paper", "better", "verdict"),
    [
        ([0.89], 0.90, "neither", "agrees"),
        ([0.85], 0.90, "neither", "differs"),
        ([0.95], 0.90, "higher", "better"),
        ([0.85], 0.90, "higher", "differs"),
        ([0.85], 0.90, "lower", "better"),
        ([0.85], None, "lower", "not compared"),
        ([0.872, 0.888], 0.90, "neither", "differs"),  # a wide interval excuses nothing
        ([0.882, 0.898], 0.90, "neither", "agrees"),  # .89, just within
        ([0.6, 1.0], 0.70, "neither", "differs"),
        ([math.nan], 0.90, "higher", "differs"),
    ],
)
def test_compare_cell__judges(runs, paper, better, verdict) -> None:
    cell = compare_cell("a", runs, paper=paper, tolerance=0.01, better=better)
    assert cell.verdict == verdict
    assert cell.n_runs == len(runs)


def test_compare_cell__states_the_interval_of_the_mean() -> None:
    cell = compare_cell("a", [1.0, 2.0, 3.0], paper=2.0, tolerance=0.1)
    assert cell.ours == 2.0
    assert cell.upper - cell.ours == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert math.isnan(compare_cell("a", [1.0], paper=None, tolerance=0.1).lower)


def reproduce_two(data: Path, runs: int) -> Reproduction:
    cells = (
        compare_cell("first", [1.0] * runs, paper=1.0, tolerance=0.1, unit="bits"),
        compare_cell("second", [2.0], paper=None, tolerance=0.1, unit="bits"),
    )
    return Reproduction(cells, notes=(f"{data.name}",))


@pytest.fixture
def two(monkeypatch, tmp_path: Path) -> Path:
    (tmp_path / "toy.npz").touch()
    entry = PaperFigure(
        "Two", "Nobody 2017", f"{__name__}:reproduce_two", ("toy.npz",), 3, "hours", "seconds"
    )
    monkeypatch.setattr(PaperFigure, "load", lambda self: reproduce_two)
    monkeypatch.setattr(registry, "FIGURES", {"two": entry})
    return tmp_path


def test_run_reproduction__names_times_and_counts(two: Path) -> None:
    found = run_reproduction("two", two)
    assert (found.name, found.title, found.paper) == ("two", "Two", "Nobody 2017")
    assert found.cells[0].n_runs == 3
    assert found.counts == {"agrees": 1, "not compared": 1}
    assert found.seconds >= 0
    assert list(found.table.columns) == list(CELL_SCHEMA)
    assert [str(d) for d in found.table.dtypes] == [dtype for dtype, _ in CELL_SCHEMA.values()]
    document = json.loads(found.to_json())
    assert document["cells"][1]["paper"] is None
    assert document["verdicts"] == {"agrees": 1, "not compared": 1}
    assert "Two" in render_svg(found.figure("dark"))
    assert run_reproduction("two", two, runs=1).cells[0].n_runs == 1


def test_run_reproduction__refuses(two: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Did you mean 'two'"):
        run_reproduction("twoo", two)
    with pytest.raises(OptionError, match="runs is 0"):
        run_reproduction("two", two, runs=0)
    (two / "toy.npz").unlink()
    with pytest.raises(InputError, match=r"toy\.npz not found"):
        run_reproduction("two", tmp_path)


@pytest.mark.parametrize("name", FIGURES)
def test_figures__can_be_loaded(name: str) -> None:
    figure = FIGURES[name]
    assert callable(figure.load())
    assert figure.runs >= 1
    assert all("." in file for file in figure.files)


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.timeout(1800)  # six minutes of one processor, which others may need, too
def test_run_reproduction__raw_records_agree_with_the_paper(paper_data: Path) -> None:
    found = run_reproduction("hamm2017-raw", paper_data, runs=1)
    # Of fifteen subjects ours finds more than the paper's, .74 of .70, and activities alike.
    verdicts = {cell.cell: cell.verdict for cell in found.cells}
    assert verdicts.pop("HAR subject") in ("agrees", "better"), found.table
    assert set(verdicts.values()) == {"agrees"}, found.table


def reproduce_in_steps(data: Path, runs: int) -> Reproduction:
    """Counts what it does in a file; the third step fails as long as a marker stands."""
    expect_steps(4)

    def work(k: int) -> list[float]:
        if k == 2 and (data / "interrupt").exists():
            raise KeyboardInterrupt
        with open(data / "done", "a") as file:
            file.write(f"{k}\n")
        return [float(k), 0.1]

    found = [step(f"step {k}", partial(work, k)) for k in range(4)]
    return Reproduction(
        tuple(compare_cell(f"{k}", row, paper=None, tolerance=0.1) for k, row in enumerate(found))
    )


def test_run_reproduction__goes_on_after_an_interruption(two: Path, monkeypatch) -> None:
    monkeypatch.setattr(PaperFigure, "load", lambda self: reproduce_in_steps)
    monkeypatch.setenv("PRIVPIPE_CACHE", str(two / "cache"))
    (two / "interrupt").touch()
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_reproduction("two", two, say=said.append)
    assert said[0].startswith("two: 3 runs, full size")
    (two / "interrupt").unlink()
    found = run_reproduction("two", two, say=said.append)
    assert (two / "done").read_text().split() == ["0", "1", "2", "3"]  # nothing twice
    assert "going on: 2 of 4 steps were done before" in said
    assert any(line.startswith("4/4  step 3") for line in said)
    assert [cell.ours for cell in found.cells] == [0.05, 0.55, 1.05, 1.55]
    assert not list((two / "cache").rglob("*.json"))  # done: the next time is another
    run_reproduction("two", two, say=said.append)
    assert (two / "done").read_text().split()[4:] == ["0", "1", "2", "3"]


def test_run_reproduction__of_other_data_goes_on_with_nothing(two: Path, monkeypatch) -> None:
    monkeypatch.setattr(PaperFigure, "load", lambda self: reproduce_in_steps)
    monkeypatch.setenv("PRIVPIPE_CACHE", str(two / "cache"))
    (two / "interrupt").touch()
    with pytest.raises(KeyboardInterrupt):
        run_reproduction("two", two, say=lambda _: None)
    (two / "interrupt").unlink()
    (two / "toy.npz").write_bytes(b"other data")
    run_reproduction("two", two, say=lambda _: None)
    assert (two / "done").read_text().split() == ["0", "1", "0", "1", "2", "3"]


def test_run_reproduction__says_beforehand_what_it_takes(two: Path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVPIPE_CACHE", str(two / "cache"))
    for small, expected in ((True, "1 run, small size; takes seconds"), (False, "takes hours")):
        said: list[str] = []
        run_reproduction("two", two, small=small, say=said.append)
        assert expected in said[0]


def test_steps__are_not_silent_for_long(monkeypatch) -> None:
    monkeypatch.setattr(steps, "PULSE_SECONDS", 0.01)
    said: list[str] = []
    heard = threading.Event()

    def hear(line: str) -> None:
        said.append(line)
        heard.set()

    listening = Steps(say=hear)
    listening.expect(3)
    assert listening.run("long", lambda: heard.wait(timeout=60))
    assert said[0].startswith("1/3  long: at work for")
    n_threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        listening.run("wrong", lambda: 1 / 0)
    assert threading.active_count() == n_threads


@pytest.mark.parametrize("name", FIGURES)
def test_figures__say_what_they_take_and_have_a_size_of_minutes(name: str) -> None:
    assert FIGURES[name].takes
    assert FIGURES[name].takes_small
    assert set(FIGURES[name].small) <= set(inspect.signature(FIGURES[name].load()).parameters)


@pytest.mark.slow
@pytest.mark.paper
def test_run_reproduction__killed_on_real_faces_repeats_nothing(
    paper_data: Path, tmp_path: Path
) -> None:
    """Ctrl-C of the command itself, then again."""
    command = [sys.executable, "-m", "flows.reproduce"]
    command += ["hamm-genki", "--small", "--data", str(paper_data), "--json"]
    environment = {**os.environ, "PRIVPIPE_CACHE": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(ROOT)  # a cluster of another test forbids the working folder
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert first.stderr is not None
    # Results, not lines, tell how far it is: lines are at least two seconds apart.
    while first.poll() is None and len(list(tmp_path.rglob("*.json"))) < 2:
        time.sleep(0.05)
    assert first.poll() is None, "it ended before it could be interrupted"
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=120)
    assert first.returncode == 130, told
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(kept) >= 2
    second = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=500
    )
    assert f"going on: {len(kept)} of 8 steps were done before" in second.stderr
    cells = [one["cell"] for one in json.loads(second.stdout)["cells"]]
    of_all = ("over widths", "less the next one", "above guessing")
    assert len([cell for cell in cells if not any(what in cell for what in of_all)]) == 8 * 4
    assert not list(tmp_path.rglob("*.json"))
