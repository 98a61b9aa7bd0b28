"""``privpipe ingest``: a foreign source becomes a collection."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from privpipe.records.schema import CollectionSchema
from privpipe.report.console import say, tabulate
from privpipe.report.work_bar import showing
from privpipe.store.access.location import shown
from privpipe.store.collections.ingestion.ingest import IngestOptions, ingest
from privpipe.store.collections.ingestion.write_statistics import Statistics, read_statistics
from privpipe.store.sources.reading.quantile_bins import BinningLoss


def ingest_command(
    source: str, dest: str, options: IngestOptions, *, as_json: bool
) -> dict[str, Any]:
    """Ingest and describe the result, values withheld."""
    with showing("ingest") as listen:
        schema = ingest(source, dest, options, listen=listen)
    statistics = read_statistics(dest)
    if not as_json:
        say(f"{shown(dest)}: {describe(schema)}")
        if warning := describe_gaps(statistics):
            say(warning)
        say(f"features: {_list_features(schema)}")
        say(tabulate_schema(schema, statistics))
        for name, lost in statistics.binning.items():
            say(describe_binning(name, lost))
    return list_counts(schema, statistics)


def _list_features(schema: CollectionSchema, most: int = 12) -> str:
    """Names of the first features, which a release will name too."""
    names = schema.feature_names
    more = f" and {schema.n_features - most} more" if schema.n_features > most else ""
    return ", ".join(names[:most]) + more if names else f"{schema.n_features} without names"


def describe(schema: CollectionSchema) -> str:
    """One line about a collection."""
    n_chunks = -(-schema.n_records // schema.chunk_rows)
    n_partitions = max(1, len(schema.partitions))
    partitions = f", {n_partitions} partitions" if n_partitions > 1 else ""
    return (
        f"{schema.n_records:,} records, {schema.n_features} features ({schema.dtype}), "
        f"{n_chunks} chunks of {schema.chunk_rows:,} records{partitions}"
    )


def describe_gaps(statistics: Statistics) -> str:
    """A line about features that no method accepts, or nothing."""
    if not statistics.records_not_finite:
        return ""
    return (
        f"{statistics.cells_not_finite:,} cells of the features in "
        f"{statistics.records_not_finite:,} records are missing or not finite."
    )


def describe_binning(name: str, lost: BinningLoss) -> str:
    """A sentence on what bins lost; means over records, no value of one."""
    hidden = [f"{nats:.2g} nats about {other}" for other, nats in lost.hidden.items()]
    text = (
        f"{name}: {lost.n_bins} bins, chosen by {lost.n_chosen:,} records. A value is on average "
        f"{lost.distance:.3g} from the median of its bin; {lost.share:.1%} of the variance is "
        "within bins."
    )
    return f"{text} Within bins, too: {', '.join(hidden)}." if hidden else text


def tabulate_schema(schema: CollectionSchema, statistics: Statistics) -> Table:
    """The variables with their counts, values and names of categories withheld."""
    table = tabulate("variable", "kind", "stored as", "missing", "pooled")
    for variable in schema.variables:
        kind = (
            "numeric"
            if variable.categories is None
            else f"categorical, {len(variable.categories)} categories"
        )
        missing = f"{statistics.n_missing.get(variable.name, 0):,}"
        pooled = f"{statistics.n_pooled.get(variable.name, 0):,}" if variable.categories else ""
        table.add_row(variable.name, kind, variable.dtype, missing, pooled)
    return table


def list_counts(schema: CollectionSchema, statistics: Statistics) -> dict[str, Any]:
    """Schema and counts for machines; what categories and partitions are called is withheld."""
    return {
        "format": "collection",
        "n_records": schema.n_records,
        "n_features": schema.n_features,
        "dtype": schema.dtype,
        "chunk_rows": schema.chunk_rows,
        "n_partitions": max(1, len(schema.partitions)),
        "cells_not_finite": statistics.cells_not_finite,
        "records_not_finite": statistics.records_not_finite,
        "variables": [
            {
                "name": variable.name,
                "dtype": variable.dtype,
                "n_categories": variable.column.n_categories,
                "n_missing": statistics.n_missing.get(variable.name, 0),
                "n_pooled": statistics.n_pooled.get(variable.name, 0),
            }
            for variable in schema.variables
        ],
        "binning": {name: asdict(lost) for name, lost in statistics.binning.items()},
    }
