"""The SPPM figures on data made here: what they return, and what they say when data are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flows.reproduce import sppm_synthetic
from flows.reproduce.exponential import keep_symbols
from flows.reproduce.registry import run_reproduction
from flows.reproduce.result import Reproduction
from flows.reproduce.sppm_census import reproduce_census
from flows.reproduce.sppm_measures import attack_drawn_records
from flows.reproduce.sppm_movie import reproduce_movie
from flows.reproduce.sppm_synthetic import reproduce_synthetic
from flows.reproduce.steps import Steps, follow_steps
from privpipe.errors import InputError
from privpipe.report.style import render_svg
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping

GENRES = ("Action", "Comedy", "Drama", "Horror", "Musical", "Romance", "Sci-Fi", "War")


@pytest.fixture
def movies(tmp_path: Path) -> Path:
    """MovieLens's three files with users, films and ratings drawn at random."""
    random = np.random.default_rng(1)
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    films = [
        f"{k}::Film {k} (1990)::{'|'.join(sorted(random.choice(GENRES, 2, replace=False)))}"
        for k in range(60)
    ]
    users = [f"{k}::{'FM'[k % 2]}::25::4::00000" for k in range(80)]
    ratings = [f"{u}::{f}::3::1" for u in range(80) for f in random.choice(60, 12, replace=False)]
    for name, lines in (("movies", films), ("users", users), ("ratings", ratings)):
        (folder / f"{name}.dat").write_text("\n".join(lines), encoding="latin-1")
    return tmp_path


def test_reproduce_movie__reads_movielens(movies: Path) -> None:
    found = run_reproduction("sppm-movie", movies)
    document = json.loads(found.to_json())
    sppm = document["curves"]["information_nats"]["SPPM"]
    assert all(after <= before + 1e-3 for before, after in pairwise(sppm))
    assert np.all(np.subtract(sppm, document["curves"]["lower_bound_nats"]) <= 1e-3 + 1e-12)
    assert "share of the genres" in render_svg(found.figure("dark"))


def test_reproduce_movie__says_where_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ml-1m/users\.dat.*not found") as error:
        run_reproduction("sppm-movie", tmp_path)
    assert "GroupLens" in str(error.value)


@pytest.mark.slow
def test_reproduce_synthetic__errors_fall_with_the_steps() -> None:
    found = reproduce_synthetic(runs=2, size=32, most_seconds=0.0)
    cells = {cell.cell: cell for cell in found.cells}
    errors = [cells[f"largest error of L = {n}"].ours for n in (3, 10, 100, 500)]
    assert errors == sorted(errors, reverse=True)
    assert cells["largest certified gap"].ours <= 1e-7
    assert cells["time, L = 3, 64 symbols"].n_runs == 2
    assert "Effect of L" in render_svg(found.figure("light"))


def interrupt(reproduce: Callable[[], Reproduction], folder: Path) -> tuple[Reproduction, int, int]:
    """Ctrl-C at the sixth step, then again: the result, and steps kept and done."""
    folder.mkdir()
    written = []

    class Impatient(Steps):
        def _report(self, name: str) -> None:
            written.append(name)
            if len(written) == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), follow_steps(Impatient(folder)):
        reproduce()
    assert len(list(folder.glob("*.json"))) == 6
    steps = Steps(folder)
    with follow_steps(steps):
        found = reproduce()
    assert not folder.exists()
    return found, steps.n_found, steps.n_done - steps.n_expected


def assert_same(one: Reproduction, other: Reproduction) -> None:
    """Every number but seconds, bit for bit."""
    documents = [json.loads(found.to_json()) for found in (one, other)]
    for document in documents:
        document["curves"].pop("seconds", None)
        document["cells"] = [c for c in document["cells"] if c["unit"] != "seconds"]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("size", "timed"), [(12, (8, 16)), pytest.param(32, (64, 128), marks=pytest.mark.slow)]
)
def test_reproduce_synthetic__goes_on_after_an_interruption(
    size: int, timed: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sppm_synthetic, "TIMED", timed)
    monkeypatch.setattr(sppm_synthetic, "STEPS", (3, 10))
    monkeypatch.setattr(sppm_synthetic, "TIMED_STEPS", (3,))
    reproduce = partial(reproduce_synthetic, runs=1, size=size, most_seconds=0.0)
    found, kept, left = interrupt(reproduce, tmp_path / "kept")
    assert (kept, left) == (6, 0)
    assert_same(found, reproduce())


def test_reproduce_movie__goes_on_after_an_interruption(movies: Path, tmp_path: Path) -> None:
    reproduce = partial(reproduce_movie, movies)
    found, kept, left = interrupt(reproduce, tmp_path / "kept")
    assert (kept, left) == (6, 0)
    assert_same(found, reproduce())
    assert "SPPM, held-out users (" in render_svg(found.figure("light"))


@pytest.mark.slow
@pytest.mark.paper
def test_reproduce_census__goes_on_after_an_interruption(paper_data: Path, tmp_path: Path) -> None:
    found, kept, left = interrupt(partial(reproduce_census, paper_data), tmp_path / "kept")
    assert (kept, left) == (6, 0)
    assert len(found.cells) > 20


def test_attack_drawn_records__finds_what_is_left() -> None:
    codes = np.array([[a, b] for a in range(4) for b in (0, 3)])
    counts = np.stack([np.repeat([4.0, 3.0, 2.0, 1.0], 2), np.repeat([1.0, 2.0, 3.0, 4.0], 2)])
    raw = attack_drawn_records(keep_symbols(counts / 40, codes), counts, 4000, 1)
    solved = solve_privacy_mapping(counts / 40, codes, distortion_budget=0.7)
    after = attack_drawn_records(solved, counts, 4000, 1)
    # Of a record of each class the first attribute tells with area .5 + 1/2 sum (F0 f1 - F1 f0).
    for attacker in ("naive_bayes", "logistic"):
        assert raw[attacker] == pytest.approx(0.75, abs=0.05)
        assert after[attacker] < raw[attacker] - 0.1
