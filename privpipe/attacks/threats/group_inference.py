"""Inference from several released records that are known to be of one group.

Who links records of a person, a device or a household knows more than any one of them reveals.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries import ADVERSARIES, set_statistics
from privpipe.attacks.adversaries.attack_options import GROUPS, RAW_GROUPS, AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, find_units, split_groups
from privpipe.attacks.adversaries.problem import (
    Decided,
    Problem,
    guess_target,
    join_decided,
    measure_tuning,
)
from privpipe.attacks.statistics.roc import orient_ranking
from privpipe.attacks.statistics.splits import (
    FEWEST_IN_CELL,
    N_FOLDS,
    RecordSplit,
    is_of_groups,
    names_groups,
)
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

SOURCES = {GROUPS: "released", RAW_GROUPS: "raw"}
"""What is read of the evidence, by the source of an attack on groups."""

SIZES = (1, 2, 5, 10, 20, 40)
"""Records of one group that are known jointly; of a trait also all of them."""

OVERLAP = 4
"""Times that training records are dealt into sets."""

FEWEST_GROUPS = 4
"""Groups by which a trait is judged, at least."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What a group adversary says of sets that judge.

    Parameters
    ----------
    truth, units : (n_sets,)
        Class of each, and what it was drawn from: its group, or stretches of its time.
    decision, ranking : (n_sets, n_classes)
        As of single records.
    guess
        What one would say without records.
    settings
        Which adversary did best on tuning sets, and how many sets and units there are.
    n_train, n_tune
        Records it learned from and was chosen by, of the first split.
    """

    truth: IntArray
    units: IntArray
    decision: FloatArray
    ranking: FloatArray
    guess: int
    settings: str
    n_train: int
    n_tune: int


@dataclass(frozen=True, eq=False)
class _Likelihoods:
    """What adversaries on single records say of tuning and test records: log-likelihoods."""

    likelihoods: dict[str, FloatArray]
    prior: FloatArray


_TRAINED: WeakKeyDictionary[Evidence, dict[tuple[int, str, int], _Likelihoods]]
_TRAINED = WeakKeyDictionary()
"""Of each variable, source and fold: trained once for all sizes, in each worker."""


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

    Nor where most groups are single records: what these reveal is attacked anyhow, and a level
    shared with the same attack once more would be lost.
    """
    groups, truth = evidence.groups, evidence.truth[:, position]
    if groups is None:
        return ()
    known = ~np.isnan(truth)
    if not is_of_groups(groups[known], truth[known]):
        return ()
    sizes = np.unique(groups[known], return_counts=True)[1]
    named = names_groups(groups[known], truth[known])
    if len(sizes) < (2 if named else FEWEST_GROUPS):
        return ()
    column = evidence.columns[position]
    return list_known_sizes(column, options, float(np.median(sizes)), named=named)


def list_known_sizes(
    column: Column, options: AttackOptions, typical: float, *, named: bool = False
) -> tuple[int | None, ...]:
    """Sizes at which a variable of whole groups is attacked, of which one has so many records.

    Where it names the group, a part of these judges at a time, and all of them are one set, of
    which no number shows anything.
    """
    if column.n_categories is None or typical < SIZES[1]:
        return ()
    if not set(options.adversaries) & set(set_statistics.BASES):
        return ()  # none of those named says how sure it is
    if named:
        return tuple(size for size in SIZES if size == 1 or size <= typical / N_FOLDS)
    return (*(size for size in SIZES if size <= typical), None)


