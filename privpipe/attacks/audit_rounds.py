"""The rounds of the first audit: learn on raw records, attack released ones, judge others."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks import moment_audit
from privpipe.attacks.moment_audit import fit_linear_attack
from privpipe.attacks.statistics.privacy import limit_complete_privacy, report_privacy
from privpipe.errors import InputError, RankError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.protocols import Column, FloatArray, Shard, Shards, ShardSchema

VIEWS = {
    "raw": "raw",
    "released": "released",
    "retrained": "released, attack retrained",
    "answer_only": "knowing only the target",
    "guessing": "guessing",
}
"""Name of each way to predict, as reports show it."""


MOST_FEATURES = 1000
"""Features whose distortion is reported one by one: the most distorted of more."""


def find_audit(
    sums: moment_audit.AuditSums,
    plan: moment_audit.AuditPlan,
    *,
    level: float = 0.95,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Turn sums into figures.

    Parameters
    ----------
    sums, plan
        Of `measure_pairs`.
    level
        Two-sided confidence of the limits of complete privacy.
    names
        Names of the features, where they have some.

    Returns
    -------
    findings
        ``n_records``, ``privacy`` (per view e_privacy and complete_privacy, mean over
        targets and per target, the latter with limits), ``distortion`` (per feature, in
        units of its own deviation; None where columns differ), ``desired`` and ``confidential``
        (per variable and view: accuracy and f1 of a categorical, r2 and rmse of a numeric
        variable).
    """
    return {
        "n_records": sums.count,
        "privacy": {
            VIEWS[name]: found
            for name in ("released", "retrained")
            if (found := _find_privacy(sums, plan, name, level))
        },
        "distortion": _find_distortion(sums, names),
        "desired": {column.name: _find_predictions(sums, column) for column in plan.desired},
        "confidential": {
            column.name: _find_predictions(sums, column) for column in plan.confidential
        },
    }


def _find_distortion(sums: moment_audit.AuditSums, names: Sequence[str]) -> dict[str, Any] | None:
    """Root mean squared change of each feature, the most distorted first."""
    if (table := sums.added.get("distortion")) is None or not table.size:
        return None
    # Means of squares about the training mean: the deviation is less the square of the mean shift.
    changed, total, squares = table[:3] / np.maximum(table[3], 1)
    spread = np.sqrt(np.maximum(squares - total**2, 0.0))
    moved = np.sqrt(changed)
    # A feature that does not vary has no deviation to be measured in.
    relative = np.divide(moved, spread, out=np.full_like(moved, np.nan), where=spread > 0)
    order = np.argsort(-np.nan_to_num(relative, nan=-1.0), kind="stable")
    known = relative[np.isfinite(relative)]
    return {
        "n_features": len(relative),
        "quartiles": np.quantile(known, [0, 0.25, 0.5, 0.75, 1]).tolist() if len(known) else [],
        "features": [
            {
                "feature": names[j] if names else f"feature {j}",
                "rms": float(moved[j]),
                "relative": float(relative[j]) if np.isfinite(relative[j]) else None,
            }
            for j in order[:MOST_FEATURES]
        ],
    }


def _find_privacy(
    sums: moment_audit.AuditSums, plan: moment_audit.AuditPlan, view: str, level: float
) -> dict[str, Any] | None:
    table = sums.added.get(f"privacy/{view}")
    if table is None or not plan.confidential:
        return None
    found = asdict(report_privacy(table.sum(axis=0), regression.name_targets(plan.confidential)))
    try:
        limits = asdict(limit_complete_privacy(table, level=level))
    except InputError:  # all of one subject
        limits = None
    return found | {"complete_privacy_limits": limits}


def _find_predictions(sums: moment_audit.AuditSums, column: Column) -> dict[str, Any]:
    return {
        shown: _find_accuracy(table, column) if column.is_categorical else _find_error(table)
        for view, shown in VIEWS.items()
        if (table := sums.added.get(f"{view}/{column.name}")) is not None
    }


