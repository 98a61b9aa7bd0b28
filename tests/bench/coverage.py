"""How often intervals of `estimate` hold the truth, for laws and for real records.

Records are drawn with replacement from a population: two million of a law, or all records of a set.
Each draw gets noise of a key of its own, and the intervals of the release are held against the
population. Of many coordinates the mean share is the figure; the least and the most are named.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privpipe.errors import InputError
from privpipe.numerics.noise import estimates
from privpipe.numerics.noise.group_estimates import estimate_differences
from privpipe.numerics.noise.logistic_estimates import estimate_logistic
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.random.streams import KeyedStream
from tests.bench.bench_masking import Row
from tests.numerics.noise.test_logistic_estimates import LAWS, draw

ALL = ("means", "covariances", "correlations", "regression", "logistic", "differences")


@dataclass
class Population:
    """Features in the unit ball, a number, and a category of two, of every record."""

    features: np.ndarray
    number: np.ndarray
    category: np.ndarray
    n: int
    epsilon: float
    of: tuple[str, ...] = ALL

    def take(self, rows: np.ndarray) -> Population:
        parts = self.features[rows], self.number[rows], self.category[rows]
        return Population(*parts, self.n, self.epsilon, self.of)


def estimate_all(sample: Population, noise: np.ndarray) -> Iterator[tuple[str, list[Any]]]:
    """Of each quantity the estimates, none where they are refused; `noise` of each feature."""
    x, width = sample.features, sample.features.shape[1]
    names, more = [f"x{j}" for j in range(width)], np.append(noise, 0.0)
    numbers, groups = (np.column_stack([x, y]) for y in (sample.number, sample.category))
    known: dict[str, Callable[[], list[Any]]] = {
        "means": lambda: estimates.estimate_means(lambda: [x], names),
        "covariances": lambda: estimates.estimate_covariances(lambda: [x], names, noise),
        "correlations": lambda: estimates.estimate_correlations(lambda: [x], names, noise),
        "regression": lambda: estimates.estimate_regression(lambda: [numbers], [*names, "y"], more),
        "logistic": lambda: estimate_logistic(
            lambda: [groups], [*names, "y"], noise, joint=bool(noise.any())
        ),
        "differences": lambda: estimate_differences(lambda: [groups], names, ["no", "yes"]),
    }
    for of in sample.of:
        try:
            yield of, known[of]()
        except InputError:
            yield of, []


def measure(population: Population, n_draws: int) -> dict[str, tuple[float, float, float, float]]:
    """Mean, least and largest share of intervals that hold the truth; share of draws shown."""
    width, n = population.features.shape[1], population.n
    nothing = np.zeros(width)
    truth = {
        of: np.array([one.value for one in found])
        for of, found in estimate_all(population, nothing)
    }
    mechanism = plan_mechanism(population.epsilon, width, "l2", "knorm")
    noise = np.full(width, (mechanism.spread / mechanism.factor) ** 2)
    hits: dict[str, list[np.ndarray]] = {of: [] for of in population.of}
    for k in range(n_draws):
        rng = np.random.default_rng(k)
        sample = population.take(rng.integers(len(population.features), size=n))
        stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
        released = mechanism.release(sample.features.copy(), stream) / mechanism.factor
        sample.features = released
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # columns left out: the draw is one that is not shown
            for of, found in estimate_all(sample, noise):
                if found and len(found) == len(truth[of]):
                    limits = np.array([one.find_limits(0.95) for one in found])
                    hits[of].append((limits[:, 0] <= truth[of]) & (truth[of] <= limits[:, 1]))
    shares = {of: np.mean(each, axis=0) for of, each in hits.items() if each}
    return {
        of: (float(one.mean()), float(one.min()), float(one.max()), len(hits[of]) / n_draws)
        for of, one in shares.items()
    }


def make_law(law: str, size: int) -> Population:
    rows = draw(np.random.default_rng(99), size, law)
    noise = 0.1 * np.random.default_rng(98).normal(size=size)
    number = rows[:, :2] @ [0.4, -0.3] + 0.1 + noise
    return Population(rows[:, :2], number, rows[:, 2], 6_000, 16.0)


def read_sets() -> dict[str, Population]:
    """Real records, where they are; features are scaled by the longest, as by a public number."""
    folder = Path(os.environ.get("PRIVPIPE_PAPER_DATA", "."))
    if not (folder / "genki.npz").exists():
        return {}
    genki, har, school = (
        np.load(folder / f"{name}.npz", allow_pickle=True) for name in ("genki", "har", "school")
    )
    people = pd.read_csv(folder / "adult.csv.gz")
    numbers = people[["age", "hours_per_week", "education_num"]].to_numpy(float)
    numbers = (numbers - [45, 40, 9]) / [45, 59, 8]
    adult = np.column_stack([numbers[:, :2], (people["sex"] == "Male") * 0.5])
    rich = people["income"].str.contains(">").to_numpy(float)
    # Share of free meals, gender, and one band of the verbal test.
    few, score = school["X"][:, [3, 5, 7]].astype(float), school["y"] / 70
    few /= few.max(axis=0)
    means = ("means", "differences")

    def scale(x: np.ndarray) -> np.ndarray:
        return np.asarray(x / np.linalg.norm(x, axis=1).max(), dtype=float)

    smile, moves = genki["expression"].astype(float), (har["activity"] < 3).astype(float)
    return {
        "GENKI, 256 features": Population(scale(genki["X"]), smile, smile, 1_500, 16.0, means),
        "GENKI, 3 features": Population(
            scale(genki["X"][:, :3]), genki["gender"].astype(float), smile, 6_000, 40.0
        ),
        "HAR, 561 features": Population(scale(har["X"]), moves, moves, 1_500, 16.0, means),
        "HAR, 3 features": Population(
            scale(har["X"][:, :3]), har["X"][:, 40].astype(float), moves, 6_000, 80.0
        ),
        "Adult": Population(scale(adult), numbers[:, 2], rich, 6_000, 16.0),
        "School": Population(scale(few), score, (school["y"] > 20).astype(float), 6_000, 16.0),
    }


def list_coverage(small: bool) -> Iterator[Row]:
    """Rows; the ratio is of the mean share to .95."""
    size, n_draws = (20_000, 3) if small else (2_000_000, 1_000)
    made = [(law, partial(make_law, law, size)) for law in (LAWS[:2] if small else LAWS)]
    sets = {} if small else read_sets()
    for name, make in [*made, *((name, lambda one=one: one) for name, one in sets.items())]:
        for of, (mean, least, most, shown) in measure(make(), n_draws).items():
            title = f"coverage of {of}, {name}: {least:.3f} to {most:.3f}"
            title += "" if shown == 1 else f", shown in {shown:.3f} of draws"
            yield title, mean, "of intervals", "level", 0.95, mean / 0.95
