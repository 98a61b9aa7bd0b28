"""``privpipe diff``: per column, what a release changed of its source; ratios, never values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.column_change import ColumnChange
from privpipe.report.console import say, tabulate
from privpipe.report.work_bar import showing
from privpipe.store.access.location import shown
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.releases.published import open_release

MOST_SHOWN = 40
"""Columns in the table: those that changed most; `--json` has all."""


def diff_command(source: str, release: str, *, as_json: bool) -> dict[str, Any]:
    """Compare a release with the collection it was made of, chunk by chunk.

    Raises
    ------
    InputError
        If records or columns of the two do not correspond.
    """
    collection = open_collection(source)
    found = measure_change(collection, release)
    names = collection.schema.feature_names or tuple(map(str, range(collection.schema.n_features)))
    columns = [
        {
            "column": name,
            "correlation": _number(found.correlation[j]),
            "spread": _number(found.spread[j]),
            "shift": _number(found.shift[j]),
            "unchanged": _number(found.share_same[j]),
        }
        for j, name in enumerate(names)
    ]
    if not as_json:
        _show(columns, found.n_records, collection.n_records)
    return {
        "source": shown(source),
        "release": shown(release),
        "n_records": collection.n_records,
        "n_compared": found.n_records,
        "columns": columns,
    }


def measure_change(collection: Collection, release: str) -> ColumnChange:
    """Sums over all chunks; memory does not grow with the records."""
    opened = open_release(release)
    width = collection.schema.n_features
    here = opened["features"].shape if "features" in opened else None
    if here != (collection.n_records, width):
        raise InputError(
            f"{shown(release)} does not hold the columns of {shown(collection.url)}, record by "
            f"record: {here} against {(collection.n_records, width)}.",
            remedy="Name the collection that was cleaned, not the training one. Releases of "
            "surrogates, of attributes or of filtered features have other columns.",
            code="not-comparable",
        )
    total = ColumnChange.of(np.empty((0, width)), np.empty((0, width)))
    with showing("compare") as listen:
        for chunk in range(collection.plan.n_chunks):
            start, stop = collection.plan.rows(chunk)
            after = np.asarray(opened["features"][start:stop])
            total = total.merge(ColumnChange.of(collection.shard(chunk).features, after))
            listen(stop - start, collection.n_records)
    return total


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _show(columns: list[dict[str, Any]], n_compared: int, n_records: int) -> None:
    def kept(row: dict[str, Any]) -> float:
        return abs(row["correlation"]) if row["correlation"] is not None else 0.0

    table = tabulate("column", "correlation", "spread", "shift", "unchanged")
    for row in sorted(columns, key=kept)[:MOST_SHOWN]:
        cells = [row["correlation"], row["spread"], row["shift"]]
        unchanged = f"{row['unchanged']:.1%}"
        table.add_row(row["column"], *("" if c is None else f"{c:.3f}" for c in cells), unchanged)
    say(table)
    say(
        f"{n_compared:,} of {n_records:,} records, columns that changed most first"
        + (f" ({MOST_SHOWN} of {len(columns):,})" if len(columns) > MOST_SHOWN else "")
        + ". Correlation: of a column before and after. Spread: standard deviation after, as a "
        "multiple. Shift: of the mean, in standard deviations."
    )
