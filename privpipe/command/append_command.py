"""``privpipe append`` and ``withdraw``: partitions come to a collection, and go from a release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from privpipe.errors import OptionError
from privpipe.pipeline.runs.logical_time import read_time
from privpipe.report.console import say
from privpipe.store.access.location import shown

if TYPE_CHECKING:
    from privpipe.store.collections.ingestion.ingest import IngestOptions


def append_command(
    source: str,
    collection: str,
    partition: str,
    time: str,
    options: IngestOptions,
    *,
    replacing: bool,
) -> dict[str, Any]:
    """Append, and say what stands there now."""
    from privpipe.store.collections.growing_collection import append_partition, read_partitions

    name = partition or source.rstrip("/").rpartition("/")[2]
    moment = read_time(time) if time else datetime.now(UTC).replace(microsecond=0)
    added, changed = append_partition(
        source, collection, name, moment.isoformat(), options, replacing=replacing
    )
    there = read_partitions(collection)
    n_records = sum(one.n_records for one in there)
    what = f"{added.name}, {added.n_records:,} records"
    say(
        f"{'appended' if changed else 'stands  '} {what}; {shown(collection)}: {n_records:,} "
        f"records in {len(there)} partitions"
    )
    return {
        "collection": collection,
        "partition": added.name,
        "changed": changed,
        "n_records": n_records,
        "n_partitions": len(there),
    }


def withdraw_command(partition: str, config: str, grace: float) -> dict[str, Any]:
    """Withdraw, and say what is left to do."""
    from privpipe.pipeline.operations.withdraw import withdraw_partition
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.store.keyring.account import find_account

    options = read_options(config)
    if not options.release.incremental:
        raise OptionError(
            "[release] incremental is false: a whole release has no parts.",
            remedy="Make a new release without these records.",
        )
    if not 0 <= grace < float("inf"):
        raise OptionError(f"--grace is {grace:g}.", remedy="Give hours, 0 or more.")
    account = find_account(options.privacy.account)
    number, n_records = withdraw_partition(
        options.release.path, partition, timedelta(hours=grace), account
    )
    say(f"withdrawn {partition}: generation {number} has {n_records:,} records less")
    say("The raw records are still in the collection: `privpipe erase` takes them out.")
    return {"generation": number, "n_records": n_records, "grace_hours": grace}
