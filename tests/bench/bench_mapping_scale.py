"""Privacy mappings at the sizes where a certificate is hard: processor seconds, gap, peak memory.

``python -m tests.bench mapping_scale``; ``python -m tests.bench.bench_mapping_scale NAME`` runs one
problem in a process of its own, so that its peak memory is its own, and with ``--rounds`` tells of
each round. Of a gap, the ratio is to what is wanted.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping

Row = tuple[Any, ...]
Problem = tuple[np.ndarray, np.ndarray, str, float, float, float]
"""Joint, codes, distortion, budget, wanted gap, most processor seconds (looked at each round)."""

AGE_AND_HOURS = ("age", "hours_per_week")
MORE = ("education", "marital_status", "occupation", "race", "sex", "native_country", "workclass")


def noisy_line(n: int, gap: float, seconds: float) -> Problem:
    """Uneven positions and priors, a noisy posterior of its own per symbol; absolute distortion."""
    rng = np.random.default_rng(1)
    mass = rng.uniform(0.2, 1.8, n)
    posterior = np.where(np.arange(n) < n // 2, 0.1, 0.9) + 0.05 * rng.normal(size=n)
    posterior = np.clip(posterior, 0.001, 0.999)
    joint = np.stack([mass * (1 - posterior), mass * posterior]) / mass.sum()
    codes = np.cumsum(rng.exponential(size=n))[:, None]
    return joint, codes, "absolute", 0.05 * n, gap, seconds


LAWS = {
    "gamma": ("gamma", "sine", 0.3),
    "uniform": ("uniform", "sine", 0.3),
    "noise": ("gamma", "sine", 1.0),
    "waves": ("gamma", "waves", 0.3),
    "steps": ("gamma", "steps", 0.3),
}


def line_law(name: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Joint and codes of a law of `LAWS`: masses, shape of the logits, their noise."""
    masses, shape, noise = LAWS[name]
    rng = np.random.default_rng(seed)
    m = rng.gamma(0.5, size=n) + 1e-12 if masses == "gamma" else rng.uniform(0.2, 1.8, n)
    m, u = m / m.sum(), np.arange(n) / n
    sine = {"sine": 6 * np.sin(9 * u), "waves": 3 * np.sin(200 * u)}
    logits = sine.get(shape, np.where(u < 0.5, -2.2, 2.2)) + rng.normal(scale=noise, size=n)
    share = 1 / (1 + np.exp(-logits))
    return np.stack([m * share, m * (1 - share)]), np.arange(n, dtype=float)[:, None]


def smooth_line(n: int, gap: float, seconds: float) -> Problem:
    """A posterior that is smooth but for two jumps; squared distortion."""
    x = np.arange(n) / n
    posterior = np.where(x < 0.3, 0.2, np.where(x < 0.7, 0.8, 0.4)) + 0.1 * np.sin(9 * x)
    joint = np.stack([posterior, 1 - posterior])
    return joint / joint.sum(), np.arange(n)[:, None], "squared", (0.05 * n) ** 2, gap, seconds


def census(gap: float, seconds: float) -> Problem:
    """Every profile of Adult's seven attributes, age in decades."""
    from flows.reproduce.sppm_problems import load_census

    counts, codes = load_census(Path(os.environ["PRIVPIPE_PAPER_DATA"]), "all")
    return counts / counts.sum(), codes, "hamming", 0.35, gap, seconds


def fine_census(n: int, gap: float, seconds: float) -> Problem:
    """Adult with age and hours as they are, made n profiles by drawing from its attributes.

    Adult has 48,842 records: the profiles beyond theirs are records with attributes of two others,
    and posteriors are those of a logistic law with noise of their own.
    """
    table = pd.read_csv(Path(os.environ["PRIVPIPE_PAPER_DATA"]) / "adult.csv.gz")
    columns = [name for name in (*AGE_AND_HOURS, *MORE) if name in table]
    base = np.stack([pd.factorize(table[name], sort=True)[0] for name in columns], axis=1)
    rng = np.random.default_rng(4)
    mixed = base[rng.integers(0, len(base), 4 * n)].copy()
    donors, swap = base[rng.integers(0, len(base), 4 * n)], rng.random((4 * n, len(columns))) < 0.3
    mixed[swap] = donors[swap]
    found = np.unique(np.concatenate([base, mixed]), axis=0)
    codes = found[np.sort(rng.permutation(len(found))[:n])]
    score = (codes - codes.mean(axis=0)) / codes.std(axis=0) @ rng.normal(0, 0.6, len(columns))
    posterior = 1 / (1 + np.exp(1.2 - score + 0.5 * rng.standard_normal(len(codes))))
    mass = rng.exponential(size=len(codes))
    joint = np.stack([posterior * mass, (1 - posterior) * mass])
    return joint / joint.sum(), codes, "hamming", 0.5, gap, seconds


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "noisy line, 65,537": lambda: noisy_line(65_537, 1e-4, 120.0),
    "noisy line, 2^17": lambda: noisy_line(2**17, 1e-4, 120.0),
    "noisy line, 2^20": lambda: noisy_line(2**20, 1e-3, 600.0),
    "piecewise smooth, 2^17": lambda: smooth_line(2**17, 1e-6, 60.0),
    "Adult, every profile": lambda: census(1e-6, 120.0),
    "Adult finely binned, 10^5": lambda: fine_census(100_000, 1e-4, 900.0),
}
SIZES, BUDGETS = (4_096, 20_011, 131_072), (3.7, 200.0, 1_000.0)


