"""``privpipe ingest``: a foreign source becomes a collection."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from privpipe.records.schema import CollectionSchema
from privpipe.store.ingest import IngestOptions, ingest
from privpipe.store.location import shown

__all__ = ["ingest_command", "tabulate_schema"]


def ingest_command(source: str, dest: str, options: IngestOptions) -> None:
    """Ingest and describe the result."""
    schema = ingest(source, dest, options)
    console = Console(highlight=False)
    console.print(f"{shown(dest)}: {describe(schema)}")
    console.print(tabulate_schema(schema))


def describe(schema: CollectionSchema) -> str:
    """One line about a collection."""
    n_chunks = -(-schema.n_records // schema.chunk_rows)
    return (
        f"{schema.n_records:,} records, {schema.n_features} features ({schema.dtype}), "
        f"{n_chunks} chunks of {schema.chunk_rows:,} records"
    )


def tabulate_schema(schema: CollectionSchema) -> Table:
    """The variables, values withheld."""
    table = Table("variable", "kind", "stored as")
    for variable in schema.variables:
        kind = (
            "numeric"
            if variable.categories is None
            else f"categorical, {len(variable.categories)} categories"
        )
        table.add_row(variable.name, kind, variable.dtype)
    return table
