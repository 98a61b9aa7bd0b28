"""Limits of the median behind Laplace noise: how long, and how often they hold it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.noise.group_estimates import estimate_quantiles
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.random.streams import KeyedStream
from tests.bench.bench_masking import Row


def measure_median(n: int, epsilon: float, n_draws: int) -> tuple[float, float, float]:
    """Half the length of limits, share that holds the median, share of draws that show it."""
    used, found = plan_mechanism(epsilon, 1, "l2", "discrete"), list[tuple[float, float]]()
    for k in range(n_draws):
        x = np.random.default_rng(k).uniform(-1, 1, (n, 1))
        stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
        blocks = [used.release(x, stream) / used.factor]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of quartiles that are left out
            try:
                all_of = estimate_quantiles(
                    lambda blocks=blocks: blocks,  # type: ignore[misc]
                    ["x"],
                    used,
                    1 / used.factor,
                    np.zeros(1),
                )
            except InputError:
                continue
        found += [one.find_limits(0.95) for one in all_of if one.name == "x, 0.5"]
    if not found:
        return 1.0, 1.0, 0.0
    low, high = np.transpose(found)
    held = np.mean((low <= 0) & (high >= 0))
    return float(np.mean(high - low) / 2), float(held), len(found) / n_draws


def list_quantile_limits(small: bool) -> Iterator[Row]:
    """Rows; the ratio is of the share held to .95."""
    for n in (2_000,) if small else (10_000, 100_000, 1_000_000):
        for epsilon in (10.0,) if small else (1.0, 2.0, 4.0, 10.0):
            half, held, shown = measure_median(n, epsilon, 2 if small else 2 * 10**7 // n // 10)
            title = f"median of {n:,} at epsilon {epsilon:g}: within {half:.3f}, shown {shown:.2f}"
            yield title, held, "of intervals", "level", 0.95, held / 0.95
