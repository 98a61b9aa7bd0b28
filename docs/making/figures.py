"""Figures made in the build by the code that they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

import privpipe
from privpipe.numerics.random.streams import KeyedStream
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.masking.private_masking import fit_with_key
from privpipe.sanitizers.options import make_options

__all__ = ["DRAWN", "draw_figures"]

WANTED, HIDDEN = "#0b6e4f", "#b3261e"
N_RECORDS = 1_500

GIVEN: dict[str, dict[str, Any]] = {
    "null_space": {"utility_budget": 0.01},
    "null_space_targeted": {"utility_budget": 0.05},
    "leace": {},
    "target_only": {},
    "minimax": {"max_iterations": 10},
    "minimax_neural": {"n_hidden": (6, 2), "max_iterations": 10},
    "minimax_least_squares": {},
    "privacy_lds": {},
    "pca": {"n_filtered": 2},
    "rand": {"n_filtered": 2},
    "noisy": {"epsilon": 8.0, "threshold": 2.5, "centre": False},
}
"""Options of the methods whose figure shows what a classifier still reads."""

DRAWN = {
    name: "Made in the build of this page: 1,500 records of six features, a target and a "
    "confidential answer that are correlated. A logistic regression is trained on raw or released "
    "records and tried on others; the line is guessing. `"
    + ", ".join(f"{key} = {value}" for key, value in given.items())
    + "`"
    for name, given in GIVEN.items()
} | {
    "privacy_mapping": "Made in the build of this page: what a mapping of eight profiles does; "
    "more distortion, less information about the confidential answer (nats).",
    "masking": "Made in the build of this page: coefficients of a regression on surrogates, "
    "against those on the raw records.",
    "masking_private": "Made in the build of this page: coefficients of a regression on "
    "surrogates, against those on 20,000 raw records, at epsilon 1.",
}
DRAWN = {name: text.removesuffix(" ``") for name, text in DRAWN.items()}


def draw_figures(folder: Path) -> None:
    """Draw the figure of each method; an old one is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, Callable[[Path], None]] = {
        "privacy_mapping": _draw_mapping,
        "masking": _draw_masking,
        "masking_private": _draw_private,
    }
    plt.rcParams.update({"svg.hashsalt": "privpipe", "font.size": 10, "figure.dpi": 100})
    for name in METHODS:
        if name in drawers:
            drawers[name](folder / f"{name}.svg")
        elif name in GIVEN:
            _draw_reading(name, folder / f"{name}.svg")
    _draw_verdicts(folder / "verdicts.svg")


def _make_records(seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_RECORDS, 6))
    target = x[:, 0] + 0.5 * x[:, 1] > 0
    confidential = 0.6 * x[:, 0] + x[:, 2] + x[:, 3] + 0.3 * rng.normal(size=N_RECORDS) > 0
    return x, target, confidential


def _fit(name: str, records: Any) -> Any:
    method = METHODS[name]
    return method.fit(records, make_options(method.options, {"name": name, **GIVEN[name]}, name))


def _draw_reading(name: str, path: Path) -> None:
    """Accuracy of both answers, from raw and from released records."""
    x, target, confidential = _make_records(0)
    fitted = _fit(name, privpipe.Records(x, desired=target, confidential=confidential))
    fresh, *labels = _make_records(1)
    released = fitted.apply(fresh, _make_stream(N_RECORDS))
    half = N_RECORDS // 2
    scores = [
        [
            LogisticRegression(max_iter=1000).fit(z[:half], y[:half]).score(z[half:], y[half:])
            for z in (fresh, released)
        ]
        for y in labels
    ]
    figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
    for i, colour in enumerate((WANTED, HIDDEN)):
        axes.barh([i + 0.18, i - 0.18], scores[i], height=0.32, color=[f"{colour}66", colour])
        for offset, score, kind in zip((0.18, -0.18), scores[i], ("raw", "released"), strict=True):
            axes.text(score + 0.01, i + offset, f"{kind} {score:.2f}", va="center", fontsize=9)
        guess = max(labels[i][half:].mean(), 1 - labels[i][half:].mean())
        axes.plot([guess, guess], [i - 0.4, i + 0.4], color="#57606a", linewidth=1)
    names = ["target", "confidential"]
    axes.set(yticks=[0, 1], yticklabels=names, xlim=(0, 1.15), xlabel="accuracy")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _make_stream(n_records: int) -> KeyedStream:
    return KeyedStream(bytes(32), partition="figure", first_record=0, n_records=n_records)


