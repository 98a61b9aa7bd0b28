"""Cost of certified noise as ratios to numpy's own, interleaved in one run: processor time.

``python -m tests.bench noise``. References are what a user without privpipe would write: NumPy's
Laplace, its K-norm (normals, a gamma, a norm), the same filter without noise.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_chunks
from privpipe.numerics.noise.bounding import bound_records
from privpipe.numerics.noise.discrete import DiscreteLaplaceNoise
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.noise.privunit import PrivUnitNoise
from privpipe.numerics.random.streams import KeyedStream
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.keyring.keys import make_partition_keys
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.bench.stores import CHUNK_ROWS, make_collection
from tests.numerics.noise.test_privunit import find_best_error

WIDTH = 20


def seconds(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each action, all of them once per round after a warm one."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            start = time.process_time()
            action()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: median(found) for name, found in times.items()}


def run(small: bool) -> list[tuple[Any, ...]]:
    """Rows: name, value, unit, reference, reference value, ratio."""
    n, rounds = (2_000, 1) if small else (50_000, 9)
    n_chunk = 2_000 if small else CHUNK_ROWS
    chunks = [row for given in FILTERS for row in _compare_chunks(given, n_chunk, rounds)]
    errors = [_measure_error(e, d, n) for d in (WIDTH, 561) for e in (1.0, 4.0, 10.0, 16.0)]
    widths = [_compare_width(d, n * WIDTH // d, rounds) for d in (1, 561)]
    return [*_compare_draws(n, rounds), *widths, *errors, *chunks, *_list_slacks()]


def _compare_width(width: int, n: int, rounds: int) -> tuple[Any, ...]:
    """The K-norm draw of another width beside numpy's."""
    random, noise = np.random.default_rng(1), plan_mechanism(1.0, width, "l2", "knorm").noise
    stream = KeyedStream(bytes(32), partition="ab", first_record=0, n_records=n)

    def draw_plain() -> object:
        normal = random.standard_normal((n, width))
        return normal * (random.gamma(width, 2.0, n) / np.linalg.norm(normal, axis=1))[:, None]

    found = seconds({"ours": lambda: noise.draw(stream), "numpy": draw_plain}, rounds)
    name, scale = f"certified K-norm, {width} coordinates", 1e9 / (n * width)
    ratio = found["ours"] / found["numpy"]
    return name, found["ours"] * scale, "ns a value", "numpy", found["numpy"] * scale, ratio


