"""Fitting minimax filters: against libraries combined naively, on workers, and as data grow.

``python -m tests.bench.bench_minimax [number of records]``
"""

from __future__ import annotations

import sys
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
from privpipe.dist.cluster import ClusterOptions, connect
from privpipe.dist.reduce import ShardedCollection
from privpipe.numerics.families import LinearFamily
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers.labelled import measure_moments
from privpipe.sanitizers.minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.planning import plan_tasks
from privpipe.sanitizers.rounds import make_objective
from privpipe.sanitizers.tasks import TaskOptions
from privpipe.store.collection import open_collection
from privpipe.store.ingest import write_collection

RIDGE = 1e-6


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


def compare_fit(n: int, width: int) -> None:
    """Phi and seconds of both ways of fitting."""
    data = draw_records(n, width)
    start = time.perf_counter()
    ours = fit_minimax_filter(as_records(*data))
    ours_seconds = time.perf_counter() - start
    last = dict(zip(ours.history_columns, ours.history[-1], strict=True))
    start = time.perf_counter()
    theirs, calls = fit_naively(*data, 5, max_evaluations=15)
    seconds = time.perf_counter() - start
    print(f"fit, {n} records of {width} features, 6 target and 15 private classes, width 5")
    print(f"  privpipe              Phi {last['phi']:9.4f}  {ours_seconds:8.2f} s")
    print(f"  scipy + scikit-learn  Phi {theirs:9.4f}  {seconds:8.2f} s, {calls} evaluations")
    largest, total = last["largest_round_bytes"] / 1000, last["bytes"] / 1e6
    print(f"  one Gram of {8 * width**2 / 1024:.0f} KiB, {last['rounds']:.0f} rounds, down and up")
    print(f"  together {largest:.1f} KB at most, {total:.2f} MB in all")


def compare_inner(n: int, rounds: int) -> dict[str, float]:
    """Inner Newton against scikit-learn's newton-cg on the same filtered records."""
    ratios: dict[str, float] = {}
    print("inner problem, ridge 1e-6: seconds of ours / newton-cg's, difference of the mean loss")
    for width, k in ((1, 2), (10, 2), (5, 15), (10, 15)):
        x, _, private = draw_records(n, width, n_private=k)
        actions = _solve_inner(x.astype(np.float64), private)
        times = interleave(actions, rounds)
        ratio = times["ours"] / times["theirs"]
        ratios[f"{width} x {k}"] = ratio
        difference = actions["ours"]() - actions["theirs"]()
        print(f"  {n} records, {width:2d} inputs, {k:2d} classes: {ratio:6.2f}  {difference:+.1e}")
    return ratios


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


def compare_workers(n: int, width: int) -> None:
    """Processor seconds of the slowest worker of one and of two, the same Phi from both."""
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
    print(f"workers, {n} records of {width} features in {-(-n // rows)} chunks")
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "records.zarr")
        write_collection(url, schema, blocks)
        collection = open_collection(url, desired=["target"], confidential=["private"])
        phi, slowest = [], []
        for workers in (1, 2):
            options = ClusterOptions(workers=workers, dashboard="127.0.0.1:0")
            with connect(options) as client:
                for turn in range(2):  # the first one warms the workers up
                    before = client.run(time.process_time)
                    start = time.perf_counter()
                    shards = ShardedCollection(collection, client, f"bench-{workers}-{turn}")
                    fitted = fit_minimax_filter(shards)
                    wall = time.perf_counter() - start
                    after = client.run(time.process_time)
                busy = [after[key] - before[key] for key in after]
            phi.append(fitted.history[-1, 1])
            slowest.append(max(busy))
            print(
                f"  {workers}: slowest worker {max(busy):6.2f} s of processor, wall {wall:6.2f} s"
            )
    print(f"  ratio {slowest[1] / slowest[0]:.2f}, difference of Phi {abs(phi[1] - phi[0]):.1e}")


def measure_growth(n: int) -> None:
    """Seconds of a fit as records, features and classes double."""
    print("growth, ten outer iterations: seconds (rounds)")
    options = MinimaxOptions(tolerance=0.0)
    for what, sizes in (
        ("records", [(n, 64, 15), (2 * n, 64, 15), (4 * n, 64, 15)]),
        ("features", [(n, 64, 15), (n, 128, 15), (n, 256, 15)]),
        ("private classes", [(n, 64, 15), (n, 64, 30), (n, 64, 60)]),
    ):
        cells = []
        for records, width, k in sizes:
            data = as_records(*draw_records(records, width, n_private=k))
            start = time.perf_counter()
            history = fit_minimax_filter(data, options).history
            cells.append(f"{time.perf_counter() - start:7.2f} ({history[-1, -3]:.0f})")
        print(f"  {what:16s}" + "  ".join(cells))


def main(n: int = 20_000, *, rounds: int = 5, workers: bool = True) -> dict[str, float]:
    """Print everything; return the ratios of the inner problems."""
    compare_fit(max(200, n // 5), 128)
    ratios = compare_inner(max(200, n // 5), rounds)
    measure_growth(max(400, n // 4))
    if workers:
        compare_workers(8 * n, 128)
    return ratios


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