def infer_jointly(
    evidence: Evidence, position: int, source: str, name: str, options: AttackOptions
) -> Pooled:
    """What the best group adversary says of sets of test records.

    Parameters
    ----------
    evidence, position
        The prepared audit, and which confidential variable.
    source
        One of `SOURCES`.
    name
        Of the size, see `name_size`.
    options
        Adversaries, seed and bounds.

    Raises
    ------
    InputError
        If there are too few sets to choose an adversary and to judge it.
    """
    splits = split_groups(evidence, position, options)
    size, truth = read_size(name), evidence.truth[:, position]
    n_classes = int(evidence.columns[position].n_categories or 0)
    parts, found, said = list[set_statistics.Sets](), list[Decided](), list[str]()
    for fold, split in enumerate(splits):
        sets = _draw_sets(evidence, position, size, split, options)
        judged, decided = _decide_best(evidence, position, source, fold, sets, split, options)
        parts.append(sets[2])
        found.append(decided)
        said.append(judged)
    classes = np.concatenate([part.classes for part in parts])
    n_before = np.cumsum([0, *(part.units.max() + 1 for part in parts[:-1])])
    units = np.concatenate([p.units + n for p, n in zip(parts, n_before, strict=True)])
    if size == 1:
        _check_judged(truth, classes, n_classes)
    decision, ranking = join_decided(found, n_classes)
    settings = f"{'; '.join(dict.fromkeys(said))}; {len(classes)} sets of {len(np.unique(units))}"
    return Pooled(
        classes,
        units,
        decision,
        ranking,
        int(guess_target(truth[~np.isnan(truth)], n_classes)),
        settings,
        len(splits[0].train),
        len(splits[0].tune),
    )


def _check_judged(truth: FloatArray, judged: IntArray, n_classes: int) -> None:
    """A group too short to be cut in time would pass unseen."""
    n_left = n_classes - len(np.unique(judged))
    if n_left:
        raise InputError(
            f"{n_left} of {n_classes} values have no record that another time could judge: their "
            f"groups have fewer than {FEWEST_IN_CELL} records.",
            remedy=f"Audit at least {FEWEST_IN_CELL} records of each group, or leave out others.",
            code="too_few_records",
        )


def _draw_sets(
    evidence: Evidence, position: int, size: int | None, split: RecordSplit, options: AttackOptions
) -> tuple[set_statistics.Sets, set_statistics.Sets, set_statistics.Sets]:
    """Sets that train, choose and judge."""
    assert evidence.groups is not None
    groups, truth = evidence.groups, np.nan_to_num(evidence.truth[:, position]).astype(np.int64)
    units = find_units(evidence, position)
    stretches = None if units is groups else units
    train, tune, test = (
        set_statistics.draw_sets(
            rows, groups, truth, size, stretches=stretches, overlap=overlap, seed=options.seed
        )
        for rows, overlap in ((split.train, OVERLAP), (split.tune, OVERLAP), (split.test, 1))
    )
    if tune.n_sets < 2 or len(np.unique(tune.classes)) < 2:  # fewer records choose than judge
        tune = set_statistics.draw_sets(split.tune, groups, truth, None)
    if min(tune.n_sets, test.n_sets) < 2 or len(np.unique(test.units)) < 2:
        raise InputError(
            f"Too few groups have {size} records or more among those that tune and judge.",
            remedy="Audit more groups, or more records of each.",
            code="too_few_records",
        )
    return train, tune, test


def _decide_best(
    evidence: Evidence,
    position: int,
    source: str,
    fold: int,
    sets: tuple[set_statistics.Sets, set_statistics.Sets, set_statistics.Sets],
    split: RecordSplit,
    options: AttackOptions,
) -> tuple[str, Decided]:
    """The adversary that does best on tuning sets, and what it says of those that judge."""
    x, n_classes = _read_source(evidence, source), evidence.columns[position].n_categories or 0
    trained = _TRAINED.setdefault(evidence, {})
    if (position, source, fold) not in trained:
        trained[position, source, fold] = _read_records(evidence, position, source, split, options)
    tune = sets[1]
    best: tuple[float, str, FloatArray, FloatArray] | None = None
    for said, tuned, decided in _pool(
        x, trained[position, source, fold], sets, split, n_classes, options
    ):
        score = _measure(tune, tuned, n_classes)
        if best is None or score > best[0] + 1e-9:
            best = score, said, tuned, decided
    if best is None:
        raise InputError("No adversary is named.", remedy="Name some in adversaries.")
    _, said, tuned, decided = best
    signs = orient_ranking(tune.classes, tuned) if len(np.unique(tune.classes)) > 1 else 1.0
    return said, (decided, np.asarray(decided * signs))


def _measure(sets: set_statistics.Sets, decision: FloatArray, n_classes: int) -> float:
    empty = np.empty((0, 0))
    truth = sets.classes.astype(np.float64)
    return measure_tuning(Problem(empty, truth, empty, truth, n_classes), decision)