def _measure_error(epsilon: float, width: int, n: int) -> tuple[Any, ...]:
    """Squared error of PrivUnit at random unit records, over the best of a cap on the sphere."""
    bounded = np.random.default_rng(2).standard_normal((n * WIDTH // width, width))
    bounded /= np.linalg.norm(bounded, axis=1, keepdims=True) * (1 + 1e-12)
    stream = KeyedStream(bytes(32), partition="ab", first_record=0, n_records=len(bounded))
    off = plan_mechanism(epsilon, width, "l2", "privunit").release(bounded, stream) - bounded
    error, best = float(np.square(off).sum(axis=1).mean()), find_best_error(width, epsilon)
    name = f"PrivUnit, {width} coordinates, epsilon {epsilon:g}"
    return name, error, "squared error", "best of a cap", best, error / best


def _compare_draws(n: int, rounds: int) -> list[tuple[Any, ...]]:
    random = np.random.default_rng(1)
    stream = KeyedStream(bytes(32), partition="ab", first_record=10**9, n_records=n)
    mechanism = plan_mechanism(1.0, WIDTH, "l2", "knorm")
    discrete = DiscreteLaplaceNoise(1.0, 2**16, WIDTH)
    bounded, _, _ = bound_records(random.standard_normal((n, WIDTH)), "hard", "l2", 1.0)

    def draw_plain() -> object:
        normal = random.standard_normal((n, WIDTH))
        return normal * (random.gamma(WIDTH, 2.0, n) / np.linalg.norm(normal, axis=1))[:, None]

    signs = PrivUnitNoise(10.0, WIDTH)
    found = seconds(
        {
            "PrivUnit": lambda: signs.draw(bounded, stream),
            "numpy K-norm": draw_plain,
            "certified K-norm": lambda: mechanism.noise.draw(stream),
            "numpy Laplace": lambda: random.laplace(size=(n, WIDTH)),
            "discrete Laplace": lambda: discrete.draw(stream),
            "lattice": lambda: mechanism.lattice.place(bounded),
        },
        rounds,
    )
    pairs = (
        ("certified K-norm", "numpy K-norm"),
        ("discrete Laplace", "numpy Laplace"),
        ("PrivUnit", "numpy Laplace"),
        ("lattice", "numpy Laplace"),
    )
    scale = 1e9 / (n * WIDTH)
    return [
        (ours, found[ours] * scale, "ns a value", theirs, found[theirs] * scale,
         found[ours] / found[theirs])
        for ours, theirs in pairs
    ]  # fmt: skip


def _list_slacks() -> list[tuple[Any, ...]]:
    """What stored probabilities add to epsilon: bits below 1, which must exceed `MOST_SLACK`.

    Thirty laws of 20 values a record; and, for each width, delta of the K-norm law at epsilon 1.
    """
    laws = [
        DiscreteLaplaceNoise(epsilon, sensitivity, WIDTH)
        for epsilon in (0.01, 0.1, 0.5, 1.0, 4.0, 8.0)
        for sensitivity in (2, 2**6, 2**11, 3 * 2**14 + 1, 2**17)
    ]
    rows: list[tuple[Any, ...]] = []
    for law in laws:
        bits = -math.log2(law.slack)
        name = f"slack, epsilon {law.epsilon:g}, sensitivity {law.sensitivity:,}"
        rows.append((name, bits, "bits", "asked", MOST_SLACK, bits / MOST_SLACK))
    for width in (1, 2, 5, 20, 561):
        bits = -math.log2(plan_mechanism(1.0, width, "l2", "knorm").delta)
        rows.append(
            (f"K-norm delta, d = {width}", bits, "bits", "asked", MOST_SLACK, bits / MOST_SLACK)
        )
    return rows


def _compare_chunks(given: dict[str, Any], n: int, rounds: int) -> list[tuple[Any, ...]]:
    """A chunk from store to store, with a filter alone and with the same filter and noise."""
    with TemporaryDirectory() as folder:
        collection = make_collection(Path(folder), 1, n)
        x = collection.read(FEATURES, 0, n)
        head = x[:2_000].astype(np.float64)
        rows = Records(head, desired=head[:, 0] > 0, confidential=head[:, 1] > 0, public=True)
        name = given["name"]
        plain = METHODS[name].fit(rows, make_options(METHODS[name].options, given, name))
        actions: dict[str, Callable[[], object]] = {}
        for law in ("none", "knorm", "discrete"):
            noisy = {"name": "noisy", "epsilon": 1.0, "filter": given, "noise": law}
            method = METHODS["noisy"]
            fitted = plain
            if law != "none":
                fitted = method.fit(rows, make_options(method.options, noisy, "noisy"))
            actions[law] = _make_job(Path(folder), collection, fitted, law)
        found = seconds(actions, rounds)
    return [
        (f"chunk, {name}, {law}", found[law] * 1e6 / n, "us a record", "chunk, filter alone",
         found["none"] * 1e6 / n, found[law] / found["none"])
        for law in ("knorm", "discrete")
    ]  # fmt: skip


FILTERS: tuple[dict[str, Any], ...] = (
    {"name": "pca", "n_filtered": WIDTH},
    {"name": "minimax_neural", "n_hidden": (20, 10), "max_iterations": 2},
)
MOST_SLACK = 100.0


def _make_job(folder: Path, collection: Any, fitted: Any, name: str) -> Callable[[], object]:
    model = str(folder / f"{name}.model.zarr")
    digest = write_model(fitted, model)
    n = collection.n_records
    plan = ReleasePlan(
        name,
        str(folder / f"{name}.zarr"),
        (ArrayPlan(FEATURES, (n, fitted.n_features_out), n, "float32"),),
    )
    prepare_release(plan)
    job = CleaningJob(collection, plan, model, digest)
    if fitted.draws:
        partitions = collection.schema_of_records.partitions
        os.environ["PRIVPIPE_KEYS"] = str(folder / "keys")
        keys = make_partition_keys(partitions, digest, digest, run=name)
        job = replace(job, keys=keys)
    return lambda: clean_chunks(job, [0])
