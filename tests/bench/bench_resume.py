"""Fits that were killed on their way: processor time of what was left against a whole fit.

``python -m tests.bench resume``. A fit dies at the first checkpoint after `KILLED_AT` of the
processor time that a whole one takes; the next one finds what it left. Fits take turns, values are
medians.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from privpipe.store.collections.collection import open_collection
from tests.standard import write_standard

Row = tuple[str, float, str, str, float, float]
Fit = Callable[[Path, float], Any]
"""Fits with a place for checkpoints, and dies after so many processor seconds."""


KILLED_AT = 0.6
"""Share of a whole fit."""


class Killed(BaseException):
    """Ends a fit wherever it is."""


def dies_after(seconds: float) -> Callable[[], None]:
    """A function that raises `Killed` once so many processor seconds have been spent."""
    until = time.process_time() + seconds

    def look() -> None:
        if time.process_time() > until:
            raise Killed

    return look


class DyingExecutor(Executor):
    """Rounds of a fit that dies in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(lambda _: self.look())
        self.look = dies_after(seconds)


def fits(small: bool, folder: Path) -> dict[str, Fit]:
    """Every kind of iterative fit."""
    url = str(folder / "records.zarr")
    n = 1_200 if small else 60_000
    write_standard(url, n, chunk_rows=n // 12, dtype="float32")
    records = open_collection(url, desired=["late"], confidential=["party"])
    rounds = 2 if small else 8

    def learn(fit: Callable[..., Any], options: Any) -> Fit:
        def run(place: Path, seconds: float) -> Any:
            kept = Checkpoints(str(place / "kept"))
            executor = DyingExecutor(seconds)
            return fit(ShardedCollection(records, executor, checkpoints=kept), options)

        return run

    neural = MinimaxNeuralOptions(n_hidden=(3,), max_iterations=rounds)
    return {
        "linear minimax": learn(fit_minimax_filter, MinimaxOptions(max_iterations=rounds)),
        "neural minimax": learn(fit_minimax_neural_filter, neural),
    }


def measure(fit: Fit, place: Path, seconds: float = 1e9) -> float:
    """Processor seconds of a fit, whether it comes to its end or not."""
    start = time.process_time()
    try:
        fit(place, seconds)
    except Killed:
        assert seconds < 1e9
    return time.process_time() - start


def run(small: bool) -> list[Row]:
    """A row per kind of fit."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as folder:
        for number, (name, fit) in enumerate(fits(small, Path(folder)).items()):
            measure(fit, Path(folder) / f"warm-{number}")  # compiles
            whole, rest = [], []
            for turn in range(1 if small else 3):
                place = Path(folder) / f"{number}-{turn}"
                whole.append(measure(fit, place / "whole"))
                measure(fit, place / "killed", KILLED_AT * whole[-1])
                rest.append(measure(fit, place / "killed"))
            one, other = median(rest), median(whole)
            what = f"{name}, killed at {KILLED_AT:g} and resumed"
            rows.append((what, one, "s of CPU", "whole", other, one / other))
    return rows


if __name__ == "__main__":
    for row in run(small=False):
        print(row)
