"""What a few chunks show before Prefect and a cluster start: rank, constants, budget, noise, gate.

`check` shows it, `run` refuses by it: what would end the fit after a minute ends the command now.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from privpipe.capabilities import Forecast
from privpipe.errors import LeftOutWarning, RankError
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline.runs.earlier import count_earlier
from privpipe.pipeline.runs.run import Run, find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import refuse_constant
from privpipe.pipeline.stages.gate_forecast import GateNeeds, plan_gate, suggest_gate, write_keys
from privpipe.pipeline.stages.train import read_files
from privpipe.protocols import Column, FloatArray, IntArray, Shard, Shards
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.store.collections.collection import Collection

MOST_CHUNKS = 4
"""Chunks read for a forecast, spread over the collection."""

SHARES = (0.001, 0.01, 0.05)
"""Shares of the variance that are suggested as budgets."""


@dataclass(frozen=True)
class BudgetMeaning:
    """A budget beside the variance it is measured against.

    Parameters
    ----------
    budget
        As configured, in squared units of the desired prediction.
    variance
        Of the desired prediction, estimated: summed over desired targets, or their mean where
        the budget is per label.
    n_records
        Training records that the estimate rests on.
    dependence
        What the fit said of features that depend on one another in these records, where they are
        not all there are; empty where they do not.
    """

    budget: float
    variance: float
    n_records: int
    dependence: str = ""

    @property
    def share(self) -> float:
        """Budget as a share of the variance."""
        return self.budget / self.variance if self.variance > 0 else float("inf")

    @property
    def suggestions(self) -> list[tuple[float, float]]:
        """Three shares of the variance and the budgets they are."""
        return [(share, share * self.variance) for share in SHARES]


@dataclass(frozen=True)
class FewChunks:
    """The `Preview` of a run.

    Parameters
    ----------
    training
        Records of the fit.
    collection
        Records to release.
    """

    training: Collection
    collection: Collection

    @property
    def is_whole(self) -> bool:
        """Whether these are all records."""
        return _is_whole(self.training) and _is_whole(self.collection)

    def read_training(self) -> Sequence[Shard]:
        """Attributes and labels of records that the fit will see; no features."""
        return _read_labels(self.training)

    def read_labelled(self) -> tuple[Shard, Shards]:
        """The same records whole, as one shard, and as a fit reads them."""
        whole = replace(self.training, only_finite=True)
        shard = read_sample(whole)
        return shard, Records.of_shard(shard, whole.schema)

    def read_attributes(self) -> IntArray:
        """Attributes of records that will be released, (n_records, n_attributes)."""
        return _read_codes(self.collection)


@dataclass(frozen=True)
class SampleFindings:
    """What a few chunks show of a run.

    Parameters
    ----------
    constant
        Features that do not vary there.
    meaning
        What the budget means; None for methods without one.
    forecast
        What the method says of itself: its alphabet, its noise; None where it says nothing.
    gate
        What the gate needs of classes of such sizes; None where it is not enforced, or judges
        no variable.
    instead
        Keys with which so many records would do, where the gate will hardly open.
    """

    constant: tuple[str, ...]
    meaning: BudgetMeaning | None
    forecast: Forecast | None
    gate: GateNeeds | None = None
    instead: str = ""

    @property
    def dependence(self) -> str:
        """A sentence where the fit will probably refuse the features; else nothing."""
        if self.meaning is None or not self.meaning.dependence:
            return ""
        return (
            f"The fit will probably refuse the features: {self.meaning.dependence} Set [method] "
            "ridge = 1e-6."
        )

    @property
    def warning(self) -> str:
        """A sentence where the gate will hardly open, or by chance alone; else nothing."""
        if self.gate is None or self.gate.has_room:
            return ""
        how = "may stay closed by chance" if self.gate.can_pass else "will hardly open"
        return f"The gate {how}: {self.gate.describe()} So many records can show: {self.instead}."


def check_sample(run: Run) -> SampleFindings:
    """Read a few chunks of a run that was checked, and fit where fitting is quick.

    Raises
    ------
    InputError, RankError
        If a variable does not vary, groups are too small to be read together, records have gaps
        that the run would fail on, or the fit refuses the features.
    """
    constant = list_constant(run)
    if _is_whole(run.training):
        run.options.method.examine(run.training.keeping(run.split, "fit"))
    found = SampleFindings(constant, explain_budget(run, strict=True), forecast_run(run))
    if not run.options.gate.enforce:
        return found
    rarest = measure_rarest(run.options, run.training)
    known = (run.options, run.training, rarest, count_earlier(run))
    needs = plan_gate(*known)
    has_room = needs is None or needs.has_room
    instead = "" if has_room else write_keys(suggest_gate(*known))
    return replace(found, gate=needs, instead=instead)


def explain_budget(run: Run, *, strict: bool = False) -> BudgetMeaning | None:
    """Fit on a few chunks in this process and measure; None for methods without such a budget.

    A rank-deficient sample is fitted with a small ridge: an estimate is enough here.

    Parameters
    ----------
    run
        A run that was checked.
    strict
        Raise what training would raise, where the few chunks are all there are.

    Raises
    ------
    RankError
        If the features are dependent, and `strict`.
    """
    budget = getattr(run.options.method, "utility_budget", None)
    if budget is None:
        return None
    shard = read_sample(run.training)
    files = read_files(run)
    shards = Records.of_shard(shard, run.training.schema)
    dependence = ""
    with warnings.catch_warnings():
        # Who lacks a label is counted in all records, not in these few.
        warnings.simplefilter("ignore", LeftOutWarning)
        try:
            fitted = run.method.fit(shards, run.options.method, **files)
        except RankError as error:
            dependence = error.message
            if strict and _is_whole(run.training):
                raise
            # An estimate of the variance needs no exact fit.
            eased = replace(run.options.method, ridge=1e-6)
            fitted = run.method.fit(shards, eased, **files)
    predictor = np.asarray(getattr(fitted, "predictor", np.empty((0, 0))))
    if predictor.size == 0:
        return None
    n = shard.features.shape[1]
    covariance = CoMoments.of(shard.features).scatter / max(shard.n_records, 1)
    variance = float(np.einsum("ij,ik,kj->", predictor[:n], covariance, predictor[:n]))
    if getattr(run.options.method, "budget", "total") == "per_label":
        variance /= predictor.shape[1]
    return BudgetMeaning(float(budget), variance, shard.n_records, dependence)


def forecast_run(run: Run) -> Forecast | None:
    """What the method says of a run before it; None where it says nothing."""
    if run.method.forecast is None:
        return None
    preview = FewChunks(run.training.keeping(run.split, "fit"), run.collection)
    found: Forecast | None = run.method.forecast(preview, run.options.method)
    return found


def measure_rarest(options: RunOptions, training: Collection) -> dict[str, float]:
    """Share of the rarest class of each categorical confidential variable, in a few chunks.

    A class of which too few records will be held out does not count: the audit merges it with
    another, or refuses it.
    """
    least = find_attack_options(options).min_class_records / (options.audit.holdout or 1.0)
    codes = np.concatenate([shard.confidential for shard in _read_labels(training)])
    found = {}
    for column, values in zip(training.schema.confidential, codes.T, strict=True):
        if column.n_categories is None:
            continue
        # Missing labels are NaN or negative codes.
        known = values[np.isfinite(values) & (values >= 0)].astype(int)
        shares = np.bincount(known, minlength=column.n_categories) / max(len(known), 1)
        counted = shares[shares * training.schema_of_records.n_records >= least]
        if counted.size:
            found[column.name] = float(counted.min())
    return found


def suggest_method(
    collection: Collection, confidential: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The first method that suits where only what is to be hidden is named, and options of it.

    The first method of all, without options, where none says that it does.
    """
    columns = [
        Column(variable.name, None if variable.categories is None else len(variable.categories))
        for variable in collection.schema_of_records.variables
    ]
    read = partial(_read_named, collection)
    for name, method in METHODS.items():
        # In the order of the table of methods, by which the first of all is the default.
        if found := method.options.suggest(confidential, columns, read):
            return name, dict(found)
    return next(iter(METHODS)), {}


