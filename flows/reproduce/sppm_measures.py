"""What the figures of Salamatian et al., SPPM, measure on a mapping: exactly, without sampling.

Attackers see the whole released distribution, which is the most that any number of records can
teach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

from privpipe.numerics.information import measure_information
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping import SparseMapping

__all__ = [
    "Found",
    "PaperResult",
    "correct_information",
    "logistic_scores",
    "measure_features",
    "measure_neighbours",
    "naive_bayes_scores",
    "release_counts",
    "trace_roc",
]


@dataclass(frozen=True)
class Found:
    """One number of ours beside the paper's.

    Parameters
    ----------
    cell
        Which number.
    ours
    paper
        None where the paper gives none.
    tolerance
        In the unit: a digit of a table, the width of a line of a figure.
    unit
    note
    """

    cell: str
    ours: float
    paper: float | None
    tolerance: float
    unit: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class PaperResult:
    """A figure done again: numbers beside the paper's, curves for JSON, a picture, notes."""

    cells: tuple[Found, ...]
    curves: dict[str, Any]
    figure: Figure
    notes: tuple[str, ...]


def release_counts(mapping: SparseMapping, counts: FloatArray) -> FloatArray:
    """Expected counts of private value and released symbol, (n_private, n_symbols)."""
    return np.asarray((mapping.mapping @ counts.T).T)


def correct_information(masses: FloatArray, n_records: float) -> float:
    """Information in bits less the plug-in's bias, (|A|-1)(|B|-1)/(2N) nats, not below 0.

    Parameters
    ----------
    masses : (n_private, n_symbols)
    n_records
        Records the distribution was counted on.
    """
    symbols, private = (masses.sum(axis=0) > 0).sum(), (masses.sum(axis=1) > 0).sum()
    nats = measure_information((masses / masses.sum()).T)
    bias = float((symbols - 1) * (private - 1)) / (2 * n_records)
    return max(0.0, nats - bias) / float(np.log(2))


def measure_features(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Information of the private value and each attribute alone, bits, (n_attributes,)."""
    tables = (_by_category(masses, column)[0] for column in codes.T)
    return np.array([measure_information((t / t.sum()).T) / float(np.log(2)) for t in tables])


def naive_bayes_scores(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Log-odds of private value 1 by naive Bayes on the attributes, (n_symbols,)."""
    total = masses.sum(axis=1, keepdims=True)
    score = np.full(masses.shape[1], float(np.log(total[1, 0] / total[0, 0])))
    for column in codes.T:
        table, category = _by_category(masses, column)
        share = (table + 1e-9) / (total + 1e-9 * table.shape[1])
        score += np.log(share[1] / share[0])[category]
    return score


def _by_category(masses: FloatArray, column: IntArray) -> tuple[FloatArray, IntArray]:
    values, inverse = np.unique(column, return_inverse=True)
    category = inverse.ravel()
    rows = [np.bincount(category, row, len(values)) for row in masses]
    return np.asarray(np.stack(rows), dtype=np.float64), category


def logistic_scores(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Log-odds by logistic regression on the attributes' indicators, (n_symbols,)."""
    indicators = np.concatenate(
        [(column[:, None] == np.unique(column)).astype(float) for column in codes.T], axis=1
    )
    weights = np.concatenate([masses[0], masses[1]])
    used = weights > 0
    model = LogisticRegression(C=100.0, max_iter=2000)
    model.fit(
        np.concatenate([indicators, indicators])[used],
        np.repeat([0, 1], len(codes))[used],
        sample_weight=weights[used] * (used.sum() / weights.sum()),
    )
    return np.asarray(model.decision_function(indicators))


def trace_roc(scores: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """False and true positive rates as the threshold falls, and the area under them."""
    _, inverse = np.unique(-scores, return_inverse=True)
    share = masses / masses.sum(axis=1, keepdims=True)
    steps = [np.bincount(inverse.ravel(), row) for row in share]
    false, true = (np.concatenate([[0.0], np.cumsum(step)]) for step in steps)
    return false, true, float(np.trapezoid(true, false))


def measure_neighbours(
    mapping: SparseMapping, distances: FloatArray, nearest: int
) -> tuple[FloatArray, FloatArray]:
    """Mean probability of the k-th nearest symbol over originals, and its standard error.

    Parameters
    ----------
    mapping
    distances : (n_symbols, n_symbols)
    nearest
        How many neighbours; k = 0 is the symbol itself.
    """
    order = np.argsort(distances, axis=0, kind="stable")[:nearest]
    probability = np.take_along_axis(mapping.mapping.toarray(), order, axis=0)
    return probability.mean(axis=1), probability.std(axis=1) / np.sqrt(probability.shape[1])
