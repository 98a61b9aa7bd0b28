"""Yi et al. 2014, Privacy and Regression Model Preserved Learning: School."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privpipe.protocols import FloatArray
from privpipe_flows.reproduce.result import Reproduction, compare_cell
from privpipe_flows.reproduce.steps import expect_steps, step
from privpipe_flows.reproduce.yi_masks import (
    add_noise,
    append_ones,
    draw_gaussian,
    learn_ridge,
    mask,
    mask_missing,
    measure_eta,
    measure_rmse,
    project,
)

__all__ = ["reproduce_school"]


def _read_school(data: Path) -> tuple[FloatArray, FloatArray]:
    with np.load(data / "school.npz", allow_pickle=False) as stored:
        x, y = stored["X"].astype(np.float64), stored["y"].astype(np.float64)
    return x[:, x.std(axis=0) > 0], y[:, None]


def reproduce_school(
    data: Path, runs: int, n_records: int = 15_362, learners: tuple[str, ...] = ("ridge", "svr")
) -> Reproduction:
    """Figures 1 and 2 on School: complete and with 80 % missing, beside other releases."""
    x, y = _read_school(data)
    expect_steps(runs)
    trials = [
        step(f"trial {run + 1}", partial(_measure_trial, x, y, n_records, learners, run))
        for run in range(runs)
    ]
    cells = [
        compare_cell(name, [one[name] for one in trials], paper=None, tolerance=0.0, unit=unit)
        for name in trials[0]
        for unit in (("eta_W" if "eta" in name else "RMSE"),)
    ]
    ratios = [one["masked, ridge: RMSE"] / one["raw, ridge: RMSE"] for one in trials]
    cells.append(
        compare_cell(
            "masked / raw, ridge", ratios, paper=1.0, tolerance=0.005, unit="ratio", better="lower"
        )
    )
    return Reproduction(
        tuple(cells),
        (
            "All schools pooled as one response. The paper shows bars without numbers; it takes "
            "139 tasks, one per school.",
            "Random projection to half of the features: in our text of the paper its dimension is "
            "lost.",
            "Features of classes depend on one another: eta then compares models that predict "
            "alike.",
            "Noise at equal utility: the least Gaussian noise whose model is as far off as that of "
            "the masked records. Coefficients alone: the model and a Gaussian with the Gram matrix "
            "keep as much, which is what masking has to be held against.",
            "80 % missing is not reproduced: features of classes are not low rank at this "
            "sampling, and their model is lost.",
        ),
        curves={"trials": [dict(one) for one in trials]},
    )


def _measure_trial(
    x: FloatArray, y: FloatArray, n_records: int, learners: tuple[str, ...], run: int
) -> dict[str, float]:
    random = np.random.default_rng([run, 2014])
    order = random.permutation(len(x))[:n_records]
    cut = int(0.7 * len(order))
    train, test = order[:cut], order[cut:]
    a, b, m = x[train], y[train], cut // 3
    made = {"masked": mask(a, b, m, random)}
    holed, gaps = a.copy(), b.copy()
    holed[random.random(a.shape) < 0.8] = np.nan
    gaps[random.random(b.shape) < 0.8] = np.nan
    made["80 % missing"] = mask_missing(holed, gaps, m, random, rank=min(20, a.shape[1] - 2))
    found: dict[str, float] = {}
    for learner in learners:
        learn = _learn_svr if learner == "svr" else learn_ridge
        raw = learn(append_ones(a), b)
        found[f"raw, {learner}: RMSE"] = measure_rmse(raw, x[test], y[test])
        models = {name: learn(one.features, one.responses) for name, one in made.items()}
        if learner == "ridge":
            models |= _compare(a, b, m, measure_eta(models["masked"], raw), random)
        for name, model in models.items():
            found[f"{name}, {learner}: RMSE"] = measure_rmse(model, x[test], y[test])
            found[f"{name}, {learner}: eta"] = measure_eta(model, raw)
    return found


def _compare(
    x: FloatArray, y: FloatArray, m: int, eta: float, random: Any
) -> dict[str, FloatArray]:
    """What else could be released, on the same axes."""
    raw = learn_ridge(append_ones(x), y)
    noisy = raw
    for size in np.geomspace(1e-4, 1.0, 17):
        noisy = add_noise(x, y, float(size), random)
        if measure_eta(noisy, raw) >= eta:
            break
    alone = draw_gaussian(x, y, m, random)
    return {
        "random projection": project(x, y, x.shape[1] // 2, random),
        "additive noise": noisy,
        "coefficients alone": learn_ridge(*alone),
    }


def _learn_svr(features: FloatArray, responses: FloatArray) -> FloatArray:
    """Linear support vector regression, C by five-fold cross-validation from 2^-5 to 2^5."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVR

    scale = np.sqrt(np.mean(features**2, axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    size = float(np.sqrt(np.mean(responses**2)))
    machine = LinearSVR(fit_intercept=False, max_iter=2000, dual=True, random_state=0)
    search = GridSearchCV(machine, {"C": 2.0 ** np.arange(-5, 6, 2)}, cv=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(features / scale, responses[:, 0] / size)
    model: FloatArray = (search.best_estimator_.coef_ * size / scale)[:, None]
    return model