def _pool(
    x: FloatArray,
    trained: _Likelihoods,
    sets: tuple[set_statistics.Sets, set_statistics.Sets, set_statistics.Sets],
    split: RecordSplit,
    n_classes: int,
    options: AttackOptions,
) -> list[tuple[str, FloatArray, FloatArray]]:
    """Every way to pool: its name, and what it says of tuning and of test sets."""
    train, tune, test = sets
    found = []
    for name, likelihoods in trained.likelihoods.items():
        prior = np.log(trained.prior)
        said = [part.sum(likelihoods) + prior for part in (tune, test)]
        found.append((f"sum of log-probabilities of {name}", said[0], said[1]))
    if train.n_sets < 2 * n_classes or len(test.members) == test.n_sets:  # one record is no set
        return found
    z = set_statistics.read_statistics(x, split.train)
    statistics = [set_statistics.pool_statistics(z, part) for part in sets]
    aside = set_aside(train.units, train.classes, options.seed)
    if len(np.unique(train.classes[~aside])) < 2:  # only one class has so many records
        return found
    fitted_to_sets = set_statistics.train_on_sets(
        statistics[0][~aside],
        train.classes[~aside],
        statistics[0][aside],
        train.classes[aside],
        n_classes,
        options.adversaries,
        options.seed,
    )
    for name, decide in fitted_to_sets:
        said = [decide(part) for part in statistics[1:]]
        found.append((f"{name} on pooled statistics", said[0], said[1]))
    return found


def set_aside(groups: IntArray, classes: IntArray, seed: int) -> BoolArray:
    """A fifth of what trains, to choose settings by: tuning records choose among adversaries.

    Whole groups, or whole stretches of those that are to be named. Adversaries train on both in
    the end, so that records that choose settings may neither calibrate nor compare them.
    """
    random = np.random.default_rng(seed)
    n_rows, names = len(groups), np.unique(groups)
    rows = random.permutation(n_rows) < n_rows // 5
    for _ in range(20):  # both sides hold every class
        some = random.permutation(names)[: max(1, len(names) // 5)]
        aside = np.isin(groups, some)
        if len(np.unique(classes[aside])) == len(np.unique(classes[~aside])):
            return np.asarray(aside)
    return np.asarray(rows)


def _read_source(evidence: Evidence, source: str) -> FloatArray:
    """All that is released, or the raw records, standardised."""
    if source == RAW_GROUPS:
        return evidence.sources["raw"].values
    return evidence.sources.get("everything", evidence.sources["released"]).values


def _read_records(
    evidence: Evidence, position: int, source: str, split: RecordSplit, options: AttackOptions
) -> _Likelihoods:
    """Adversaries on single records, calibrated on tuning records."""
    x, truth = _read_source(evidence, source), evidence.truth[:, position]
    n_classes = int(evidence.columns[position].n_categories or 0)
    counts = np.bincount(truth[split.train].astype(np.int64), minlength=n_classes)
    prior = (counts + 1.0) / (counts.sum() + n_classes)
    codes = truth[split.train].astype(np.int64)
    units = find_units(evidence, position)
    assert units is not None
    aside = set_aside(units[split.train], codes, options.seed)
    train, tune = split.train[~aside], split.train[aside]
    records = (x[train], truth[train], x[tune], truth[tune])
    problem = Problem(*records, n_classes, options.seed)
    judged = np.concatenate([split.tune, split.test])
    bases = [base for base in set_statistics.BASES if base in options.adversaries]
    if source == RAW_GROUPS:  # raw records are wide, and one who learns of them is enough
        bases = bases[:1]
    found: dict[str, FloatArray] = {}
    for name in bases:
        adversary = ADVERSARIES[name]
        fitted = adversary.fit(problem.sample(adversary.max_train, adversary.max_tune))
        decision = np.asarray(fitted.decide(x[judged]), np.float64)
        if not np.isfinite(decision).all():
            continue
        n_tune = len(split.tune)
        calibration = set_statistics.calibrate(
            decision[:n_tune], truth[split.tune].astype(np.int64), prior
        )
        values = np.zeros((len(x), n_classes))
        values[judged] = set_statistics.log_likelihoods(decision, prior, calibration)
        found[name] = values
    return _Likelihoods(found, prior)
