"""Who knows that several released records are of one group: what they add up to.

Two ways to pool: the sum of calibrated log-probabilities of an adversary that reads records one by
one (Bayes' rule, where records of a class are independent), and an adversary that reads statistics
of the set: means, covariances and quantiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.problem import Features, Problem
from privpipe.protocols import FloatArray, IntArray

BASES = ("logistic", "quadratic", "boosting", "rbf")
"""Adversaries whose log-probabilities are summed, where they are named."""

SET_ADVERSARIES = ("least_squares", "logistic", "quadratic")
"""Adversaries that read statistics of sets."""

DIRECTIONS = 12
"""Directions of largest variance whose statistics are read: many more teach few groups nothing."""

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

MOST_SETS = 40
"""Sets of a group, at most."""

MOST_STRETCHES = 200
"""The same that judge, where stretches of its time are what is drawn."""

LEAST = 1e-4
"""Least probability that an adversary is believed to mean."""


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of records, each of one group.

    Parameters
    ----------
    members : (n_members,)
        Row numbers, set after set.
    starts : (n_sets,)
        Where each set begins.
    units, classes : (n_sets,)
        What each was drawn from, and its class; sets of one unit are no independent draws.
    """

    members: IntArray
    starts: IntArray
    units: IntArray
    classes: IntArray

    @property
    def n_sets(self) -> int:
        return len(self.starts)

    def sum(self, values: FloatArray) -> FloatArray:
        """Sum of the rows of each set, (n_sets, n_columns), of values by row number."""
        return np.asarray(np.add.reduceat(values[self.members], self.starts, axis=0))


