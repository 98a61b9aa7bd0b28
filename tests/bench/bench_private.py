"""Private masking beside AdaSSP on real records, and the discrete Gaussian beside numpy's.

``python -m tests.bench private``; errors of prediction over those of the raw model, each side over
the same draws of records and noise, with the same public bounds. Times are processor time.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

from privpipe.attacks.threats.canaries import guess_canaries
from privpipe.numerics.noise.gaussian import draw_discrete_gaussian
from privpipe.numerics.random.streams import KeyedStream
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.masking.private_masking import MaskingPrivateOptions, fit_with_key
from tests.bench.bench_masking import Row, spend
from tests.numerics.noise.histories import KINDS, measure_histories
from tests.sanitizers.masking.test_private_masking import fit_adassp

EPSILONS = (0.1, 1.0, 10.0)


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
    return tables


def compare(x: np.ndarray, y: np.ndarray, epsilon: float, n_draws: int) -> tuple[float, ...]:
    """Errors of ours and of AdaSSP over the raw model's, and the standard error of the gain."""
    rng, found = np.random.default_rng(1), []
    longest = float(np.linalg.norm(x, axis=1).max())  # given to both as if it were public
    for k in range(n_draws):
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
            model = fit_with_key(records, options, bytes([k] * 32))
            ours: Any = model.coefficients[:, 0]
        except ValueError:  # refused: so few records that the noise is all there is
            ours = np.append(np.zeros(x.shape[1]), 0.0)
        theirs = fit_adassp(ones[fit], y[fit], epsilon, rng)
        errors = [np.sqrt(np.mean((ones[rest] @ w - y[rest]) ** 2)) for w in (ours, theirs, raw)]
        found.append([errors[0] / errors[2], errors[1] / errors[2]])
    ratios = np.array(found)
    gain = ratios[:, 1] - ratios[:, 0]
    return (*ratios.mean(axis=0), float(gain.std() / math.sqrt(n_draws)))


def run(small: bool) -> list[Row]:
    """Rows; the ratio is ours over AdaSSP's, of the error beyond the raw model's."""
    rows: list[Row] = []
    for name, (x, y) in read_tables(small).items():
        for epsilon in EPSILONS:
            ours, theirs, _ = compare(x, y, epsilon, 2 if small else 8)
            rows.append(
                (f"{name}, epsilon {epsilon:g}", ours, "of raw", "AdaSSP", theirs, ours / theirs)
            )
    for law in ("discrete", "knorm", "privunit"):
        for epsilon in EPSILONS:
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
    n = 200 if small else 2_000
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=n)
    mine = spend(lambda: draw_discrete_gaussian([2**80] * n, stream)) / n * 1e6
    theirs = spend(lambda: np.random.default_rng(0).normal(size=10**6)) / 1e6 * 1e6
    rows.append(("discrete Gaussian", mine, "us a value", "numpy normal", theirs, mine / theirs))
    return rows
