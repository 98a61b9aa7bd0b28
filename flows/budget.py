"""What a utility budget means: as a share of the variance of the desired prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flows.run import Run
from flows.train import read_files
from privpipe.errors import RankError
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.memory import Records

__all__ = ["BudgetMeaning", "explain_budget"]

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
    """

    budget: float
    variance: float
    n_records: int

    @property
    def share(self) -> float:
        """Budget as a share of the variance."""
        return self.budget / self.variance if self.variance > 0 else float("inf")

    @property
    def suggestions(self) -> list[tuple[float, float]]:
        """Three shares of the variance and the budgets they are."""
        return [(share, share * self.variance) for share in SHARES]


def explain_budget(run: Run) -> BudgetMeaning | None:
    """Fit on a few chunks in this process and measure; None for methods without such a budget.

    A rank-deficient sample is fitted with a small ridge: an estimate is enough here.
    """
    budget = getattr(run.options.method, "utility_budget", None)
    if budget is None:
        return None
    shard = _sample(run)
    files = read_files(run)
    shards = Records.of_shard(shard, run.training.schema)
    try:
        fitted = run.method.fit(shards, run.options.method, **files)
    except RankError:
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
    return BudgetMeaning(float(budget), variance, shard.n_records)


def _sample(run: Run) -> Shard:
    """A few chunks, evenly spread, as one shard."""
    n_chunks = run.training.plan.n_chunks
    chosen = np.unique(np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks)).astype(int))
    shards = [run.training.shard(int(chunk)) for chunk in chosen]
    return Shard(
        np.concatenate([shard.features for shard in shards]),
        np.concatenate([shard.desired for shard in shards]),
        np.concatenate([shard.confidential for shard in shards]),
        np.concatenate([shard.attributes for shard in shards]),
        first_record=-1,
        weights=np.concatenate([shard.weights for shard in shards]),
    )
