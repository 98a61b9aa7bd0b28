"""``privpipe ingest``, ``append`` and ``withdraw``: records come to a collection, parts go."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import fsspec
from pydantic import TypeAdapter

from privpipe.errors import InputError, OptionError
from privpipe.extras import explain_missing
from privpipe.pipeline.runs.configuration_file import read_options, read_time
from privpipe.records.schema import CollectionSchema
from privpipe.report import audit_text, work_bar
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import create_bytes, exists_file, local_path, shown
from privpipe.store.arrays.layout import exists
from privpipe.store.collections import growing_collection, proposal
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import WriteStatistics, read_statistics
from privpipe.store.keyring.account import find_account
from privpipe.store.releases.incremental_release import withdraw_partition
from privpipe.store.sources.reading.roles import list_names
from privpipe.store.sources.reading.source import BinningLoss, SourceLayout


def _choose(chunk_mib: float, layout: Mapping[str, Any], **options: Any) -> IngestOptions:
    """The options of a command line, of which the empty ones mean their defaults."""
    # False of NaN, too.
    if not 0 < chunk_mib < math.inf:
        raise OptionError(f"--chunk-mib is {chunk_mib:g}.", remedy="Use a number above 0.")
    # An empty delimiter is one that was given, and is refused.
    said = {name: v for name, v in layout.items() if v or (name, v) == ("delimiter", "")}
    if "missing" in said:
        # An empty cell is missing whatever else is: a CSV file cannot write it otherwise.
        said["missing"] = ("", *said["missing"])
    if said.get("delimiter") == "\\t":  # shells make it hard to type a tab
        said["delimiter"] = "\t"
    size = max(1, int(chunk_mib * 2**20))
    return IngestOptions(layout=SourceLayout(**said), chunk_bytes=size, **options)


def ingest_command(
    source: str,
    dest: str,
    *,
    dtype: str = "",
    min_category_count: int = 1,
    chunk_mib: float = 8.0,
    schema: str = "",
    yes: bool = False,
    table: str = "",
    shuffle: bool = False,
    **layout: Any,
) -> dict[str, Any]:
    """Ingest and describe the result, values withheld; `layout` as `SourceLayout`.

    A table is looked at first, where nothing says what its columns are. The schema that is proposed
    is for review, and nothing is ingested by it unless it is taken unseen.
    """
    place = schema or _name_schema(dest)
    is_said = any(layout[name] for name in layout if name != "delimiter")
    options = _choose(chunk_mib, layout, dtype=dtype or None, min_category_count=min_category_count)
    plan, unseen = proposal.read_schema(place) if schema or exists_file(place) else None, ""
    if plan is None and (yes or table or not is_said):
        try:
            named = is_said and not table  # arrays by their names are taken as they are
            needed = yes or bool(table)
            plan = _propose(source, place, table, is_taken=yes, is_needed=needed, is_named=named)
        except ModuleNotFoundError as error:
            # A table of numbers alone, or arrays, need no look.
            unseen = f"No schema was proposed: {explain_missing(error)}"
            if yes or table:
                raise InputError(f"{shown(source)} was not read.", remedy=unseen) from None
        if plan is not None and not yes:
            return {"schema": shown(place), "ingested": False, **plan.encode()}
    with listing_places(place, unseen), work_bar.showing("ingest") as listen:
        options = replace(options, schema=plan, shuffle=shuffle)
        made = ingest(source, dest, options, listen=listen)
    statistics = read_statistics(dest)
    say(f"{shown(dest)}: {describe(made)}")
    if warning := describe_gaps(statistics):
        say(warning)
    # Names of the first features, which a release will name too.
    say(f"features: {list_names(made.feature_names) or f'{made.n_features} without names'}")
    say_variables(made, statistics)
    for name, lost in statistics.binning.items():
        say(audit_text.say("binning", name=name, lost=lost))
    return list_counts(made, statistics)


@contextmanager
def listing_places(schema: str, unseen: str = "") -> Iterator[None]:
    """Whatever is wrong in more places than a message names is listed in a file beside a schema.

    Where a text is refused, `unseen` says why no schema was proposed that would read it.
    """
    problem: InputError
    try:
        yield
        return
    except InputError as error:
        if unseen and error.code == "text-feature":
            error.remedy = f"{error.remedy} {unseen}"
        if len(error.details) < 2:
            raise
        problem = error
    place = f"{schema.removesuffix(proposal.ENDING)}.errors.json"
    with fsspec.open(place, "w") as file:
        json.dump(list(problem.details), file, indent=1)
    problem.remedy = f"{problem.remedy} All {len(problem.details):,} places: {shown(place)}."
    raise problem


def _name_schema(dest: str) -> str:
    """Where the schema of a collection is: beside it, or here where that is a bucket."""
    path = local_path(dest)
    stem = (path or dest).rstrip("/").removesuffix(".zarr")
    return f"{stem if path else stem.rpartition('/')[2]}{proposal.ENDING}"


def _propose(
    source: str, place: str, table: str, *, is_taken: bool, is_needed: bool, is_named: bool
) -> proposal.TableSchema | None:
    """Look at a table and write its schema for review; None for arrays, which need none."""
    try:
        schema = proposal.propose_schema(source, table=table)
    except InputError as error:
        if error.code != "source-format" or (is_needed and not is_named):
            raise
        return None  # `ingest` says what is wrong, or reads arrays by their names
    if schema.is_plain and not is_needed:
        return None  # there is nothing to review
    say(f"{shown(source)}: {len(schema.columns)} columns, from a sample of the whole file")
    rows = [
        {
            "column": name,
            "kind": plan.kind,
            "use": plan.use,
            "missing": f"{plan.share_missing:.1%}" if plan.share_missing else "",
            "as in": ", ".join(plan.examples),
            "why": plan.why,
        }
        for name, plan in schema.columns.items()
    ]
    say(tabulate(rows))
    texts = [one for one in schema.columns.values() if (one.kind, one.use) == ("text", "variable")]
    if len(texts) > 2:  # a target and what is confidential are; the rest is lost to features
        say(audit_text.say("texts", n=len(texts)))
    form = {key: one for key, one in schema.encode()["file"].items() if key != "missing"}
    say(f"file: {', '.join(f'{key} {one!r}' for key, one in form.items())}")
    create_bytes(place, (schema.as_toml() + "\n").encode())  # for review, never over another
    if is_taken:
        say(f"taken unseen, and written to {shown(place)}")
    else:
        say(f"nothing is ingested yet: review {shown(place)}, then run the same command again.")
    return schema


def describe(schema: CollectionSchema) -> str:
    """One line about a collection."""
    n = -(-schema.n_records // schema.chunk_rows)
    # An undivided collection is one partition.
    n_partitions = max(1, len(schema.partitions))
    partitions = f", {n_partitions} partitions" if n_partitions > 1 else ""
    size = f"{schema.n_records:,} records, {schema.n_features} features ({schema.dtype}), {n}"
    return f"{size} chunk{'s' * (n != 1)} of {schema.chunk_rows:,} records{partitions}"


def describe_gaps(statistics: WriteStatistics) -> str:
    """A line about features that no method accepts, or nothing."""
    cells, records = statistics.cells_not_finite, statistics.records_not_finite
    if not records:
        return ""
    return f"{cells:,} cells of the features in {records:,} records are missing or not finite."


def say_variables(schema: CollectionSchema, statistics: WriteStatistics) -> None:
    """The variables with their counts, values and names of categories withheld."""
    rows = [
        {
            "variable": one.name,
            "kind": "numeric"
            if one.categories is None
            else f"categorical, {len(one.categories)} categories",
            "stored as": one.dtype,
            "missing": f"{statistics.n_missing.get(one.name, 0):,}",
            "pooled": f"{statistics.n_pooled.get(one.name, 0):,}" if one.categories else "",
        }
        for one in schema.variables
    ]
    if rows:
        say(tabulate(rows))


MOST_GRACE = 87_600
"""Hours that a withdrawn partition may still be read: ten years."""

COUNTED = ("n_records", "n_features", "dtype", "chunk_rows")
"""Of a schema, what `list_counts` repeats."""


def list_counts(schema: CollectionSchema, statistics: WriteStatistics) -> dict[str, Any]:
    """Schema and counts for machines; what categories and partitions are called is withheld."""
    return {
        "format": "collection",
        **{name: getattr(schema, name) for name in COUNTED},
        "n_partitions": max(1, len(schema.partitions)),
        "cells_not_finite": statistics.cells_not_finite,
        "records_not_finite": statistics.records_not_finite,
        "variables": [
            {
                "name": variable.name,
                "dtype": variable.dtype,
                # Their number: names of categories are values of records.
                "n_categories": variable.column.n_categories,
                "n_missing": statistics.n_missing.get(variable.name, 0),
                "n_pooled": statistics.n_pooled.get(variable.name, 0),
            }
            for variable in schema.variables
        ],
        "binning": {
            name: TypeAdapter(BinningLoss).dump_python(lost, by_alias=True)
            for name, lost in statistics.binning.items()
        },
    }


def append_command(
    source: str,
    collection: str,
    partition: str,
    time: str,
    *,
    replace: bool,
    chunk_mib: float,
    **layout: Any,
) -> dict[str, Any]:
    """Append, and say what the collection holds now."""
    # A schedule appends a file of another name each night.
    name = partition or source.rstrip("/").rpartition("/")[2]
    # To the second: it is stored, and compared with logical times of schedules.
    moment = read_time(time) if time else datetime.now(UTC).replace(microsecond=0)
    added, changed = growing_collection.append_partition(
        source, collection, name, moment.isoformat(), _choose(chunk_mib, layout), replacing=replace
    )
    there = growing_collection.read_partitions(collection)
    n_records = sum(one.n_records for one in there)
    what = f"{'appended' if changed else 'stored  '} {added.name}, {added.n_records:,} records"
    say(f"{what}; {shown(collection)}: {n_records:,} records in {len(there)} partitions")
    return {
        "collection": collection,
        "partition": added.name,
        "changed": changed,
        "n_records": n_records,
        "n_partitions": len(there),
    }


def withdraw_command(partition: str, config: str, grace: float) -> dict[str, Any]:
    """Withdraw, and say what is left to do."""
    options = read_options(config)
    if not options.release.incremental:
        problem = "[release] incremental is false: a whole release has no parts."
        raise OptionError(problem, remedy="Make a new release without these records.")
    if not 0 <= grace <= MOST_GRACE:
        raise OptionError(f"--grace is {grace:g}.", remedy=f"Give hours, 0 to {MOST_GRACE:,}.")
    account = find_account(options.privacy.account)
    url = options.collection.path
    # Without the collection by what its parts were made of.
    there = growing_collection.read_partitions(url) if exists(url) else ()
    named = [mark for one in there if one.name == partition for mark in one.known_by]
    others = [mark for one in there if one.name != partition for mark in one.known_by]
    number, n_records = withdraw_partition(
        options.release.path, partition, timedelta(hours=grace), account, named, others
    )
    less = f"{n_records:,} records less" if n_records else "none of its records, as before"
    say(f"withdrawn {partition}: generation {number} has {less}")
    say("The raw records are still in the collection: `privpipe erase` takes them out.")
    return {"generation": number, "n_records": n_records, "grace_hours": grace}
