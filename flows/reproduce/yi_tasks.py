"""School as the paper takes it: a task for each of its 139 schools, masked by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from flows.reproduce.yi_masks import Masked, append_ones, learn_ridge, mask
from privpipe.protocols import FloatArray, IntArray

RIDGE = 0.1
"""Of every learner: a task has some eighty records for 26 features that depend on one another."""

LEAST_NOISE = 1e-3
"""Of 139 tasks: without any, each solve takes the most iterations."""


def measure_tasks(
    x: FloatArray,
    y: FloatArray,
    school: IntArray,
    train: IntArray,
    test: IntArray,
    left: tuple[FloatArray, FloatArray],
    pooled: Masked,
    random: Any,
) -> dict[str, float]:
    """RMSE over all tasks and eta of all their models, complete and with 80 % missing.

    A task is masked by itself, to as many surrogates as the regression needs where a third of its
    records is fewer. Where entries are missing a task of its own has too few: the covariance is
    that of all tasks, the mean that of the task.

    Parameters
    ----------
    x, y, school
        All records, and the task of each.
    train, test
        Places of records.
    left
        Features and responses of the training records, NaN where missing.
    pooled
        Masked records of these, all tasks together.
    random
        Draws the signs.
    """
    models: dict[str, list[FloatArray]] = {"raw": [], "masked": [], "80 % missing": []}
    errors: dict[str, list[FloatArray]] = {name: [] for name in models}
    holed, gaps = left
    shared = learn_ridge(pooled.features, pooled.responses, RIDGE)
    for task in np.unique(school):
        mine, judged = train[school[train] == task], test[school[test] == task]
        if len(mine) < 2 or not len(judged):
            continue
        a, b = x[mine], y[mine]
        masked = mask(a, b, max(len(mine) // 3, 2 * a.shape[1]), random, noise=LEAST_NOISE)
        found = {
            "raw": learn_ridge(append_ones(a), b, RIDGE),
            "masked": learn_ridge(masked.features, masked.responses, RIDGE),
            "80 % missing": _shift(shared, holed, gaps, school[train] == task),
        }
        for name, model in found.items():
            models[name].append(model[:, 0])
            errors[name].append((append_ones(x[judged]) @ model - y[judged])[:, 0])
    measured: dict[str, float] = {}
    raw = np.concatenate(models["raw"])
    for name, parts in models.items():
        flat = np.concatenate(parts)
        measured[f"{name}, 139 tasks: RMSE"] = float(
            np.sqrt(np.mean(np.concatenate(errors[name]) ** 2))
        )
        if name != "raw":
            largest = max(float(np.linalg.norm(flat)), float(np.linalg.norm(raw)))
            measured[f"{name}, 139 tasks: eta"] = float(np.linalg.norm(flat - raw)) / largest
    return measured


def _shift(shared: FloatArray, x: FloatArray, y: FloatArray, mine: Any) -> FloatArray:
    """The shared model with the task's own intercept, shrunk towards the shared one."""
    known = mine & np.isfinite(y[:, 0])
    filled = np.where(np.isfinite(x), x, np.nanmean(x, axis=0))
    left = y[known, 0] - (append_ones(filled[known]) @ shared)[:, 0]
    fitted: FloatArray = shared.copy()
    fitted[-1] += left.sum() / (len(left) + 5.0)
    return fitted
