"""``privpipe inspect``, ``diff`` and ``export``: what is stored, and what a release changed."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from privpipe.command.ingest_command import describe, describe_gaps, list_counts, say_variables
from privpipe.command.report_command import diff_attempts
from privpipe.errors import FormatError, InputError
from privpipe.numerics.column_change import ColumnChange
from privpipe.pipeline.runs.configuration_file import find_release
from privpipe.report.audit_text import read_texts
from privpipe.report.console import say, say_raw, tabulate
from privpipe.report.work_bar import showing
from privpipe.store.access.generation_log import FORMAT as GENERATIONS
from privpipe.store.access.generation_log import read_generation
from privpipe.store.access.location import exists_file, local_path, shown
from privpipe.store.arrays import layout, sealed_arrays
from privpipe.store.collections import growing_collection, proving, writing
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.keyring import account, registers
from privpipe.store.models import open_model
from privpipe.store.releases import icechunk_export, lazy_release, published, release_dataset
from privpipe.store.releases.export import export_release, is_folder

MOST_SHOWN = 40
"""Columns in the table of `diff`: those that changed most; `--json` has all."""

MEASURED = ("correlation", "spread", "shift")
"""What `diff` measures of a column."""

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


RUN = re.compile("[0-9a-f]{8}")
"""What a run is called."""


def diff_command(source: str, release: str, of: str = "privpipe.toml") -> dict[str, Any]:
    """Compare a release with the collection it was made of, chunk by chunk; or two attempts.

    Raises
    ------
    InputError
        If records or columns of the two do not correspond.
    """
    if RUN.fullmatch(source) and RUN.fullmatch(release):
        return diff_attempts(source, release, find_release(of))
    collection = open_collection(source)
    found = measure_change(collection, release)
    names = collection.schema.feature_names or tuple(map(str, range(collection.schema.n_features)))
    columns = [
        {
            "column": name,
            **{key: _number(getattr(found, key)[j]) for key in MEASURED},
            "unchanged": _number(found.share_same[j]),
        }
        for j, name in enumerate(names)
    ]
    _show_change(columns, found.n_records, collection.n_records)
    return {
        "source": shown(source),
        "release": shown(release),
        "n_records": collection.n_records,
        "n_compared": found.n_records,
        "columns": columns,
    }


def measure_change(collection: Collection, release: str) -> ColumnChange:
    """Sums over all chunks; memory does not grow with the records."""
    opened = lazy_release.open_release(release)
    width = collection.schema.n_features
    here = opened["features"].shape if "features" in opened else None
    if here != (collection.n_records, width):
        raise InputError(
            f"{shown(release)} does not hold the columns of {shown(collection.url)}, record by "
            f"record: {here} against {(collection.n_records, width)}.",
            remedy="Releases of surrogates, attributes, filtered features or the predicted target "
            "have other columns. Of any other, name the collection that was cleaned.",
            code="not-comparable",
        )
    # A sum of nothing, to merge with: chunk by chunk, in memory of one.
    total = ColumnChange.of(np.empty((0, width)), np.empty((0, width)))
    with showing("compare") as listen:
        for chunk in range(collection.plan.n_chunks):
            start, stop = collection.plan.rows(chunk)
            after = np.asarray(opened["features"][start:stop])
            total = total.merge(ColumnChange.of(collection.shard(chunk).features, after))
            listen(stop - start, collection.n_records)
    return total


def _number(value: float) -> float | None:
    # A constant column has no correlation, and JSON no NaN.
    return float(value) if math.isfinite(value) else None


def _show_change(columns: list[dict[str, Any]], n_compared: int, n_records: int) -> None:
    rows = [
        row
        | {key: "" if row[key] is None else f"{row[key]:.3f}" for key in MEASURED}
        | {"unchanged": f"{row['unchanged']:.1%}"}
        for row in sorted(columns, key=lambda row: abs(row["correlation"] or 0.0))[:MOST_SHOWN]
    ]
    say(
        tabulate(rows),
        f"{n_compared:,} of {n_records:,} records, columns that changed most first"
        + (f" ({MOST_SHOWN} of {len(columns):,})" if len(columns) > MOST_SHOWN else "")
        + ". Correlation: of a column before and after. Spread: standard deviation after, as a "
        "multiple. Shift: of the mean, in standard deviations.",
    )


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
