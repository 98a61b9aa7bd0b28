"""Completion of records with missing entries, in low-rank factors and rounds of sums.

Yi et al. 2014, problem (5): ``penalty |Z|_* + sum over observed of (Z - R)^2 / 2``. With
``|Z|_* = min (|U|^2 + |V|^2) / 2`` over ``Z = U V^T`` (Srebro 2004) the scores of a record solve a
small system of its own, and a round sums over records what the loadings U need. No iterate of the
width of the collection is ever held. Where few patterns of missing entries repeat, the moments of
each carry all rounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.compiler import njit
from privpipe.protocols import BoolArray, FloatArray

LoadingSums = tuple[FloatArray, FloatArray, FloatArray, float]
"""Products and cross products per feature, (p, r, r) and (p, r), products of all scores, (r, r),
and the sum of the squared errors of what is observed."""

BLOCK = 512
"""Records whose systems are solved at once."""


@dataclass(frozen=True, eq=False)
class Loadings:
    """Low-rank factors of completed records.

    Parameters
    ----------
    loadings : (n_features, rank)
        Completed records are ``loadings @ scores``.
    ridge
        Of the systems for the scores.
    scatter : (rank, rank)
        Sum over records of the products of their scores.
    objective
        Of problem (5), for the penalty `ridge`.
    n_rounds
    converged
        Whether the objective had stopped to fall.
    """

    loadings: FloatArray
    ridge: float
    scatter: FloatArray
    objective: float
    n_rounds: int
    converged: bool

    @property
    def gram(self) -> FloatArray:
        """Sum over completed records of their products, (n_features, n_features)."""
        found: FloatArray = self.loadings @ self.scatter @ self.loadings.T
        return (found + found.T) / 2


def solve_scores(rows: FloatArray, loadings: FloatArray, ridge: float) -> FloatArray:
    """Scores of each record from the entries that are not NaN, (n_records, rank).

    A record's scores depend on nothing but that record, to the last bit: matrix products sum in an
    order that depends on how many records are multiplied at once.
    """
    rank = loadings.shape[1]
    scores = np.empty((len(rows), rank))
    sum_up: Any = _sum_systems
    for start in range(0, len(rows), BLOCK):
        part = np.ascontiguousarray(rows[start : start + BLOCK])
        systems, right = np.zeros((len(part), rank, rank)), np.zeros((len(part), rank))
        sum_up(part, np.ascontiguousarray(loadings), ridge, systems, right)
        scores[start : start + BLOCK] = np.linalg.solve(systems, right[:, :, None])[:, :, 0]
    return scores


def complete_rows(rows: FloatArray, loadings: FloatArray, ridge: float) -> FloatArray:
    """Records as their scores have them, (n_records, n_features); each depends on itself alone."""
    scores, made = solve_scores(rows, loadings, ridge), np.empty(rows.shape)
    multiply: Any = _multiply_rows
    multiply(scores, np.ascontiguousarray(loadings.T), made)
    return made


@njit(cache=True, nogil=True)
def _sum_systems(rows: Any, loadings: Any, ridge: Any, systems: Any, right: Any) -> Any:
    n, p = rows.shape
    rank = loadings.shape[1]
    for i in range(n):
        for j in range(p):
            x = rows[i, j]
            if not np.isfinite(x):
                continue
            for a in range(rank):
                right[i, a] += x * loadings[j, a]
                for b in range(rank):
                    systems[i, a, b] += loadings[j, a] * loadings[j, b]
        for a in range(rank):
            systems[i, a, a] += ridge


@njit(cache=True, nogil=True)
def _multiply_rows(scores: Any, loadings: Any, made: Any) -> Any:
    for i in range(made.shape[0]):
        made[i] = 0.0
        for a in range(loadings.shape[0]):
            for j in range(made.shape[1]):
                made[i, j] += scores[i, a] * loadings[a, j]


def sum_rows(rows: FloatArray, loadings: FloatArray, ridge: float) -> LoadingSums:
    """What a round needs of some records, NaN where an entry is missing."""
    known = np.isfinite(rows).astype(np.float64)
    filled = np.where(np.isfinite(rows), rows, 0.0)
    rank = loadings.shape[1]
    products = np.zeros((len(loadings), rank * rank))
    cross, scatter, loss = np.zeros((len(loadings), rank)), np.zeros((rank, rank)), 0.0
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        scores = solve_scores(rows[part], loadings, ridge)
        outer = (scores[:, :, None] * scores[:, None, :]).reshape(len(scores), -1)
        products += known[part].T @ outer
        cross += filled[part].T @ scores
        scatter += scores.T @ scores
        loss += float(np.sum(known[part] * (filled[part] - scores @ loadings.T) ** 2))
    return products.reshape(-1, rank, rank), cross, scatter, loss


def sum_pattern(
    patterns: Mapping[bytes, FloatArray], loadings: FloatArray, ridge: float
) -> LoadingSums:
    """The same from the Gram matrix of each pattern of missing entries.

    Parameters
    ----------
    patterns
        By the bytes of the mask of observed entries, (n_features,) bool: the sum of products of
        records with this pattern, (n_features, n_features), zero where something is missing.
    """
    p, rank = loadings.shape
    products, cross = np.zeros((p, rank, rank)), np.zeros((p, rank))
    scatter, loss = np.zeros((rank, rank)), 0.0
    for name, gram in sorted(patterns.items()):
        known: BoolArray = np.frombuffer(name, bool)
        inner, seen = gram[np.ix_(known, known)], loadings[known]
        solve = np.linalg.solve(seen.T @ seen + ridge * np.eye(rank), seen.T)
        mine = solve @ inner @ solve.T
        products[known] += mine
        cross[known] += inner @ solve.T
        scatter += mine
        residual = np.eye(len(seen)) - seen @ solve
        loss += float(np.sum((residual @ inner) * residual))
    return products, cross, scatter, loss


def fit_loadings(
    request: Callable[[FloatArray, float], LoadingSums],
    start: FloatArray,
    penalty: float,
    *,
    tolerance: float = 1e-9,
    max_rounds: int = 500,
) -> Loadings:
    """Minimise problem (5) by alternating solves; a round is one question about all records.

    Parameters
    ----------
    request
        Sums over all records for loadings and ridge; see `sum_rows`.
    start : (n_features, rank)
        First loadings. The rank must be that of the solution or above; directions that the
        penalty does not allow die out.
    penalty
        Positive.
    tolerance
        Relative fall of the objective in a round at which it ends.
    max_rounds

    Notes
    -----
    After each round the factors are balanced, which lowers ``|U|^2 + |V|^2`` to twice the nuclear
    norm (Hastie et al. 2015, softImpute-ALS).

    References
    ----------
    Yi et al. 2014, problem (5), with equal weights per observed entry.
    """
    if not penalty > 0 or not np.isfinite(start).all():
        raise InputError(
            "The penalty or the first loadings of a completion are not finite and positive.",
            remedy="Give a positive noise_level.",
        )
    loadings, before, objective = start, np.inf, np.inf
    scatter: FloatArray = np.zeros((start.shape[1],) * 2)
    for count in range(1, max_rounds + 1):
        products, cross, scatter, loss = request(loadings, penalty)
        size = float(np.sum(loadings**2)) + float(np.trace(scatter))
        objective = loss / 2 + penalty * size / 2
        # Alternating solves never raise the objective: a rise is rounding, and ends it, too.
        if before - objective <= tolerance * objective:
            return Loadings(loadings, penalty, scatter, objective, count, True)
        before = objective
        # The nuclear norm is the least (|U|^2 + |V|^2) / 2: each factor has a ridge of the penalty.
        systems = products + penalty * np.eye(loadings.shape[1])
        solved = np.linalg.solve(systems, cross[:, :, None])[:, :, 0]
        loadings = _balance(solved, scatter)
    return Loadings(loadings, penalty, scatter, objective, max_rounds, False)


def _balance(loadings: FloatArray, scatter: FloatArray) -> FloatArray:
    """Loadings of the same product whose squares are those of its scores: ``P sqrt(D)``."""
    values, turn = np.linalg.eigh(scatter)
    root = turn * np.sqrt(np.maximum(values, 0.0))
    left, sizes, _ = np.linalg.svd(loadings @ root, full_matrices=False)
    balanced: FloatArray = left * np.sqrt(sizes)
    return balanced
