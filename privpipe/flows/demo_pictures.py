"""The demo's picture: ten digits as written and as released, the wanted score under each."""

from __future__ import annotations

import os

import numpy as np

from privpipe.flows.demo import N_ORIGINALS, load_scans
from privpipe.protocols import BoolArray, FloatArray, IntArray
from privpipe.records.holdout import make_split
from privpipe.records.memory import Records
from privpipe.report.record_pictures import Row, draw_rows
from privpipe.sanitizers.null_space.algorithm_1 import fit_null_space_cleaner
from privpipe.sanitizers.null_space.maps.null_space_cleaner import NullSpaceCleaner
from privpipe.store.models.artifacts import open_model
from privpipe.store.releases.lazy_release import open_release


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
