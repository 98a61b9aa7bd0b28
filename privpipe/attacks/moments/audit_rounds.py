"""The rounds of the first audit: learn on raw records, attack released ones, judge others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.moments.findings import find_audit
from privpipe.attacks.moments.least_squares_adversary import fit_linear_attack
from privpipe.attacks.moments.moment_audit import (
    AuditPlan,
    AuditSums,
    PairMoments,
    measure_pairs,
    summarise_pairs,
)
from privpipe.errors import InputError, RankError
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.numerics.regression.labels import Coding, code_targets
from privpipe.numerics.regression.moments import CoMoments, LeastSquares, solve_least_squares
from privpipe.protocols import FloatArray, Shard, Shards, ShardSchema

LITTLE_RIDGE = 1e-6
"""Used only where the raw design is rank-deficient and least squares is not determined."""


def audit_release(
    fit: Shards,
    attack: Shards,
    test: Shards,
    *,
    n_released: int,
    unit_roundoff: float,
    coding: Coding = "zero_one",
    keeps_features: bool = True,
    learned: tuple[CoMoments, PairMoments] | None = None,
    level: float = 0.95,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Judge a release on labelled records that its map has never seen.

    Parameters
    ----------
    fit
        Raw records that train the predictors an outsider may already have.
    attack, test
        Disjoint records with their released counterparts: the adversary retrains on the first
        and is judged on the second.
    n_released
        Number of released features.
    unit_roundoff
        Of the released dtype.
    coding
        Values of categorical targets.
    keeps_features
        Whether released columns are the raw features, so that raw predictors apply to them.
    learned
        What `ask_raw` and `ask_pairs` made of `fit` and `attack`, where a pass of the caller's
        has found it.
    level, names
        As `find_audit`.

    Returns
    -------
    findings
        See `find_audit`.

    Raises
    ------
    InputError
        If no record is left to attack or to judge.

    References
    ----------
    Xu et al. 2017, "Experimental results" and algorithm 3.
    """
    schema = fit.schema
    if learned is None:
        learned = (
            fit.reduce(ask_raw(schema, coding)),
            attack.reduce(ask_pairs(schema, coding)),
        )
    moments, pairs = learned
    raw, mean = _fit_raw(moments, schema.n_features)
    plan = AuditPlan(
        desired=schema.desired,
        confidential=schema.confidential,
        coding=coding,
        raw=raw,
        attack=fit_linear_attack(pairs.moments, n_released, unit_roundoff),
        mean=mean,
        joint=pairs.joint,
        keeps_features=keeps_features,
    )
    sums: AuditSums = test.reduce(partial(measure_pairs, plan=plan))
    if sums.count == 0:
        raise InputError(
            "No record is left to judge.",
            remedy="Hold out more records with [audit] holdout.",
            code="audit-too-small",
        )
    return find_audit(sums, plan, level=level, names=names)


def ask_raw(schema: ShardSchema, coding: Coding) -> Callable[[Shard], CoMoments]:
    """What the audit asks of raw records to fit on."""
    return partial(summarise_raw, schema=schema, coding=coding)


def ask_pairs(schema: ShardSchema, coding: Coding) -> Callable[[Shard], PairMoments]:
    """What the audit asks of released records to attack with."""
    return partial(
        summarise_pairs,
        desired=schema.desired,
        confidential=schema.confidential,
        coding=coding,
    )


def _fit_raw(moments: CoMoments, n_features: int) -> tuple[LeastSquares, FloatArray]:
    mean = moments.mean[:n_features]
    try:
        return solve_least_squares(moments, n_features), mean
    except RankError:
        return solve_least_squares(moments, n_features, ridge=LITTLE_RIDGE), mean


def summarise_raw(shard: Shard, *, schema: ShardSchema, coding: Coding) -> CoMoments:
    """Co-moments of ``[features, desired and confidential targets]`` of complete records."""
    values = np.hstack([shard.desired, shard.confidential])
    targets = code_targets(values, schema.desired + schema.confidential, coding)
    complete = find_finite_rows(shard.features) & find_finite_rows(targets)
    n_features = shard.features.shape[1]
    rows = np.empty((int(complete.sum()), n_features + targets.shape[1]))
    rows[:, :n_features] = keep_rows(shard.features, complete)
    rows[:, n_features:] = keep_rows(targets, complete)
    return CoMoments.of(rows, in_place=True)
