"""Inference from several released records that are known to be of one group.

Who links records of a person, a device or a household knows more than any one of them tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.pooled_adversaries import (
    BASES,
    Sets,
    calibrate,
    draw_sets,
    log_likelihoods,
    pool_statistics,
    read_statistics,
    train_readers,
)
from privpipe.attacks.adversaries.problem import Problem, measure_tuning
from privpipe.attacks.adversaries.table import ADVERSARIES
from privpipe.attacks.statistics.measures import orient_ranking
from privpipe.attacks.statistics.splits import Split
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

__all__ = [
    "GROUPS",
    "Pooled",
    "infer_together",
    "is_of_groups",
    "list_known_sizes",
    "list_sizes",
    "name_size",
    "split_in_time",
]

GROUPS = "groups"
"""Source of the attacks of this kind: records known to be of one group."""

SIZES = (1, 2, 5, 10, 20, 40)
"""Records of one group that are known together, beside all of them."""

OVERLAP = 4
"""Times that training records are dealt into sets."""

FEWEST_GROUPS = 4


@dataclass(frozen=True, eq=False)
class Pooled:
    """What a group adversary says of sets that judge.

    Parameters
    ----------
    truth, groups : (n_sets,)
        Class and group of each.
    decision, ranking : (n_sets, n_classes)
        As of single records.
    settings
        Which adversary did best on tuning sets, and how many sets and groups there are.
    n_train
        Records it learned from.
    """

    truth: IntArray
    groups: IntArray
    decision: FloatArray
    ranking: FloatArray
    settings: str
    n_train: int


@dataclass(frozen=True, eq=False)
class _Readers:
    """What adversaries on single records say of tuning and test records: log-likelihoods."""

    likelihoods: dict[str, FloatArray]
    prior: FloatArray


_READERS: WeakKeyDictionary[Evidence, dict[int, _Readers]] = WeakKeyDictionary()
"""Trained once for all sizes of a variable, in each worker."""


def name_size(size: int | None) -> str:
    """Name of the adversary who knows so many records of one group.

    >>> name_size(10), name_size(None)
    ('together_10', 'together_all')
    """
    return f"together_{'all' if size is None else size}"


def read_size(name: str) -> int | None:
    """The size in a name."""
    text = name.removeprefix("together_")
    return None if text == "all" else int(text)


def list_sizes(evidence: Evidence, position: int, options: AttackOptions) -> tuple[int | None, ...]:
    """Sizes at which a variable is attacked by group; none where it is not of whole groups.

    Nor where most groups are single records: what these tell is attacked anyhow, and a level
    shared with the same question once more would be lost. Where the variable tells the groups
    apart, records of each train and judge, and fewer are left.
    """
    groups, truth = evidence.groups, evidence.truth[:, position]
    if groups is None:
        return ()
    known = ~np.isnan(truth)
    if not is_of_groups(groups[known], truth[known].astype(np.int64)):
        return ()
    sizes = np.bincount(groups[known])
    sizes = sizes[sizes > 0]
    if len(sizes) < FEWEST_GROUPS:
        return ()
    apart = tells_groups(groups[known], truth[known])
    left = np.median(sizes) * (options.test_share if apart else 1.0)
    return list_known_sizes(evidence.columns[position], options, float(left))


def list_known_sizes(
    column: Column, options: AttackOptions, typical: float
) -> tuple[int | None, ...]:
    """Sizes at which a variable of whole groups is attacked, of which one has so many records."""
    if column.n_categories is None or typical < SIZES[1]:
        return ()
    if not set(options.adversaries) & set(BASES):
        return ()  # nobody asked for says how sure he is
    return (*(size for size in SIZES if size <= typical), None)


def is_of_groups(groups: IntArray, classes: IntArray) -> bool:
    """Whether all records of a group are of one class."""
    pairs = np.unique(np.column_stack([groups, classes]), axis=0)
    return len(pairs) == len(np.unique(groups))


def tells_groups(groups: IntArray, truth: FloatArray) -> bool:
    """Whether each class is one group: who is to be named are the groups themselves."""
    pairs = np.unique(np.column_stack([groups, truth]), axis=0)
    return len(pairs) == len(np.unique(groups)) == len(np.unique(truth))


def split_in_time(
    rows: IntArray, groups: IntArray, places: IntArray, tune_share: float, test_share: float
) -> Split:
    """Cut the records of every group by their place: neighbours stay on one side.

    Between two sides a twentieth of the group's records is left out, since neighbours in time may
    overlap.

    Raises
    ------
    InputError
        If a group has too few records for three sides.
    """
    parts: list[list[IntArray]] = [[], [], []]
    for group in np.unique(groups):
        mine = rows[groups == group][np.argsort(places[groups == group], kind="stable")]
        n, gap = len(mine), max(1, len(mine) // 20)
        ends = [round(n * (1 - tune_share - test_share)), round(n * (1 - test_share))]
        cut = [mine[: ends[0]], mine[ends[0] + gap : ends[1]], mine[ends[1] + gap :]]
        if min(map(len, cut)) == 0:
            raise InputError(
                f"A group has {n} records, too few to train, tune and judge an adversary that is "
                "to name it.",
                remedy="Audit more records of each group.",
                code="too_few_records",
            )
        for part, some in zip(parts, cut, strict=True):
            part.append(some)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def infer_together(
    evidence: Evidence, position: int, name: str, split: Split, options: AttackOptions
) -> Pooled:
    """What the best group adversary says of sets of test records.

    Parameters
    ----------
    evidence, position
        The prepared audit, and which confidential variable.
    name
        Of the size, see `name_size`.
    split
        Of single records: whole groups, or by time within each group.
    options
        Adversaries, seed and bounds.

    Raises
    ------
    InputError
        If there are too few sets to choose an adversary and to judge it.
    """
    assert evidence.groups is not None
    size, truth = read_size(name), np.nan_to_num(evidence.truth[:, position]).astype(np.int64)
    n_classes = int(evidence.columns[position].n_categories or 0)
    parts = [split.train, split.tune, split.test]
    train, tune, test = (
        draw_sets(rows, evidence.groups, truth, size, overlap=overlap, seed=options.seed)
        for rows, overlap in zip(parts, (OVERLAP, OVERLAP, 1), strict=True)
    )
    if tune.n_sets < 2 or len(np.unique(tune.classes)) < 2:  # fewer records choose than judge
        tune = draw_sets(split.tune, evidence.groups, truth, None)
    if min(tune.n_sets, test.n_sets) < 2 or len(np.unique(test.groups)) < 2:
        raise InputError(
            f"Too few groups have {size} records or more among those that tune and judge.",
            remedy="Audit more groups, or more records of each.",
            code="too_few_records",
        )
    readers = _READERS.setdefault(evidence, {})
    if position not in readers:
        readers[position] = _read_records(evidence, position, split, options)
    best: tuple[float, str, FloatArray, FloatArray] | None = None
    for said, tuned, decided in _pool(
        evidence, readers[position], (train, tune, test), split, n_classes, options
    ):
        score = _measure(tune, tuned, n_classes)
        if best is None or score > best[0] + 1e-9:
            best = score, said, tuned, decided
    if best is None:
        raise InputError("No adversary was asked for.", remedy="Name some in adversaries.")
    _, said, tuned, decided = best
    signs = orient_ranking(tune.classes, tuned) if len(np.unique(tune.classes)) > 1 else 1.0
    settings = f"{said}; {test.n_sets} sets of {len(np.unique(test.groups))} groups"
    ranking = np.asarray(decided * signs)
    return Pooled(test.classes, test.groups, decided, ranking, settings, len(split.train))


def _measure(sets: Sets, decision: FloatArray, n_classes: int) -> float:
    empty = np.empty((0, 0))
    truth = sets.classes.astype(np.float64)
    return measure_tuning(Problem(empty, truth, empty, truth, n_classes), decision)


def _pool(
    evidence: Evidence,
    readers: _Readers,
    sets: tuple[Sets, Sets, Sets],
    split: Split,
    n_classes: int,
    options: AttackOptions,
) -> list[tuple[str, FloatArray, FloatArray]]:
    """Every way to pool: its name, and what it says of tuning and of test sets."""
    train, tune, test = sets
    found = []
    for name, likelihoods in readers.likelihoods.items():
        prior = np.log(readers.prior)
        said = [part.sum(likelihoods) + prior for part in (tune, test)]
        found.append((f"sum of log-probabilities of {name}", said[0], said[1]))
    if train.n_sets < 2 * n_classes:
        return found
    z = read_statistics(_read_source(evidence), split.train)
    statistics = [pool_statistics(z, part) for part in sets]
    aside = set_aside(train.groups, train.classes, options.seed)
    readers_of_sets = train_readers(
        statistics[0][~aside],
        train.classes[~aside],
        statistics[0][aside],
        train.classes[aside],
        n_classes,
        options.adversaries,
        options.seed,
    )
    for name, decide in readers_of_sets:
        said = [decide(part) for part in statistics[1:]]
        found.append((f"{name} on pooled statistics", said[0], said[1]))
    return found


def set_aside(groups: IntArray, classes: IntArray, seed: int) -> BoolArray:
    """A fifth of what trains, to choose settings by: tuning records choose among adversaries.

    Whole groups, unless these are what is to be named. Adversaries train on both in the end, so
    that records that choose settings may neither calibrate nor compare them.
    """
    random = np.random.default_rng(seed)
    n_rows, names = len(groups), np.unique(groups)
    rows = random.permutation(n_rows) < n_rows // 5
    if tells_groups(groups, classes.astype(np.float64)):
        return np.asarray(rows)
    for _ in range(20):  # both sides hold every class
        some = random.permutation(names)[: max(1, len(names) // 5)]
        aside = np.isin(groups, some)
        if len(np.unique(classes[aside])) == len(np.unique(classes[~aside])):
            return np.asarray(aside)
    return np.asarray(rows)


def _read_source(evidence: Evidence) -> FloatArray:
    """All that is released, standardised."""
    return evidence.sources.get("everything", evidence.sources["released"]).values


def _read_records(
    evidence: Evidence, position: int, split: Split, options: AttackOptions
) -> _Readers:
    """Adversaries on single records, calibrated on tuning records."""
    x, truth = _read_source(evidence), evidence.truth[:, position]
    n_classes = int(evidence.columns[position].n_categories or 0)
    counts = np.bincount(truth[split.train].astype(np.int64), minlength=n_classes)
    prior = (counts + 1.0) / (counts.sum() + n_classes)
    assert evidence.groups is not None
    codes = truth[split.train].astype(np.int64)
    aside = set_aside(evidence.groups[split.train], codes, options.seed)
    kept, chosen = split.train[~aside], split.train[aside]
    records = (x[kept], truth[kept], x[chosen], truth[chosen])
    problem = Problem(*records, n_classes, options.seed, options.find_deadline())
    judged = np.concatenate([split.tune, split.test])
    found: dict[str, FloatArray] = {}
    for name in (base for base in BASES if base in options.adversaries):
        adversary = ADVERSARIES[name]
        fitted = adversary.fit(problem.sample(adversary.max_train, adversary.max_tune))
        decision = np.asarray(fitted.decide(x[judged]), np.float64)
        if not np.isfinite(decision).all():
            continue
        n_tune = len(split.tune)
        calibration = calibrate(decision[:n_tune], truth[split.tune].astype(np.int64), prior)
        values = np.zeros((len(x), n_classes))
        values[judged] = log_likelihoods(decision, prior, calibration)
        found[name] = values
    return _Readers(found, prior)
