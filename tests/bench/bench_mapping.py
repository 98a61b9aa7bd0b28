"""Privacy mappings: promises, coverage, certificates, the clock and workers, beside their bars.

``python -m tests.bench mapping``. Times are processor seconds. A reference called "at most",
"wanted" or "allowed" is the bar: a ratio above 1 is out of reach so far. It takes hours; ``python
-m tests.bench.bench_mapping PART [TEXT]`` runs one of `PARTS`, where it has cells those with the
text in their name.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.pricing_rounds import ClusterPricing
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.flows.comparison import _fit_apart, plan_entries
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import Programme
from privpipe.pipeline.runs import resume
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.train import train_stage
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers.mapping.solving.budgeted import solve_budgeted_mapping
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.collections.writing import write_collection
from tests.bench import bench_mapping_scale, bench_sppm
from tests.bench.mapping_coverage import list_coverage
from tests.laws_of_records import RecordLaw, make_grid, make_laws

Row = tuple[Any, ...]


def _seconds(action: Callable[[], object]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def bound_the_law(name: str, n: int, **changes: Any) -> Row:
    """The promise of a fit beside what the mapping tells."""
    law = make_laws()[name]
    records, options = law.draw(n, np.random.default_rng(0)), law.make_options(**changes)
    mapping = fit_privacy_mapping(records, options)  # type: ignore[arg-type]
    told, number = law.tell(mapping)[0], float(mapping.guarantee.number or 0.0)
    chosen = ", ".join(["promise", *(f"{key} = {value}" for key, value in changes.items())])
    return f"{chosen}, {name}, {n:,} records", number, "nats", "the truth", told, number / told


THREE = ("education", "marital_status", "occupation")
EIGHT = ("age", "workclass", *THREE, "relationship", "race", "hours_per_week")


def read_adult(attributes: tuple[str, ...], private: list[str], budget: float) -> RecordLaw:
    """Adult's own counts as the law."""
    table = pd.read_csv(Path(os.environ["PRIVPIPE_PAPER_DATA"]) / "adult.csv.gz")
    table["age"] = pd.qcut(table["age"], 8, labels=False)
    table["hours_per_week"] = np.digitize(table["hours_per_week"], [20, 40, 45])
    rows = np.stack([pd.factorize(table[name], sort=True)[0] for name in attributes], axis=1)
    codes, place = np.unique(rows, axis=0, return_inverse=True)
    value = table.groupby(private).ngroup().to_numpy()
    joint = np.zeros((value.max() + 1, len(codes)))
    np.add.at(joint, (value, place.ravel()), 1.0)
    return RecordLaw(joint / joint.sum(), codes, "hamming", budget)


def promise_adult(
    name: str, law: RecordLaw, n: int, bar: float, seed: int, **changes: Any
) -> list[Row]:
    """What is promised of records drawn from Adult's counts: against the bar, and the truth."""
    records, options = law.draw(n, np.random.default_rng(seed)), law.make_options(**changes)
    mapping = fit_privacy_mapping(records, options)  # type: ignore[arg-type]
    (told, spent), number = law.tell(mapping), float(mapping.guarantee.number or 0.0)
    what = f"Adult, {name}, {n:,} records"
    released = len(np.unique(mapping.released))
    return [
        (f"{what}, promise", number, "nats", "at most", bar, number / bar),
        (f"{what}, promise by the truth", number / told, "", "at most", 1.6, number / told / 1.6),
        (f"{what}, distortion", spent, "changed", "allowed", law.budget, spent / law.budget),
        (f"{what}, released", released, "", "profiles", len(law.codes), released / len(law.codes)),
    ]


