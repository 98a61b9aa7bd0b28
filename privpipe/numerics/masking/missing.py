"""Records with missing entries as low-rank factors, in rounds of sums: completed, then refitted.

Problem (5) of Yi et al. 2014. It minimises
``penalty |Z|_* + sum over observed of (Z - R)^2 / 2``. Here ``|Z|_*`` is half the least
``|U|^2 + |V|^2`` over ``Z = U V^T`` (Srebro 2004). So the scores of a record solve a small system
of its own, and a round sums over records what the loadings U need. No iterate of the width of the
collection is ever held. Where few patterns of missing entries repeat, the moments of each carry all
rounds.

Completion shrinks what it does not see: its rounds leave out how uncertain the scores of a record
with few known entries are. In the refit they are normal a priori and their covariance is summed
along (Tipping and Bishop 1999; with missing entries, Ilin and Raiko 2010). So moments, and the
regression that follows from them, are not biased towards zero. Least squares on the subspace found
are the refit of problem (3) in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.compiler import njit
from privpipe.protocols import BoolArray, FloatArray

RecordSums = tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]
"""Products and cross products of scores per feature, (p, r, r) and (p, r). Products of all scores
(r, r), squares (p,), and how many entries are known."""

Request = Callable[[FloatArray, float, bool], RecordSums]
"""Sums over all records, for loadings, ridge, and whether products are expected; see `sum_rows`."""

BLOCK = 512
"""Records whose systems are solved at once."""

LEAST_VARIANCE = 1e-8

MOST_ROUNDS = 300
"""Of a factor model that does not settle."""

COVARIANCE_NOISE = 1e-6
"""Variance that is used for none where covariances are not of low rank."""


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Records are ``loadings @ scores``: completed, or plus noise with scores a priori normal.

    Parameters
    ----------
    loadings : (n_features, rank)
    ridge
        Of the systems for the scores; the variance of the noise of every entry, where there is
        some.
    scatter : (rank, rank)
        Sum over records of the (expected) products of their scores.
    n_rounds
    converged
        Whether the fit had stopped to move.
    objective
        Of problem (5), for the penalty `ridge`.
    """

    loadings: FloatArray
    ridge: float
    scatter: FloatArray
    n_rounds: int
    converged: bool
    objective: float = np.nan

    @property
    def gram(self) -> FloatArray:
        """Sum of products of the records without their noise, (n_features, n_features)."""
        found: FloatArray = self.loadings @ self.scatter @ self.loadings.T
        return (found + found.T) / 2


