"""Private masking beside AdaSSP on real records, and the discrete Gaussian beside numpy's.

``python -m tests.bench private``; errors of prediction over those of the raw model, each side over
the same draws of records and noise, with the same public bounds. Times are processor time.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from privpipe.attacks.threats.canaries import guess_canaries
from privpipe.numerics.noise.discrete import DiscreteLaplaceNoise
from privpipe.numerics.noise.gaussian import draw_discrete_gaussian, find_sigma
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Shard, Shards
from privpipe.records.memory import GrowingRecords, Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.masking.private_masking import MaskingPrivateOptions, fit_with_key
from tests.bench.bench_masking import Row, spend
from tests.bench.coverage import list_coverage
from tests.bench.quantile_limits import list_quantile_limits
from tests.numerics.noise.histories import KINDS, measure_histories
from tests.sanitizers.masking.test_private_masking import fit_adassp
from tests.store.keyring.person_histories import measure_persons

EPSILONS = (0.1, 1.0, 10.0)

FEW = 1_000
"""Records of which draws are cheap, and vary. Of diabetes at epsilon .1 every draw is refused: it
counts as a prediction of the middle of the range, beyond which AdaSSP gains a hundredth there."""


def read_tables(small: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features within -1 and 1 by public ranges, and a response within -1 and 1."""
    rng = np.random.default_rng(0)
    n, d = (3_000, 5) if small else (200_000, 30)
    x = np.clip(rng.normal(size=(n, d)) @ (np.eye(d) + 0.2) / 4, -1, 1)
    y = np.clip(x @ rng.normal(size=d) / math.sqrt(d) + 0.1 * rng.normal(size=n), -1, 1)
    tables = {f"one factor, {n:,} x {d}": (x, y)}
    if small:
        return tables
    found = load_diabetes(scaled=True)
    tables["diabetes, 442 x 10"] = np.clip(found.data / 0.2, -1, 1), found.target / 200 - 1
    folder = os.environ.get("PRIVPIPE_PAPER_DATA")
    if folder:
        school = np.load(Path(folder) / "school.npz", allow_pickle=True)
        x = school["X"].astype(float)
        x = x[:, x.std(axis=0) > 0]
        tables["School, 15,362 x 27"] = x / x.max(axis=0), school["y"].astype(float) / 35 - 1
        people = pd.read_csv(Path(folder) / "adult.csv.gz")
        kinds = pd.get_dummies(people[["sex", "race", "relationship", "workclass"]]).astype(float)
        ranges = {"age": 90, "hours_per_week": 99, "capital_gain": 1e5, "capital_loss": 5e3}
        x = np.column_stack([kinds, *(people[name] / most for name, most in ranges.items())])
        tables["Adult, 48,842 x 26"] = x, people["education_num"].to_numpy() / 8 - 1
    return tables