def make_grid(
    seed: int, sizes: tuple[int, ...] = SIZES, budgets: tuple[float, ...] = BUDGETS
) -> dict[str, Callable[[], Problem]]:
    """Every cell by its name: sizes, distances, budgets, laws; the largest alphabet has one."""

    def make(law: str, n: int, kind: str, budget: float, gap: float, most: float) -> Problem:
        return *line_law(law, n, seed), kind, budget, gap, most

    cells = itertools.product(sizes, ("absolute", "squared"), budgets, LAWS)
    found = {
        f"line, {law}, {n}, {kind}, {budget:g}": partial(make, law, n, kind, budget, 1e-4, 120.0)
        for n, kind, budget, law in cells
    }
    if sizes == SIZES:
        largest = partial(make, "noise", 2**20, "absolute", 3.7, 1e-3, 600.0)
        found["line, noise, 2^20, absolute, 3.7"] = largest
    return found


def list_grid(seed: int, small: bool = False, match: str = "") -> Iterator[Row]:
    """The gap of each cell as it comes, and the worst of them by what is wanted."""
    worst: Row = ("", 0.0, "nats", "wanted", 1.0, -np.inf)
    grid = make_grid(seed, (256,), (3.7,)) if small else make_grid(seed)
    for name, make in grid.items():
        if match in name:
            (title, spent, *_), (_, reached, *rest), _ = certify(name, make)
            row = f"{title}, {spent:.0f} s of CPU", reached, *rest
            yield row
            worst = max(worst, row, key=lambda one: one[-1])
    if worst[0]:
        yield f"the worst cell of the grid is {worst[0]}", *worst[1:]


GRID = make_grid(31)
"""With the seed of DESIGN.md; the table of this benchmark has cells of a small budget."""
PROBLEMS |= {name: make for name, make in GRID.items() if "20011" in name and "3.7" in name}
SMALL: dict[str, Callable[[], Problem]] = {
    "noisy line, 513": lambda: noisy_line(513, 1e-3, 20.0),
    "piecewise smooth, 512": lambda: smooth_line(512, 1e-5, 20.0),
}


class _EnoughError(Exception):
    """The processor time of a problem is over."""


def certify(name: str, make: Callable[[], Problem]) -> list[Row]:
    """A solve's processor seconds and gap against its target, and the peak of this process."""
    joint, codes, kind, budget, gap, most = make()
    begun, reached, stopped = time.process_time(), [np.inf], "processor time over"
    rounds: list[tuple[float, float]] = []

    def watch(progress: Any) -> None:
        rounds.append((time.process_time() - begun, progress.reached))
        if "--rounds" in sys.argv:
            print(f"{rounds[-1][0]:.1f} s: {progress.reached:.3g} nats", flush=True)
        if rounds[-1][0] > most:
            raise _EnoughError

    try:
        found = solve_privacy_mapping(
            joint, codes, kind, distortion_budget=budget, gap=gap, on_round=watch
        )
        reached, stopped = [found.gap], found.stopped
    except _EnoughError:
        reached = [rounds[-1][1]]
    spent = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    best = next((at for at, left in rounds if left <= 1.05 * reached[0]), spent)
    return [
        (f"{name}: {stopped}", spent, "s of CPU", "to within .05 of the gap", best, best / spent),
        (f"{name}, gap", reached[0], "nats", "wanted", gap, reached[0] / gap),
        (f"{name}, peak of the process", peak, "GiB", "allowed", 8.0, peak / 8.0),
    ]


def run(small: bool = False) -> list[Row]:
    """All problems, one after the other."""
    warm = noisy_line(2**8, 1e-3, 20.0)
    solve_privacy_mapping(*warm[:3], distortion_budget=warm[3], gap=warm[4])
    known = SMALL if small else PROBLEMS
    return [row for name, make in known.items() for row in certify(name, make)]


if __name__ == "__main__":
    for wanted in [name for name in sys.argv[1:] if name != "--rounds"]:
        for row in certify(wanted, {**PROBLEMS, **GRID, **SMALL}[wanted]):
            print(
                " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in row), flush=True
            )