def promise_on_adult(seed: int = 5) -> list[Row]:
    """Three attributes, and the eight of a first configuration."""
    three, eight = read_adult(THREE, ["income"], 0.3), read_adult(EIGHT, ["income"], 0.8)
    both = read_adult(EIGHT, ["income", "sex"], 0.8)
    return [
        *promise_adult("three attributes", three, 12_000, 0.15, seed),
        *promise_adult("three attributes", three, 48_842, 0.075, seed),
        *promise_adult("eight attributes", eight, 48_842, 0.2, seed, most_frequent=2000),
        *promise_adult("eight, income and sex", both, 48_842, 0.2, seed, most_frequent=2000),
    ]


def limit_odds(sizes: tuple[int, ...]) -> Row:
    """A mapping of bounded posterior odds, by cutting planes."""
    rng, codes = np.random.default_rng(2), make_grid(*sizes)
    joint = rng.dirichlet([1.0, 1.0], len(codes)).T / len(codes)
    found: list[Any] = []

    def solve() -> None:
        found.append(
            solve_constrained_mapping(joint, codes, distortion_budget=0.5, max_posterior_odds=3.0)
        )

    seconds = _seconds(solve)
    gap = found[0].gap
    return (
        f"odds at most 3, {len(codes)} profiles",
        seconds,
        "s",
        "gap by its target",
        gap,
        gap / 1e-4,
    )


class TimedTasks:
    """Solves here what would be tasks, and notes the seconds of each, the largest first."""

    n_threads = 1

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rounds: list[list[float]] = []

    def __call__(self, problem: Programme, question: PricingQuestion) -> Prices:
        return price_in_memory(problem, question)

    def pays(self, work: str, seconds: float, n_tasks: int) -> bool:
        return True

    def spread(self, solve: Any, problems: Any, at_once: int | None = None) -> Iterator[Any]:
        self.rounds.append([])
        for one in problems:
            begun = time.process_time()
            found = solve(one)
            self.seconds.append(time.process_time() - begun)
            self.rounds[-1].append(self.seconds[-1])
            yield found


def draw_strata(
    sizes: tuple[int, ...], n_values: int, n: int, **changes: Any
) -> tuple[Records, PrivacyMappingOptions]:
    """Records of a grid of profiles and a public variable, and options of a fit by it."""
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, size, n) for size in sizes])
    noise = 0.3 * rng.standard_normal(n)
    private = rng.random(n) < 1 / (1 + np.exp(-(codes[:, 0] - sizes[0] / 2) * 0.5 - noise))
    attributes = np.column_stack([codes, rng.integers(0, n_values, n)])
    records = Records(np.zeros((n, 1)), attributes=attributes, confidential=private.astype(str))
    names = tuple(f"attribute_{k}" for k in range(len(sizes)))
    given = {"by": f"attribute_{len(sizes)}", "distortion_budget": 0.2, "gap": 1e-7, **changes}
    return records, PrivacyMappingOptions(attributes=names, private=("s",), **given)


def spend_limit(sizes: tuple[int, ...], n_values: int, n: int, limit: float) -> Row:
    """Seconds of a fit by a public variable whose searches do not end by themselves."""
    records, options = draw_strata(sizes, n_values, n, gap=1e-13, max_seconds=limit)
    fit_privacy_mapping(records, options)  # compiles
    spent = _seconds(lambda: fit_privacy_mapping(records, options))
    return f"by {n_values} values, max_seconds", spent, "s", "allowed", limit, spent / limit


