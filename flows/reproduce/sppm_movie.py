"""Salamatian et al., SPPM, movies: Figure 2 right, Figure 4, Figure 7, where the user has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from flows.reproduce.result import Cell, Reproduction, compare_cell
from flows.reproduce.sppm_measures import logistic_scores, release_counts, trace_roc
from flows.reproduce.sppm_problems import load_movies
from privpipe.protocols import FloatArray, IntArray
from privpipe.report.style import ThemeName, theme_panels
from privpipe.sanitizers.mapping.exponential import fit_exponential_mechanism, keep_symbols
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from privpipe.sanitizers.mapping.tradeoff import solve_tradeoff

__all__ = ["reproduce_movie"]

SHARES = (0.01, 0.02, 0.04, 0.08, 0.13, 0.22)
ROC_SHARES = (0.04, 0.13, 0.22)

Curve = tuple[FloatArray, FloatArray, float]


def reproduce_movie(data: Path, runs: int = 1, gap: float = 1e-3) -> Reproduction:
    """Information against distortion, a logistic attacker's ROC, and sizes of supports.

    Parameters
    ----------
    data
        Folder with ``ml-1m/``.
    runs
        Changes nothing: every number is exact.
    gap
        Certified gap of every mapping, nats.
    """
    counts, codes = load_movies(data)
    joint, width = counts / counts.sum(), codes.shape[1]
    budgets = [share * width for share in SHARES]
    raw = keep_symbols(joint, codes)
    ours = solve_tradeoff(joint, codes, distortion_budgets=budgets, gap=gap)
    theirs = [fit_exponential_mechanism(joint, codes, distortion_budget=b) for b in budgets]
    informations = {
        name: [raw.information, *(m.information for m in mappings)]
        for name, mappings in (("SPPM", ours), ("exponential", theirs))
    }
    rocs = {
        share: {
            name: _attack(mapping, counts, codes)
            for name, mapping in (("raw", raw), ("SPPM", sppm), ("exponential", mechanism))
        }
        for share, sppm, mechanism in zip(SHARES, ours, theirs, strict=True)
        if share in ROC_SHARES
    }
    sizes = ours[SHARES.index(0.13)].support_sizes()
    return Reproduction(
        cells=_cells(raw, sizes),
        notes=("MovieLens's own genres; the paper's 31 were extended by unpublished tags.",),
        picture=partial(_draw, informations, rocs, sizes),
        curves={
            "share": [0.0, *SHARES],
            "information_nats": informations,
            "lower_bound_nats": [raw.information, *(m.lower_bound for m in ours)],
            "area_under_roc": {
                f"{name}, {share}": curve[2]
                for share, found in rocs.items()
                for name, curve in found.items()
            },
        },
    )


def _attack(mapping: SparseMapping, counts: FloatArray, codes: IntArray) -> Curve:
    masses = release_counts(mapping, counts)
    return trace_roc(logistic_scores(masses, codes), masses)


def _cells(raw: SparseMapping, sizes: IntArray) -> tuple[Cell, ...]:
    rows = (
        ("I(A;B) before", raw.information, 0.6, 0.05, "nats", "read off Figure 2"),
        ("profiles", float(raw.n_symbols), 3717.0, 0.0, "profiles", "genres differ"),
        ("largest support", float(sizes.max()), 30.0, 5.0, "symbols", "Figure 7"),
    )
    return tuple(
        compare_cell(name, [ours], paper=paper, tolerance=tolerance, unit=unit, note=note)
        for name, ours, paper, tolerance, unit, note in rows
    )


def _draw(
    informations: dict[str, list[float]],
    rocs: dict[float, dict[str, Curve]],
    sizes: IntArray,
    theme: ThemeName,
) -> Figure:
    with theme_panels(theme):
        figure = Figure(figsize=(14, 6.5), layout="constrained")
        axes = figure.subplots(2, 3)
        for name, values in informations.items():
            axes[0, 0].plot([0.0, *SHARES], values, "o-", markersize=3, label=name)
        axes[0, 0].set(xlabel="distortion, share of the genres", ylabel="information, nats")
        for place, share in zip(axes.ravel()[1:4], ROC_SHARES, strict=True):
            for name, (false, true, area) in rocs[share].items():
                place.plot(false, true, label=f"{name} ({area:.2f})")
            place.set(xlabel="false positives", ylabel="true positives")
            place.set_title(f"Logistic regression, distortion {share}")
        axes[1, 1].hist(np.minimum(sizes, 30), bins=np.arange(0.5, 31.5).tolist())
        axes[1, 1].set(xlabel="symbols that a profile may become", ylabel="profiles")
        axes[1, 2].set_axis_off()
        for place in axes.ravel()[:4]:
            place.legend(frameon=False)
    return figure
