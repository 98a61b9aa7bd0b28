"""Privacy mappings: certified solves against the printed algorithm, and pricing kernels.

``python -m tests.bench.bench_sppm [--small]``. The printed algorithm is the tests' oracle: dense
numpy searches, HiGHS masters. Errors are against the certified lower bound, in nats. A printed
run that would take too long is stopped and its time scaled to all L steps by its seconds per step;
the row then says at which step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.pricing_rounds import ClusterPricing
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.numerics.mapping.mapping_search import search_mapping
from privpipe.numerics.mapping.problem.ordered_pricing import bin_posteriors, price_ordered
from privpipe.numerics.mapping.problem.pair_pricing import PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import Duals
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from tests.cluster.test_replies import make_categorical
from tests.oracles_sppm import all_distances, frank_wolfe_as_printed

Row = tuple[Any, ...]

MOST_SECONDS = 150.0


def make_toy(n: int, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The paper's synthetic data; with a seed, uneven priors and positions."""
    joint = np.repeat(np.eye(2), n // 2, axis=1)
    joint = np.concatenate([joint, joint[:, -1:]], axis=1)[:, :n]
    x = np.arange(n, dtype=float)
    if seed is not None:
        random = np.random.default_rng(seed)
        joint = joint * random.uniform(0.2, 1.8, n)
        x = np.cumsum(random.exponential(size=n))
    return joint / joint.sum(), x[:, None]


def compare(
    name: str, joint: Any, codes: Any, kind: str, budget: float, gap: float, steps: int
) -> list[Row]:
    """A certified solve against the printed algorithm at L steps."""
    distances = all_distances(codes, kind)
    printed = frank_wolfe_as_printed(joint, distances, budget, steps, MOST_SECONDS)
    done, spent = len(printed.steps), printed.steps[-1][0]
    start = time.perf_counter()
    mapping = solve_privacy_mapping(joint, codes, kind, distortion_budget=budget, gap=gap)
    ours, theirs = time.perf_counter() - start, spent / done * steps
    error = printed.information - mapping.lower_bound
    label = f"printed, L = {steps}" + (f", scaled from {done} steps" if done < steps else "")
    return [
        (f"{name}, certified to {gap:g}", ours, "s", label, theirs, theirs / ours),
        (f"{name}, whole solve", ours, "s", "one printed step", spent / done, spent / done / ours),
        (f"{name}, gap", mapping.gap, "nats", f"error at L = {done}", error, error / mapping.gap),
    ]


def certify(name: str, joint: Any, codes: Any, kind: str, budget: float, gap: float) -> Row:
    """A certified solve against its target."""
    start = time.perf_counter()
    mapping = solve_privacy_mapping(joint, codes, kind, distortion_budget=budget, gap=gap)
    seconds = time.perf_counter() - start
    return (
        f"{name}, {mapping.stopped}",
        seconds,
        "s",
        "gap by its target",
        mapping.gap,
        mapping.gap / gap,
    )


def price_pairs(n: int) -> list[Row]:
    """Pairs per second of the searches against a numpy broadcast."""
    joint, codes = make_toy(n)
    problem = prepare_alphabet(joint, codes, "squared", n / 16).problem
    random = np.random.default_rng(1)
    duals = Duals(np.log(random.dirichlet([1.0, 1.0], n) / 0.5), 50 / n**2)
    bins = bin_posteriors(problem.posterior, 64)
    assert bins is not None
    width = 64

    def broadcast() -> None:
        x = codes[:, 0]
        (
            problem.posterior[:width] @ duals.potentials.T
            + duals.multiplier * (x[:width, None] - x[None]) ** 2
        ).argmin(axis=1)

    rates = {}
    for name, action, pairs in (
        ("numpy broadcast", broadcast, n * width),
        ("distance transform", lambda: price_ordered(problem, PricingQuestion(duals), bins), n * n),
        ("search over all pairs", lambda: price_in_memory(problem, PricingQuestion(duals)), n * n),
    ):
        action()
        start = time.perf_counter()
        action()
        rates[name] = pairs / (time.perf_counter() - start) / 1e9
    base = rates.pop("numpy broadcast")
    return [
        (f"{name}, n = {n}", rate, "Gpairs/s", "numpy broadcast", base, rate / base)
        for name, rate in rates.items()
    ]


def grow(small: int, large: int) -> list[Row]:
    """Exponent of the CPU time from a small alphabet to a large one, medians, interleaved."""
    rows: list[Row] = []
    for label, part in (("n/4", lambda n: n / 4), ("n²/64", lambda n: n * n / 64)):
        seconds: dict[int, list[float]] = {small: [], large: []}
        for _ in range(3):
            for n, found in seconds.items():
                joint, codes = make_toy(n, 7)
                start = time.process_time()
                solve_privacy_mapping(joint, codes, "squared", distortion_budget=part(n), gap=1e-4)
                found.append(time.process_time() - start)
        few, many = (float(np.median(found)) for found in seconds.values())
        exponent = float(np.log(many / few) / np.log(large / small))
        rows.append((f"uneven {label}, {large}", many, "s of CPU", f"{small}", few, exponent))
    return rows


def share(n: int) -> Row:
    """CPU seconds of the busiest worker in rounds over all pairs: one worker against two."""
    joint, codes = make_toy(n)
    problem = prepare_alphabet(joint, codes, "squared", n / 16).problem
    random = np.random.default_rng(1)
    duals = Duals(np.log(random.dirichlet([1.0, 1.0], n) / 0.5), 50 / n**2)
    busiest = {}
    for workers in (1, 2):
        options = ClusterOptions(workers=workers, dashboard="127.0.0.1:0")
        with connect(options) as client:
            price = ClusterPricing(client, f"0000000{workers}", "cluster")
            price(problem, PricingQuestion(duals, 2, True))
            before = client.run(time.process_time)
            for _ in range(3):
                price(problem, PricingQuestion(duals, 2, True))
            after = client.run(time.process_time)
            busiest[workers] = max(after[key] - before[key] for key in before)
    name = f"columns priced on two workers, n = {n}"
    return name, busiest[2], "s of CPU", "one worker", busiest[1], busiest[1] / busiest[2]


def weigh_answers(n: int, n_private: int) -> list[Row]:
    """Bytes of the largest answer of a round, and processor time of rounds over those in memory."""
    problem = make_categorical(n, n_private)
    pricing, sizes = ClusterPricing(Executor(), place="cluster"), [0]

    def price(asked: Any, question: PricingQuestion) -> Any:
        before = pricing.n_bytes
        prices = pricing(asked, question)
        sizes.append(pricing.n_bytes - before)
        return prices

    seconds = []
    for oracle in (price, None):
        start = time.process_time()
        search_mapping(problem, gap=1e-3, price=oracle)
        seconds.append(time.process_time() - start)
    name, most = (
        f"answers of {len(sizes) - 1} rounds, n = {n}, {n_private} values",
        8 * n * n_private,
    )
    what = "8 bytes a symbol and value"
    return [
        (f"{name}, largest", max(sizes), "bytes", what, most, max(sizes) / most),
        (f"{name}, median", float(np.median(sizes)), "bytes", what, most, np.median(sizes) / most),
        (
            f"{name}, search",
            seconds[0],
            "s of CPU",
            "in memory",
            seconds[1],
            seconds[0] / seconds[1],
        ),
    ]


def keep_limits(small: bool) -> list[Row]:
    """Seconds of solves that cannot reach their gap in time, against their limit."""
    rows: list[Row] = []
    unordered = make_categorical(200 if small else 7000, 2)
    line, x = make_toy(400 if small else 2**18, 7)
    ordered = prepare_alphabet(line, x, "squared", len(x) / 4).problem
    for what, problem in (("unordered", unordered), ("ordered", ordered)):
        for limit in (0.2,) if small else (3.0, 10.0):
            start = time.monotonic()
            _, reason = search_mapping(problem, gap=1e-12, max_seconds=limit)
            seconds = time.monotonic() - start
            name = f"{what}, {problem.n_symbols} symbols, {reason}"
            rows.append((name, seconds, "s", "limit", limit, seconds / limit))
    return rows


def run(small: bool) -> list[Row]:
    """Rows of the table; small sizes for tests."""
    joint, codes = make_toy(64)
    solve_privacy_mapping(joint, codes, "squared", distortion_budget=4.0, gap=1e-6)
    size, steps = (128, 10) if small else (1024, 100)
    rows = compare(f"synthetic {size}", *make_toy(size), "squared", size / 16, 1e-7, steps)
    for n in (512,) if small else (4096, 65_536, 2**20):
        for label, budget in (
            ("n/64", n / 64),
            ("n/16", n / 16),
            ("n/4", n / 4),
            ("n²/256", n * n / 256),
            ("n²/64", n * n / 64),
            ("n²/32", n * n / 32),
        ):
            rows.append(certify(f"synthetic {n}, {label}", *make_toy(n), "squared", budget, 1e-4))
    for n in (333,) if small else (5000, 100_003):
        rows.append(certify(f"uneven {n}, n/4", *make_toy(n, 7), "squared", n / 4, 1e-4))
    rows += price_pairs(1024 if small else 16_384)
    rows += grow(256, 1024) if small else grow(4096, 65_536)
    rows.append(share(1024 if small else 65_536))
    rows += keep_limits(small)
    for n_private in (2,) if small else (2, 7):
        rows += weigh_answers(300 if small else 3000, n_private)
    folder = os.environ.get("PRIVPIPE_PAPER_DATA")
    if folder and not small:
        rows += census(Path(folder))
    return rows


def census(folder: Path) -> list[Row]:
    """The 300 most frequent profiles against the printed algorithm, and all of them."""
    from flows.reproduce.sppm_problems import load_census

    rows: list[Row] = []
    counts, codes = load_census(folder, "frequent")
    for budget in (0.05, 0.35):
        rows += compare(
            f"census 300, {budget}", counts / counts.sum(), codes, "hamming", budget, 1e-8, 100
        )
    counts, codes = load_census(folder, "all")
    for budget in (0.05, 0.35):
        name = f"census {len(codes)}, {budget}"
        rows.append(certify(name, counts / counts.sum(), codes, "hamming", budget, 1e-3))
    return rows


if __name__ == "__main__":
    for row in run("--small" in sys.argv):
        print(" | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
