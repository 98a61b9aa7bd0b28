"""From shards to predictors: one pass of co-moments, a second by TSQR where they do not suffice.

Desired and confidential predictors, training mean and covariance all come from the same pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Literal

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, RankError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import keep_rows
from privpipe.numerics.tsqr import Frame, TriangularFactor, solve_triangular
from privpipe.protocols import Column, FloatArray, Shard, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_training, say_incomplete

TargetRole = Literal["desired", "confidential"]

WORST_CONDITION = 1e5
"""Above this condition of the scaled Gram matrix the predictor is fitted by TSQR."""


@dataclass(frozen=True, eq=False)
class DesignMoments:
    """Co-moments of features and targets, apart for records with different labels missing.

    Parameters
    ----------
    n_features
        Number of features.
    n_targets
        Number of target columns of each requested role.
    parts
        By the roles whose labels are complete: co-moments of ``[features, their targets]``.
    n_read
        Records read.
    n_incomplete
        Records whose labels of a role are not complete, by role.
    """

    n_features: int
    n_targets: Mapping[TargetRole, int]
    parts: Mapping[tuple[TargetRole, ...], regression.CoMoments] = field(default_factory=dict)
    n_read: int = 0
    n_incomplete: Mapping[TargetRole, int] = field(default_factory=dict)

    def merge(self, other: DesignMoments) -> DesignMoments:
        """Summary of the records of both."""
        parts = dict(self.parts)
        for roles, moments in other.parts.items():
            parts[roles] = parts[roles].merge(moments) if roles in parts else moments
        both = self.n_incomplete.keys() | other.n_incomplete.keys()
        return DesignMoments(
            self.n_features,
            self.n_targets,
            parts,
            self.n_read + other.n_read,
            {r: self.n_incomplete.get(r, 0) + other.n_incomplete.get(r, 0) for r in both},
        )

    def say_incomplete(self) -> None:
        """Warn of records that lack labels, by role."""
        for role, count in sorted(self.n_incomplete.items()):
            say_incomplete(count, self.n_read, role)

    def of_role(self, role: TargetRole | None) -> regression.CoMoments:
        """Co-moments of ``[features, targets of the role]`` where these are complete."""
        width = self.n_targets[role] if role else 0
        found = [
            moments.select(self._columns(roles, role))
            for roles, moments in sorted(self.parts.items())
            if role is None or role in roles
        ]
        return reduce(
            regression.CoMoments.merge, found, regression.CoMoments.empty(self.n_features + width)
        )

    def _columns(
        self, roles: tuple[TargetRole, ...], role: TargetRole | None
    ) -> npt.NDArray[np.intp]:
        features = np.arange(self.n_features)
        if role is None:
            return features
        start = self.n_features + sum(self.n_targets[r] for r in roles[: roles.index(role)])
        targets = np.arange(start, start + self.n_targets[role])
        return np.concatenate([features, targets])


def summarise_design(
    shard: Shard,
    *,
    schema: ShardSchema,
    coding: regression.Coding,
    roles: tuple[TargetRole, ...] = ("desired",),
) -> DesignMoments:
    """Co-moments of features and targets of the roles; without roles, of all features.

    Raises
    ------
    InputError
        If features are not finite.
    """
    check_training(shard.features)
    targets = [code_role(shard, schema, role, coding) for role in roles]
    pattern = np.zeros(len(shard.features), np.intp)
    for bit, y in enumerate(targets):
        # Records with the same complete roles are summed together: at most four parts, in one pass.
        pattern |= ~np.isnan(y).any(axis=1) << bit
    parts = {}
    for code in np.unique(pattern):
        rows = pattern == code
        there = {
            role: y
            for bit, (role, y) in enumerate(zip(roles, targets, strict=True))
            if code >> bit & 1
        }
        if there or not roles:
            parts[tuple(there)] = _summarise_rows(shard, rows, list(there.values()))
    sizes = {role: regression.count_targets(columns_of(schema, role)) for role in roles}
    incomplete = {
        role: int(np.isnan(y).any(axis=1).sum()) for role, y in zip(roles, targets, strict=True)
    }
    return DesignMoments(schema.n_features, sizes, parts, len(shard.features), incomplete)


def _summarise_rows(
    shard: Shard, rows: npt.NDArray[np.bool_], targets: list[FloatArray]
) -> regression.CoMoments:
    n = shard.features.shape[1]
    block = np.empty((int(rows.sum()), n + sum(y.shape[1] for y in targets)))
    block[:, :n] = keep_rows(shard.features, rows)
    if targets:
        block[:, n:] = np.hstack([keep_rows(y, rows) for y in targets])
    return regression.CoMoments.of(block, _weights(shard, rows), in_place=True)


def fit_predictor(
    shards: Shards,
    role: TargetRole,
    *,
    moments: DesignMoments,
    coding: regression.Coding,
    ridge: float,
    with_intercept: bool,
) -> regression.LeastSquares:
    """Fit one role's predictor: from the co-moments, or by TSQR where they are too coarse.

    Parameters
    ----------
    shards
        The records; read once more when the condition of the scaled Gram matrix exceeds 1e5.
    role
        Whose labels to predict.
    moments
        What the pass over the same shards found.
    coding
        Values of categorical targets.
    ridge, with_intercept
        See `solve_least_squares`.

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If there is no label of the role, or fewer than two complete records.
    """
    schema = shards.schema
    if not columns_of(schema, role):
        raise InputError(
            f"There is no {role} variable to fit a predictor to.",
            remedy=f"Name one in {role}, or give a predictor.",
        )
    regression.check_ridge(ridge)
    n, sums = schema.n_features, moments.of_role(role)
    try:
        found = regression.solve_least_squares(
            sums, n, ridge=ridge, with_intercept=with_intercept, names=schema.feature_names
        )
        # Beyond, the factor of the records themselves sees twice as many digits.
        if found.condition <= WORST_CONDITION:
            return found
    except RankError:
        pass  # as far as the Gram matrix can show; the factor sees twice as many digits
    scale = regression.measure_scale(sums, n, with_intercept)
    # The mean of the first pass, so that little cancels in the second.
    frame = Frame(sums.mean * with_intercept, scale, with_intercept)
    factor = shards.reduce(
        partial(summarise_triangle, schema=schema, role=role, coding=coding, frame=frame)
    )
    return solve_triangular(factor, frame, ridge=ridge, names=schema.feature_names)


def summarise_triangle(
    shard: Shard, *, schema: ShardSchema, role: TargetRole, coding: regression.Coding, frame: Frame
) -> TriangularFactor:
    """Triangular factor of features and targets of the records whose targets are complete."""
    y = code_role(shard, schema, role, coding)
    rows: npt.NDArray[np.bool_] = np.asarray(~np.isnan(y).any(axis=1))
    features = shard.features[rows].astype(np.float64)
    return TriangularFactor.of_design(features, y[rows], frame, _weights(shard, rows))


def columns_of(schema: ShardSchema, role: TargetRole) -> tuple[Column, ...]:
    """The variables of a role."""
    return schema.desired if role == "desired" else schema.confidential


def code_role(
    shard: Shard, schema: ShardSchema, role: TargetRole, coding: regression.Coding
) -> FloatArray:
    """Target columns of a role, (n_records, n_targets), NaN where missing."""
    values = shard.desired if role == "desired" else shard.confidential
    return regression.code_targets(values, columns_of(schema, role), coding)


def _weights(shard: Shard, rows: npt.NDArray[np.bool_]) -> FloatArray | None:
    return shard.weights[rows] if shard.weights.size else None


DESIGN_STATISTICS = (DesignMoments, regression.CoMoments, TriangularFactor)
"""What a fit by least squares sums up over the records."""
