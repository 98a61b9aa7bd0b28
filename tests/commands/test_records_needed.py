"""How many records a score needs at an epsilon, against releases of so many fresh records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.equal_noise import score_least_squares, score_model
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.score_trial import try_orders
from privpipe.records.memory import Records
from privpipe.report.audit_text import say
from privpipe.sanitizers import METHODS
from tests.commands.conftest import Command

N, WIDTH = 900, 6
FEWEST = 640  # fewer are not masked at epsilon 1: their noisy number is noise

SHIFT = np.array([1.5, 1.2, 0.9, 0.9, 0.6, 0.3])


def draw_classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, of which every feature shows something."""
    y = rng.integers(0, 2, n)
    return 0.5 * rng.normal(size=(n, WIDTH)) + np.outer(y - 0.5, SHIFT), y


def draw_numbers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A number that is linear in bounded features, but for noise."""
    x = rng.uniform(-1, 1, (n, WIDTH))
    return x, x @ SHIFT / 4 + 0.1 * rng.normal(size=n)


def configure(folder: Path, command: Command, draw: Any, seed: int, method: str) -> str:
    folder.mkdir(exist_ok=True)
    rng, kinds = np.random.default_rng(seed), "y,z" if draw is draw_classes else "z"
    for name in ("own", "public"):
        x, y = draw(rng, N)
        np.savez(folder / f"{name}.npz", X=x, y=y, z=rng.integers(0, 2, N))
        options = ("--features", "X", "--labels", "y,z", "--categorical", kinds)
        command("ingest", folder / f"{name}.npz", folder / f"{name}.zarr", *options)
    path = folder / "run.toml"
    public = f'[training]\npath = "{folder}/public.zarr"\npublic = true\n'
    path.write_text(
        f'[collection]\npath = "{folder}/own.zarr"\ndesired = ["y"]\nconfidential = ["z"]\n'
        f"{public if 'noisy' in method else ''}[method]\n{method}"
        f'[release]\npath = "{folder}/release.zarr"\n[audit]\nadversaries = []\n'
        f'[privacy]\naccount = "{folder}/account"\n[gate]\nenforce = false\n'
    )
    return str(path)


def write_noisy(epsilon: float) -> str:
    return (
        f'name = "noisy"\nepsilon = {epsilon}\nnoise = "privunit"\n'
        f'[method.filter]\nname = "pca"\nn_filtered = {WIDTH - 1}\n'
    )


def write_masking(epsilon: float) -> str:
    return (
        f'name = "masking_private"\nepsilon = {epsilon}\ndelta = 1e-6\nn_surrogates = 40\n'
        'bound = {"*" = [-1, 1], y = [-2, 2]}\n'
    )


def measure_noisy(run: Any, order: str, n: int, seed: int) -> float:
    """Mean accuracy of releases of so many fresh records, of which a half trains a model."""
    rng, found = np.random.default_rng([seed, 5]), []
    for k in range(max(2, min(20, 40_000 // n))):
        learn, (x, y) = draw_classes(rng, N // 2), draw_classes(rng, n)
        fitted: Any = run.method.fit(
            Records(learn[0], desired=learn[1], public=True),
            replace(run.options.method, order=order),
        )
        draw = KeyedStream(token_bytes(KEY_BYTES), partition="own", first_record=0, n_records=n)
        found.append(score_least_squares(fitted.apply(x, draw), y, 2, k))
    return float(np.mean(found))


def measure_masked(run: Any, n: int, seed: int) -> float:
    """Mean R squared of models of surrogates of so many fresh records, for fresh ones."""
    rng = np.random.default_rng([seed, 5])
    fresh, found = draw_numbers(rng, 20_000), []
    options = replace(run.options.method, bound={"*": (-1.0, 1.0), "desired_0": (-2.0, 2.0)})
    for _ in range(20):
        x, y = draw_numbers(rng, n)
        fitted: Any = run.method.fit(Records(x, desired=y), options)
        found.append(score_model(fitted.coefficients, *fresh, None))
    return float(np.mean(found))


MEASURES: dict[str, Any] = {
    "noisy": (draw_classes, write_noisy),
    "masking_private": (draw_numbers, write_masking),
}


def try_goal(folder: Path, command: Command, method: str, given: tuple[float, float, int]) -> Any:
    """A run, and what is found of it, for an epsilon, a goal and a seed."""
    draw, write = MEASURES[method]
    epsilon, goal, seed = given
    run = check_stage(read_options(configure(folder, command, draw, seed, write(epsilon))))
    return run, try_orders(run, goal)


def test_check__names_records_whose_surrogates_reach_the_score(
    tmp_path: Path, command: Command
) -> None:
    """So many fresh records do, and a quarter of them do not."""
    run, found = try_goal(tmp_path, command, "masking_private", (1.0, 0.8, 3))
    assert found["orders"]["masking_private"][0] < 0.6
    assert 2_000 < found["enough"] < 5_000
    assert measure_masked(run, found["enough"], 3) >= 0.8
    assert measure_masked(run, max(found["enough"] // 4, FEWEST), 3) < 0.7
    # More epsilon is worth more records, and enough of it is enough for those at hand.
    assert 2.0 < found["least"] < 7.0
    code, out, _ = command("check", tmp_path / "run.toml", "--score", ".8", "--json")
    assert not code
    assert json.loads(out)["order"] == found
    said = say("orders", one=found)
    assert f"At epsilon 1 about {found['enough']:,} records are enough." in said
    assert "an epsilon chosen by it is not private of these records" in said
    assert "Which is better" not in said
    assert "So masking_private" not in said


def test_check__says_where_no_number_of_records_is_enough(tmp_path: Path, command: Command) -> None:
    """Of noise in each record a part is left however many there are; of sums nothing is."""
    run, found = try_goal(tmp_path, command, "noisy", (4.0, 0.8, 5))
    assert (found["enough"], found["is_limited"]) == (None, True)
    assert "At epsilon 4 no number of records reaches it." in say("orders", one=found)
    assert measure_noisy(run, found["best"], 60_000, 5) < 0.8
    _, found = try_goal(tmp_path / "raw", command, "masking_private", (1.0, 0.99, 5))
    assert found["raw"] < 0.95
    assert (found["enough"], found["is_limited"]) == (None, True)


def test_score__of_surrogates_loses_a_sixteenth_of_four_times_the_records() -> None:
    """Noise of sums has one size: means have a quarter of it, and squares of errors a sixteenth."""
    rng, options = np.random.default_rng(0), METHODS["masking_private"].options
    given = options(epsilon=1.0, delta=1e-8, n_surrogates=40, bound={"*": (-2, 2)})
    lost = []
    for n in (40_000, 160_000):
        x, y = draw_numbers(rng, n)
        ones = np.column_stack([x, np.ones(n)])
        raw = np.linalg.lstsq(ones, y, rcond=None)[0]
        models = [given.try_fit(Records(x, desired=y), bytes([k] * 32)) for k in range(40)]
        lost.append(np.mean([np.square(ones @ (m.coefficients[:, 0] - raw)) for m in models]))
    assert 10 < lost[0] / lost[1] < 26


@pytest.mark.parametrize(
    ("n_classes", "weights", "expected"),
    [
        (2, [[1.0], [0.0]], 1.0),
        (2, [[-1.0], [1.0]], 0.0),
        (3, [[-1.0, 0.0, 1.0], [0.6, 0.0, -0.6]], 1.0),
        (None, [[1.0], [0.0]], 1.0),
        (None, [[0.0], [0.5]], 0.0),
    ],
)
def test_score_model__of_classes_and_numbers(
    n_classes: int | None, weights: list[list[float]], expected: float
) -> None:
    x = np.array([0.1, 0.9, 0.2, 0.8])[:, None]
    y = {2: [0, 1, 0, 1], 3: [0, 2, 0, 2]}.get(n_classes or 0, x[:, 0])
    assert score_model(np.array(weights), x, np.array(y), n_classes) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "epsilon", "goal"),
    # The noise leaves .757: near that a claim of either kind is easily wrong.
    [("masking_private", 1.0, 0.8), ("masking_private", 1.0, 0.9), ("noisy", 4.0, 0.75)],
)
def test_try__errs_on_records_as_seldom_as_it_says(
    tmp_path: Path, command: Command, method: str, epsilon: float, goal: float
) -> None:
    """Named numbers that are too few, and limits that are none, are 5 of 100 at most."""
    wrong, sharp, named = 0, 0, 0
    for seed in range(10):
        run, found = try_goal(tmp_path / str(seed), command, method, (epsilon, goal, seed))
        n = found["enough"] or 40_000
        if method == "noisy":
            true = measure_noisy(run, found["best"], n, seed)
        else:
            true = measure_masked(run, n, seed)
            named += bool(found["enough"])
            sharp += bool(found["enough"]) and measure_masked(run, max(n // 4, FEWEST), seed) < goal
        wrong += true < goal if found["enough"] else found["is_limited"] and true >= goal
    assert wrong <= 2  # of 10 at 5 %: 3 or more once in 87
    # Of 900 records a fourth say nothing so near the .92 that is left of any number.
    assert method == "noisy" or sharp >= named - 2 >= 4
