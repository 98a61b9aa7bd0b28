"""Yi et al. 2014, tables 1 and 2: does masked data lie in the space of the noiseless data?

Table 2 is done by a factor model of the true rank, not by problem (5): see `NOTES`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from flows.reproduce.result import Cell, Reproduction, compare_cell
from flows.reproduce.steps import expect_steps, step
from flows.reproduce.yi_masks import Masked, append_ones, complete, mask, mask_completed
from privpipe.protocols import BoolArray, FloatArray

VARIANCES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)

TABLES = {
    "complete": (0.0, 0.0, 0.0, 0.01, 0.01, 0.02),
    "80 % missing": (0.0, 0.0, 0.0, 0.01, 0.01, 0.01),
}
"""The paper's errors by variance; its tables 1 and 2."""

TOLERANCE = 0.005
"""Half of the last digit that the tables print."""

N_FEATURES, N_RECORDS, RANK, N_RESPONSES = 500, 1000, 20, 10

SHARE_MISSING = 0.8


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Noiseless records of low rank, and the same with noise."""

    features: FloatArray
    responses: FloatArray
    noisy_features: FloatArray
    noisy_responses: FloatArray

    @cached_property
    def factors(self) -> tuple[FloatArray, FloatArray]:
        """Scores and orthonormal basis of [responses, features, ones] without noise.

        (n_records, rank + 1) and (n_columns, rank + 1).
        """
        rows = np.column_stack([self.responses, append_ones(self.features)])
        left, sizes, right = np.linalg.svd(rows, full_matrices=False)
        return left[:, : RANK + 1] * sizes[: RANK + 1], right[: RANK + 1].T


def reproduce_synthetic(
    data: Path,
    runs: int,
    variances: tuple[float, ...] = VARIANCES,
    n_surrogates: tuple[int, ...] = (N_RECORDS // 3, N_RECORDS),
) -> Reproduction:
    """Tables 1 and 2, for a third as many surrogates as records and for as many."""
    del data
    expect_steps(runs * len(variances))
    cells: list[Cell] = []
    trials: list[dict[str, float]] = []
    for variance in variances:
        here = [
            step(
                f"variance {variance:g}, run {run + 1}",
                partial(_measure_run, variance, run, n_surrogates),
            )
            for run in range(runs)
        ]
        trials += [{"variance": variance, **one} for one in here]
        cells += [_compare(name, variance, [one[name] for one in here]) for name in here[0]]
    return Reproduction(tuple(cells), NOTES, curves={"trials": trials})


NOTES = (
    "The error is that of equation (8), against the noiseless data. It divides by the number of "
    "surrogates m, which the paper does not state for these tables, and so shrinks with it: the "
    "relative residual beside it does not. Shown for m of a third of the records, as in the "
    "paper's other experiments, and for m = n.",
    "Known scores: the error of least squares that is given the true scores of every record, which "
    "no method knows, with signs of its own (draw and shrinkage move an error by a tenth). With "
    "m = n / 3 it is above the paper's table 2, with 80 % missing, and above table 1 too at the "
    "variance of .2, where the paper has 0 and it has .0108; with m = n our error is at or below "
    "theirs, or within half a digit, at every noise level: what the tables leave open is m.",
    "No method: the error of noisy records summed with signs and released as they are. With m = n "
    "it is .005 to .018, and a tolerance of .01 around table 1 let it pass at five of six noise "
    "levels. The tolerance is half of the last printed digit; it still passes at .3 and .5, where "
    "what the table prints does not separate a method from none.",
    "Table 2, a departure: what we mask there is not the solution of problem (5). The entries are "
    "completed by a factor model that is given the true rank (twenty, and one for the bias); the "
    "paper solves (5), which is given none. That it agrees shows less than for table 1.",
    "Against the learned block instead of the truth the error would be zero by construction.",
)


def _compare(name: str, variance: float, values: list[float]) -> Cell:
    table = name.split(",", 1)[0]
    is_error = name.endswith("error")
    paper = TABLES[table][VARIANCES.index(variance)] if is_error else None
    return compare_cell(
        f"{name}, variance {variance:g}",
        values,
        paper=paper,
        tolerance=TOLERANCE,
        unit="relative residual" if name.endswith("residual") else "error",
        better="lower",
    )


def draw_synthetic(variance: float, random: Any) -> Synthetic:
    """Records of the paper's section on synthesised data."""
    loadings = random.normal(size=(N_FEATURES, RANK))
    x = random.normal(size=(N_RECORDS, RANK)) @ loadings.T
    y = x @ random.normal(size=(N_FEATURES, N_RESPONSES))
    noise = math.sqrt(variance)
    return Synthetic(
        x, y, x + noise * random.normal(size=x.shape), y + noise * random.normal(size=y.shape)
    )