def spread_strata(sizes: tuple[int, ...], n_values: int, n: int) -> list[Row]:
    """A fit by a public variable: here, by two workers, and by four of the measured task times."""
    records, options = draw_strata(sizes, n_values, n)
    fit_privacy_mapping(records, options)  # compiles
    tasks = TimedTasks()
    alone = _seconds(lambda: fit_privacy_mapping(records, options, tasks))
    loads = np.zeros(4)
    for seconds in tasks.seconds:
        loads[loads.argmin()] += seconds
    four = alone - sum(tasks.seconds) + float(loads.max())
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        price = ClusterPricing(client, "0d0d0d0d", "cluster")
        fit_privacy_mapping(records, options, price)
        before = client.run(time.process_time)
        driver = _seconds(lambda: fit_privacy_mapping(records, options, price))
        after = client.run(time.process_time)
    spent = [after[key] - before[key] for key in before]
    two, share = driver + max(spent), driver / (driver + sum(spent))
    what = f"by {n_values} values, {np.prod(sizes):,} profiles each"
    return [
        (f"{what}, two workers", two / alone, "of one", "at most", 0.6, two / alone / 0.6),
        (f"{what}, four simulated", four / alone, "of one", "at most", 0.35, four / alone / 0.35),
        (f"{what}, driver", share, "of all", "at most", 0.1, share / 0.1),
        (f"{what}, one", alone, "s of CPU", "the busiest of two", max(spent), alone / max(spent)),
    ]


def draw_variables(
    sizes: tuple[int, ...], values: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joint, codes and private values of several variables that depend on a grid of profiles."""
    rng, codes, private = np.random.default_rng(0), make_grid(*sizes), make_grid(*values)
    mass = rng.exponential(size=len(codes))
    joint = np.ones((len(private), len(codes))) * mass / mass.sum()
    for k, n in enumerate(values):
        slopes = rng.normal(0.0, 0.5, (n, len(sizes)))
        odds = np.exp(slopes @ codes.T + 0.5 * rng.standard_normal((n, len(codes))))
        joint *= (odds / odds.sum(axis=0))[private[:, k]]
    return joint, codes, private


def spread_budgets(sizes: tuple[int, ...], values: tuple[int, ...]) -> list[Row]:
    """Budgets of several variables: two workers simulated, of the measured times of each round."""
    joint, codes, private = draw_variables(sizes, values)

    def solve(price: Any) -> None:
        solve_budgeted_mapping(
            joint,
            codes,
            private=private,
            information_budgets=np.linspace(1.0, 0.5, len(values)).tolist(),
            distortion_budget=0.4,
            price=price,
        )

    tasks = TimedTasks()
    alone = _seconds(lambda: solve(tasks))
    two = alone - sum(tasks.seconds) + sum(map(max, tasks.rounds))
    what = f"budgets of {len(values)} variables, {len(codes):,} profiles"
    return [
        (f"{what}, two simulated", two / alone, "of one", "at most", 0.6, two / alone / 0.6),
        (f"{what}, one", alone, "s of CPU", "rounds", 1 + len(tasks.rounds), alone / two),
    ]


def write_adult(url: str) -> None:
    """Adult's three attributes and income as a collection."""
    table = pd.read_csv(Path(os.environ["PRIVPIPE_PAPER_DATA"]) / "adult.csv.gz")
    names = [*THREE, "income"]
    parts = {name: pd.factorize(table[name].astype(str), sort=True) for name in names}
    kinds = (Variable(name, "int8", tuple(map(str, parts[name][1]))) for name in names)
    schema = CollectionSchema(len(table), 0, "float32", chunk_rows=8192, variables=tuple(kinds))
    blocks = [
        {name: parts[name][0][rows].astype(np.int8) for name in names}
        | {"features": np.empty((len(table[rows]), 0), np.float32)}
        for rows in (slice(at, at + 8192) for at in range(0, len(table), 8192))
    ]
    write_collection(url, schema, blocks)


def fit_points(folder: Path, budgets: tuple[float, ...], executor: Executor) -> None:
    """What `privpipe compare --vary distortion_budget=...` fits; its attacks are tasks anyway."""
    base = RunOptions(
        collection={"path": str(folder / "records.zarr")},
        method={
            "name": "privacy_mapping",
            "attributes": THREE,
            "private": ["income"],
            "distortion_budget": budgets[0],
            "gap": 1e-4,
        },
        release={"path": str(folder / f"{time.monotonic_ns()}.zarr")},
        audit={"holdout": 0.5, "adversaries": ["naive_bayes"]},
        gate={"enforce": False},
    )
    entries = plan_entries(base, {"distortion_budget": budgets})
    runs = [check_stage(one) for one in entries.values()]
    _fit_apart(runs, executor)
    for run in runs:  # what is fitted already is not fitted again
        with hold_workspace(run.release_url):
            train_stage(resume.begin_or_resume(run)[0], executor)


def spread_points(small: bool) -> Iterator[Row]:
    """Points of a comparison on Adult: fitted here, and by two workers."""
    # So many that one worker takes more than 20 seconds, from where on the bar holds.
    budgets = (0.2, 0.4) if small else tuple(0.03 * k for k in range(1, 25))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place)
        patch.setenv("PRIVPIPE_KEYS", str(folder / "keys"))
        patch.setenv("PRIVPIPE_ACCOUNT", str(folder / "account"))
        write_adult(str(folder / "records.zarr"))
        fit_points(folder, budgets, Executor())  # compiles, and says whose records these are
        alone = _seconds(lambda: fit_points(folder, budgets, Executor()))
        with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
            executor = DaskExecutor(client, "0d0d0d0e")
            fit_points(folder, budgets, executor)
            before = client.run(time.process_time)
            driver = _seconds(lambda: fit_points(folder, budgets, executor))
            after = client.run(time.process_time)
    busiest = max(after[key] - before[key] for key in before)
    two, what = driver + busiest, f"Adult, {len(budgets)} points of compare"
    yield f"{what}, two workers", two / alone, "of one", "at most", 0.6, two / alone / 0.6
    yield f"{what}, one", alone, "s of CPU", "driver of two", driver, driver / alone