def _draw_mapping(path: Path) -> None:
    """Information left, for budgets of distortion."""
    rng = np.random.default_rng(2)
    joint = rng.dirichlet(np.ones(8), size=2) * np.array([[0.6], [0.4]])
    budgets = [0.05 * k for k in range(1, 9)]
    codes = np.arange(8)[:, None]
    found = [privpipe.solve_privacy_mapping(joint, codes, distortion_budget=one) for one in budgets]
    figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
    axes.plot(budgets, [each.guarantee.number for each in found], "o-", color=HIDDEN)
    axes.set(
        xlabel="share of records changed (budget)", ylabel="information (nats)", ylim=(0, None)
    )
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _draw_masking(path: Path) -> None:
    """Coefficients on surrogates against those on raw records."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 5))
    truth = rng.normal(size=(5, 2))
    y = x @ truth + 0.1 * rng.normal(size=(400, 2))
    records = privpipe.Records(x, desired=y)
    model = privpipe.fit_masking(records, privpipe.MaskingOptions(n_surrogates=60))
    masked = privpipe.draw_masked_records(model, records, _make_stream(400))
    _draw_coefficients(x, y, masked, path)


def _draw_private(path: Path) -> None:
    """The same of noisy moments, with a key that gives the same figure again."""
    rng = np.random.default_rng(3)
    x = np.clip(rng.normal(size=(20_000, 5)), -3, 3)
    y = np.clip(x @ rng.normal(size=(5, 2)) + 0.1 * rng.normal(size=(len(x), 2)), -9, 9)
    options = privpipe.MaskingPrivateOptions(
        epsilon=1.0,
        delta=1e-6,
        n_surrogates=60,
        bound={"*": (-3.0, 3.0), "desired_0": (-9.0, 9.0), "desired_1": (-9.0, 9.0)},
    )
    model = fit_with_key(privpipe.Records(x, desired=y), options, bytes(32))
    _draw_coefficients(x, y, model.make_records(), path)


def _draw_coefficients(x: Any, y: Any, masked: Any, path: Path) -> None:
    raw = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
    ours = np.linalg.lstsq(masked.features, masked.responses, rcond=None)[0]
    figure, axes = plt.subplots(figsize=(4, 3), layout="constrained")
    axes.axline((0, 0), slope=1, color="#57606a", linewidth=1)
    axes.plot(raw[: len(ours)].ravel(), ours[: len(raw)].ravel(), "o", color=WANTED)
    axes.set(xlabel="from raw records", ylabel="from surrogates")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _draw_verdicts(path: Path) -> None:
    """What makes a verdict: intervals of an adversary's gain beside what is allowed."""
    figure, axes = plt.subplots(figsize=(6, 1.9), layout="constrained")
    rows = [("safe", 0.01, 0.07, WANTED), ("unproven", 0.04, 0.17, "#8a5a00")]
    rows += [("leaks", 0.14, 0.24, HIDDEN)]
    for i, (_, lower, upper, colour) in enumerate(reversed(rows)):
        axes.plot([lower, upper], [i, i], color=colour, linewidth=5, solid_capstyle="butt")
    axes.axvline(0.1, color="#57606a", linestyle="--")
    axes.text(0.102, 2.45, "allowed", fontsize=9)
    labels = [row[0] for row in reversed(rows)]
    axes.set(yticks=range(3), yticklabels=labels, xlim=(0, 0.3), ylim=(-0.5, 2.8))
    axes.set_xlabel("what an adversary gains beyond knowing the target")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
