"""Inference from several released records that are known to be of one group.

Who links records of a person, a device or a household knows more than any one of them reveals.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries import ADVERSARIES, set_statistics
from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.attack_options import GROUPS, RAW_GROUPS, AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, find_units, split_groups
from privpipe.attacks.statistics import splits
from privpipe.attacks.statistics.roc import orient_ranking
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, FloatArray, IntArray

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
    # A variable that varies within groups is not revealed by the group: single records judge it.
    if not splits.is_of_groups(groups[known], truth[known]):
        return ()
    sizes = np.unique(groups[known], return_counts=True)[1]
    named = splits.names_groups(groups[known], truth[known])
    if len(sizes) < (2 if named else FEWEST_GROUPS):
        return ()
    typical = float(np.median(sizes))
    if evidence.columns[position].n_categories is None or typical < SIZES[1]:
        return ()
    if not set(options.adversaries) & set(set_statistics.BASES):
        return ()  # none of those named says how sure it is
    if named:
        # A part of a named group judges at a time, and all of it is one set, of which no number
        # shows anything.
        return tuple(size for size in SIZES if size == 1 or size <= typical / splits.N_FOLDS)
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
    target = _Target(evidence, position, source, options)
    folds, size, n_classes = split_groups(evidence, position, options), read_size(name), target.n
    parts, found, said = list[set_statistics.Sets](), list[problems.Decided](), list[str]()
    for fold, split in enumerate(folds):
        sets = target.draw_sets(size, split)
        judged, decided = target.decide_best(fold, sets, split)
        parts.append(sets[2])
        found.append(decided)
        said.append(judged)
    classes = np.concatenate([part.classes for part in parts])
    # Units are numbered within each fold; intervals need them apart.
    n_before = np.cumsum([0, *(part.units.max() + 1 for part in parts[:-1])])
    units = np.concatenate([p.units + n for p, n in zip(parts, n_before, strict=True)])
    n_left = n_classes - len(np.unique(classes))
    fewest = splits.FEWEST_IN_CELL
    if size == 1 and n_left:  # a group too short to be cut in time would pass unseen
        raise InputError(
            f"{n_left} of {n_classes} values have no record that another time could judge: their "
            f"groups have fewer than {fewest} records.",
            remedy=f"Audit at least {fewest} records of each group, or leave out others.",
            code="too_few_records",
        )
    decision, ranking = problems.join_decided(found, n_classes)
    settings = f"{'; '.join(dict.fromkeys(said))}; {len(classes)} sets of {len(np.unique(units))}"
    guess = int(problems.guess_target(target.truth[~np.isnan(target.truth)], n_classes))
    n_train, n_tune = len(folds[0].train), len(folds[0].tune)
    return Pooled(classes, units, decision, ranking, guess, settings, n_train, n_tune)


_Trio = tuple[set_statistics.Sets, set_statistics.Sets, set_statistics.Sets]
"""Sets that train, choose and judge."""

_TRAINED: WeakKeyDictionary[Evidence, dict[tuple[int, str, int], dict[str, FloatArray]]]
_TRAINED = WeakKeyDictionary()
"""Log-likelihoods by adversaries on single records, of tuning and test records: of each variable,
source and fold trained once for all sizes, in each worker."""


@dataclass(frozen=True, eq=False)
class _Target:
    """One confidential variable of one source, and how it is attacked by group."""

    evidence: Evidence
    position: int
    source: str
    options: AttackOptions

    @property
    def truth(self) -> FloatArray:
        """Codes of the records, NaN where missing."""
        return self.evidence.truth[:, self.position]

    @property
    def n(self) -> int:
        """Number of classes."""
        return int(self.evidence.columns[self.position].n_categories or 0)

    @property
    def x(self) -> FloatArray:
        """All that is released, or the raw records, standardised."""
        sources = self.evidence.sources
        if self.source == RAW_GROUPS:
            return sources["raw"].values
        return sources.get("everything", sources["released"]).values

    def draw_sets(self, size: int | None, split: splits.RecordSplit) -> _Trio:
        """Sets of so many records that train, choose and judge."""
        assert self.evidence.groups is not None
        groups, truth = self.evidence.groups, np.nan_to_num(self.truth).astype(np.int64)
        units, seed = find_units(self.evidence, self.position), self.options.seed
        stretches = None if units is groups else units
        train, tune, test = (
            set_statistics.draw_sets(
                rows, groups, truth, size, stretches=stretches, overlap=overlap, seed=seed
            )
            # Sets that judge are dealt once: intervals count each record in one of them.
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

    def decide_best(
        self, fold: int, sets: _Trio, split: splits.RecordSplit
    ) -> tuple[str, problems.Decided]:
        """The adversary that does best on tuning sets, and what it says of those that judge."""
        tune, empty = sets[1], np.empty((0, 0))
        classes = tune.classes.astype(np.float64)
        problem = problems.Problem(empty, classes, empty, classes, self.n)
        best: tuple[float, str, FloatArray, FloatArray] | None = None
        for said, tuned, decided in self._pool(fold, sets, split):
            score = problems.measure_tuning(problem, tuned)
            if best is None or score > best[0] + 1e-9:  # rounding may not choose
                best = score, said, tuned, decided
        if best is None:
            raise InputError("No adversary is named.", remedy="Name some in adversaries.")
        _, said, tuned, decided = best
        signs = orient_ranking(tune.classes, tuned) if len(np.unique(tune.classes)) > 1 else 1.0
        return said, (decided, np.asarray(decided * signs))

    def _pool(
        self, fold: int, sets: _Trio, split: splits.RecordSplit
    ) -> Iterator[tuple[str, FloatArray, FloatArray]]:
        """Every way to pool: its name, and what it says of tuning and of test sets."""
        train, tune, test = sets
        prior, trained = self._find_prior(split), _TRAINED.setdefault(self.evidence, {})
        key = (self.position, self.source, fold)
        if key not in trained:
            trained[key] = self._read_records(split, prior)
        for name, likelihoods in trained[key].items():
            summed = [part.sum(likelihoods) + np.log(prior) for part in (tune, test)]
            yield f"sum of log-probabilities of {name}", summed[0], summed[1]
        # Of single records pooled statistics are the records, which were attacked already.
        if train.n_sets < 2 * self.n or len(test.members) == test.n_sets:
            return
        z = set_statistics.read_statistics(self.x, split.train)
        pooled = [set_statistics.pool_statistics(z, part) for part in sets]
        aside = set_aside(train.units, train.classes, self.options.seed)
        if len(np.unique(train.classes[~aside])) < 2:  # only one class has so many records
            return
        for name, decide in set_statistics.train_on_sets(
            pooled[0][~aside],
            train.classes[~aside],
            pooled[0][aside],
            train.classes[aside],
            self.n,
            self.options.adversaries,
            self.options.seed,
        ):
            yield f"{name} on pooled statistics", decide(pooled[1]), decide(pooled[2])

    def _find_prior(self, split: splits.RecordSplit) -> FloatArray:
        """Shares of the classes in training; one record more of each, so that none is 0."""
        counts = np.bincount(self.truth[split.train].astype(np.int64), minlength=self.n)
        return np.asarray((counts + 1.0) / (counts.sum() + self.n))

    def _read_records(self, split: splits.RecordSplit, prior: FloatArray) -> dict[str, FloatArray]:
        """Adversaries on single records, calibrated on tuning records."""
        x, truth, options = self.x, self.truth, self.options
        units = find_units(self.evidence, self.position)
        assert units is not None
        aside = set_aside(units[split.train], truth[split.train].astype(np.int64), options.seed)
        train, tune = split.train[~aside], split.train[aside]
        records = (x[train], truth[train], x[tune], truth[tune])
        problem = problems.Problem(*records, self.n, options.seed)
        judged, n_tune = np.concatenate([split.tune, split.test]), len(split.tune)
        bases = [base for base in set_statistics.BASES if base in options.adversaries]
        if self.source == RAW_GROUPS:  # raw records are wide, and one who learns of them is enough
            bases = bases[:1]
        found: dict[str, FloatArray] = {}
        for name in bases:
            adversary = ADVERSARIES[name]
            fitted = adversary.fit(problem.sample(adversary.max_train, adversary.max_tune))
            decision = np.asarray(fitted.decide(x[judged]), np.float64)
            if not np.isfinite(decision).all():
                continue
            calibration = set_statistics.calibrate(
                decision[:n_tune], truth[split.tune].astype(np.int64), prior
            )
            found[name] = np.zeros((len(x), self.n))
            found[name][judged] = set_statistics.log_likelihoods(decision, prior, calibration)
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
        # Whole groups where both sides hold every class; else rows, which a class of one group
        # forces.
        some = random.permutation(names)[: max(1, len(names) // 5)]
        aside = np.isin(groups, some)
        if len(np.unique(classes[aside])) == len(np.unique(classes[~aside])):
            return np.asarray(aside)
    return np.asarray(rows)
