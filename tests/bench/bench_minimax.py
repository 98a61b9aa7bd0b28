"""Fitting minimax filters: against libraries combined naively, on workers, and as data grow.

``python -m tests.bench minimax``; ratios below one are ours, or what two workers save.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.optimize as so
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from privpipe import Records
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.numerics.minimax.filters import LinearFamily
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.training.labelled_moments import measure_moments, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import TaskOptions
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from tests.bench.motion_filters import compare_filters
from tests.sanitizers.minimax.training.phi import make_objective

RIDGE = 1e-6
Row = tuple[str, float, str, str, float, float]


def draw_records(
    n: int, width: int, n_targets: int = 6, n_private: int = 15, seed: int = 0
) -> tuple[Any, Any, Any]:
    """Features of a decaying spectrum, shifted by both labels, as motion records are."""
    rng = np.random.default_rng(seed)
    target, private = rng.integers(0, n_targets, n), rng.integers(0, n_private, n)
    mix = rng.normal(size=(width, width)) / np.sqrt(np.arange(1, width + 1))[:, None]
    x = rng.normal(size=(n, width))
    x += 0.8 * rng.normal(size=(n_targets, width))[target]
    x += 0.3 * rng.normal(size=(n_private, width))[private]
    return (x @ mix).astype(np.float32), target, private


def as_records(x: Any, target: Any, private: Any) -> Records:
    return Records(x, desired=target.astype(float), confidential=private.astype(float))


def interleave(actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each action, all of them once per round after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def fit_naively(
    x: Any, target: Any, private: Any, width: int, max_evaluations: int
) -> tuple[float, int]:
    """scipy's L-BFGS over U, scikit-learn for the heads anew at every evaluation, no whitening."""
    x = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    n, best, calls = len(x), [np.inf], [0]
    onehot = [np.eye(int(y.max()) + 1)[y] for y in (target, private)]

    def phi(u: Any) -> tuple[float, Any]:
        calls[0] += 1
        z = x @ u.reshape(-1, width)
        value, back = 0.5 * RIDGE * u @ u, np.zeros_like(z)
        for weight, y, hot in zip((10.0, -1.0), (target, private), onehot, strict=True):
            head = LogisticRegression(C=1 / (2 * RIDGE * n), max_iter=200).fit(z, y)
            p = head.predict_proba(z)
            loss = -np.log(np.maximum((p * hot).sum(axis=1), 1e-300)).mean()
            value += weight * (loss + RIDGE * (head.coef_**2).sum())
            back += weight / n * (p - hot) @ head.coef_
        best[0] = min(best[0], float(value))
        return float(value), (x.T @ back).ravel() + RIDGE * u

    start = np.random.default_rng(0).normal(size=x.shape[1] * width) / x.std() / np.sqrt(len(x[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        so.minimize(phi, start, jac=True, method="L-BFGS-B", options={"maxfun": max_evaluations})
    return best[0], calls[0]


def compare_fit(n: int, width: int, max_evaluations: int) -> list[Row]:
    """Both ways of fitting, and what our rounds cost."""
    data = draw_records(n, width)
    start = time.perf_counter()
    ours = fit_minimax_filter(as_records(*data))
    seconds = time.perf_counter() - start
    last = dict(zip(ours.history_columns, ours.history[-1], strict=True))
    start = time.perf_counter()
    phi, calls = fit_naively(*data, 5, max_evaluations)
    naive = time.perf_counter() - start
    libraries = f"scipy and scikit-learn, {calls} evaluations"
    kilobytes, gram = last["largest_round_bytes"] / 1000, 8 * width**2 / 1000
    return [
        ("fit, 6 and 15 classes, width 5", seconds, "s", libraries, naive, seconds / naive),
        # Shifted by its lower limit, minus the entropy of the private classes, to be a ratio.
        ("Phi above its limit", *_above(last["phi"], phi, float(ours.baselines[1]))),
        ("rounds", last["rounds"], "rounds", "forty", 40, last["rounds"] / 40),
        ("largest round, down and up", kilobytes, "kB", "one Gram", gram, kilobytes / gram),
    ]


def _above(ours: float, theirs: float, limit: float) -> tuple[float, str, str, float, float]:
    return (
        ours + limit,
        "nats",
        "scipy and scikit-learn",
        theirs + limit,
        (ours + limit) / (theirs + limit),
    )


def compare_inner(n: int, rounds: int) -> list[Row]:
    """Inner Newton against scikit-learn's newton-cg on the same records, ridge 1e-6.

    Raises
    ------
    AssertionError
        If the two losses differ by more than 1e-5.
    """
    rows: list[Row] = []
    for width, k in ((1, 2), (10, 2), (5, 15), (10, 15)):
        x, _, private = draw_records(n, width, n_private=k)
        actions = _solve_inner(x.astype(np.float64), private)
        times = interleave(actions, rounds)
        assert abs(actions["ours"]() - actions["theirs"]()) < 1e-5
        ours, theirs = 1000 * times["ours"], 1000 * times["theirs"]
        name = f"inner problem, {width} inputs, {k} classes"
        rows.append((name, ours, "ms", "newton-cg", theirs, ours / theirs))
    return rows


def _solve_inner(z: Any, private: Any) -> dict[str, Callable[[], Any]]:
    """Both solvers of one logistic problem; each returns its loss, ridge included."""
    n, width = z.shape
    records = Records(z, desired=z[:, 0], confidential=private.astype(float))
    moments = measure_moments(records)
    tasks = plan_tasks(TaskOptions(), records.schema, moments, ridge=RIDGE)[1:]
    family = LinearFamily(np.zeros(width), width, with_offset=False)

    def ours() -> float:
        phi = make_objective(records, family, tasks, inner_tolerance=1e-8)
        return float(phi(np.eye(width).ravel()).losses[0])

    def theirs() -> float:
        head = LogisticRegression(
            C=1 / (2 * RIDGE * n), solver="newton-cg", tol=1e-6, max_iter=200
        ).fit(z, private)
        p = head.predict_proba(z)
        # Of two classes scikit-learn has one column of logits: half its square is the ridge of
        # two columns that sum to zero.
        ridge = RIDGE * float((head.coef_**2).sum()) * (0.5 if len(head.coef_) == 1 else 1.0)
        return float(-np.log(p[np.arange(n), private]).mean() + ridge)

    return {"ours": ours, "theirs": theirs}


def compare_workers(n: int, width: int) -> list[Row]:
    """Processor seconds of the slowest of two workers against one, the same Phi from both.

    Raises
    ------
    AssertionError
        If Phi differs by more than 1e-9.
    """
    with tempfile.TemporaryDirectory() as folder:
        collection = _write_records(str(Path(folder) / "records.zarr"), n, width)
        phi, slowest = [], []
        for workers in (1, 2):
            options = ClusterOptions(workers=workers, dashboard="127.0.0.1:0")
            with connect(options) as client:
                for turn in range(2):  # the first one warms the workers up
                    before = client.run(time.process_time)
                    shards = ShardedCollection(
                        collection, DaskExecutor(client, f"bench-{workers}-{turn}")
                    )
                    fitted = fit_minimax_filter(shards)
                    after = client.run(time.process_time)
            phi.append(fitted.history[-1, 1])
            slowest.append(max(after[key] - before[key] for key in after))
    assert abs(phi[1] - phi[0]) < 1e-9
    one, two = slowest
    return [("processor time, slowest of two workers", two, "s", "one worker", one, two / one)]


class _InRounds(ShardedCollection):
    """A collection whose descents are one after the other, each round over all workers."""

    def spread(self, solve: Any, problems: Any) -> list[Any]:
        return [solve(self, one) for one in problems]


def compare_starts_apart(n: int, width: int) -> list[Row]:
    """Seconds of six starts on two workers, each a task, against one after the other in rounds.

    Raises
    ------
    AssertionError
        If the filters are not equal to the last bit.
    """
    options, rows = MinimaxOptions(starts=6, max_iterations=20), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        collection = _write_records(str(Path(folder) / "records.zarr"), n, width)
        with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
            fitted, seconds = [], []
            for turn in range(2):  # the first one warms the workers up
                for kind in (_InRounds, ShardedCollection):
                    shards = kind(collection, DaskExecutor(client, f"{kind.__name__}-{turn}"))
                    begun = time.perf_counter()
                    fitted.append(fit_minimax_filter(shards, options).weights)
                    seconds.append(time.perf_counter() - begun)
    assert all(np.array_equal(fitted[0], one) for one in fitted)
    rounds, apart = seconds[2:]
    name = f"six starts, each a task, {n:,} records"
    rows.append((name, apart, "s", "in rounds", rounds, apart / rounds))
    return rows


def _write_records(url: str, n: int, width: int) -> Collection:
    x, target, private = draw_records(n, width)
    rows = max(256, n // 16)
    schema = CollectionSchema(
        n_records=n,
        n_features=width,
        dtype="float32",
        chunk_rows=rows,
        variables=(
            Variable("target", "int8", tuple("abcdef")),
            Variable("private", "int8", tuple(f"p{i}" for i in range(15))),
        ),
    )
    blocks = (
        {
            "features": x[i : i + rows],
            "target": target[i : i + rows].astype(np.int8),
            "private": private[i : i + rows].astype(np.int8),
        }
        for i in range(0, n, rows)
    )
    write_collection(url, schema, blocks)
    return open_collection(url, desired=["target"], confidential=["private"])


def measure_growth(n: int) -> list[Row]:
    """Seconds of ten outer iterations as records, features and classes grow fourfold."""
    options, rows = MinimaxOptions(tolerance=0.0), []
    for what, small, large in (
        ("records", (n, 64, 15), (4 * n, 64, 15)),
        ("features", (n, 64, 15), (n, 256, 15)),
        ("private classes", (n, 64, 15), (n, 64, 60)),
    ):
        seconds = []
        for records, width, k in (small, large):
            data = as_records(*draw_records(records, width, n_private=k))
            start = time.perf_counter()
            fit_minimax_filter(data, options)
            seconds.append(time.perf_counter() - start)
        ratio = seconds[1] / seconds[0]
        rows.append((f"fit, four times the {what}", seconds[1], "s", "once", seconds[0], ratio))
    return rows


def run(small: bool) -> list[Row]:
    """All comparisons as rows of `make bench`; the workers only at full size."""
    n = 500 if small else 4000
    rows = compare_fit(n, 32 if small else 128, 3 if small else 15)
    rows += compare_inner(n, 1 if small else 9)
    rows += measure_growth(n)
    if small:
        return rows
    if folder := os.environ.get("PRIVPIPE_PAPER_DATA"):
        rows += compare_filters(folder, 5)
    return rows + compare_workers(160_000, 128)
