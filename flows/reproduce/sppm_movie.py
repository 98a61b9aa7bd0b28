"""Salamatian et al., SPPM, movies: Figure 2 right, Figure 4, Figure 7, where the user has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from flows.reproduce.sppm_measures import (
    Found,
    PaperResult,
    logistic_scores,
    release_counts,
    trace_roc,
)
from flows.reproduce.sppm_problems import load_movies
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.exponential import fit_exponential_mechanism, keep_symbols
from privpipe.sanitizers.mapping import SparseMapping
from privpipe.sanitizers.tradeoff import solve_tradeoff

__all__ = ["reproduce_movie"]

SHARES = (0.01, 0.02, 0.04, 0.08, 0.13, 0.22)
ROC_SHARES = (0.04, 0.13, 0.22)


def reproduce_movie(data: Path, gap: float = 1e-3) -> PaperResult:
    """Information against distortion, a logistic attacker's ROC, and sizes of supports.

    Parameters
    ----------
    data
        Folder with ``ml-1m/``.
    gap
        Certified gap of every mapping, nats.
    """
    counts, codes = load_movies(data)
    joint, width = counts / counts.sum(), codes.shape[1]
    budgets = [share * width for share in SHARES]
    raw = keep_symbols(joint, codes)
    ours = solve_tradeoff(joint, codes, distortion_budgets=budgets, gap=gap)
    theirs = [fit_exponential_mechanism(joint, codes, distortion_budget=b) for b in budgets]
    figure = Figure(figsize=(14, 6.5), layout="constrained")
    axes = figure.subplots(2, 3)
    x = [0.0, *SHARES]
    for name, mappings in (("SPPM", ours), ("exponential", theirs)):
        values = [raw.information, *(m.information for m in mappings)]
        axes[0, 0].plot(x, values, "o-", markersize=3, label=name)
    axes[0, 0].set(xlabel="distortion, share of the genres", ylabel="information, nats")
    areas = {}
    for place, share in zip((axes[0, 1], axes[0, 2], axes[1, 0]), ROC_SHARES, strict=True):
        k = SHARES.index(share)
        for name, mapping in (("raw", raw), ("SPPM", ours[k]), ("exponential", theirs[k])):
            false, true, areas[f"{name}, {share}"] = _attack(mapping, counts, codes)
            place.plot(false, true, label=name)
        place.set(xlabel="false positives", ylabel="true positives")
        place.set_title(f"Logistic regression, distortion {share}")
    sizes = ours[SHARES.index(0.13)].support_sizes()
    axes[1, 1].hist(np.minimum(sizes, 30), bins=np.arange(0.5, 31.5).tolist())
    axes[1, 1].set(xlabel="symbols that a profile may become", ylabel="profiles")
    axes[1, 2].set_axis_off()
    for place in axes.ravel()[:4]:
        place.legend(frameon=False)
    curves = {
        "share": list(SHARES),
        "sppm_nats": [m.information for m in ours],
        "lower_bound_nats": [m.lower_bound for m in ours],
        "exponential_nats": [m.information for m in theirs],
        "area_under_roc": areas,
    }
    cells = (
        Found("I(A;B) before", raw.information, 0.6, 0.05, "nats", "read off Figure 2"),
        Found("profiles", float(raw.n_symbols), 3717.0, 0.0, "profiles", "genres differ"),
        Found("largest support", float(sizes.max()), 30.0, 5.0, "symbols", "Figure 7"),
    )
    notes = ("MovieLens's own genres; the paper's 31 were extended by unpublished tags.",)
    return PaperResult(cells, curves, figure, notes)


def _attack(
    mapping: SparseMapping, counts: FloatArray, codes: IntArray
) -> tuple[FloatArray, FloatArray, float]:
    masses = release_counts(mapping, counts)
    return trace_roc(logistic_scores(masses, codes), masses)
