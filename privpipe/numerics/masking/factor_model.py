"""Low-rank records with noise and missing entries, by expectation and maximisation.

Completion shrinks what it does not see: its rounds leave out how uncertain the scores of a record
with few known entries are. Here they are normal a priori and their covariance is summed along
(Tipping and Bishop 1999, with missing entries: Ilin and Raiko 2010), so that moments, and the
regression that follows from them, are not biased towards zero. This is the refit of problem (5),
as least squares on the subspace found are that of problem (3).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from privpipe.protocols import BoolArray, FloatArray

FactorSums = tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]
"""Products (p, r, r), cross products (p, r), products of all scores (r, r), squares (p,), and how
many entries are known."""

BLOCK = 512
LEAST_VARIANCE = 1e-8

COVARIANCE_NOISE = 1e-6
"""Variance that is used for none where covariances are not of low rank."""


@dataclass(frozen=True, eq=False)
class FactorModel:
    """Records are ``loadings @ scores`` plus noise; scores are standard normal.

    Parameters
    ----------
    loadings : (n_features, rank)
    variance
        Of the noise of every entry.
    scatter : (rank, rank)
        Sum over records of the expected products of their scores.
    n_rounds
    converged
        Whether loadings had stopped to move.
    """

    loadings: FloatArray
    variance: float
    scatter: FloatArray
    n_rounds: int
    converged: bool

    @property
    def gram(self) -> FloatArray:
        """Expected sum of products of the records without their noise."""
        found: FloatArray = self.loadings @ self.scatter @ self.loadings.T
        return (found + found.T) / 2


def expect_rows(rows: FloatArray, loadings: FloatArray, variance: float) -> FactorSums:
    """Expected sums of some records, NaN where an entry is missing."""
    known = np.isfinite(rows).astype(np.float64)
    filled = np.where(known > 0, rows, 0.0)
    p, rank = loadings.shape
    outer = (loadings[:, :, None] * loadings[:, None, :]).reshape(p, -1)
    products, cross = np.zeros((p, rank * rank)), np.zeros((p, rank))
    scatter = np.zeros(rank * rank)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        systems = (known[part] @ outer).reshape(-1, rank, rank) + variance * np.eye(rank)
        inverse = np.linalg.inv(systems)
        scores = np.einsum("nij,nj->ni", inverse, filled[part] @ loadings)
        second = scores[:, :, None] * scores[:, None, :] + variance * inverse
        flat = second.reshape(len(scores), -1)
        products += known[part].T @ flat
        cross += filled[part].T @ scores
        scatter += flat.sum(axis=0)
    squares = np.sum(filled**2, axis=0)
    shaped = products.reshape(p, rank, rank)
    return shaped, cross, scatter.reshape(rank, rank), squares, float(known.sum())


def expect_pattern(
    patterns: Mapping[bytes, tuple[FloatArray, float]], loadings: FloatArray, variance: float
) -> FactorSums:
    """The same from Gram matrix and number of records of each pattern; see `sum_pattern`."""
    p, rank = loadings.shape
    products, cross, squares = np.zeros((p, rank, rank)), np.zeros((p, rank)), np.zeros(p)
    scatter, n_known = np.zeros((rank, rank)), 0.0
    for name, (gram, count) in sorted(patterns.items()):
        known: BoolArray = np.frombuffer(name, bool)
        seen, inner = loadings[known], gram[np.ix_(known, known)]
        inverse = np.linalg.inv(seen.T @ seen + variance * np.eye(rank))
        solve = inverse @ seen.T
        mine = solve @ inner @ solve.T + count * variance * inverse
        products[known] += mine
        cross[known] += inner @ solve.T
        scatter += mine
        squares[known] += np.diag(inner)
        n_known += count * float(known.sum())
    return products, cross, scatter, squares, n_known


def fit_factors(
    request: Callable[[FloatArray, float], FactorSums],
    start: FloatArray,
    variance: float,
    n_records: float,
    *,
    tolerance: float = 1e-6,
    max_rounds: int = 300,
) -> FactorModel:
    """Maximise the likelihood of what is known; a round is one question about all records.

    Parameters
    ----------
    request
        Sums over all records for loadings and variance; see `expect_rows`.
    start : (n_features, rank)
    variance
        First guess.
    n_records
    tolerance
        Relative change of ``loadings @ loadings.T`` at which it ends.
    max_rounds

    Notes
    -----
    Loadings take up what the scores' products differ from the identity (parameter expansion, Liu et
    al. 1998), which saves most of the rounds.
    """
    loadings = start
    scatter: FloatArray = n_records * np.eye(start.shape[1])
    for count in range(1, max_rounds + 1):
        products, cross, scatter, squares, n_known = request(loadings, variance)
        new = np.linalg.solve(products, cross[:, :, None])[:, :, 0]
        fitted = np.einsum("ij,ijk,ik->i", new, products, new)
        loss = float(np.sum(squares - 2 * np.sum(new * cross, axis=1) + fitted))
        # A variance of zero would make the systems of records with few known entries singular.
        variance = max(loss / n_known, LEAST_VARIANCE)
        # Parameter expansion: scores need not have the identity as products, loadings take it up.
        expanded = new @ np.linalg.cholesky(scatter / n_records)
        change = np.linalg.norm(expanded @ expanded.T - loadings @ loadings.T)
        loadings = expanded
        if change <= tolerance * np.linalg.norm(expanded.T @ expanded):
            return FactorModel(loadings, variance, np.eye(len(scatter)) * n_records, count, True)
    return FactorModel(loadings, variance, np.eye(len(scatter)) * n_records, max_rounds, False)


def fit_covariance(
    request: Callable[[FloatArray, float], FactorSums],
    n_features: int,
    n_records: float,
    *,
    tolerance: float = 1e-3,
    max_rounds: int = 40,
) -> FactorModel:
    """Maximise the likelihood of records of any covariance: what least squares predict best by.

    A factor model of low rank takes what its few factors leave for noise, and its regression is
    that of records without noise: of features that have none, as indicators of classes, both lose
    the model. Here every feature keeps all of its variance.

    Parameters
    ----------
    request, n_records, max_rounds
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
    Rounds of expectation and maximisation (Little and Rubin 2002, section 11.2), two of which are
    extrapolated (Varadhan and Roland 2008, SQUAREM S3) as long as the covariance stays positive.
    """
    eye = np.eye(n_features)
    variance = COVARIANCE_NOISE

    def improve(moments: FloatArray) -> FloatArray:
        root = _root(moments)
        _, _, scatter, _, _ = request(root, variance)
        new: FloatArray = root @ (scatter / n_records) @ root.T
        return (new + new.T) / 2

    moments: FloatArray = eye
    count, converged = 0, False
    while count < max_rounds and not converged:
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
    root: FloatArray = vectors * np.sqrt(np.maximum(values, COVARIANCE_NOISE * values[-1]))
    return root