def list_constant(run: Run) -> tuple[str, ...]:
    """Read a few chunks, and refuse variables of one value, which nothing can be learned from.

    Returns
    -------
    features
        Names of those that do not vary there; of features without names their numbers, from 0.

    Raises
    ------
    InputError
        If a desired or confidential variable does not vary in any record. Where these are not all
        chunks, it may vary elsewhere.
    """
    shard, schema = read_sample(run.training), run.training.schema
    names = schema.feature_names or tuple(map(str, range(shard.features.shape[1])))
    columns = [column.name for column in (*schema.desired, *schema.confidential)]
    same = _is_same(np.hstack([shard.desired, shard.confidential]))
    if any(same) and _is_whole(run.training):
        raise refuse_constant(list(compress(columns, same)))
    return tuple(compress(names, _is_same(shard.features)))


def _is_same(table: FloatArray) -> list[bool]:
    """Of each column, whether all values that are there are equal."""
    if len(table) < 2:
        return [False] * table.shape[1]
    low, high = np.fmin.reduce(table, axis=0), np.fmax.reduce(table, axis=0)
    return [bool(same) for same in (low == high) | np.isnan(low)]


def read_sample(training: Collection) -> Shard:
    """A few chunks, evenly spread, as one shard."""
    shards = [training.shard(chunk) for chunk in _choose(training)]
    parts = ("features", "desired", "confidential", "attributes", "weights", "groups")
    joined = {name: np.concatenate([getattr(one, name) for one in shards]) for name in parts}
    return Shard(**joined, first_record=-1)


def _choose(collection: Collection) -> list[int]:
    """Numbers of a few chunks, evenly spread."""
    n_chunks = collection.plan.n_chunks
    # Not the first ones: a table may be sorted.
    spread = np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks))
    return [int(chunk) for chunk in np.unique(spread.astype(int))]


def _is_whole(collection: Collection) -> bool:
    return collection.plan.n_chunks <= MOST_CHUNKS


def _read_labels(training: Collection) -> list[Shard]:
    bare = replace(training, reads_features=False, only_finite=False)
    return [bare.shard(chunk) for chunk in _choose(bare)]


def _read_named(collection: Collection, names: tuple[str, ...]) -> IntArray:
    return _read_codes(replace(collection, attributes=names))


def _read_codes(collection: Collection) -> IntArray:
    parts = [collection.codes(*collection.plan.rows(chunk)) for chunk in _choose(collection)]
    return np.concatenate(parts)
