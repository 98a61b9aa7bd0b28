"""What all attacks of one audit share, and which of its records train, choose and judge."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.coordinates import TrainingMatrix
from privpipe.attacks.statistics import folds, splits
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray


@dataclass(frozen=True)
class LeftOut:
    """A confidential variable that could not be attacked: it is unproven, the others are judged.

    Parameters
    ----------
    target
        The variable.
    reason
        Why, with counts and no label.
    """

    target: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """What the sample of an audit is of.

    Parameters
    ----------
    n_records, of_records
        Records drawn, and those that could have been: held out and labelled.
    n_chunks, of_chunks
        Chunks with a record of the sample, and all.
    n_partitions, of_partitions
        The same of partitions.
    """

    n_records: int
    of_records: int
    n_chunks: int
    of_chunks: int
    n_partitions: int
    of_partitions: int

    def say(self) -> str:
        """In words.

        >>> Coverage(30_000, 320_000, 64, 64, 1, 1).say()
        '30,000 of 320,000 records, of 64 of 64 chunks and 1 of 1 partitions'
        """
        return (
            f"{self.n_records:,} of {self.of_records:,} records, of {self.n_chunks:,} of "
            f"{self.of_chunks:,} chunks and {self.n_partitions:,} of {self.of_partitions:,} "
            "partitions"
        )


@dataclass(frozen=True)
class GroupCounts:
    """Groups among the records of an audit, over which its intervals are.

    Parameters
    ----------
    n_groups
    name
        Variable whose equal values are one group; empty where that is not known.
    shares
        By categorical confidential variable, the share of each class: among groups where each
        group is of one class, else among records.
    traits, names
        Variables that all records of a group share, and of these the ones that say which group it
        is. Intervals of the latter are over stretches of time.
    """

    n_groups: int
    name: str = ""
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def say(self) -> str:
        """What they are, in the plural.

        >>> GroupCounts(3, "subject").say()
        "groups of 'subject'"
        """
        return f"groups of {self.name!r}" if self.name else "groups"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Prepared arrays of an audit; attacks read it and change nothing.

    Parameters
    ----------
    sources
        What is attacked, by name. Readings of the release:

        - "released": its features, and which rows are withheld
        - "everything": these and all auxiliary information
        - "bits": released values as they are, not standardised, and how large records are
        - "surroundings": the rows before and after, gaps between them, how often values occur
        - "joined": everything with the desired variables, where there are some
        - "alone: NAME": one included variable by itself
        - "together: NAME": everything with an earlier release of the same records

        For comparison, where given: `raw`, `noise`, and `wanted`, the true desired variables alone.
    columns
        The confidential variables; categorical ones with the classes left in the sample.
    truth : (n_records, n_columns)
        Their codes or numbers, NaN where missing.
    groups : (n_records,), optional
        Subject of each record.
    train_only : (n_records,), optional
        True for records that may not test an adversary; see `AttackOptions.seen_records`.
    n_given, n_withheld, n_seen
        Records given, withheld by the release, and left out because the sanitiser learned from
        them. A withheld record is a row of NaN, and attacked by that. The last are left out of
        test, or altogether.
    left_out
        Variables that cannot be attacked, and why.
    places : (n_records,), optional
        Order of the records in time, or in the collection: neighbours are alike.
    group_name
        Variable that names the subject; empty where that is not known.
    tasks : (n_records,), optional
        What each record's true desired variables are, as codes.
    ties : (n_records,), optional
        Set of equal records of each, where some are and no subject is known; see `find_ties`.
    coverage
        What the sample is of, where that is known.
    """

    sources: dict[str, TrainingMatrix]
    columns: tuple[Column, ...]
    truth: FloatArray
    groups: IntArray | None
    train_only: BoolArray | None
    n_given: int
    n_withheld: int
    n_seen: int
    left_out: tuple[LeftOut, ...] = ()
    places: IntArray | None = None
    group_name: str = ""
    tasks: IntArray | None = None
    ties: IntArray | None = None
    coverage: Coverage | None = None

    @property
    def n_records(self) -> int:
        return len(self.truth)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.truth.nbytes + sum(source.values.nbytes for source in self.sources.values())

    def take(self, rows: IntArray) -> "Evidence":
        """Some of the records."""
        sources = {k: replace(v, values=v.values[rows]) for k, v in self.sources.items()}
        names = ("truth", "groups", "train_only", "places", "tasks", "ties")
        given = {name: getattr(self, name) for name in names}
        some: dict[str, Any] = {k: None if v is None else v[rows] for k, v in given.items()}
        return replace(self, sources=sources, **some)

    def counts(self) -> dict[str, Any]:
        """The numbers of records and groups, by the names an `AttackReport` gives them."""
        names = ("n_records", "n_given", "n_withheld", "n_seen", "coverage")
        groups = None if self.groups is None else self._count_groups(self.groups)
        return {name: getattr(self, name) for name in names} | {"groups": groups}

    def _count_groups(self, groups: IntArray) -> GroupCounts:
        shares: dict[str, tuple[float, ...]] = {}
        traits, names = list[str](), list[str]()
        for column, truth in zip(self.columns, self.truth.T, strict=True):
            known = ~np.isnan(truth)
            if splits.is_of_groups(groups[known], truth[known]):
                traits.append(column.name)
            if column.is_categorical:
                shares[column.name] = _share_classes(truth[known], groups[known])
                if splits.names_groups(groups[known], truth[known]):
                    names.append(column.name)
        n_groups = len(np.unique(groups))
        return GroupCounts(n_groups, self.group_name, shares, tuple(traits), tuple(names))


