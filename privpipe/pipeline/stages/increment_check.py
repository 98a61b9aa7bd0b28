"""A history of generations: one configuration, one model, one audit; its parts are never mixed.

And drift: the audit speaks of records like the training records. So for each new partition the
difference of each feature's mean is measured in standard deviations of the training records, with
an interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import special

from privpipe.errors import GateError, InputError, OptionError
from privpipe.numerics.limits import Figure, say_upper
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.protocols import FloatArray, Shard
from privpipe.sanitizers import METHODS
from privpipe.store.access.location import shown
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
        remedy = "Release it whole, to a new path each time: [release] incremental = false."
    elif options.release.layout == "factored" or options.release.partitions:
        problem = "has layout or partitions"
        remedy = 'Use layout = "dense" and partitions = false: parts are partitions, unnamed.'
    if problem:
        raise OptionError(f"An incremental release {problem}.", remedy=remedy, code="incremental")


def check_any(options: RunOptions) -> Run:
    """The checked run; of a release that grows, that of its newest partition."""
    return check_growing(options) if options.release.incremental else check_stage(options)


def check_growing(options: RunOptions) -> Run:
    """All that metadata can show of an incremental run; see `check_stage`.

    Raises
    ------
    OptionError, InputError, StoreError, FormatError
        With what is wrong and the remedy.
    """
    check_incremental(options)
    partitions = read_partitions(options.collection.path)
    if not partitions:
        problem = f"{shown(options.collection.path)} holds no partition any more."
        raise InputError(problem, remedy="Append one: `privpipe append`.", code="empty")
    # The newest represents all: older ones were checked when they were released.
    return check_part_of(options, find_history(options), partitions[-1], "check")


def find_history(options: RunOptions) -> History:
    """The history that a configuration makes."""
    training = open_collection(options.training_path)
    # How and where a release is made and judged is no part of its history; what is held out is.
    apart = {"gate": True, "audit": True, "collection": {"path"}, "release": {"path"}}
    apart["privacy"] = {"ephemeral"}
    digest = options.digest_without(apart, training=training.digest)
    url = options.release.path
    model, report = (companion_url(url, f"{digest[:8]}.{end}") for end in ("model.zarr", "report"))
    return History(digest, model, report)


def check_part_of(options: RunOptions, history: History, stored: StoredPartition, part: str) -> Run:
    """The run that makes one part, checked against the partition's metadata."""
    options = options.change("collection", path=stored.url(options.collection.path))
    place = part_url(options.release.path, part)
    run = check_stage(options.change("release", path=place, incremental=False))
    return replace(run, shared_model=history.model_url, shared_report=history.report_url)


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
            problem = "A backfill ends before it begins."
            raise OptionError(problem, remedy="Give --from the earlier time.", code="scope")

    def holds(self, partition: StoredPartition) -> bool:
        """Whether the partition is in the span."""
        time = datetime.fromisoformat(partition.time)
        after = self.since is None or time >= self.since
        return after and (self.until is None or time <= self.until)


ROUNDING = 1e-9
"""Of a sum of shares: a share below it is none."""


@dataclass(frozen=True)
class DriftReference:
    """Count, means and standard deviations of the training records; private."""

    count: float
    mean: FloatArray
    deviation: FloatArray

    @classmethod
    def of(cls, moments: CoMoments) -> "DriftReference":
        """From the moments of the records that the fit saw."""
        variance = np.diag(moments.scatter) / max(moments.count - 1, 1)
        return cls(float(moments.count), moments.mean, np.sqrt(variance))

    def encode(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> "DriftReference":
        """What `encode` made."""
        mean, deviation = np.array(content["mean"]), np.array(content["deviation"])
        return cls(float(content["count"]), mean, deviation)


@dataclass(frozen=True)
class Drift:
    """The largest difference of a mean.

    Parameters
    ----------
    estimate, upper
        In standard deviations of the training records; `upper` holds for all features together.
    n_new
        Features that vary in the new records and did not in the training records. Their unit is the
        root mean square of all features' deviations.
    n_records
    """

    estimate: float
    upper: float
    n_new: int
    n_records: int


def summarise_features(shard: Shard) -> CoMoments:
    """Co-moments of the features alone."""
    return CoMoments.of(shard.features)


def measure_drift(
    reference: DriftReference, moments: CoMoments, level: float = 0.95, sizes: Sequence[int] = ()
) -> Drift:
    """Compare the records of a partition with the training records.

    Parameters
    ----------
    reference
    moments
        Of the features of the partition's finite records.
    level
        Confidence of the upper limit, over all features (Bonferroni). Student quantiles are used,
        with the variances of both sides as they were found, that of the partition no smaller than
        the other.
    sizes
        Categories of each attribute, where features are indicators of categories. A record whose
        category the training records have not is in none, and that is compared as well.
    """
    n = max(float(moments.count), 1.0)
    variance = np.diag(moments.scatter) / max(n - 1, 1)
    mean, variance = _add_nameless(moments.mean, variance, sizes)
    usual, usual_variance = _add_nameless(reference.mean, reference.deviation**2, sizes)
    deviation = np.sqrt(usual_variance)
    # A feature that did not vary has no unit of its own; any that begins to vary is new, and is
    # measured in the typical deviation instead of an infinite number of nothing.
    constant = deviation == 0
    scale = np.where(constant, float(np.sqrt(np.mean(deviation**2))) or 1.0, deviation)
    apart = np.abs(mean - usual) / scale
    squared = variance / scale**2
    # Two sides of each feature share what the level leaves (Bonferroni).
    # Of a single record nothing is known: infinite.
    z = special.stdtrit(max(n - 1, 1), 1 - (1 - level) / (2 * max(len(apart), 1)))
    z = z if moments.count > 1 else math.inf
    # The means of both sides are uncertain: that of the new records in units of the reference. A
    # few that are equal by chance are no more certain.
    spread = np.sqrt(np.maximum(squared, ~constant) / n + 1.0 / max(reference.count, 1.0))
    new = constant & ((squared > 0) | (apart > 0))
    least, most = (float(np.max(one, initial=0.0)) for one in (apart, apart + z * spread))
    return Drift(least, most, int(new.sum()), int(n))


def _add_nameless(
    mean: FloatArray, variance: FloatArray, sizes: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """With a feature more per block of indicators: that the record is in none, and its share."""
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    lacking = 1 - np.array([mean[a:b].sum() for a, b in pairwise(starts)])
    lacking = np.where(lacking < ROUNDING, 0.0, np.minimum(lacking, 1.0))
    return np.concatenate([mean, lacking]), np.concatenate([variance, lacking * (1 - lacking)])


def check_drift(drift: Drift, limit: float | None, name: str) -> None:
    """Refuse a partition whose records may be others than those that were judged.

    Raises
    ------
    GateError
        With both numbers; a partition too small to show it does not pass.
    """
    if limit is None or Figure(drift.estimate, drift.estimate, drift.upper).within(limit):
        return
    new = f"; {drift.n_new} features vary that were constant there" if drift.n_new else ""
    raise GateError(
        f"The partition {name!r} ({drift.n_records:,} records) may have drifted. A feature's mean "
        f"is {drift.estimate:.3g}, and at most {say_upper(drift.upper, limit)}, standard "
        f"deviations from the training records; allowed are {limit:g}{new}.",
        remedy="Nothing of it was published. Train on records like these (a new history), append "
        "more records of the partition, set [gate] drift_max, or `privpipe withdraw` it.",
        code="drift",
    )
