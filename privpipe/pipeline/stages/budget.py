"""What a utility budget means: as a share of the variance of the desired prediction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from privpipe.errors import LeftOutWarning, RankError
from privpipe.numerics.regression.moments import CoMoments
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.train import read_files
from privpipe.protocols import FloatArray, Shard
from privpipe.records.memory import Records
from privpipe.store.collections.collection import Collection

SHARES = (0.001, 0.01, 0.05)
"""Shares of the variance that are suggested as budgets."""

MOST_CHUNKS = 4
"""Chunks read for the estimate, spread over the collection."""


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
            if strict and run.training.plan.n_chunks <= MOST_CHUNKS:
                raise
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


def find_constants(training: Collection) -> tuple[list[str], list[str]]:
    """Names of features, and of variables asked for, that do not vary in a few chunks.

    Returns
    -------
    features, variables
        Names; of features without names their numbers, from 0.
    """
    shard, schema = read_sample(training), training.schema
    names = schema.feature_names or tuple(map(str, range(shard.features.shape[1])))
    columns = (*schema.desired, *schema.confidential)
    labels = np.hstack([shard.desired, shard.confidential])
    return (
        [name for name, same in zip(names, _is_constant(shard.features), strict=False) if same],
        [c.name for c, same in zip(columns, _is_constant(labels), strict=True) if same],
    )


def _is_constant(table: FloatArray) -> list[bool]:
    """Of each column, whether all values that are there are equal."""
    if len(table) < 2:
        return [False] * table.shape[1]
    low, high = np.fmin.reduce(table, axis=0), np.fmax.reduce(table, axis=0)
    return [bool(same) for same in (low == high) | np.isnan(low)]


def read_sample(training: Collection) -> Shard:
    """A few chunks, evenly spread, as one shard."""
    n_chunks = training.plan.n_chunks
    chosen = np.unique(np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks)).astype(int))
    shards = [training.shard(int(chunk)) for chunk in chosen]
    return Shard(
        np.concatenate([shard.features for shard in shards]),
        np.concatenate([shard.desired for shard in shards]),
        np.concatenate([shard.confidential for shard in shards]),
        np.concatenate([shard.attributes for shard in shards]),
        first_record=-1,
        weights=np.concatenate([shard.weights for shard in shards]),
    )
