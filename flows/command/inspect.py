"""``privpipe inspect``: what a collection, a model or a release is, values withheld."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.command.ingest import describe, describe_gaps, list_counts, tabulate_schema
from privpipe.errors import FormatError
from privpipe.store.artifacts import open_model, read_model_header
from privpipe.store.collection import open_collection, read_kind
from privpipe.store.location import shown
from privpipe.store.published import check_release
from privpipe.store.tally import read_statistics

__all__ = ["inspect_command"]

WITHHELD = ("fields", "schema", "arrays")


def inspect_command(path: str, *, verify: bool, as_json: bool) -> dict[str, Any]:
    """Describe what is at `path`; raise if it is damaged."""
    kind = read_kind(path)
    if kind == "collection":
        return _show_collection(path, as_json)
    if kind == "model":
        open_model(path)  # checks the digest
        return _show_header(read_model_header(path), path, as_json)
    if kind == "release":
        header = check_release(path, verify=verify)
        answer = _show_header(header, path, as_json)
        if verify and not as_json:
            Console(highlight=False).print("Every stored byte matches its receipt.")
        return answer | ({"verified": True} if verify else {})
    raise FormatError(
        f"{shown(path)} is not of privpipe.", remedy="Ingest foreign data with privpipe ingest."
    )


def _show_collection(path: str, as_json: bool) -> dict[str, Any]:
    collection = open_collection(path)
    schema = collection.schema_of_records
    statistics = read_statistics(path)
    content = {**list_counts(schema, statistics), "digest": collection.digest}
    if as_json:
        return content
    console = Console(highlight=False)
    console.print(f"collection {shown(path)}: {describe(schema)}", soft_wrap=True)
    console.print(f"digest {collection.digest}", soft_wrap=True)
    if gaps := describe_gaps(statistics):
        console.print(gaps, soft_wrap=True)
    console.print(tabulate_schema(schema, statistics))
    return content


def _show_header(header: Mapping[str, Any], path: str, as_json: bool) -> dict[str, Any]:
    if as_json:
        return dict(header)
    table = Table("key", "value", title=f"{header['format']} {shown(path)}", title_justify="left")
    for key, value in header.items():
        if key in WITHHELD or key == "audit":
            continue
        shown_value = json.dumps(value) if isinstance(value, dict | list) else str(value)
        table.add_row(key, shown_value)
    console = Console(highlight=False, soft_wrap=False)
    console.print(table)
    if "audit" in header:
        from privpipe.report.audit import write_audit_markdown

        print(write_audit_markdown(header["audit"]))
    return dict(header)