class LawfulRecords:
    """Records of a known law, of which a chunk is drawn whenever it is read: none is stored.

    Thirty correlated features, clipped to -1 and 1, and a response with noise, clipped likewise.
    """

    def __init__(self, n: int, d: int = 30, chunk: int = 100_000) -> None:
        rng = np.random.default_rng(0)
        self.n_records, self.chunk, self.n_chunks = n, min(n, chunk), math.ceil(n / chunk)
        self.mix, self.slopes = (np.eye(d) + 0.2) / 4, rng.normal(size=d) / math.sqrt(d)
        self.schema = replace(Records(np.ones((2, d)), desired=np.ones(2)).schema, n_records=n)
        self.gram = np.zeros((d + 2, d + 2))
        self.summed: Any = None

    def draw(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([1, chunk])
        x = np.clip(rng.normal(size=(self.chunk, len(self.mix))) @ self.mix, -1, 1)
        return x, np.clip(x @ self.slopes + 0.1 * rng.normal(size=self.chunk), -1, 1)

    def reduce(self, summarise: Callable[[Shard], Any]) -> Any:
        """Read once: noise of other keys is added to the same sums."""
        for chunk in range(self.n_chunks if self.summed is None else 0):
            x, y = self.draw(chunk)
            rows = np.column_stack([x, np.ones(len(x)), y])
            self.gram += rows.T @ rows
            found = summarise(Shard(x, y[:, None]))
            self.summed = found if self.summed is None else self.summed.merge(found)
        return self.summed


def measure_large(n: int, n_keys: int, threshold: float | None) -> tuple[list[float], float, float]:
    """Errors over the raw model's where records are many, by key; seconds, and peak memory in MiB.

    Bounds are public, and so is a threshold, which the law gives: one in a hundred is beyond it.
    Errors are those of ten chunks of fresh records.
    """
    begun, records = time.process_time(), LawfulRecords(n)
    options = MaskingPrivateOptions(
        epsilon=0.1, delta=0.1 / n, n_surrogates=100, bound={"*": (-1, 1)}, threshold=threshold
    )
    keys = (k.to_bytes(32) for k in range(n_keys))
    fitted: list[Any] = [fit_with_key(cast(Shards, records), options, key) for key in keys]
    raw = np.linalg.solve(records.gram[:-1, :-1], records.gram[:-1, -1])
    models = np.column_stack([raw, *(one.coefficients[:, 0] for one in fitted)])
    squares, n_fresh = np.zeros(len(models.T)), 10
    for chunk in range(records.n_chunks, records.n_chunks + n_fresh):
        x, truth = records.draw(chunk)
        left = np.column_stack([x, np.ones(len(x))]) @ models - truth[:, None]
        squares += (left**2).sum(axis=0)
    ratios = np.sqrt(squares[1:] / squares[0]).tolist()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return ratios, time.process_time() - begun, peak


def compare(x: np.ndarray, y: np.ndarray, epsilon: float, n_draws: int) -> tuple[float, ...]:
    """Errors of ours and of AdaSSP over the raw model's, and the standard error of the gain."""
    rng, found = np.random.default_rng(101), []
    longest = float(np.linalg.norm(x, axis=1).max())  # given to both as if it were public
    for _ in range(n_draws):
        order = rng.permutation(len(x))
        cut = 2 * len(x) // 3
        fit, rest = order[:cut], order[cut:]
        ones = np.column_stack([x, np.ones(len(x))])
        raw = np.linalg.lstsq(ones[fit], y[fit], rcond=None)[0]
        options = MaskingPrivateOptions(
            epsilon=epsilon, delta=1e-6, n_surrogates=100, bound={"*": (-1, 1)}, threshold=longest
        )
        try:
            records = Records(x[fit], desired=y[fit])
            model = fit_with_key(records, options, rng.bytes(32))
            ours: Any = model.coefficients[:, 0]
        except ValueError:  # refused: so few records that the noise is all there is
            ours = np.append(np.zeros(x.shape[1]), 0.0)
        theirs = fit_adassp(ones[fit], y[fit], epsilon, rng)
        errors = [np.sqrt(np.mean((ones[rest] @ w - y[rest]) ** 2)) for w in (ours, theirs, raw)]
        found.append([errors[0] / errors[2], errors[1] / errors[2]])
    ratios = np.array(found)
    gain = ratios[:, 1] - ratios[:, 0]
    return (*ratios.mean(axis=0), float(gain.std() / math.sqrt(n_draws)))


def measure_growth(n: int) -> Row:
    """Error of all releases of a growth, over noise anew for each at the same epsilon in all."""
    x, y = (np.random.default_rng(n).uniform(-1, 1, (n, 300, 1)) for _ in range(2))
    options = MaskingPrivateOptions(
        epsilon=50.0, delta=1e-6, n_surrogates=9, bound={"*": (-1, 1)}, partitions_at_most=n
    )
    grown, model = GrowingRecords(Records(x[0], desired=y[0])), None
    squares, total = [], np.zeros((3, 3))
    for k in range(n):
        if k:
            grown.append(Records(x[k], desired=y[k]))
        model = fit_with_key(grown, options, bytes(32), model)
        rows = np.column_stack([x[k], np.ones(300), y[k]])
        total += rows.T @ rows
        left = (model.moments - total) / np.outer(model.factors, model.factors)
        squares.append(left[np.triu_indices(3, 1)] ** 2)
    single = find_sigma(50.0, 1e-6) * 2**32
    error = math.sqrt(float(np.mean(squares))) / single
    title = f"growth of {n} partitions, error of a sum"
    return title, error, "of a single one", "noise anew", math.sqrt(n), error / math.sqrt(n)


def compare_diffprivlib(small: bool) -> list[Row]:
    """Its discrete Gaussian, its discrete Laplace and its regression; nothing without it."""
    if importlib.util.find_spec("diffprivlib") is None:
        return []
    from diffprivlib import mechanisms, models

    rows: list[Row] = []
    n, peer = 100 if small else 1_000, "diffprivlib"
    # Of a sensitivity of 2**16 steps, ours, its search for a deviation does not converge.
    theirs = mechanisms.GaussianDiscrete(epsilon=1.0, delta=1e-6, sensitivity=16)
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=10**6)
    variance = math.ceil(find_sigma(1.0, 1e-6) ** 2 * 16**2)
    ours = spend(lambda: draw_discrete_gaussian([variance] * n, stream)) / n * 1e6
    other = spend(lambda: [theirs.randomise(0) for _ in range(n)]) / n * 1e6
    rows.append(("discrete Gaussian", ours, "us a value", peer, other, ours / other))
    ours, other = math.sqrt(variance), float(theirs._scale)
    rows.append(("its deviation, epsilon 1, delta 1e-6", ours, "steps", peer, other, ours / other))
    laplace = mechanisms.Geometric(epsilon=1.0, sensitivity=2**16)
    noise = DiscreteLaplaceNoise(1.0, 2**16, 1)
    many = 10_000 if small else 10**6
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=many)
    ours = spend(lambda: noise.draw(stream)) / many * 1e6
    other = spend(lambda: [laplace.randomise(0) for _ in range(n)]) / n * 1e6
    rows.append(("discrete Laplace", ours, "us a value", peer, other, ours / other))
    for name, (x, y) in read_tables(small).items():
        cut, ones = 2 * len(x) // 3, np.column_stack([x, np.ones(len(x))])
        raw = np.linalg.lstsq(ones[:cut], y[:cut], rcond=None)[0]
        base = float(np.sqrt(np.mean((ones[cut:] @ raw - y[cut:]) ** 2)))
        for epsilon in EPSILONS:
            mine = compare(x, y, epsilon, 2 if small else 8)[0]
            errors = []
            for k in range(2 if small else 8):
                fitted = models.LinearRegression(
                    epsilon=epsilon, bounds_X=(-1, 1), bounds_y=(-1, 1), random_state=k
                ).fit(x[:cut], y[:cut])
                found = fitted.predict(x[cut:]).ravel()
                errors.append(float(np.sqrt(np.mean((found - y[cut:]) ** 2))) / base)
            other = float(np.median(errors))
            title = f"regression, {name}, epsilon {epsilon:g}"
            rows.append((title, mine, "of raw", peer, other, mine / other))
    return rows


