"""What labels tell before a run: who lacks one and what becomes of them, and who tells a secret.

One pass over the variables that a configuration names, chunk by chunk; features are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from privpipe.errors import InputError
from privpipe.pipeline.runs.run import Run
from privpipe.protocols import FloatArray, IntArray
from privpipe.records.label_counts import LabelCounts, Partners
from privpipe.records.schema import MISSING
from privpipe.records.subjects import identify_subjects
from privpipe.store.collections.collection import Collection

MOST_CHUNKS = 512
"""Chunks whose labels are read; of more, so many evenly spread."""

MOST_GROUPS = 1 << 22
"""Different groups that are told apart."""


@dataclass(frozen=True)
class MissingLabels:
    """Records without a value of one variable.

    Parameters
    ----------
    name, roles
        Which variable, and what it is named as: desired, confidential, attribute, group.
    n_missing
    n_absent
        Classes that no record has.
    """

    name: str
    roles: tuple[str, ...]
    n_missing: int
    n_absent: int = 0


@dataclass(frozen=True)
class Copy:
    """A variable that is kept and tells a confidential one.

    Parameters
    ----------
    kept, hidden
        The variables.
    role
        What keeps it: "desired", or "included" in the release.
    is_renamed
        Whether they tell each other: the same under another name.
    """

    kept: str
    hidden: str
    role: str
    is_renamed: bool

    def describe(self) -> str:
        """In a sentence."""
        gets = "the wanted prediction" if self.role == "desired" else f"the released {self.kept!r}"
        if self.kept == self.hidden:
            return (
                f"{self.kept} is both desired and confidential: whoever gets the wanted prediction "
                "gets the confidential one, and no privacy is possible."
            )
        how = (
            f"{self.kept!r} ({self.role}) is {self.hidden!r} (confidential) under another name"
            if self.is_renamed
            else f"every value of {self.kept!r} ({self.role}) comes with one value of "
            f"{self.hidden!r} (confidential)"
        )
        return (
            f"{how}: whoever gets {gets} gets the confidential one, and no privacy is possible. "
            f"Take {self.kept!r} out of what is kept, or {self.hidden!r} out of what is hidden."
        )


@dataclass(frozen=True)
class GroupTally:
    """Groups of the audit, counted.

    Parameters
    ----------
    name
        Their variable.
    n_groups, n_held_out
        All, and those that the split holds out.
    shares
        Of each confidential variable of which a group has one value: share of each class among
        the groups; empty of numbers.
    typical, mean
        Median and mean number of records of a group.
    """

    name: str
    n_groups: int
    n_held_out: int
    shares: Mapping[str, tuple[float, ...]]
    typical: float
    mean: float


@dataclass(frozen=True)
class LabelFindings:
    """What labels tell.

    Parameters
    ----------
    n_read, n_records
        Records whose labels were read, and all training records.
    variables
        Those that the configuration names.
    left_out
        For each part of the fit that leaves records out by itself: the variables that a record
        must have, and how many lack one.
    copies
        Kept variables that tell confidential ones.
    groups
        None without groups, or where not all were read.
    surrogate
        Whether records that do not train are in what is released.
    """

    n_read: int
    n_records: int
    variables: tuple[MissingLabels, ...]
    left_out: tuple[tuple[tuple[str, ...], int], ...]
    copies: tuple[Copy, ...]
    groups: GroupTally | None
    surrogate: bool

    @property
    def lacks(self) -> bool:
        """Whether a record lacks a label, or a class has none."""
        return any(one.n_missing or one.n_absent for one in self.variables)

    def describe(self) -> str:
        """How many records lack what, and what becomes of them; nothing without variables."""
        if not self.variables:
            return ""
        read = f"{self.n_read:,} training records"
        if self.n_read < self.n_records:
            read = f"{self.n_read:,} of {self.n_records:,} training records, which were read"
        if not self.lacks:
            names = ", ".join(repr(one.name) for one in self.variables)
            return f"every one of {read} has a value of {names}."
        lacking = [one for one in self.variables if one.n_missing]
        parts = [f"{one.name!r} ({_join(one.roles)}) in {one.n_missing:,}" for one in lacking]
        said = [f"no value of {', of '.join(parts)} of {read}."] if parts else []
        said += list(self._say_fit()) if parts else []
        said += list(self._say_rest(lacking))
        said += [
            f"{one.name!r} has classes without any training record, {one.n_absent:,}: nothing is "
            "learned or judged of these."
            for one in self.variables
            if one.n_absent
        ]
        return " ".join(said)

    def _say_fit(self) -> Iterator[str]:
        """Which records do not train."""
        if not self.left_out:
            yield "The method learns from all records, whatever they lack."
        for names, n_lacking in self.left_out:
            one_of = " or ".join(map(repr, names))
            if not n_lacking:
                yield f"All records have {' and '.join(map(repr, names))}, and train."
                continue
            apart = " what predicts it" if len(self.left_out) > 1 else ""
            kept = ", but are summed up in the surrogates" if self.surrogate else ""
            yield f"The {n_lacking:,} without {one_of} do not train{apart}{kept}."

    def _say_rest(self, lacking: Sequence[MissingLabels]) -> Iterator[str]:
        """Judging, releasing and grouping."""
        roles = {role for one in lacking for role in one.roles}
        if "confidential" in roles:
            yield (
                "No adversary is judged by a record whose confidential value is missing: what its "
                "release tells is not known."
            )
        if "group" in roles:
            yield "Records without a group count as one group."
        if "attribute" in roles:
            yield "A missing attribute is a value like others, and is released as one."
        if not self.surrogate and roles:
            yield "All of these records are released."


def count_labels(run: Run) -> LabelFindings:
    """Read the labels of the training records.

    Raises
    ------
    InputError
        If no record has a value of a variable, or of all that the fit needs together.
    """
    roles = _list_roles(run)
    training, sets = run.training, _list_sets(run)
    pairs = list(_list_pairs(run))
    names = dict.fromkeys((*roles, *(name for pair in pairs for name in pair)))
    group = run.split.group
    chunks = _choose(training)
    counts, tallies = _read_all(training, chunks, tuple(names), sets, pairs, group)
    _check_present(counts, roles, sets)
    variables = tuple(
        MissingLabels(name, of, counts.missing[name], _count_absent(counts, name))
        for name, of in roles.items()
    )
    is_whole = len(chunks) == training.plan.n_chunks
    return LabelFindings(
        n_read=counts.n_records,
        n_records=training.n_records,
        variables=variables,
        left_out=tuple(
            (tuple(one), counts.n_records - counts.complete[frozenset(one)]) for one in sets
        ),
        copies=tuple(_find_copies(run, counts)),
        groups=_tally_groups(run, tallies) if group is not None and is_whole else None,
        surrogate=run.method.releases == "surrogate",
    )


def _join(words: Sequence[str]) -> str:
    return " and ".join(words)


def _list_roles(run: Run) -> dict[str, tuple[str, ...]]:
    """Variables that the configuration names, by name, with what they are."""
    training, found = run.training, dict[str, list[str]]()
    group = (run.split.group,) if run.split.group is not None else ()
    for role, names in {
        "desired": training.desired,
        "confidential": training.confidential,
        "attribute": training.attributes,
        "group": dict.fromkeys((*training.groups, *group)),
    }.items():
        for name in names:
            found.setdefault(name, []).append(role)
    return {name: tuple(of) for name, of in found.items()}


def _list_sets(run: Run) -> list[tuple[str, ...]]:
    """Variables that each part of the fit needs of a record."""
    training = run.training
    named = {"desired": training.desired, "confidential": training.confidential}
    asked = run.method.needs_labels(run.options.method)
    sets = [tuple(name for role in named if role in one for name in named[role]) for one in asked]
    return [tuple(dict.fromkeys(one)) for one in sets if one]


def _list_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """Variables of which the first is kept and the second hidden, and the other way round."""
    training = run.training
    kept = dict.fromkeys((*training.desired, *(run.options.release.include * run.trains_on_itself)))
    for one in kept:
        for hidden in training.confidential:
            if one != hidden:
                yield one, hidden
                yield hidden, one


def _choose(training: Collection) -> list[int]:
    n_chunks = training.plan.n_chunks
    spread = np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks))
    return [int(chunk) for chunk in np.unique(spread.astype(int))]


def _read_all(
    training: Collection,
    chunks: Sequence[int],
    names: tuple[str, ...],
    sets: Sequence[tuple[str, ...]],
    pairs: Sequence[tuple[str, str]],
    group: str | None,
) -> tuple[LabelCounts, dict[str, Partners]]:
    """Counts of labels, and what groups come with, by confidential variable."""
    schema = training.schema_of_records
    n_categories = {
        name: len(categories)
        for name in names
        if (categories := schema.variable(name).categories) is not None
    }
    count = partial(
        LabelCounts.of,
        n_categories=n_categories,
        sets=[frozenset(one) for one in sets],
        pairs=pairs,
    )
    counts: list[LabelCounts] = []
    tallies: list[dict[str, Partners]] = []
    for chunk in chunks:
        start, stop = training.plan.rows(chunk)
        labels = {name: _read(training, name, start, stop) for name in names}
        counts.append(count(labels, stop - start))
        counts = [reduce(LabelCounts.merge, counts)]
        if group is not None:
            keys = identify_subjects(training.read(group, start, stop))
            tallies.append(_tally(keys, labels, training.confidential))
            tallies = [reduce(_merge, tallies)]
    return counts[0], tallies[0] if tallies else {}


def _read(training: Collection, name: str, start: int, stop: int) -> FloatArray:
    """Values of a variable, NaN where missing."""
    values = training.read(name, start, stop).astype(np.float64)
    if training.schema_of_records.variable(name).categories is not None:
        values[values == MISSING] = np.nan
    return values


def _tally(
    keys: IntArray, labels: Mapping[str, FloatArray], confidential: Sequence[str]
) -> dict[str, Partners]:
    """Of each confidential variable, and of none (""), what each group comes with."""
    found = {"": Partners.of(keys, np.zeros(len(keys)), MOST_GROUPS)}
    for name in confidential:
        known = np.isfinite(labels[name])
        found[name] = Partners.of(keys[known], labels[name][known], MOST_GROUPS)
    return found


def _merge(one: dict[str, Partners], other: dict[str, Partners]) -> dict[str, Partners]:
    return {name: found.merge(other[name], MOST_GROUPS) for name, found in one.items()}


def _check_present(
    counts: LabelCounts, roles: Mapping[str, tuple[str, ...]], sets: Sequence[tuple[str, ...]]
) -> None:
    """Refuse variables that no record has, and records none of which can train."""
    for name, of in roles.items():
        if counts.missing[name] == counts.n_records and of != ("attribute",):
            raise InputError(
                f"{name!r} ({_join(of)}) has no value in any of {counts.n_records:,} "
                "training records: nothing can be learned or judged of it.",
                remedy=f"Leave it out of {_say_places(of)}, or train on records that have it.",
                code="missing_labels",
            )
    for one in sets:
        if not counts.complete[frozenset(one)]:
            raise InputError(
                f"None of {counts.n_records:,} training records has {' and '.join(map(repr, one))} "
                "together, and only such records train.",
                remedy="Name fewer variables, or train on records that have all of them.",
                code="missing_labels",
            )


def _say_places(roles: Sequence[str]) -> str:
    places = {"group": "[audit] group", "attribute": "[method] attributes"}
    return " and ".join(places.get(role, f"[collection] {role}") for role in roles)


def _count_absent(counts: LabelCounts, name: str) -> int:
    return int((~counts.classes[name]).sum()) if name in counts.classes else 0


def _find_copies(run: Run, counts: LabelCounts) -> Iterator[Copy]:
    """Kept variables that tell confidential ones."""
    training = run.training
    for name in training.desired:
        if name in training.confidential:
            yield Copy(name, name, "desired", True)
    roles: dict[str, Any] = dict.fromkeys(run.options.release.include, "included")
    roles |= dict.fromkeys(training.desired, "desired")
    for hidden in training.confidential:
        for kept, role in roles.items():
            found = counts.pairs.get((kept, hidden))
            if found is not None and found.tells:
                yield Copy(kept, hidden, role, counts.pairs[hidden, kept].tells)


def _tally_groups(run: Run, tallies: Mapping[str, Partners]) -> GroupTally | None:
    """What is known of the groups of the audit; None where there are too many."""
    groups = tallies[""]
    if not groups.is_known or run.split.group is None:
        return None
    values = groups.values.astype(np.int64)
    held_out = run.split.keep("held_out", values) if run.split.share else np.ones(len(values), bool)
    columns = {column.name: column for column in run.training.schema.confidential}
    shares = {}
    for name, found in tallies.items():
        if name and found.is_known and bool((found.least == found.most).all()):
            counted = np.unique(found.least, return_counts=True)[1]
            is_class = columns[name].is_categorical
            shares[name] = tuple((counted / counted.sum()).tolist()) if is_class else ()
    return GroupTally(
        run.split.group,
        len(values),
        int(held_out.sum()),
        shares,
        float(np.median(groups.counts)),
        float(np.mean(groups.counts)),
    )