def draw_sets(
    rows: IntArray,
    groups: IntArray,
    classes: IntArray,
    size: int | None,
    *,
    stretches: IntArray | None = None,
    overlap: int = 1,
    seed: int = 0,
) -> Sets:
    """Cut the records of each group into sets at random.

    Parameters
    ----------
    rows : (n,)
        Records to draw from.
    groups, classes : (n_records,)
        Of all records.
    size
        Records of a set; None for all that the group has here. Groups of fewer are left out.
    stretches : (n_records,), optional
        Stretches of time that no two units share: the units of sets are as many whole ones as a
        set needs. Without them the units are the groups.
    overlap
        Times that the records of a group are dealt anew; sets that judge do not overlap (1).
    seed
        Of the cuts.
    """
    random = np.random.default_rng(seed)
    parts: list[IntArray] = []
    units: list[int] = []
    order, n_units = rows[np.argsort(groups[rows], kind="stable")], 0
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if size is None:
            dealt = [(mine, n_units)] if len(mine) else []
        else:
            dealt = []
            for _ in range(overlap):
                for number, whole in enumerate(_bundle(mine, stretches, size, random)):
                    # Disjoint sets within one dealing; dealt anew, records are in several, of the
                    # same unit.
                    ends = range(size, len(whole) + 1, size)
                    dealt += [(whole[end - size : end], n_units + number) for end in ends]
            if stretches is not None:  # of every unit a set before any has two
                dealt = [dealt[i] for i in random.permutation(len(dealt))]
            # Where stretches of time are the units, few sets of a group would be few units of an
            # interval.
            judges = stretches is not None and overlap == 1
            dealt = dealt[: MOST_STRETCHES if judges else MOST_SETS]
        parts += [part for part, _ in dealt]
        units += [unit for _, unit in dealt]
        n_units += len(mine)
    sizes = np.array([len(part) for part in parts], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    members = np.concatenate(parts) if parts else np.empty(0, np.int64)
    firsts = members[starts] if parts else members
    return Sets(members, starts[: len(parts)], np.array(units, np.int64), classes[firsts])


def _bundle(
    mine: IntArray, stretches: IntArray | None, size: int, random: np.random.Generator
) -> list[IntArray]:
    """The records of a group at random: all together, or as few whole stretches as a set needs."""
    if stretches is None:
        return [random.permutation(mine)]
    order = mine[np.argsort(stretches[mine], kind="stable")]
    pieces = np.split(order, np.flatnonzero(np.diff(stretches[order])) + 1)
    found, held, n_held = [], list[IntArray](), 0
    # Whole stretches: two sets that share one would be no independent draws.
    for number in random.permutation(len(pieces)):
        held.append(pieces[number])
        n_held += len(pieces[number])
        if n_held >= size:
            found.append(random.permutation(np.concatenate(held)))
            held, n_held = [], 0
    return found


def calibrate(decision: FloatArray, truth: IntArray, prior: FloatArray) -> tuple[bool, float]:
    """How decisions of an adversary become log-probabilities: of their logs or not, times what.

    Parameters
    ----------
    decision : (n_records, n_classes)
        On tuning records.
    truth : (n_records,)
        Their classes.
    prior : (n_classes,)
        Shares of the classes.

    Returns
    -------
    logs, factor
        As `log_likelihoods` takes them: those of the least log loss.
    """
    found = []
    for logs in (True, False):
        # Decisions below zero are margins or log-probabilities already.
        if logs and decision.min() < 0:
            continue

        def loss(exponent: float, logs: bool = logs) -> float:
            likely = log_likelihoods(decision, prior, (logs, float(np.exp(exponent))))
            p = log_softmax(likely + np.log(prior), axis=1)
            return -float(p[np.arange(len(truth)), truth].mean())

        # On the logarithm of the factor, within e^-6 to e^6.
        best = minimize_scalar(loss, bounds=(-6.0, 6.0), method="bounded")
        found.append((float(best.fun), logs, float(np.exp(best.x))))
    _, logs, factor = min(found)
    return logs, factor


def log_likelihoods(
    decision: FloatArray, prior: FloatArray, calibration: tuple[bool, float]
) -> FloatArray:
    """Log-likelihood of each class up to a constant, (n_records, n_classes)."""
    logs, factor = calibration
    values = np.log(np.maximum(decision, LEAST)) - np.log(prior) if logs else decision
    scaled = log_softmax(factor * values + np.log(prior), axis=1)
    # One record that an adversary is too sure of would outweigh all others of a set.
    return np.asarray(np.maximum(scaled, np.log(LEAST)) - np.log(prior))


def read_statistics(x: FloatArray, train: IntArray) -> FloatArray:
    """Records in at most `DIRECTIONS` directions of largest variance of the training records."""
    centred = x.astype(np.float64) - x[train].mean(axis=0, dtype=np.float64)
    # Of training records: what judges may not turn what is read.
    _, values, axes = np.linalg.svd(centred[train], full_matrices=False)
    n_axes = min(DIRECTIONS, int((values > 1e-6 * values[0]).sum()) or 1)
    scale = np.maximum(values[:n_axes], 1e-300) / np.sqrt(len(train))
    return np.asarray(centred @ axes[:n_axes].T / scale)


def pool_statistics(z: FloatArray, sets: Sets) -> FloatArray:
    """Means, covariances and quantiles of each set, (n_sets, n_statistics)."""
    sizes = np.diff(np.append(sets.starts, len(sets.members)))
    one, other = np.triu_indices(z.shape[1])
    rows = []
    for start, size in zip(sets.starts, sizes, strict=True):
        part = z[sets.members[start : start + size]]
        mean = part.mean(axis=0)
        covariance = (part - mean).T @ (part - mean) / size
        deviations = np.sqrt(np.diag(covariance))
        quantiles = np.quantile(part, QUANTILES, axis=0).ravel()
        rows.append(
            np.concatenate([mean, covariance[one, other], np.log(deviations + 0.01), quantiles])
        )
    return np.array(rows)


def train_on_sets(
    train: FloatArray,
    train_classes: IntArray,
    tune: FloatArray,
    tune_classes: IntArray,
    n_classes: int,
    adversaries: Sequence[str],
    seed: int,
) -> Iterator[tuple[str, Features]]:
    """Train adversaries on statistics of sets; name and decision of each."""
    centre, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread <= 1e-9] = 1.0  # a statistic that is the same of all sets

    def scale(x: FloatArray) -> FloatArray:
        return np.asarray((x - centre) / spread)

    labels = [classes.astype(np.float64) for classes in (train_classes, tune_classes)]
    problem = Problem(train, labels[0], tune, labels[1], n_classes, seed).read(scale)
    for name in SET_ADVERSARIES:
        if name in adversaries:
            yield name, ADVERSARIES[name].fit(problem).after(scale).decide
