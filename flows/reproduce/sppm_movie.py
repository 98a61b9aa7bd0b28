"""Salamatian et al., SPPM, movies: Figure 2 right, Figure 4, Figure 7, where the user has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flows.reproduce.exponential import MOST_SYMBOLS, fit_exponential_mechanism, keep_symbols
from flows.reproduce.result import Cell, Reproduction, compare_cell
from flows.reproduce.sppm_measures import logistic_scores, release_counts, trace_roc
from flows.reproduce.sppm_problems import count_symbols, load_movies
from flows.reproduce.sppm_solves import solve_curve
from flows.reproduce.steps import expect_steps, step
from privpipe.protocols import BoolArray, FloatArray, IntArray
from privpipe.report.style import ThemeName, theme_panels
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

SHARES = (0.01, 0.02, 0.04, 0.08, 0.13, 0.22)
ROC_SHARES = (0.04, 0.13, 0.22)
SUPPORT_SHARE = 0.13
HELD_OUT = 10
"""One user in so many judges a mapping and an attacker that never saw them."""

Curve = tuple[list[float], list[float], float]
"""False and true positive rates, and the area under them."""
Found = tuple[float, dict[str, Curve]]
"""Information in nats, and curves by who is attacked."""


def reproduce_movie(
    data: Path, runs: int = 1, gap: float = 1e-3, one_user_in: int = 1
) -> Reproduction:
    """Information against distortion, a logistic attacker's ROC, and sizes of supports.

    Parameters
    ----------
    data
        Folder with ``ml-1m/``.
    runs
        Changes nothing: every number is exact.
    gap
        Certified gap of every mapping, nats.
    one_user_in
        Only one user in so many: what makes it small.
    """
    gender, bits = load_movies(data)
    gender, bits = gender[::one_user_in], bits[::one_user_in]
    counts, codes = count_symbols(gender, bits)
    held = _hold_out(gender)
    has_mechanism = len(codes) <= MOST_SYMBOLS
    expect_steps((1 + has_mechanism) * len(SHARES) + 2 * len(ROC_SHARES) + 1)
    joint = counts / counts.sum()
    raw = keep_symbols(joint, codes)
    ours = solve_curve("SPPM", joint, codes, "hamming", shares=SHARES, gap=gap)
    # It gives every symbol to every other, which beyond some thousands no memory holds.
    compared = SHARES if has_mechanism else ()
    theirs = {share: _read(step(*_exponential(counts, codes, share))) for share in compared}
    fresh = _solve_without(held, gender, bits, gap)
    before = _read(step("attackers of raw records", lambda: _measure(raw, counts, codes)))
    rocs = {
        share: {
            "raw": before[1]["exact"],
            "SPPM": _read(
                step(
                    f"attackers of SPPM at {share:g}", partial(_measure, ours[share], counts, codes)
                )
            )[1]["exact"],
            "SPPM, held-out users": _attack_held_out(fresh[share], held, gender, bits),
            **({"exponential": theirs[share][1]["exact"]} if theirs else {}),
        }
        for share in ROC_SHARES
    }
    informations = {"SPPM": [raw.information, *(mapping.information for mapping in ours.values())]}
    if theirs:
        informations["exponential"] = [raw.information, *(nats for nats, _ in theirs.values())]
    sizes = np.diff(ours[SUPPORT_SHARE].pointers)
    return Reproduction(
        cells=_cells(raw, sizes),
        notes=(
            "MovieLens's own genres; the paper's 31 were extended by unpublished tags.",
            f"Held-out users: one in {HELD_OUT}, unknown to the mapping and to the attacker, whose "
            "profile is released as its nearest known one.",
            *(() if has_mechanism else (f"No exponential mechanism: {len(codes):,} profiles.",)),
        ),
        picture=partial(_draw, informations, rocs, sizes),
        curves={
            "share": [0.0, *SHARES],
            "information_nats": informations,
            "lower_bound_nats": [raw.information, *(m.lower_bound for m in ours.values())],
            "area_under_roc": {
                f"{name}, {share}": curve[2]
                for share, found in rocs.items()
                for name, curve in found.items()
            },
        },
    )


def _hold_out(gender: IntArray) -> BoolArray:
    """One user in `HELD_OUT` of each gender."""
    held = np.zeros(len(gender), np.bool_)
    for value in (0, 1):
        held[np.flatnonzero(gender == value)[::HELD_OUT]] = True
    return held


def _exponential(
    counts: FloatArray, codes: IntArray, share: float
) -> tuple[str, Callable[[], list[Any]]]:
    """A step whose mapping, dense as it is, is measured and not stored."""

    def measure() -> list[Any]:
        budget = share * codes.shape[1]
        mapping = fit_exponential_mechanism(counts / counts.sum(), codes, distortion_budget=budget)
        if share in ROC_SHARES:
            return _measure(mapping, counts, codes)
        return [mapping.information, {}]

    return f"exponential mechanism at {share:g}", measure


def _measure(mapping: SparseMapping, counts: FloatArray, codes: IntArray) -> list[Any]:
    """Information, and the curve of an attacker that knows the released distribution."""
    masses = release_counts(mapping, counts)
    return [mapping.information, {"exact": _trace(logistic_scores(masses, codes), masses)}]


def _trace(scores: FloatArray, masses: FloatArray) -> Curve:
    false, true, area = trace_roc(scores, masses)
    return false.tolist(), true.tolist(), area


def _read(stored: list[Any]) -> Found:
    nats, curves = stored
    return nats, curves


def _solve_without(
    held: BoolArray, gender: IntArray, bits: IntArray, gap: float
) -> dict[float, SparseMapping]:
    """Mappings fitted on all users but those held out."""
    counts, codes = count_symbols(gender[~held], bits[~held])
    joint, name = counts / counts.sum(), "SPPM without held-out users"
    return solve_curve(name, joint, codes, "hamming", shares=ROC_SHARES, gap=gap)


def _attack_held_out(
    mapping: SparseMapping, held: BoolArray, gender: IntArray, bits: IntArray
) -> Curve:
    """An attacker that learned from the other users' release, judged by these users'."""
    known, judged = (
        np.stack(
            [
                np.bincount(
                    mapping.find_symbols(bits[rows & (gender == value)]),
                    minlength=mapping.n_symbols,
                )
                for value in (0, 1)
            ]
        ).astype(np.float64)
        for rows in (~held, held)
    )
    scores = logistic_scores(release_counts(mapping, known), mapping.codes)
    return _trace(scores, release_counts(mapping, judged))


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
    with theme_panels(theme) as look:
        figure = Figure(figsize=(14, 6.5), layout="constrained")
        axes = figure.subplots(2, 3)
        colours = dict(zip(next(iter(rocs.values())), look.series, strict=False))
        for name, values in informations.items():
            axes[0, 0].plot(
                [0.0, *SHARES], values, "o-", markersize=3, color=colours[name], label=name
            )
        axes[0, 0].set(xlabel="distortion, share of the genres", ylabel="information, nats")
        for place, share in zip(axes.ravel()[1:4], ROC_SHARES, strict=True):
            for name, (false, true, area) in rocs[share].items():
                style = "--" if "held-out" in name else "-"
                label = f"{name} ({area:.2f})"
                place.plot(false, true, style, color=colours[name], label=label)
            place.set(xlabel="false positives", ylabel="true positives")
            place.set_title(f"Logistic regression, distortion {share}")
        bins = np.arange(0.5, 31.5).tolist()
        axes[1, 1].hist(np.minimum(sizes, 30), bins=bins, color=colours["SPPM"])
        axes[1, 1].set(xlabel="symbols that a profile may become", ylabel="profiles")
        axes[1, 1].set_title(f"Support sizes at {SUPPORT_SHARE} (30: 30 or more)")
        axes[1, 2].set_axis_off()
        for place in axes.ravel()[:4]:
            place.legend(frameon=False)
    return figure
