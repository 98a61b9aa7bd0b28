"""Records that are pictures, in rows: as they were and as they are released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.protocols import FloatArray


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