def measure_error(made: Masked, space: FloatArray) -> tuple[float, float]:
    """Equation (8) against the truth, and the relative residual."""
    rows = np.column_stack([made.responses, made.features])
    left = rows - (rows @ space) @ space.T
    largest = float(np.linalg.norm(left, axis=1).max()) / len(rows)
    return largest, float(np.linalg.norm(left) / np.linalg.norm(rows))


def _measure_run(variance: float, run: int, n_surrogates: tuple[int, ...]) -> dict[str, float]:
    random = np.random.default_rng([run, int(1000 * variance), 2014])
    truth = draw_synthetic(variance, random)
    x, y, (_, space) = truth.noisy_features, truth.noisy_responses, truth.factors
    seen = [random.random(table.shape) >= SHARE_MISSING for table in (x, y)]
    holed = [np.where(known, table, np.nan) for known, table in zip(seen, (x, y), strict=True)]
    everything = fit_known_scores(truth, [np.ones_like(known) for known in seen])
    left = fit_known_scores(truth, seen)
    completed = complete(*holed, rank=RANK + 1)
    found: dict[str, float] = {}
    for m in n_surrogates:
        for table, made, loadings in (
            ("complete", mask(x, y, m, random), everything),
            ("80 % missing", mask_completed(completed, N_RESPONSES, m, random), left),
        ):
            error, relative = measure_error(made, space)
            known_scores = measure_known_scores(truth, loadings, m, random)
            found[f"{table}, m = {m}: error"] = error
            found[f"{table}, m = {m}: known scores"] = known_scores
            found[f"{table}, m = {m}: residual"] = relative
        found[f"complete, m = {m}: no method"] = measure_error(sum_plainly(x, y, m, random), space)[
            0
        ]
    return found


def sum_plainly(x: FloatArray, y: FloatArray, n_surrogates: int, random: Any) -> Masked:
    """Signed sums of the noisy records as they are, which is no method at all."""
    signs = random.choice([-1.0, 1.0], (len(x), n_surrogates)) / math.sqrt(n_surrogates)
    return Masked(signs.T @ append_ones(x), signs.T @ y, 0, 0.0)


def fit_known_scores(truth: Synthetic, known: list[BoolArray]) -> FloatArray:
    """Least squares of every column on the true scores of the records that have it.

    (n_columns, rank + 1).
    """
    scores, _ = truth.factors
    noisy = np.column_stack([truth.noisy_responses, append_ones(truth.noisy_features)])
    seen = np.column_stack([known[1], known[0], np.ones(len(scores), bool)])
    if seen.all():
        found: FloatArray = np.linalg.lstsq(scores, noisy, rcond=None)[0].T
        return found
    return np.stack(
        [
            np.linalg.lstsq(scores[rows], column[rows], rcond=None)[0]
            for rows, column in zip(seen.T, noisy.T, strict=True)
        ]
    )


def measure_known_scores(
    truth: Synthetic, loadings: FloatArray, n_surrogates: int, random: Any
) -> float:
    """Equation (8) of least squares that knows the true scores of every record."""
    scores, space = truth.factors
    signs = random.choice([-1.0, 1.0], (len(scores), n_surrogates)) / math.sqrt(n_surrogates)
    made = (signs.T @ scores) @ loadings.T
    residual = made - (made @ space) @ space.T
    return float(np.linalg.norm(residual, axis=1).max()) / n_surrogates