def solve_scores(rows: FloatArray, loadings: FloatArray, ridge: float) -> FloatArray:
    """Scores of each record from the entries that are not NaN, (n_records, rank).

    A record's scores depend on nothing but that record, to the last bit. Matrix products are
    avoided for that: they sum in an order that depends on how many records are multiplied at once.
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


def sum_rows(rows: FloatArray, loadings: FloatArray, ridge: float, expected: bool) -> RecordSums:
    """What a round needs of some records, NaN where an entry is missing.

    With `expected`, products of scores are those of their distribution given the known entries.
    """
    known = np.isfinite(rows).astype(np.float64)
    filled = np.where(known > 0, rows, 0.0)
    p, rank = loadings.shape
    outer = (loadings[:, :, None] * loadings[:, None, :]).reshape(p, -1)
    products, cross = np.zeros((p, rank * rank)), np.zeros((p, rank))
    scatter = np.zeros(rank * rank)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        systems = (known[part] @ outer).reshape(-1, rank, rank) + ridge * np.eye(rank)
        scores = np.linalg.solve(systems, (filled[part] @ loadings)[:, :, None])[:, :, 0]
        second = scores[:, :, None] * scores[:, None, :]
        if expected:
            second += ridge * np.linalg.inv(systems)
        flat = second.reshape(len(scores), -1)
        products += known[part].T @ flat
        cross += filled[part].T @ scores
        scatter += flat.sum(axis=0)
    squares = np.sum(filled**2, axis=0)
    shaped = products.reshape(p, rank, rank)
    return shaped, cross, scatter.reshape(rank, rank), squares, float(known.sum())


def sum_patterns(
    patterns: Sequence[tuple[BoolArray, FloatArray, float]],
    loadings: FloatArray,
    ridge: float,
    expected: bool,
) -> RecordSums:
    """The same from the moments of each pattern of missing entries.

    Parameters
    ----------
    patterns
        Which entries are known, (n_features,); the sum of products of the records with this
        pattern, (n_features, n_features), zero where something is missing; and their number.
    """
    p, rank = loadings.shape
    products, cross, squares = np.zeros((p, rank, rank)), np.zeros((p, rank)), np.zeros(p)
    scatter, n_known = np.zeros((rank, rank)), 0.0
    for known, gram, count in patterns:
        seen, inner = loadings[known], gram[np.ix_(known, known)]
        inverse = np.linalg.inv(seen.T @ seen + ridge * np.eye(rank))
        solve = inverse @ seen.T
        mine = solve @ inner @ solve.T
        if expected:
            mine += count * ridge * inverse
        products[known] += mine
        cross[known] += inner @ solve.T
        scatter += mine
        squares[known] += np.diag(inner)
        n_known += count * float(known.sum())
    return products, cross, scatter, squares, n_known


def measure_loss(loadings: FloatArray, sums: RecordSums) -> float:
    """Sum of the squared errors of the known entries, expected where the sums are."""
    products, cross, _, squares, _ = sums
    fitted = np.einsum("ij,ijk,ik->i", loadings, products, loadings)
    return float(np.sum(squares - 2 * np.sum(loadings * cross, axis=1) + fitted))


def fit_loadings(
    request: Request, start: FloatArray, penalty: float, *, tolerance: float = 1e-9, most: int = 500
) -> FactorModel:
    """Minimise problem (5) by alternating solves; a round is one question about all records.

    Parameters
    ----------
    request
        See `sum_rows`.
    start : (n_features, rank)
        First loadings. The rank must be that of the solution or above; directions that the
        penalty does not allow die out.
    penalty
        Positive.
    tolerance
        Relative fall of the objective in a round at which it ends.
    most

    Notes
    -----
    After each round the factors are balanced, which lowers ``|U|^2 + |V|^2`` to twice the nuclear
    norm (Hastie et al. 2015, softImpute-ALS).

    References
    ----------
    Yi et al. 2014, problem (5), with equal weights per observed entry.
    """
    if not penalty > 0 or not np.isfinite(start).all():
        problem = "The penalty or the first loadings of a completion are not finite and positive."
        raise InputError(problem, remedy="Give a positive noise_level.")
    loadings, before, objective = start, np.inf, np.inf
    scatter: FloatArray = np.zeros((start.shape[1],) * 2)
    for count in range(1, most + 1):
        sums = products, cross, scatter, _, _ = request(loadings, penalty, False)
        size = float(np.sum(loadings**2)) + float(np.trace(scatter))
        objective = measure_loss(loadings, sums) / 2 + penalty * size / 2
        # Alternating solves never raise the objective: a rise is rounding, and ends it, too.
        if before - objective <= tolerance * objective:
            return FactorModel(loadings, penalty, scatter, count, True, objective)
        before = objective
        # The nuclear norm is the least (|U|^2 + |V|^2) / 2: each factor has a ridge of the penalty.
        systems = products + penalty * np.eye(loadings.shape[1])
        loadings = _balance(np.linalg.solve(systems, cross[:, :, None])[:, :, 0], scatter)
    return FactorModel(loadings, penalty, scatter, most, False, objective)


def _balance(loadings: FloatArray, scatter: FloatArray) -> FloatArray:
    """Loadings of the same product whose squares are those of its scores: ``P sqrt(D)``."""
    values, turn = np.linalg.eigh(scatter)
    root = turn * np.sqrt(np.maximum(values, 0.0))
    left, sizes, _ = np.linalg.svd(loadings @ root, full_matrices=False)
    return np.asarray(left * np.sqrt(sizes))


def fit_factors(
    request: Request, start: FloatArray, variance: float, n_records: float, tolerance: float = 1e-6
) -> FactorModel:
    """Maximise the likelihood of what is known; a round is one question about all records.

    Parameters
    ----------
    request
        See `sum_rows`.
    start : (n_features, rank)
    variance
        First guess.
    n_records
    tolerance
        Relative change of ``loadings @ loadings.T`` at which it ends.

    Notes
    -----
    Loadings take up what the scores' products differ from the identity (parameter expansion, Liu et
    al. 1998), which saves most of the rounds.
    """
    loadings = start
    scatter: FloatArray = n_records * np.eye(start.shape[1])
    for count in range(1, MOST_ROUNDS + 1):
        sums = products, cross, scatter, _, n_known = request(loadings, variance, True)
        new = np.linalg.solve(products, cross[:, :, None])[:, :, 0]
        # A variance of zero would make the systems of records with few known entries singular.
        variance = max(measure_loss(new, sums) / n_known, LEAST_VARIANCE)
        # Parameter expansion: scores need not have the identity as products, loadings take it up.
        expanded = new @ np.linalg.cholesky(scatter / n_records)
        change = np.linalg.norm(expanded @ expanded.T - loadings @ loadings.T)
        loadings = expanded
        if change <= tolerance * np.linalg.norm(expanded.T @ expanded):
            return FactorModel(loadings, variance, np.eye(len(scatter)) * n_records, count, True)
    return FactorModel(loadings, variance, np.eye(len(scatter)) * n_records, MOST_ROUNDS, False)


def fit_covariance(
    request: Request, n_features: int, n_records: float, *, tolerance: float = 1e-3, most: int = 40
) -> FactorModel:
    """Maximise the likelihood of records of any covariance: what least squares predict best by.

    A factor model of low rank takes what its few factors leave for noise, and its regression is
    that of records without noise. Of features without noise, as indicators of classes, both
    lose the model. Here every feature keeps all of its variance.

    Parameters
    ----------
    request, n_records, most
        As in `fit_factors`.
    n_features
        Columns of the records, the one of ones included.
    tolerance
        Relative change of the covariance in a round at which it ends; further rounds fit what is
        missing more than what is known.

    Returns
    -------
    FactorModel
        As many factors as features: loadings are a root of the mean products.

    Notes
    -----
    Rounds of expectation and maximisation (Little and Rubin 2002, section 11.2). Each two of them
    are extrapolated (Varadhan and Roland 2008, SQUAREM S3) as long as the covariance stays
    positive.
    """
    eye = np.eye(n_features)
    variance = COVARIANCE_NOISE

    def improve(moments: FloatArray) -> FloatArray:
        root = _root(moments)
        _, _, scatter, _, _ = request(root, variance, True)
        new: FloatArray = root @ (scatter / n_records) @ root.T
        return (new + new.T) / 2

    moments: FloatArray = eye
    count, converged = 0, False
    while count < most and not converged:
        once = improve(moments)
        twice = improve(once)
        count += 2
        step, bend = once - moments, (twice - once) - (once - moments)
        converged = bool(np.linalg.norm(twice - once) <= tolerance * np.linalg.norm(twice))
        moments = twice if converged else _extrapolate(moments, step, bend, twice)
    return FactorModel(_root(moments), variance, n_records * eye, count, converged)


def _extrapolate(
    start: FloatArray, step: FloatArray, bend: FloatArray, plain: FloatArray
) -> FloatArray:
    """As far along the curve of two rounds as the moments stay positive; else after these."""
    stretch = float(np.linalg.norm(step)) / max(float(np.linalg.norm(bend)), 1e-300)
    while stretch > 1.05:
        ahead: FloatArray = start + 2 * stretch * step + stretch**2 * bend
        if np.linalg.eigvalsh(ahead)[0] > 0:
            return ahead
        stretch = (stretch + 1) / 2
    return plain


def _root(moments: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(moments)
    return np.asarray(vectors * np.sqrt(np.maximum(values, COVARIANCE_NOISE * values[-1])))