def _find_accuracy(confusion: FloatArray, column: Column) -> dict[str, float]:
    """Accuracy, and F1: of class 1 for two classes, the mean over classes for more."""
    hits, total = np.diag(confusion), confusion.sum()
    f1 = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return {
        "accuracy": float(hits.sum() / max(total, 1)),
        "f1": float(f1[1] if (column.n_categories or 0) <= 2 else f1.mean()),
    }


def _find_error(table: FloatArray) -> dict[str, float]:
    count, total, squares, error = table
    spread = squares - total**2 / max(count, 1)
    return {
        "r2": float(1 - error / spread) if spread > 0 else 0.0,
        "rmse": float(np.sqrt(error / max(count, 1))),
    }


LITTLE_RIDGE = 1e-6
"""Used only where the raw design is rank-deficient and least squares is not determined."""


def audit_release(
    fit: Shards,
    attack: Shards,
    test: Shards,
    *,
    n_released: int,
    unit_roundoff: float,
    coding: regression.Coding = "zero_one",
    keeps_features: bool = True,
    learned: tuple[regression.CoMoments, moment_audit.PairMoments] | None = None,
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
        What `query_raw` and `query_pairs` made of `fit` and `attack`, where a pass of the caller's
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
            fit.reduce(query_raw(schema, coding)),
            attack.reduce(query_pairs(schema, coding)),
        )
    moments, pairs = learned
    raw, mean = _fit_raw(moments, schema.n_features)
    plan = moment_audit.AuditPlan(
        desired=schema.desired,
        confidential=schema.confidential,
        coding=coding,
        raw=raw,
        attack=fit_linear_attack(pairs.moments, n_released, unit_roundoff),
        mean=mean,
        joint=pairs.joint,
        keeps_features=keeps_features,
    )
    # A second pass: what is judged depends on all that the first one learned.
    sums: moment_audit.AuditSums = test.reduce(partial(moment_audit.measure_pairs, plan=plan))
    if sums.count == 0:
        raise InputError(
            "No record is left to judge.",
            remedy="Hold out more records with [audit] holdout.",
            code="audit-too-small",
        )
    return find_audit(sums, plan, level=level, names=names)


def query_raw(
    schema: ShardSchema, coding: regression.Coding
) -> Callable[[Shard], regression.CoMoments]:
    """The query to raw records, to fit on them."""
    return partial(summarise_raw, schema=schema, coding=coding)


def query_pairs(
    schema: ShardSchema, coding: regression.Coding
) -> Callable[[Shard], moment_audit.PairMoments]:
    """The query to released records, to attack with them."""
    return partial(
        moment_audit.summarise_pairs,
        desired=schema.desired,
        confidential=schema.confidential,
        coding=coding,
    )


def _fit_raw(
    moments: regression.CoMoments, n_features: int
) -> tuple[regression.LeastSquares, FloatArray]:
    mean = moments.mean[:n_features]
    try:
        return regression.solve_least_squares(moments, n_features), mean
    except RankError:
        # Dependent features have many predictors of equal fit; the ridge takes the one of least
        # norm.
        return regression.solve_least_squares(moments, n_features, ridge=LITTLE_RIDGE), mean


def summarise_raw(
    shard: Shard, *, schema: ShardSchema, coding: regression.Coding
) -> regression.CoMoments:
    """Co-moments of ``[features, desired and confidential targets]`` of complete records."""
    values = np.hstack([shard.desired, shard.confidential])
    targets = regression.code_targets(values, schema.desired + schema.confidential, coding)
    complete = find_finite_rows(shard.features) & find_finite_rows(targets)
    n_features = shard.features.shape[1]
    rows = np.empty((int(complete.sum()), n_features + targets.shape[1]))
    rows[:, :n_features] = keep_rows(shard.features, complete)
    rows[:, n_features:] = keep_rows(targets, complete)
    return regression.CoMoments.of(rows, in_place=True)
