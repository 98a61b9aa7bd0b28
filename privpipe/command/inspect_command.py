"""``privpipe inspect`` and ``export``: what is stored, and what leaves the store."""

import json
from collections.abc import Mapping
from typing import Any

from privpipe.command.ingest_command import describe, describe_gaps, list_counts, say_variables
from privpipe.errors import FormatError
from privpipe.report.audit_text import read_texts
from privpipe.report.console import say, say_raw, tabulate
from privpipe.report.work_bar import showing
from privpipe.store.access.generation_log import FORMAT as GENERATIONS
from privpipe.store.access.generation_log import read_generation
from privpipe.store.access.location import exists_file, local_path, shown
from privpipe.store.arrays import layout, sealed_arrays
from privpipe.store.collections import growing_collection, proving, writing
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring import account, registers
from privpipe.store.models import open_model
from privpipe.store.releases import icechunk_export, published, release_dataset
from privpipe.store.releases.export import export_release, is_folder

# Names of columns, and long; --json has them.
WITHHELD = ("fields", "schema", "arrays", "run", "table")

VERIFIED: Mapping[sealed_arrays.Origin, str] = read_texts("words.yaml")["verified"]


def inspect_command(path: str, *, verify: bool) -> dict[str, Any]:
    """Describe what is at `path`; raise if it is damaged."""
    kind = layout.read_kind(path)
    if kind == "collection":
        return _show_collection(path, verify)
    if kind == "model":
        open_model(path)  # checks the digest
        return _show_header(layout.read_header(path, "model"), path)
    if kind == "release":
        with showing("verify" if verify else "inspect", "objects") as listen:
            header = published.check_release(path, verify=verify, listen=listen)
        return _show_header(header, path, "Every stored byte matches its receipt." * verify)
    if kind == GENERATIONS:
        return _show_generations(path, verify)
    problem = f"{shown(path)} is not of privpipe, or its zarr.json is damaged."
    remedy = "Ingest foreign data with privpipe ingest. Of a release, get another copy."
    raise FormatError(problem, remedy=remedy)


def _show_generations(path: str, verify: bool) -> dict[str, Any]:
    """A growing collection, or the newest generation of a release."""
    if read_generation(path, 1).kind == "release":
        with showing("verify" if verify else "inspect", "parts") as listen:
            header, state, _ = release_dataset.check_generation(path, verify=verify, listen=listen)
        proven = f"Every stored byte of {len(state.parts)} parts matches its receipt."
        return _show_header(header, path, proven * verify)
    there = growing_collection.read_partitions(path)
    if verify:
        with showing("verify", "partitions") as listen:
            for one in there:
                proving.verify_collection(open_collection(one.url(path)))
                listen(1, len(there))
    rows = [{"partition": p.name, "records": f"{p.n_records:,}", "time": p.time} for p in there]
    say(tabulate(rows, title=f"collection {shown(path)}"))
    return {
        "format": "growing collection",
        "n_records": sum(one.n_records for one in there),
        "partitions": [
            {"name": one.name, "n_records": one.n_records, "time": one.time} for one in there
        ],
        **({"verified": True} if verify else {}),
    }


def _show_collection(path: str, verify: bool) -> dict[str, Any]:
    collection = open_collection(path)
    with showing("verify" if verify else "inspect") as listen:
        origin = proving.verify_collection(collection, listen) if verify else None
    schema = collection.schema_of_records
    statistics = writing.read_statistics(path)
    content = {**list_counts(schema, statistics), "digest": collection.digest}
    if origin is not None:
        content |= {"verified": origin != "noted", "verified_by": VERIFIED[origin]}
    say(f"collection {shown(path)}: {describe(schema)}")
    say(f"digest {collection.digest}")
    if gaps := describe_gaps(statistics):
        say(gaps)
    say_variables(schema, statistics)
    if origin is not None:
        say(VERIFIED[origin])
    return content


def _show_header(header: Mapping[str, Any], path: str, proven: str = "") -> dict[str, Any]:
    """What the header says, and, where it was verified, what is proven by that."""
    unsaid = (*WITHHELD, "audit")
    rows = [{"key": key, "value": _write(one)} for key, one in header.items() if key not in unsaid]
    say(tabulate(rows, title=f"{header['format']} {shown(path)}"))
    if "audit" in header:
        from privpipe.report.page import unescape_markdown
        from privpipe.report.release_page import write_audit_markdown

        say_raw(unescape_markdown(write_audit_markdown(header["audit"])))
    if proven:
        say(proven)
    return dict(header) | ({"verified": True} if proven else {})


def _write(value: Any) -> str:
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def export_command(release: str, out: str, *, verify: bool) -> dict[str, Any]:
    """Export and say how many records were written."""
    path, is_snapshot = local_path(out), out.endswith(icechunk_export.SUFFIX)
    if not is_snapshot:
        _ = is_folder(out), exists_file(out)  # a place that can be none is not noted
    find_runs = icechunk_export.list_runs if is_snapshot else icechunk_export.list_only_run
    for run in find_runs(release):
        # Before the first byte: erasure must find an export that was killed half-way.
        registers.note_export(account.find_account(), run, shown(out) if path is None else path)
    write = icechunk_export.export_snapshot if is_snapshot else export_release
    with showing("export") as listen:
        n_records = write(release, out, verify=verify, listen=listen)
    say(f"{shown(out)}: {n_records:,} released records")
    return {"release": shown(release), "out": shown(out), "n_records": n_records}
