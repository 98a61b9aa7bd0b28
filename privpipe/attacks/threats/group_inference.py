"""Inference from several released records that are known to be of one group.

Who links records of a person, a device or a household knows more than any one of them reveals.
There are two ways to pool. One is the sum of calibrated log-probabilities of an adversary that
reads records one by one: Bayes' rule, where records of a class are independent. The other is an
adversary that reads set statistics: means, covariances and quantiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.attack_options import GROUPS, RAW_GROUPS
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.adversaries.problem import Features, Problem
from privpipe.attacks.statistics import roc, splits
from privpipe.attacks.statistics.scores import Decided
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
    decided : two of (n_sets, n_classes)
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
    decided: Decided
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


def list_sizes(target: Target, source: str) -> tuple[int | None, ...]:
    """Sizes at which a variable is attacked by group; none where it is not of whole groups.

    Nor where most groups are single records. What these reveal is attacked anyhow, and a level
    shared with the same attack once more would be lost.
    """
    groups, truth = target.evidence.groups, target.truth[target.rows]
    if groups is None:
        return ()
    groups = groups[target.rows]
    # A variable that varies within groups is not revealed by the group: single records judge it.
    if not splits.is_of_groups(groups, truth):
        return ()
    found: list[int | None]
    sizes, named = np.unique(groups, return_counts=True)[1], target.is_named
    if len(sizes) < (2 if named else FEWEST_GROUPS):
        return ()
    typical = float(np.median(sizes))
    if target.n_classes is None or typical < SIZES[1]:
        return ()
    if not set(target.options.adversaries) & set(BASES):
        return ()  # none of those named says how sure it is
    if named:
        # A part of a named group judges at a time, and all of it is one set, of which no number
        # shows anything.
        found = [size for size in SIZES if size == 1 or size <= typical / splits.N_FOLDS]
    else:
        found = [*(size for size in SIZES if size <= typical), None]
    # Of the raw records, which only control, the fewest and the most.
    return tuple(found if source == GROUPS else dict.fromkeys((found[0], found[-1])))


def infer_jointly(target: Target, source: str, name: str) -> Pooled:
    """What the best group adversary says of sets of test records.

    Parameters
    ----------
    target
        The confidential variable.
    source
        One of `SOURCES`.
    name
        Of the size, see `name_size`.

    Raises
    ------
    InputError
        If there are too few sets to choose an adversary and to judge it.
    """
    reader, folds = _GroupReader(target, source), target.split_groups()
    size = None if name.endswith("_all") else int(name.rpartition("_")[2])
    n_classes = reader.n_classes
    parts, found, said = list[Sets](), list[Decided](), list[str]()
    for fold, split in enumerate(folds):
        sets = reader.draw_sets(size, split)
        judged, decided = reader.decide_best(fold, sets, split)
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
    decided = problems.join_decided(found, n_classes)
    settings = f"{'; '.join(dict.fromkeys(said))}; {len(classes)} sets of {len(np.unique(units))}"
    guess = int(problems.guess_target(target.truth[target.rows], n_classes))
    n_train, n_tune = len(folds[0].train), len(folds[0].tune)
    return Pooled(classes, units, decided, guess, settings, n_train, n_tune)


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


def deal_sets(
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
        cuts = np.quantile(part, QUANTILES, axis=0).ravel()
        rows.append(np.concatenate([mean, covariance[one, other], np.log(deviations + 0.01), cuts]))
    return np.array(rows)


def train_on_sets(problem: Problem, adversaries: Sequence[str]) -> Iterator[tuple[str, Features]]:
    """Train adversaries on statistics of sets; name and decision of each."""
    centre, spread = problem.x_train.mean(axis=0), problem.x_train.std(axis=0)
    spread[spread <= 1e-9] = 1.0  # a statistic that is the same of all sets

    def scale(x: FloatArray) -> FloatArray:
        return np.asarray((x - centre) / spread)

    problem = problem.read(scale)
    for name in SET_ADVERSARIES:
        if name in adversaries:
            yield name, ADVERSARIES[name].fit(problem).after(scale).decide


_Trio = tuple[Sets, Sets, Sets]
"""Sets that train, choose and judge."""

_TRAINED: WeakKeyDictionary[Evidence, dict[tuple[int, str, int], dict[str, FloatArray]]]
_TRAINED = WeakKeyDictionary()
"""Log-likelihoods by adversaries on single records, of tuning and test records: of each variable,
source and fold trained once for all sizes, in each worker."""


@dataclass(frozen=True, eq=False)
class _GroupReader:
    """One confidential variable, and the source by which it is attacked by group."""

    target: Target
    source: str

    @property
    def n_classes(self) -> int:
        return int(self.target.n_classes or 0)

    @property
    def x(self) -> FloatArray:
        """All that is released, or the raw records, standardised."""
        sources = self.target.evidence.sources
        if self.source == RAW_GROUPS:
            return sources["raw"].values
        return sources.get("everything", sources["released"]).values

    def draw_sets(self, size: int | None, split: splits.RecordSplit) -> _Trio:
        """Sets of so many records that train, choose and judge."""
        groups, units = self.target.evidence.groups, self.target.units
        assert groups is not None, "sizes are listed of groups alone"
        truth, seed = np.nan_to_num(self.target.truth).astype(np.int64), self.target.options.seed
        stretches = None if units is groups else units
        train, tune, test = (
            deal_sets(rows, groups, truth, size, stretches=stretches, overlap=overlap, seed=seed)
            # Sets that judge are dealt once: intervals count each record in one of them.
            for rows, overlap in ((split.train, OVERLAP), (split.tune, OVERLAP), (split.test, 1))
        )
        if tune.n_sets < 2 or len(np.unique(tune.classes)) < 2:  # fewer records choose than judge
            tune = deal_sets(split.tune, groups, truth, None)
        if min(tune.n_sets, test.n_sets) < 2 or len(np.unique(test.units)) < 2:
            problem = f"Too few groups have {size} records or more among those that tune and judge."
            remedy = "Audit more groups, or more records of each."
            raise InputError(problem, remedy=remedy, code="too_few_records")
        return train, tune, test

    def decide_best(self, fold: int, sets: _Trio, split: splits.RecordSplit) -> tuple[str, Decided]:
        """The adversary that does best on tuning sets, and what it says of those that judge."""
        tune, empty = sets[1], np.empty((0, 0))
        classes = tune.classes.astype(np.float64)
        problem = problems.Problem(empty, classes, empty, classes, self.n_classes)
        candidates = (
            problems.Fitted.known(tuned, said, (tuned, decided))
            for said, tuned, decided in self._pool(fold, sets, split)
        )
        best = problems.choose_best(problem, candidates)
        tuned, decided = best.choice
        signs = roc.orient_ranking(tune.classes, tuned) if len(np.unique(tune.classes)) > 1 else 1.0
        return best.settings, (decided, np.asarray(decided * signs))

    def _pool(
        self, fold: int, sets: _Trio, split: splits.RecordSplit
    ) -> Iterator[tuple[str, FloatArray, FloatArray]]:
        """Every way to pool: its name, and what it says of tuning and of test sets."""
        train, tune, test = sets
        prior, trained = self._find_prior(split), _TRAINED.setdefault(self.target.evidence, {})
        key = (self.target.position, self.source, fold)
        if key not in trained:
            trained[key] = self._read_records(split, prior)
        for name, likelihoods in trained[key].items():
            summed = [part.sum(likelihoods) + np.log(prior) for part in (tune, test)]
            yield f"sum of log-probabilities of {name}", summed[0], summed[1]
        # Of single records pooled statistics are the records, which were attacked already.
        if train.n_sets < 2 * self.n_classes or len(test.members) == test.n_sets:
            return
        z = read_statistics(self.x, split.train)
        pooled = [pool_statistics(z, part) for part in sets]
        options = self.target.options
        aside = set_aside(train.units, train.classes, options.seed)
        if len(np.unique(train.classes[~aside])) < 2:  # only one class has so many records
            return
        classes = train.classes.astype(np.float64)
        parts = pooled[0][~aside], classes[~aside], pooled[0][aside], classes[aside]
        problem = problems.Problem(*parts, self.n_classes, options.seed)
        for name, decide in train_on_sets(problem, options.adversaries):
            yield f"{name} on pooled statistics", decide(pooled[1]), decide(pooled[2])

    def _find_prior(self, split: splits.RecordSplit) -> FloatArray:
        """Shares of the classes in training; one record more of each, so that none is 0."""
        n, truth = self.n_classes, self.target.truth[split.train].astype(np.int64)
        counts = np.bincount(truth, minlength=n)
        return np.asarray((counts + 1.0) / (counts.sum() + n))

    def _read_records(self, split: splits.RecordSplit, prior: FloatArray) -> dict[str, FloatArray]:
        """Adversaries on single records, calibrated on tuning records."""
        x, truth, options = self.x, self.target.truth, self.target.options
        units = self.target.units
        assert units is not None, "groups, or stretches of their time"
        aside = set_aside(units[split.train], truth[split.train].astype(np.int64), options.seed)
        train, tune = split.train[~aside], split.train[aside]
        records = (x[train], truth[train], x[tune], truth[tune])
        problem = problems.Problem(*records, self.n_classes, options.seed)
        judged, n_tune = np.concatenate([split.tune, split.test]), len(split.tune)
        bases = [base for base in BASES if base in options.adversaries]
        if self.source == RAW_GROUPS:  # raw records are wide, and one who learns of them is enough
            bases = bases[:1]
        found: dict[str, FloatArray] = {}
        for name in bases:
            adversary = ADVERSARIES[name]
            fitted = adversary.fit(problem.sample(adversary.max_train, adversary.max_tune))
            decision = np.asarray(fitted.decide(x[judged]), np.float64)
            if not np.isfinite(decision).all():
                continue
            calibration = calibrate(decision[:n_tune], truth[split.tune].astype(np.int64), prior)
            found[name] = np.zeros((len(x), self.n_classes))
            found[name][judged] = log_likelihoods(decision, prior, calibration)
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
        aside = np.isin(groups, random.permutation(names)[: max(1, len(names) // 5)])
        if len(np.unique(classes[aside])) == len(np.unique(classes[~aside])):
            return np.asarray(aside)
    return np.asarray(rows)
