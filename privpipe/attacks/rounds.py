"""The rounds of the first audit: learn on raw records, attack released ones, judge others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.audit import (
    AuditPlan,
    AuditSums,
    PairMoments,
    measure_pairs,
    summarise_pairs,
)
from privpipe.attacks.findings import find_audit
from privpipe.attacks.linear import fit_linear_attack
from privpipe.errors import InputError, RankError
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.numerics.labels import Coding, code_targets
from privpipe.numerics.moments import CoMoments, LeastSquares, solve_least_squares
from privpipe.protocols import FloatArray, Shard, Shards, ShardSchema

__all__ = ["audit_release"]

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
    raw, mean = _fit_raw(fit, coding)
    pairs: PairMoments = attack.reduce(
        partial(
            summarise_pairs,
            desired=schema.desired,
            confidential=schema.confidential,
            coding=coding,
        )
    )
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
    return find_audit(sums, plan)


def _fit_raw(fit: Shards, coding: Coding) -> tuple[LeastSquares, FloatArray]:
    n = fit.schema.n_features
    moments = fit.reduce(partial(summarise_raw, schema=fit.schema, coding=coding))
    try:
        return solve_least_squares(moments, n), moments.mean[:n]
    except RankError:
        return solve_least_squares(moments, n, ridge=LITTLE_RIDGE), moments.mean[:n]


def summarise_raw(shard: Shard, *, schema: ShardSchema, coding: Coding) -> CoMoments:
    """Co-moments of ``[features, desired and confidential targets]`` of complete records."""
    values = np.hstack([shard.desired, shard.confidential])
    targets = code_targets(values, schema.desired + schema.confidential, coding)
    rows = np.hstack([shard.features, targets])
    return CoMoments.of(keep_rows(rows, find_finite_rows(rows)))