def _share_classes(truth: FloatArray, groups: IntArray) -> tuple[float, ...]:
    """Share of each class, counting groups of one class each once."""
    # Of traits the guess is by groups: many records of one person are no larger share.
    pairs = np.unique(np.column_stack([groups, truth]), axis=0)
    whole = len(pairs) == len(np.unique(groups))
    counts = np.unique(pairs[:, 1] if whole else truth, return_counts=True)[1]
    return tuple((counts / counts.sum()).tolist())


@dataclass(frozen=True, eq=False)
class Target:
    """One confidential variable of an audit, as its options attack it.

    Parameters
    ----------
    evidence, options
        Of the audit.
    position
        Which of the confidential variables.
    """

    evidence: Evidence
    position: int
    options: AttackOptions

    @classmethod
    def named(cls, evidence: Evidence, name: str, options: AttackOptions) -> "Target":
        """The variable of a name."""
        return cls(evidence, [column.name for column in evidence.columns].index(name), options)

    @property
    def column(self) -> Column:
        return self.evidence.columns[self.position]

    @property
    def n_classes(self) -> int | None:
        """None of a number."""
        return self.column.n_categories

    @property
    def kind(self) -> Literal["classes", "numbers"]:
        return "classes" if self.column.is_categorical else "numbers"

    @property
    def truth(self) -> FloatArray:
        """Codes or numbers of all records, NaN where missing."""
        return self.evidence.truth[:, self.position]

    @cached_property
    def rows(self) -> IntArray:
        """Records in which it is known."""
        return np.flatnonzero(~np.isnan(self.truth))

    @cached_property
    def is_named(self) -> bool:
        """Whether it says which group a record is of."""
        groups = self.evidence.groups
        if groups is None or not self.column.is_categorical:
            return False
        return splits.names_groups(groups[self.rows], self.truth[self.rows])

    @cached_property
    def units(self) -> IntArray | None:
        """What is drawn independently, (n_records,): groups, stretches of time of named groups, or
        sets of equal records.

        None where every record is. People who are named by the variable are those of the release,
        and no draw from a population. What would differ another time is their records.
        """
        # Equal records are no two witnesses: an interval over them counts each set once.
        groups = self.evidence.groups
        if groups is None:
            return self.evidence.ties
        if not self.is_named:
            return groups
        return splits.number_stretches(groups, self._places, self.evidence.tasks)

    @property
    def _places(self) -> IntArray:
        places = self.evidence.places
        return np.arange(self.evidence.n_records) if places is None else places

    def split_records(self) -> tuple[splits.RecordSplit, ...]:
        """The splits for adversaries on single records; their judging records lie apart.

        Raises
        ------
        InputError
            If there are too few records or groups to train, choose and judge.
        """
        evidence, options, rows = self.evidence, self.options, self.rows
        train_only, units = evidence.train_only, evidence.ties
        # Records cut by time alone made the audit blind: an adversary learned some activities of a
        # person and was judged by others. So naming the group takes no attack on single records
        # away.
        if evidence.groups is not None and not self.is_named:
            units = evidence.groups
        return folds.deal_folds(
            rows,
            classes=self.truth[rows].astype(np.int64) if self.column.is_categorical else None,
            strata=None if evidence.tasks is None else evidence.tasks[rows],
            units=None if units is None else units[rows],
            train_only=None if train_only is None else train_only[rows],
            tune_share=options.tune_share,
            seed=options.seed,
        )

    def split_groups(self) -> tuple[splits.RecordSplit, ...]:
        """The splits for adversaries who know several records of one group; errors as above."""
        if not self.is_named:
            return self.split_records()
        evidence, rows = self.evidence, self.rows
        assert evidence.groups is not None, "a variable names groups"
        tasks = None if evidence.tasks is None else evidence.tasks[rows]
        # Neighbours in time are alike: what judges lies apart from what trains.
        found = splits.cut_in_time(rows, evidence.groups[rows], self._places[rows], tasks)
        # Records that the sanitiser has seen may not judge, whatever the cut says.
        if evidence.train_only is None:
            return found
        return tuple(replace(s, test=s.test[~evidence.train_only[s.test]]) for s in found)
