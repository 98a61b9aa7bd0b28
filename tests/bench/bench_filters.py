"""Filters against their bars, on problems and splits of a seed: lost fits, starts, shardings.

``python -m tests.bench filters --seed N``. The reference of every row is the bar of the figure, and
its ratio says how far the figure is from it.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import PrivpipeError
from tests.bench.bench_minimax import draw_records
from tests.bench.odd_problems import draw_odd_problem

Row = tuple[str, float, str, str, float, float]


def count_lost(seed: int, n: int) -> list[Row]:
    """Odd problems whose fit fails, or stops at an inner problem; the longest one."""
    stopped, slowest = [], 0.0
    for one in range(n):
        records, options = draw_odd_problem(10_000 * seed + one)
        began = time.process_time()
        try:
            stopped.append(fit_minimax_filter(records, MinimaxOptions(**options)).stopped)
        except PrivpipeError as error:
            stopped.append(type(error).__name__)
        slowest = max(slowest, time.process_time() - began)
    lost, inner = sum("Error" in one for one in stopped), stopped.count("inner")
    return [
        (f"fits lost of {n} odd problems", lost, "fits", "bar", 0, float(lost)),
        (f"ended at an inner problem, of {n}", inner, "fits", "bar", 0, float(inner)),
        ("longest of them", slowest, "s", "processor", 60, slowest / 60),
    ]


def compare_starts(seed: int, n: int, n_starts: int) -> list[Row]:
    """Share of problems whose Phi is within 1 % (or .01 nats) of the best of many starts."""
    near: dict[int, list[bool]] = {1: [], 5: [], n_starts: []}
    for one in range(n):
        records, options = draw_odd_problem(10_000 * seed + one)
        options.pop("adversary", None)  # drawn ones have no Phi of their own to compare

        def lower(records: Records = records, given: Any = options, **more: Any) -> float:
            fitted = fit_minimax_filter(records, MinimaxOptions(**(given | more)))
            return float(fitted.history[:, 1].min())

        usual = lower()
        best = min([usual, *(lower(start="rand", seed=j) for j in range(n_starts - 1))])
        for k, found in near.items():
            phi = usual if k == 1 else lower(starts=k)
            found.append(phi - best <= 0.01 * max(abs(best), 1.0))
    shares = {k: float(np.mean(found)) for k, found in near.items()}
    name = f"within 1 % of the best of {n_starts}"
    return [
        (f"{name}, {k} starts", share, "share", "bar", 0.98, share / 0.98)
        for k, share in shares.items()
    ]


def compare_shardings(seed: int, n_iterations: int) -> list[Row]:
    """Largest difference of outputs between one shard and twenty, and the rounds of the fits."""
    x, target, _ = draw_records(2000, 40, seed=seed)
    person = np.repeat(np.arange(100), 20)
    private = (np.arange(100) % 15)[person]
    rows: list[Row] = []
    for adversary in (("logistic",), ("logistic", "kernel"), ("logistic", "kernel", "group")):
        options = MinimaxOptions(n_filtered=5, adversary=adversary, max_iterations=n_iterations)
        fits = [
            fit_minimax_filter(
                Records(
                    x,
                    desired=target.astype(str),
                    confidential=private.astype(str),
                    groups=person,
                    n_shards=n_shards,
                ),
                options,
            )
            for n_shards in (1, 20)
        ]
        one, many = (fitted.apply(x.astype(np.float64)) for fitted in fits)
        apart = float(np.abs(many - one).max() / np.abs(one).max())
        name, rounds = " and ".join(adversary), float(fits[0].history[-1, -3])
        rows += [
            (f"1 against 20 shards, {name}", apart, "relative", "bar", 1e-9, apart / 1e-9),
            (f"rounds, {name}", rounds, "rounds", "bar", 150, rounds / 150),
        ]
    return rows


def run(small: bool, seed: int = 0) -> list[Row]:
    """All comparisons as rows of `make bench`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            *count_lost(seed, 8 if small else 500),
            *compare_starts(seed, 2 if small else 60, 3 if small else 20),
            *compare_shardings(seed, 6 if small else 20),
        ]