def list_promises(seed: int, small: bool, match: str) -> Iterator[Row]:
    """Promises by the truth, of laws and of Adult's counts."""
    n = 5_000 if small else 200_000
    yield bound_the_law("random", n)
    yield bound_the_law("issue: 288 profiles", n)
    yield bound_the_law("ordered, absolute, three", 2_000)
    yield limit_odds((4, 3) if small else (6, 5, 4))
    if not small:
        yield from promise_on_adult(seed)


def list_covered(seed: int, small: bool, match: str) -> Iterator[Row]:
    """How often promises hold."""
    yield from list_coverage(seed, *((500, 2) if small else (2_000, 400)), match)


def list_cells(seed: int, small: bool, match: str) -> Iterator[Row]:
    """Gaps of certificates on lines."""
    yield from bench_mapping_scale.list_grid(seed, small, match)


def list_limits(seed: int, small: bool, match: str) -> Iterator[Row]:
    """What of `max_seconds` is spent."""
    for limit in (1.0,) if small else (1.0, 3.0):
        yield spend_limit(*((3, 2), 2, 2_000) if small else ((10, 10, 8), 6, 200_000), limit)
    yield from bench_sppm.keep_limits(small)


def list_workers(seed: int, small: bool, match: str) -> Iterator[Row]:
    """What two workers take of one's time."""
    yield from spread_strata(*(((3, 2), 2, 2_000) if small else ((24, 18, 12), 8, 900_000)))
    yield from spread_budgets(*(((3, 2), (2, 2)) if small else ((16, 12, 10), (2, 3, 2))))
    yield bench_sppm.share(1024 if small else 65_536)
    if "PRIVPIPE_PAPER_DATA" in os.environ:
        yield from spread_points(small)


PARTS: dict[str, Callable[[int, bool, str], Iterator[Row]]] = {
    "promises": list_promises,
    "clock": list_limits,
    "workers": list_workers,
    "coverage": list_covered,
    "grid": list_cells,
}


def run(small: bool = False, seed: int = 0) -> Iterator[Row]:
    """All rows, as they come."""
    for part in PARTS.values():
        yield from part(seed, small, "")


if __name__ == "__main__":
    for row in PARTS[sys.argv[1]](int(os.environ.get("SEED", "0")), False, " ".join(sys.argv[2:])):
        print(*row, sep="\t", flush=True)