def run(small: bool) -> list[Row]:
    """Rows; the ratio is ours over AdaSSP's, of the error beyond the raw model's."""
    rows: list[Row] = []
    for name, (x, y) in read_tables(small).items():
        for epsilon in EPSILONS:
            ours, theirs, error = compare(
                x, y, epsilon, 2 if small else 12 if len(x) > FEW else 200
            )
            shown = "" if ours <= theirs + 2 * error else ", beyond two standard errors"
            title = f"{name}, epsilon {epsilon:g}{shown}"
            rows.append((title, ours, "of raw", "AdaSSP", theirs, ours / theirs))
    n = 20_000 if small else 10_000_000
    # In a process of its own, whose peak is that of this alone.
    for threshold in (None, 4.5):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            given = (measure_large, n, 2 if small else 20, threshold)
            ratios, seconds, peak = pool.submit(*given).result()
        title = f"{n:,} x 30, epsilon 0.1, threshold {threshold or 'by bounds'}"
        mean, worst = float(np.mean(ratios)), max(ratios)
        rows.append((f"{title}, mean of keys", mean, "of raw", "raw model", 1.0, mean))
        rows.append((f"{title}, worst key", worst, "of raw", "raw model", 1.0, worst))
        rows.append((f"{title}, streamed", seconds, "s", "peak MiB", peak, seconds / peak))
    for law in ("discrete", "knorm", "privunit"):
        for epsilon in (1.0, 10.0) if small else (0.1, 0.3, 1.0, 10.0):
            method = METHODS["noisy"]
            options = method.options(epsilon=epsilon, noise=law, threshold=1.0, centre=False)
            fitted: Any = method.fit(Records(np.ones((2, 1))), options)
            kinds = np.random.default_rng(0).random(fitted.n_canaries) < 0.5
            found = guess_canaries(fitted.release_canaries(kinds, bytes(32))[0], kinds)
            floor = found.epsilon_floor
            name = f"audit of {law}, one coordinate"
            rows.append((name, floor, "nats shown", "promised", epsilon, floor / epsilon))
    for name, worst in zip(KINDS, measure_histories(20 if small else 400, seed=1), strict=False):
        rows.append((f"account, {name} draws", worst, "at most", "exact loss", 1.0, worst))
    with TemporaryDirectory() as place:
        least, ratios = measure_persons(5 if small else 10_000, 1, Path(place))
    rows.append(("account of persons, least of all", least, "at least", "exact loss", 1.0, least))
    for share in (0.5, 0.9):
        over = float(np.quantile(ratios, share))
        name = f"account of persons, {share:g} of histories"
        rows.append((name, over, "at most", "exact loss", 1.0, over))
    rows += [*list_quantile_limits(small), *list_coverage(small), *compare_diffprivlib(small)]
    rows += [measure_growth(n) for n in ((4, 8) if small else (30, 365))]
    n = 200 if small else 2_000
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=n)
    mine = spend(lambda: draw_discrete_gaussian([2**80] * n, stream)) / n * 1e6
    theirs = spend(lambda: np.random.default_rng(0).normal(size=10**6)) / 1e6 * 1e6
    rows.append(("discrete Gaussian", mine, "us a value", "numpy normal", theirs, mine / theirs))
    return rows
