"""A history of generations: one configuration, one model, one audit; its parts are never mixed."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from privpipe.errors import OptionError
from privpipe.pipeline.runs.run import Run, now
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.report.published_findings import publish_findings
from privpipe.sanitizers import METHODS
from privpipe.store.arrays.layout import companion_url
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import StoredPartition, read_partitions
from privpipe.store.releases.incremental_release import part_url


@dataclass(frozen=True)
class History:
    """What all parts of a history of generations share.

    Parameters
    ----------
    id
        SHA-256 over options and training records.
    model_url
        Its model, named after it.
    report_url
        The report of its audit.
    """

    id: str
    model_url: str
    report_url: str


def check_incremental(options: RunOptions) -> None:
    """Refuse what cannot be released in parts.

    Raises
    ------
    OptionError
        If the model would be trained on what grows, or the method sums up all records.
    """
    problem, remedy = "", ""
    if options.training is None:
        problem = "trains on the collection, which grows: each generation would need a new model"
        remedy = "Name labelled records that stay as they are in [training] path."
    elif METHODS[options.method.name].releases == "surrogate":
        problem = f"has the method {options.method.name!r}, whose records sum up all others"
        remedy = "Release it whole: [release] incremental = false."
    elif options.release.layout == "factored" or options.release.partitions:
        problem = "has layout or partitions"
        remedy = 'Use layout = "dense" and partitions = false: parts are partitions, unnamed.'
    if problem:
        raise OptionError(f"An incremental release {problem}.", remedy=remedy, code="incremental")


def check_growing(options: RunOptions) -> None:
    """All that metadata can show of an incremental run; see `check_stage`.

    Raises
    ------
    OptionError, InputError, StoreError, FormatError
        With what is wrong and the remedy.
    """
    check_incremental(options)
    partitions = read_partitions(options.collection.path)
    # The newest represents all: older ones were checked when they were released.
    check_part_of(options, find_history(options), partitions[-1], "check")


def find_history(options: RunOptions) -> History:
    """The history that a configuration makes."""
    training = open_collection(options.training_path)
    # How and where a release is made and judged is no part of its history; what is held out is.
    content = options.model_dump(
        mode="json", exclude={"cluster", "gate", "audit", "collection", "release"}
    )
    content["collection"] = options.collection.model_dump(mode="json", exclude={"path"})
    if not options.collection.standardise:  # as before there was such a key
        del content["collection"]["standardise"]
    content["release"] = options.release.model_dump(mode="json", exclude={"path"})
    content["audit"] = options.audit.model_dump(mode="json", include={"holdout", "group"})
    content["training"] = training.digest
    del content["privacy"]["ephemeral"]  # says nothing of what is released
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    url = options.release.path
    return History(
        digest,
        companion_url(url, f"{digest[:8]}.model.zarr"),
        companion_url(url, f"{digest[:8]}.report"),
    )


def check_part_of(
    options: RunOptions, history: History, partition: StoredPartition, part: str
) -> Run:
    """The run that makes one part, checked against the partition's metadata."""
    release = options.release.model_copy(
        update={"path": part_url(options.release.path, part), "incremental": False}
    )
    collection = options.collection.model_copy(
        update={"path": partition.url(options.collection.path)}
    )
    run = check_stage(options.model_copy(update={"release": release, "collection": collection}))
    return replace(run, shared_model=history.model_url, shared_report=history.report_url)


def describe_history(run: Run, trained: Any, findings: dict[str, Any]) -> dict[str, Any]:
    """What a generation says of its history."""
    same = trained.reads == "features" and trained.keeps_features
    return {
        "method": run.method.name,
        "method_source": run.method.source,
        "options": run.method_options(),
        "guarantee": asdict(trained.guarantee),
        "training_digest": run.training.digest,
        "model_digest": trained.model_digest,
        "feature_names": list(run.training.schema_of_records.feature_names) if same else [],
        "begun": now(),
        "audit": publish_findings(findings),
    }


@dataclass(frozen=True)
class TimeSpan:
    """Times from `since`, included, to `until`, included; None is no limit.

    A scheduled run is for all that came until its logical time; a backfill for a span. Runs may
    happen in any order: what one of them finds released it leaves as it is.
    """

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since > self.until:
            raise OptionError(
                "A backfill ends before it begins.",
                remedy="Give --from the earlier time.",
                code="scope",
            )

    def holds(self, partition: StoredPartition) -> bool:
        """Whether the partition is in the span."""
        time = datetime.fromisoformat(partition.time)
        after = self.since is None or time >= self.since
        return after and (self.until is None or time <= self.until)
