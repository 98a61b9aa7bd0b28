"""Where the records are: what a shard adds to the privacy figures of null-space cleaning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.attacks.moments.raw_predictors import code_confidential, widen
from privpipe.attacks.statistics.privacy import sum_privacy
from privpipe.capabilities import Coordinates, Spends
from privpipe.errors import OptionError
from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.random.streams import KeyedStream
from privpipe.numerics.regression.labels import Coding
from privpipe.numerics.regression.moments import CoMoments, LeastSquares
from privpipe.protocols import FloatArray, RecordMap, Shard, ShardSchema


@dataclass(frozen=True, eq=False)
class Judge:
    """All that judging a shard needs; picklable.

    Parameters
    ----------
    mechanism
        The map under judgement.
    schema, coding
        Of the records and their labels.
    raw
        Predictor of the confidential targets, fitted to raw records.
    mean : (n_features,)
        Mean raw training record.
    desired : (n_features_released, n_desired), optional
        The desired predictor.
    key
        For the noise of a randomised map.
    attack
        The adversary, once it is trained.
    """

    mechanism: RecordMap
    schema: ShardSchema
    coding: Coding
    raw: LeastSquares
    mean: FloatArray
    desired: FloatArray | None
    key: bytes | None
    attack: LeastSquares | None = None


@dataclass(frozen=True, eq=False)
class PrivacySums:
    """Sums over judged records by name, and the largest loss of utility."""

    added: dict[str, FloatArray]
    largest: float

    def merge(self, other: PrivacySums) -> PrivacySums:
        """Sums over the records of both."""
        return PrivacySums(
            {name: value + other.added[name] for name, value in self.added.items()},
            max(self.largest, other.largest),
        )


def _release(shard: Shard, judge: Judge, part: str) -> tuple[FloatArray, FloatArray]:
    """Released records, and what of them the adversary is fitted to."""
    stream = None
    if judge.key is not None:
        if shard.first_record < 0:
            raise OptionError(
                "Noise is drawn by the number of the record, and this shard left rows out.",
                remedy="Measure a randomised map on whole shards.",
            )
        stream = KeyedStream(
            judge.key,
            partition=part,
            first_record=shard.first_record,
            n_records=len(shard.features),
        )
    released = judge.mechanism.apply(shard.features.astype(np.float64), stream)
    if isinstance(judge.mechanism, Coordinates):
        return released, judge.mechanism.measure_coordinates(released)
    return released, released


def summarise_released(shard: Shard, *, judge: Judge) -> CoMoments:
    """Co-moments of what released training records show, and their confidential targets."""
    _, shown = _release(shard, judge, "train")
    rows = np.hstack([shown, code_confidential(shard, judge.schema, judge.coding)])
    whole = find_finite_rows(rows)
    return CoMoments.of(rows[whole], shard.weights[whole] if shard.weights.size else None)


def measure_shard(shard: Shard, *, judge: Judge) -> PrivacySums:
    """Judge the records of a shard: directly, by the adversary, and for utility."""
    released, shown = _release(shard, judge, "test")
    truth = code_confidential(shard, judge.schema, judge.coding)
    withheld = np.isnan(released).any(axis=1)
    kept = ~withheld & ~np.isnan(truth).any(axis=1)
    x = shard.features[kept].astype(np.float64)
    truth, released, shown = truth[kept], released[kept], shown[kept]
    assert judge.attack is not None, "the adversary is trained before it is judged"
    views = {"attacked": (judge.attack, shown)}
    direct = widen(judge.raw, released.shape[1])
    if direct is not None:
        views["direct"] = (direct, released)
    added: dict[str, FloatArray] = {
        "count": np.array([len(x), np.count_nonzero(withheld)], np.float64)
    }
    expected = judge.raw.predict(x)
    for name, (adversary, seen) in views.items():
        added[name] = sum_privacy(adversary, seen, expected, truth, judge.raw, judge.mean)
    loss = _measure_utility(x, released, judge)
    if loss is None:
        return PrivacySums(added, 0.0)
    mechanism = judge.mechanism
    budget = mechanism.utility_budget if isinstance(mechanism, Spends) else np.inf
    added["utility"] = np.array([loss.sum(), np.count_nonzero(loss > budget)])
    return PrivacySums(added, float(loss.max(initial=0.0)))


def _measure_utility(x: FloatArray, released: FloatArray, judge: Judge) -> FloatArray | None:
    if judge.desired is None or released.shape[1] != len(judge.desired):
        return None
    if released.shape[1] == x.shape[1] + 1:
        x = np.hstack([x, np.ones((len(x), 1))])
    loss: FloatArray = (((released - x) @ judge.desired) ** 2).sum(axis=1)
    return loss
