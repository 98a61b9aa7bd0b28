"""Reproductions: verdicts per cell, one registry, and figures that can be listed for free."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flows.reproduce import registry
from flows.reproduce.registry import FIGURES, PaperFigure, run_reproduction
from flows.reproduce.result import CELL_SCHEMA, Reproduction, compare_cell
from privpipe.errors import InputError, OptionError
from privpipe.report.style import render_svg


@pytest.mark.parametrize(
    ("runs", "paper", "better", "verdict"),
    [
        ([0.89], 0.90, "neither", "agrees"),
        ([0.85], 0.90, "neither", "differs"),
        ([0.95], 0.90, "higher", "better"),
        ([0.85], 0.90, "higher", "differs"),
        ([0.85], 0.90, "lower", "better"),
        ([0.85], None, "lower", "not compared"),
        ([0.872, 0.888], 0.90, "neither", "agrees"),  # .88, within twice the tolerance
        ([0.6, 1.0], 0.70, "neither", "differs"),  # a wide interval does not excuse .80
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
        "Two", "Nobody 2017, figure 1", f"{__name__}:reproduce_two", ("toy.npz",), 3
    )
    monkeypatch.setattr(PaperFigure, "load", lambda self: reproduce_two)
    monkeypatch.setattr(registry, "FIGURES", {"two": entry})
    return tmp_path


def test_run_reproduction__names_times_and_counts(two: Path) -> None:
    found = run_reproduction("two", two)
    assert (found.name, found.title, found.paper) == ("two", "Two", "Nobody 2017, figure 1")
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
    assert figure.files or name == "sppm-synthetic"  # makes its own data


@pytest.mark.paper
def test_run_reproduction__raw_records_agree_with_the_paper(paper_data: Path) -> None:
    found = run_reproduction("hamm2017-raw", paper_data, runs=1)
    assert found.counts == {"agrees": 4}, found.table
