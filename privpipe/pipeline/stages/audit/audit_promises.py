"""What a map promises of every record, checked on the release: utility, and epsilon from below."""

import json
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.threats.membership import distinguish_neighbours
from privpipe.attacks.utility import UtilityLosses, measure_losses
from privpipe.capabilities import Promises, UtilityPromise, UtilitySummary
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.reduce import JointQuery, ShardedCollection, reduce_jointly
from privpipe.errors import GuaranteeError
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.pipeline.runs.run import Cleaned, Run, Trained
from privpipe.pipeline.stages.audit.judged_records import pair_released
from privpipe.protocols import FloatArray, RecordMap
from privpipe.store.models import open_model
from privpipe.store.releases.release_writing import ReleasePlan

WIDEST_GAP = 1 / 40
"""Of the budget's root, between what the audit finds and what the receipts say."""

N_RELEASES = 20_000
"""Of either record: a floor within a tenth of a promise of 1."""

MOST_VALUES = 2**22
"""Of all releases of a record: 32 MiB."""

LEVEL = 1 - 1e-6
"""Confidence of a floor above the promise: one sound run of a million is stopped."""

FARTHEST = 1e6
"""Size of the chosen records, beyond any threshold."""


def audit_losses(run: Run, cleaned: Cleaned, executor: Executor) -> dict[str, Any] | None:
    """What every released record lost, where the map promises that; see `audit_stage`.

    Raises
    ------
    GuaranteeError
        As `audit_stage`.
    """
    if (promise := read_promise(run)) is None:
        return None
    [losses] = reduce_jointly([query_losses(run, cleaned.plan, promise, executor)], "audit")
    return report_losses(losses, promise, cleaned)


def read_promise(run: Run) -> UtilityPromise | None:
    """What the stored model promises of every record; None where it promises no utility."""
    fitted = open_model(run.stored_model_url)
    return fitted.promise if isinstance(fitted, Promises) else None


def query_losses(
    run: Run, plan: ReleasePlan, promise: UtilityPromise, executor: Executor
) -> JointQuery:
    """What every released record lost."""
    bare = replace(run.collection, desired=(), confidential=(), weights=None, only_finite=False)
    paired = pair_released(bare, plan)
    shards = ShardedCollection(paired, executor, "audit_utility", run.checkpoints)
    return JointQuery(shards, partial(measure_losses, promise=promise))


def report_losses(
    losses: UtilityLosses, promise: UtilityPromise, cleaned: Cleaned
) -> dict[str, Any]:
    """What every released record lost, held against what is promised."""
    if promise.utility_budget > 0:  # at 0 the promise is exact up to rounding
        _check_promise(losses, promise, cleaned.utility, is_dense=cleaned.plan.basis is None)
    return losses.describe(promise.utility_budget)


def _check_promise(
    losses: UtilityLosses, promise: UtilityPromise, cost: UtilitySummary | None, *, is_dense: bool
) -> None:
    """No record may have lost too much, and what the receipts say must be what is found.

    Stored records are rounded after cleaning measured them: their margin is at most a fiftieth of
    the budget's root in a dense release. Readers of a factored one round by themselves.
    """
    if losses.n_above:
        raise GuaranteeError(
            f"{losses.n_above} of {losses.n_records} released records lost more utility than the "
            "budget allows.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="budget-exceeded",
        )
    if cost is None or not is_dense or losses.n_records != cost.n_records - cost.n_withheld:
        return
    # Square roots, since what was rounded moves the distance of a record, not its square: the root
    # of the largest loss by at most that of one record, and the root of their sum by at most
    # root n times that (Minkowski).
    pairs = (losses.largest, cost.largest), (losses.total, cost.total)
    n = max(losses.n_records, 1)
    apart = [abs(found**0.5 - said**0.5) for found, said in pairs]
    if max(apart[0], apart[1] / n**0.5) > WIDEST_GAP * promise.utility_budget**0.5:
        raise GuaranteeError(
            "The audit finds another loss of utility than the cleaning reported.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="audit-disagrees",
        )


def audit_neighbours(run: Run, trained: Trained) -> dict[str, Any] | None:
    """Floor of epsilon beside the promise; None where no record is promised one.

    The records belong to no person: both are far beyond every bound, in opposite directions, which
    no two records exceed. Keys are fresh and nothing of it is stored.

    Raises
    ------
    GuaranteeError
        If the floor is above the promise, so that it is broken: nothing is published.
    """
    fitted = open_model(run.stored_model_url)
    promise = fitted.guarantee
    if promise.kind != "local_dp" or promise.number is None or fitted.reads != "features":
        return None
    # Drawn at random, so that a map, if it is linear, does not send both to one place.
    row = np.random.default_rng(0).standard_normal(fitted.n_features_in)
    row *= FARTHEST / np.linalg.norm(row)
    report = distinguish_neighbours(_release(fitted, row), _release(fitted, -row), level=LEVEL)
    if report.epsilon_floor > promise.number:
        raise GuaranteeError(
            f"Two chosen records are distinguished as only a mechanism of epsilon "
            f"{report.epsilon_floor:.3g} or more allows; promised is {promise.number:g}.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="promise-broken",
        )
    return {"promised": promise.number, **json.loads(report.to_json())}


def _release(fitted: RecordMap, row: FloatArray) -> FloatArray:
    """Many releases of one record, under a key of their own."""
    key = secrets.token_bytes(KEY_BYTES)
    # Wide records are released less often: all releases of a record are in memory at once.
    n = min(N_RELEASES, MOST_VALUES // len(row))
    stream = KeyedStream(key, partition="neighbours", first_record=0, n_records=n)
    released: FloatArray = fitted.apply(np.tile(row, (n, 1)), stream)
    return released
