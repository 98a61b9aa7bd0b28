"""Codes that no adversary stumbles on: searched for on half of the training records, tried on half.

Millions of parities, combs and digits are tried, so the best of them always looks good where it was
found. Only codes that tell something of the other half become features; what they tell in the end
is judged, like every adversary, by records that neither half holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import linalg
from sklearn.ensemble import HistGradientBoostingClassifier

from privpipe.attacks.adversaries.combs import find_combs, find_sum_digits
from privpipe.attacks.adversaries.digits import Digits
from privpipe.attacks.adversaries.parities import MOST_FACTORS, find_parities
from privpipe.attacks.adversaries.problem import Problem, one_hot
from privpipe.protocols import FloatArray, IntArray

SEARCHED = 8192
"""Records that codes are found on, and at most as many as half of those given."""

MOST_CLASSES = 8
"""Groups of classes that codes are searched for; more classes share groups, the largest first."""

N_STRATA = 3
"""Strata of records that look alike to a few trees."""

ROUNDS, LEAVES, TREE_COLUMNS = 20, 8, 64

MOST_VALUES = 4096
"""Different values of a column that is read value by value."""

LEAST = 3.0
"""Standard errors by which a code must tell something of the other half."""

KEPT = 12
"""Codes that become features."""


class Code(Protocol):
    """What is read of records beyond their values."""

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, n_columns) of released values as columns of about one unit."""
        ...


def find_codes(problem: Problem, digits: Digits, most_factors: int = MOST_FACTORS) -> list[Code]:
    """Codes that go with the target on both halves of the training records, the clearest first.

    Parameters
    ----------
    problem
        Its inputs are released values as they are, not standardised.
    digits
        How they are cut.
    most_factors
        Bits of a parity; of fewer than `MOST_FACTORS` neither combs nor sums are searched.

    Notes
    -----
    What a few trees predict from the values is deducted, so that a code is what they miss. Time
    and memory are bounded by those of the searches: 4 seconds and 200 MB for 20 columns and two
    classes on a free core.
    """
    classes = _group_classes(problem)
    order = np.random.default_rng(problem.seed).permutation(len(classes))
    n_searched = min(SEARCHED, len(order) // 2)
    found, tried = order[:n_searched], order[n_searched:]
    if len(np.unique(classes[found])) < 2:
        return []
    x, excess, strata = _deduct(problem.x_train, classes, found)
    codes: list[Code] = [
        *find_parities(x[found], classes[found], strata[found], digits, most_factors),
        *_tabulate(x[found], excess[found]),
    ]
    if most_factors == MOST_FACTORS:
        codes += [*find_combs(x[found], excess[found]), *find_sum_digits(x[found], excess[found])]
    sizes = np.array([_try(code, x, excess, found, tried) for code in codes])
    best = np.argsort(-sizes, kind="stable")[:KEPT]
    return [codes[i] for i in best if sizes[i] > LEAST]


def _group_classes(problem: Problem) -> IntArray:
    """Classes, or quarters of a number; many classes share `MOST_CLASSES` groups."""
    y = problem.y_train
    if problem.n_classes is None:
        codes = np.searchsorted(np.unique(np.quantile(y, [0.25, 0.5, 0.75])), y)
    else:
        sizes = np.bincount(y.astype(np.int64), minlength=problem.n_classes)
        codes = np.argsort(np.argsort(-sizes, kind="stable"))[y.astype(np.int64)]
    return np.asarray(np.unique(codes % MOST_CLASSES, return_inverse=True)[1], np.int64)


def _deduct(
    values: FloatArray, classes: IntArray, found: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Values in double precision, classes beyond what trees predict, and strata of predictions."""
    x = values.astype(np.float64)
    trees = HistGradientBoostingClassifier(
        max_iter=ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False
    ).fit(x[found, :TREE_COLUMNS], classes[found])
    share = np.zeros((len(x), int(classes.max()) + 1))
    share[:, trees.classes_] = trees.predict_proba(x[:, :TREE_COLUMNS])
    if share.shape[1] == 2:
        cuts = np.unique(np.quantile(share[found, 1], np.arange(1, N_STRATA) / N_STRATA))
        strata = np.searchsorted(cuts, share[:, 1])
    else:
        strata = share.argmax(axis=1)
    return x, one_hot(classes.astype(np.float64), share.shape[1]) - share, strata


def _try(code: Code, x: FloatArray, excess: FloatArray, found: IntArray, tried: IntArray) -> float:
    """What a code tells of records that it was not found on, in standard errors."""
    columns = code.read(x)
    columns = columns - columns[found].mean(axis=0)
    gram = columns[found].T @ columns[found]
    gram.flat[:: len(gram) + 1] += 1e-6 * max(float(np.trace(gram)), 1e-300)
    slope = linalg.solve(gram, columns[found].T @ excess[found], assume_a="pos")
    guess = columns[tried] @ slope
    won = ((guess - guess.mean(axis=0)) * excess[tried]).sum(axis=1)
    return float(won.sum() / max(np.sqrt((won**2).sum()), 1e-300))


@dataclass(frozen=True, eq=False)
class _Table:
    """What every value of a column of few values says of the classes.

    Parameters
    ----------
    column
    values : (n_values,)
        In order.
    shares : (n_values + 1, n_classes)
        Mean excess of each, the last of values that were not there.
    """

    column: int
    values: FloatArray
    shares: FloatArray

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, n_classes)."""
        mine = x[:, self.column].astype(np.float64)
        at = np.minimum(np.searchsorted(self.values, mine), len(self.values) - 1)
        known = self.values[at] == mine
        return np.asarray(self.shares[np.where(known, at, len(self.values))])


def _tabulate(x: FloatArray, excess: FloatArray) -> Iterator[_Table]:
    """Columns of few values, value by value."""
    for j in range(x.shape[1]):
        values, at = np.unique(x[:, j], return_inverse=True)
        if not 2 < len(values) <= min(MOST_VALUES, len(x) // 4):
            continue
        sums = np.zeros((len(values) + 1, excess.shape[1]))
        np.add.at(sums, at, excess)
        sizes = np.bincount(at, minlength=len(values) + 1)[:, None]
        yield _Table(j, values, sums / (sizes + 1))
