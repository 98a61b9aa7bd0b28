"""``privpipe inspect``: what a collection, a model or a release is, values withheld."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privpipe.command.ingest_command import (
    describe,
    describe_gaps,
    list_counts,
    tabulate_schema,
)
from privpipe.errors import FormatError
from privpipe.report.console import say, say_raw, tabulate
from privpipe.report.work_bar import showing
from privpipe.store.access.generation_log import FORMAT as GENERATIONS
from privpipe.store.access.generation_log import read_generation
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import read_kind
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import read_partitions
from privpipe.store.collections.ingestion.write_statistics import read_statistics
from privpipe.store.collections.proving import verify_collection
from privpipe.store.collections.trust.proof import Origin
from privpipe.store.models.artifacts import open_model, read_model_header
from privpipe.store.releases.joined_parts import check_generation
from privpipe.store.releases.published import check_release

WITHHELD = ("fields", "schema", "arrays")

VERIFIED: dict[Origin, str] = {
    "ingest": "Every stored byte matches its receipt.",
    "digest": "Every stored byte matches the digest of the collection; it has no receipts.",
    "noted": "Not verified: there are no receipts, and the digest covers no more than the lengths "
    "of chunks. Ingest it again.",
}


def inspect_command(path: str, *, verify: bool, as_json: bool) -> dict[str, Any]:
    """Describe what is at `path`; raise if it is damaged."""
    kind = read_kind(path)
    if kind == "collection":
        return _show_collection(path, verify, as_json)
    if kind == "model":
        open_model(path)  # checks the digest
        return _show_header(read_model_header(path), path, as_json)
    if kind == "release":
        with showing("verify" if verify else "inspect", "objects") as listen:
            header = check_release(path, verify=verify, listen=listen)
        answer = _show_header(header, path, as_json)
        if verify and not as_json:
            say("Every stored byte matches its receipt.")
        return answer | ({"verified": True} if verify else {})
    if kind == GENERATIONS:
        return _show_generations(path, verify, as_json)
    raise FormatError(
        f"{shown(path)} is not of privpipe.", remedy="Ingest foreign data with privpipe ingest."
    )


def _show_generations(path: str, verify: bool, as_json: bool) -> dict[str, Any]:
    """A growing collection, or the newest generation of a release."""
    if read_generation(path, 1).kind == "release":
        with showing("verify" if verify else "inspect", "parts") as listen:
            header, state = check_generation(path, verify=verify, listen=listen)
        answer = _show_header(header, path, as_json)
        if verify and not as_json:
            say(f"Every stored byte of {len(state.parts)} parts matches its receipt.")
        return answer | ({"verified": True} if verify else {})
    there = read_partitions(path)
    if verify:
        with showing("verify", "partitions") as listen:
            for one in there:
                verify_collection(open_collection(one.url(path)))
                listen(1, len(there))
    content = {
        "format": "growing collection",
        "n_records": sum(one.n_records for one in there),
        "partitions": [
            {"name": one.name, "n_records": one.n_records, "time": one.time} for one in there
        ],
    }
    if not as_json:
        table = tabulate("partition", "records", "time", title=f"collection {shown(path)}")
        for one in there:
            table.add_row(one.name, f"{one.n_records:,}", one.time)
        say(table)
    return content | ({"verified": True} if verify else {})


def _show_collection(path: str, verify: bool, as_json: bool) -> dict[str, Any]:
    collection = open_collection(path)
    with showing("verify" if verify else "inspect") as listen:
        origin = verify_collection(collection, listen) if verify else None
    schema = collection.schema_of_records
    statistics = read_statistics(path)
    content = {**list_counts(schema, statistics), "digest": collection.digest}
    if origin is not None:
        content |= {"verified": origin != "noted", "verified_by": VERIFIED[origin]}
    if as_json:
        return content
    say(f"collection {shown(path)}: {describe(schema)}")
    say(f"digest {collection.digest}")
    if gaps := describe_gaps(statistics):
        say(gaps)
    say(tabulate_schema(schema, statistics))
    if origin is not None:
        say(VERIFIED[origin])
    return content


def _show_header(header: Mapping[str, Any], path: str, as_json: bool) -> dict[str, Any]:
    if as_json:
        return dict(header)
    table = tabulate("key", "value", title=f"{header['format']} {shown(path)}")
    for key, value in header.items():
        if key in WITHHELD or key == "audit":
            continue
        written = json.dumps(value) if isinstance(value, dict | list) else str(value)
        table.add_row(key, "none" if value is None else written)
    say(table)
    if "audit" in header:
        from privpipe.report.audit_text import unescape_markdown, write_audit_markdown

        say_raw(unescape_markdown(write_audit_markdown(header["audit"])))
    return dict(header)
