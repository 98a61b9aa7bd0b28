"""The demo's picture: ten digits as written and as released, the wanted score under each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.flows.demo import N_ORIGINALS, load_scans
from privpipe.protocols import BoolArray, FloatArray, IntArray
from privpipe.records.memory import Records
from privpipe.records.sampling import make_split
from privpipe.sanitizers.null_space.algorithm_1 import fit_null_space_cleaner
from privpipe.sanitizers.null_space.null_space_cleaner import NullSpaceCleaner
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release


@dataclass(frozen=True, eq=False)
class Row:
    """One row of pictures.

    Parameters
    ----------
    label
        Printed at its left.
    records : (n_pictures, n_pixels)
        Larger is darker.
    scores : (n_pictures,)
        Printed under each picture.
    """

    label: str
    records: FloatArray
    scores: FloatArray


def draw_rows(path: str, rows: Sequence[Row], *, shape: tuple[int, int], score: str) -> None:
    """Draw rows of pictures on one grey scale, that of the first row, into a PNG file.

    Values outside the scale are drawn at its ends; nothing is rescaled, so that rows compare.
    """
    from matplotlib.figure import Figure

    low, high = float(np.min(rows[0].records)), float(np.max(rows[0].records))
    n = len(rows[0].records)
    figure = Figure(figsize=(1.1 * n + 1.8, 1.55 * len(rows)), dpi=120, layout="constrained")
    axes = figure.subplots(len(rows), n, squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        for record, value, ax in zip(row.records, row.scores, line, strict=True):
            ax.imshow(record.reshape(shape), cmap="gray_r", vmin=low, vmax=high)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel(f"{value:.2f}", fontsize=9)
        line[0].set_ylabel(row.label, fontsize=9, rotation=0, ha="right", va="center")
    figure.supxlabel(f"under each: {score}", fontsize=9)
    figure.savefig(path)


def draw_portrait(base: str) -> str:
    """Draw the picture of a finished demo; return its path (PNG, beside the report)."""
    scans, digits = load_scans()
    held_out = make_split(0.5).keep("held_out", np.arange(N_ORIGINALS))
    shown = _median_ink(scans, digits, held_out)
    closest = open_model(os.path.join(base, "release.model.zarr"))
    assert isinstance(closest, NullSpaceCleaner)
    likely = fit_null_space_cleaner(
        Records(scans[~held_out], desired=(digits == 0)[~held_out]),
        utility_budget=closest.utility_budget,
        ridge=0.01,
        representative="likely",
    )
    release = open_release(os.path.join(base, "release.zarr"))
    released = np.stack([release.features[i].values for i in shown])
    rows = [
        Row("as written", scans[shown], closest.predict(scans[shown])[:, 0]),
        Row("as released", released, closest.predict(released)[:, 0]),
        Row(
            "the same coordinates,\nas the likeliest record",
            likely.apply(scans[shown]),
            likely.predict(likely.apply(scans[shown]))[:, 0],
        ),
    ]
    path = os.path.join(base, "release.report", "digits.png")
    draw_rows(path, rows, shape=(8, 8), score="zero score")
    return path


def _median_ink(scans: FloatArray, digits: IntArray, among: BoolArray) -> list[int]:
    """Per digit the record of median ink among the held-out ones."""
    found = []
    for digit in range(10):
        rows = np.flatnonzero((digits == digit) & among)
        order = np.argsort(scans[rows].sum(axis=1), kind="stable")
        found.append(int(rows[order[len(order) // 2]]))
    return found
