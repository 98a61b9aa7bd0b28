"""Which records of an audit train, choose and judge, by what a confidential variable is.

A variable of single records is split by records, or by groups where records share one. A trait,
which all records of a group share, is judged of every group once, by what other groups teach. Where
the variable says which group it is, naming the group takes nothing away: records are split as
without it, and those who know several records of a group are judged by records of another time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.statistics.folds import (
    cut_in_time,
    deal_groups,
    is_of_groups,
    names_groups,
    number_stretches,
)
from privpipe.attacks.statistics.splits import RecordSplit, draw_split
from privpipe.protocols import FloatArray, IntArray


def split_records(
    evidence: Evidence, position: int, options: AttackOptions
) -> tuple[RecordSplit, ...]:
    """The splits for adversaries on single records; their judging records lie apart.

    Raises
    ------
    InputError
        If there are too few records or groups to train, choose and judge.
    """
    rows, truth = _known(evidence, position)
    classes = truth.astype(np.int64) if evidence.columns[position].is_categorical else None
    groups, train_only = evidence.groups, evidence.train_only
    mine = None if groups is None else groups[rows]
    if mine is not None and _is_named(evidence, position, mine, truth):
        mine = None
    elif mine is not None and train_only is None and is_of_groups(mine, truth):
        return deal_groups(rows, mine, classes, tune_share=options.tune_share, seed=options.seed)
    split = draw_split(
        rows,
        classes=classes,
        groups=mine,
        ties=None if evidence.ties is None else evidence.ties[rows],
        train_only=None if train_only is None else train_only[rows],
        tune_share=options.tune_share,
        test_share=options.test_share,
        seed=options.seed,
    )
    return (split,)


def split_groups(
    evidence: Evidence, position: int, options: AttackOptions
) -> tuple[RecordSplit, ...]:
    """The splits for adversaries who know several records of one group.

    Raises
    ------
    InputError
        As `split_records`.
    """
    rows, truth = _known(evidence, position)
    assert evidence.groups is not None
    groups = evidence.groups[rows]
    if not _is_named(evidence, position, groups, truth):
        return split_records(evidence, position, options)
    tasks = None if evidence.tasks is None else evidence.tasks[rows]
    splits = cut_in_time(rows, groups, _places(evidence)[rows], tasks)
    if evidence.train_only is None:
        return splits
    return tuple(replace(s, test=s.test[~evidence.train_only[s.test]]) for s in splits)


def find_units(evidence: Evidence, position: int) -> IntArray | None:
    """What is drawn independently, (n_records,): groups, stretches of time of named groups, or sets
    of equal records.

    None where every record is. People who are named by the variable are those of the release, and
    no draw from a population: what would be another time is their records.
    """
    if evidence.groups is None:
        return evidence.ties
    rows, truth = _known(evidence, position)
    if not _is_named(evidence, position, evidence.groups[rows], truth):
        return evidence.groups
    return number_stretches(evidence.groups, _places(evidence), evidence.tasks)


def _known(evidence: Evidence, position: int) -> tuple[IntArray, FloatArray]:
    truth = evidence.truth[:, position]
    rows = np.flatnonzero(~np.isnan(truth))
    return rows, truth[rows]


def _is_named(evidence: Evidence, position: int, groups: IntArray, truth: FloatArray) -> bool:
    return evidence.columns[position].is_categorical and names_groups(groups, truth)


def _places(evidence: Evidence) -> IntArray:
    return np.arange(evidence.n_records) if evidence.places is None else evidence.places
