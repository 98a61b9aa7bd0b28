"""The worst-off: what a release reveals of one group of records, which an average hides.

Adversaries learn from records of the group alone and judge others of it. Of few records, and of a
class of few, each released column is read by itself, by an exact test. A copy of what is
confidential is found in twenty.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.verdicts.attack_report import summarise_outcomes
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

OUTLIERS, RAREST = "outliers", "rarest class"
"""Groups without a name: records far from the mean, and the rarest class against all others."""

OUTLYING = 0.05
"""Share of the records that are the farthest, in deviations of the raw features."""

FEW = 60
"""Records up to which columns are read by themselves: folds of so few teach an adversary nothing,
and no leak of 20 was found."""

READ = ("released", "joined")
"""Readings of the release."""

LEAST_SHOWN = 0.001
"""Lower limit where something is shown, and not how much."""

SHOWN = ("target", "verdict", "gain", "gain_lower", "gain_upper", "allowed", "source")
"""Of a decision on a group."""

BY_WHAT = ("strongest", "score", "reason")
"""Who found it, by which score; and of what was not attacked, why."""


def measure_group(evidence: Evidence, kind: str, options: AttackOptions) -> list[dict[str, Any]]:
    """Verdicts on a group of records.

    Parameters
    ----------
    evidence
        Of the group, or of all records where it has no name; the raw ones with it for outliers.
    kind
        `OUTLIERS`, `RAREST`, or whatever else the group is called.
    options
        Limits; the level is that of this group.

    Returns
    -------
    rows
        Fields of a `Decision` on each variable, with ``n_records`` of the group.
    """
    if kind == OUTLIERS:
        distance = (evidence.sources["raw"].values.astype(np.float64) ** 2).sum(axis=1)
        far = np.argsort(-distance, kind="stable")[: int(OUTLYING * len(distance))]
        return _judge(evidence.take(np.sort(far)), options)
    if kind != RAREST:
        return _judge(evidence, options)
    found = list[dict[str, Any]]()
    for column, truth in zip(evidence.columns, evidence.truth.T, strict=True):
        if (column.n_categories or 0) > 2:
            codes, sizes = np.unique(truth[~np.isnan(truth)], return_counts=True)
            marks = np.where(np.isnan(truth), np.nan, truth == codes[sizes.argmin()])[:, None]
            one = replace(evidence, columns=(Column(column.name, 2),), truth=marks)
            found += [row | {"n_records": int(sizes.min())} for row in _judge(one, options)]
    return found


def _judge(evidence: Evidence, options: AttackOptions) -> list[dict[str, Any]]:
    about = {"n_records": evidence.n_records}
    if evidence.n_records <= FEW and evidence.groups is None:
        return [about | row for row in _read_columns(evidence, options)]
    read = dict[str, dict[str, Any]]()
    if evidence.groups is None and _has_rare(evidence):
        # A class of a dozen records teaches an adversary nothing: both ways share the level.
        options = replace(options, level=(1 + options.level) / 2)
        read = {row["target"]: row for row in _read_columns(evidence, options)}
    plan = tuple(one for one in plan_attacks(evidence, options) if one.source in READ)
    outcomes = [run_attack(evidence, attack, options) for attack in plan]
    report = summarise_outcomes(outcomes, plan, options, **evidence.counts())
    rows = [one.as_row() for one in report.decide()]
    # A copy in one column is a leak, whatever adversaries of all columns find.
    leaks = {name: row for name, row in read.items() if row["verdict"] == "leaks"}
    rows = [leaks.get(row["target"], row) for row in rows]
    return [about | {name: row[name] for name in (*SHOWN, *BY_WHAT)} for row in rows]


def _has_rare(evidence: Evidence) -> bool:
    """Whether some class has at most `FEW` records."""
    pairs = zip(evidence.columns, evidence.truth.T, strict=True)
    kinds = (truth[~np.isnan(truth)] for column, truth in pairs if column.is_categorical)
    return any(np.unique(one, return_counts=True)[1].min(initial=FEW + 1) <= FEW for one in kinds)


def _read_columns(evidence: Evidence, options: AttackOptions) -> Iterator[dict[str, Any]]:
    """Of each variable the column that ranks a class best."""
    # As they are released: the coordinates that a release of low rank spans mix its columns.
    values = evidence.sources.get("bits", evidence.sources["released"]).values
    n, limit = evidence.n_records, options.max_advantage
    # Equal records are no two witnesses.
    once = np.unique(np.arange(n) if evidence.ties is None else evidence.ties, return_index=True)[1]
    cells = np.zeros(n, np.int64) if evidence.tasks is None else evidence.tasks
    for column, truth in zip(evidence.columns, evidence.truth.T, strict=True):
        rows = once[~np.isnan(truth[once])]
        kinds = np.unique(truth[rows])
        marks = [truth[rows] == kind for kind in kinds[len(kinds) == 2 :]]
        if n > FEW:  # adversaries judge the others
            marks = [one for one in marks if min(one.sum(), (~one).sum()) <= FEW]
        if not column.is_categorical and n <= FEW:
            marks = [truth[rows] > np.median(truth[rows])]
        tail = (1 - options.level) / 2 / len(evidence.columns) / max(len(marks), 1)
        ranked = [rank_best_column(values[rows], mark, cells[rows], tail) for mark in marks]
        # Of so few no limit reaches far: something is surely revealed, and by the estimate much.
        is_shown, gain = max(ranked, default=(False, 0.0))
        found = (column.name, "leaks" if is_shown and gain > limit else "unproven", gain)
        said = (*found, LEAST_SHOWN * is_shown, 1.0, limit, "bits")
        by_what = dict(zip(BY_WHAT, ("one column", "auc", ""), strict=True))
        yield dict(zip(SHOWN, said, strict=True)) | by_what


def rank_best_column(
    values: FloatArray, is_class: BoolArray, cells: IntArray, tail: float
) -> tuple[bool, float]:
    """Whether the best of many columns surely ranks a class, and how well it does.

    Parameters
    ----------
    values : (n_records, n_columns)
    is_class : (n_records,)
    cells : (n_records,)
        Records among which a ranking counts, as of one target.
    tail
        Probability of error, shared by all columns in both directions.

    Returns
    -------
    is_shown, gain
        The latter is the share of the records that it reveals.

    Notes
    -----
    Of each cell as many records are claimed as are of the class. Where nothing is revealed right
    claims follow the hypergeometric law, whatever the column and however frequent the class is;
    cells add up. The test is exact and needs no draws.

    References
    ----------
    Fisher 1935, The Logic of Inductive Inference.

    Examples
    --------
    >>> truth = np.arange(20) % 2 == 0
    >>> x = np.column_stack([np.where(truth, 1.0, -1.0), np.arange(20.0)])
    >>> rank_best_column(x, truth, np.zeros(20, np.int64), 0.001)
    (True, 1.0)
    """
    both = np.hstack([values, -values])
    right, law, expected = np.zeros(both.shape[1]), np.ones(1), 0.0
    for cell in np.unique(cells):
        mine = cells == cell
        n, k = int(mine.sum()), int(is_class[mine].sum())
        right += is_class[mine][np.argsort(-both[mine], axis=0, kind="stable")][:k].sum(axis=0)
        law = np.convolve(law, scipy.stats.hypergeom(n, k, k).pmf(np.arange(k + 1)))
        expected += k * k / n
    is_shown = law[int(right.max()) :].sum() * both.shape[1] <= tail
    gain = (right.max() - expected) / max(is_class.sum() - expected, 1e-9)
    return bool(is_shown), float(gain)
