"""Inference attacks: adversaries trained on released records guess confidential variables.

Follows the protocol of Xu et al. 2017 (Figure 5): adversaries see released records with their
labels, and are judged on others. So they are in Hamm 2017 (Algorithm 3).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack
from weakref import WeakKeyDictionary

import numpy as np
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries import ADVERSARIES, KNOWS_DESIRED, attack_options, coordinates
from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.attack_options import GROUPS, RAW_GROUPS, USUAL, AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.adversaries.preparation import KnownInputs, prepare_evidence
from privpipe.attacks.statistics import scores as scoring
from privpipe.attacks.statistics.folds import cut_cells
from privpipe.attacks.statistics.intervals import Confidence
from privpipe.attacks.statistics.roc import orient_ranking, sample_curve
from privpipe.attacks.statistics.splits import RecordSplit, draw_rows
from privpipe.attacks.threats import group_inference
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.errors import ConvergenceError, PrivpipeError
from privpipe.protocols import ArrayLike, FloatArray, IntArray


def plan_attacks(evidence: Evidence, options: AttackOptions) -> tuple[Attack, ...]:
    """Every adversary that suits a variable, against each variable of each source.

    Further readings of the release are for those who make something of them; see
    `choose_adversaries`. Where records have groups, and a variable is one of whole groups, several
    records of a group are read jointly; see `group_inference`. So are those of the raw records,
    where they are given: who learns nothing of them could not have found it in the release.
    """
    single = tuple(
        Attack(column.name, "classes" if column.is_categorical else "numbers", source, name)
        for source in evidence.sources
        for column in evidence.columns
        for name in attack_options.choose_adversaries(source, column.is_categorical, options)
    )
    # One adversary more per size: each shares the level of its variable, so that the sizes are few.
    joint = tuple(
        Attack(column.name, "classes", source, group_inference.name_size(size))
        for source in (GROUPS, *([RAW_GROUPS] if "raw" in evidence.sources else []))
        for position, column in enumerate(evidence.columns)
        for size in group_inference.list_sizes(Target(evidence, position, options), source)
    )
    return single + joint


def plan_levels(target: Target) -> tuple[float, ...]:
    """Levels of the intervals of a variable, the strictest first."""
    planned = [
        attack
        for attack in plan_attacks(target.evidence, target.options)
        if attack.target == target.column.name and is_of_release(attack.source)
    ]
    n_compared = count_compared(len(planned), target.kind, target.options)
    return target.options.plan_levels(n_compared, len(target.evidence.columns))


def measure_attacks(
    released: ArrayLike,
    confidential: ArrayLike,
    *,
    options: AttackOptions = USUAL,
    **known: Unpack[KnownInputs],
) -> AttackReport:
    """Train every adversary on a release and report what each learns of confidential variables.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees.
    confidential : (n_records,) or (n_records, n_columns)
        What must not be guessed; integers, booleans and strings are classes, floats numbers,
        unless `columns` says otherwise.
    options
        Adversaries, bounds, limit and confidence.
    known
        What else is known of the records, by name: raw, noise, columns, features, groups, seen,
        places, auxiliary and desired; see `KnownInputs`.

    Returns
    -------
    AttackReport
        With `table`, `decisions`, `verdict` and `to_json`.

    Raises
    ------
    InputError, OptionError
        If the arrays cannot be attacked so; see `prepare_evidence`.

    Notes
    -----
    A verdict "safe" speaks of these adversaries, of a sample of this size and of this
    confidence; it is no proof against others.

    References
    ----------
    Xu et al. 2017, Figure 5; Hamm 2017, Algorithm 3.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> secret = random.integers(0, 2, 400)
    >>> leaky = random.normal(size=(400, 3)) + 3 * secret[:, None]
    >>> report = measure_attacks(
    ...     leaky, secret, options=AttackOptions(adversaries=("logistic", "naive_bayes"))
    ... )
    >>> report.verdict
    'leaks'
    """
    evidence = prepare_evidence(released, confidential, options=options, **known)
    # The same plan as on workers, so that both give the same levels.
    plan = plan_attacks(evidence, options)
    outcomes = [run_attack(evidence, attack, options) for attack in plan]
    counts = evidence.counts()
    return summarise_outcomes(outcomes, plan, options, left_out=evidence.left_out, **counts)


def run_attack(
    evidence: Evidence, attack: Attack, options: AttackOptions, *, only_first: bool = False
) -> AttackOutcome:
    """Train and judge one adversary; whatever goes wrong makes it unknown, never safe.

    Parameters
    ----------
    evidence
        The prepared audit.
    attack
        Which adversary, source and variable.
    options
        Bounds, split and confidence.
    only_first
        As of `train_adversary`; so judge those that are no reading of the release.

    Returns
    -------
    AttackOutcome
        Numbers about records, no value of any: it may travel.
    """
    started = time.perf_counter()
    target = Target.named(evidence, attack.target, options)
    source = evidence.sources[group_inference.SOURCES.get(attack.source, attack.source)]
    width = source.values.shape[1]
    outcome = AttackOutcome(attack, "unknown", n_features=source.n_features, n_coordinates=width)
    try:
        judge: Callable[[Target, AttackOutcome], AttackOutcome] = _attack_groups
        if attack.source not in group_inference.SOURCES:
            judge = partial(_attack, only_first=only_first or not is_of_release(attack.source))
        # Attacks run beside one another: on small fits OpenMP's threads wait more than they work.
        with threadpool_limits(1, user_api="openmp"):
            outcome = judge(target, outcome)
    except PrivpipeError as error:
        outcome = replace(outcome, reason=str(error))
    except Exception as error:  # a library's message may hold values, its class does not
        outcome = replace(outcome, reason=type(error).__name__)
    return replace(outcome, seconds=time.perf_counter() - started)


def _attack(target: Target, outcome: AttackOutcome, *, only_first: bool) -> AttackOutcome:
    attack = outcome.attack
    made = train_adversary(target, attack.source, attack.adversary, only_first=only_first)
    reference = scoring.ScoredAgainst(folds=made.folds)
    if is_of_release(attack.source):
        reference = made.compare_to_desired(target, attack.source)
    return replace(
        outcome,
        status="measured",
        scores=score_decisions(target, made.test, made.decided, made.guess, reference),
        settings=made.settings,
        n_train=made.n_train,
        n_tune=made.n_tune,
        n_test=len(made.test),
        roc=sample_curve(target.truth[made.test], made.decided[1], attack.kind),
        n_rarest=_count_rarest(target, made.test),
    )


def _count_rarest(target: Target, test: IntArray) -> int:
    if target.n_classes is None:
        return 0
    return int(np.bincount(target.truth[test].astype(np.int64), minlength=target.n_classes).min())


def _attack_groups(target: Target, outcome: AttackOutcome) -> AttackOutcome:
    """Judge who knows several records of a group; one decision per set, intervals by group.

    What the desired variables of a set reveal is not deducted: the limits bear the whole advantage.
    """
    found = group_inference.infer_jointly(target, outcome.attack.source, outcome.attack.adversary)
    confidence = _plan_confidence(target, found.units)
    return replace(
        outcome,
        status="measured",
        scores=scoring.measure_class_scores(found.truth, found.decided, found.guess, confidence),
        settings=found.settings,
        n_train=found.n_train,
        n_tune=found.n_tune,
        n_test=len(found.truth),
    )


def score_decisions(
    target: Target,
    test: IntArray,
    decided: scoring.Decided,
    guess: float,
    reference: scoring.ScoredAgainst,
    level: float | None = None,
) -> tuple[scoring.Score, ...]:
    """Scores of what was decided of test records, by class or number, with their limits.

    Parameters
    ----------
    target
        The variable.
    test : (n_test,)
        The records.
    decided
        What an adversary says of them.
    guess
        What one would say without records.
    reference
        What others say that know less, and who is compared with whom.
    level
        Of the limits; those of the audit without it.
    """
    truth, units = target.truth[test], target.units
    confidence = _plan_confidence(target, None if units is None else units[test], level)
    if target.n_classes is None:
        return scoring.measure_number_scores(truth, decided, guess, confidence, reference)
    codes = truth.astype(np.int64)
    return scoring.measure_class_scores(codes, decided, int(guess), confidence, reference)


def _plan_confidence(of: Target, units: IntArray | None, level: float | None = None) -> Confidence:
    """Limits at all levels that Holm may need."""
    strict, *also = plan_levels(of) if level is None else (level,)
    return Confidence(strict, also, units, of.options.seed)


@dataclass(frozen=True, eq=False)
class TrainedAdversary:
    """An adversary that was trained, and what it says of test records.

    Parameters
    ----------
    splits
        Records to train on, to choose settings by, and to judge by; of a trait several, so that
        all groups judge.
    tests
        Records of each that judge.
    learners
        What was fitted to each split.
    decided
        What it says of them all, in the unit of the variable, and how it ranks them.
    guess
        What one would say without records.
    settings, n_train, n_tune
        As in `AttackOutcome`; of the first split.
    read
        How values of the source were read.
    """

    splits: tuple[RecordSplit, ...]
    tests: tuple[IntArray, ...]
    learners: "tuple[_Learner, ...]"
    decided: scoring.Decided
    guess: float
    settings: str
    n_train: int
    n_tune: int
    read: problems.Features

    @property
    def test(self) -> IntArray:
        """All records that judge, (n_test,)."""
        return np.concatenate(self.tests)

    @property
    def folds(self) -> IntArray:
        """Fold of each of them, (n_test,)."""
        return _number_folds(self.tests)

    def compare_to_desired(self, target: Target, source: str) -> scoring.ScoredAgainst:
        """As `compare_to_desired`, with what it says of a source whose releases are exchanged."""
        found = compare_to_desired(target, self.splits, self.tests)
        if (partners := found.partners) is None:
            return found
        evidence, rows = target.evidence.sources, self.test
        mixed = evidence[source].values[rows[partners]]
        if source == "joined":  # the target stays, and only the release is another's
            desired = evidence["wanted"].values[rows]
            mixed[:, -desired.shape[1] :] = desired
        parts = (self.read(mixed[self.folds == fold]) for fold in range(len(self.tests)))
        each = zip(self.learners, parts, self.tests, strict=True)
        said = [one.decide(part, test) for one, part, test in each]
        return replace(found, exchanged=problems.join_decided(said, target.n_classes))


def _number_folds(tests: tuple[IntArray, ...]) -> IntArray:
    return np.repeat(np.arange(len(tests)), [len(rows) for rows in tests])


ENOUGH, ENOUGH_RARE = 10_000, 100
"""Records, and those of the rarest class, from which one fold of them shows what is only compared
with the release. A class of which a fold has but a few could rank anywhere."""


def is_shown_by_one(target: Target) -> bool:
    """Whether one fold has records enough, also of the rarest class, to show what all do."""
    n_rarest = _count_rarest(target, target.rows) or ENOUGH_RARE
    return target.evidence.groups is None and len(target.rows) >= ENOUGH and n_rarest >= ENOUGH_RARE


def train_adversary(
    target: Target, source: str, name: str, *, share_train: float = 1.0, only_first: bool = False
) -> TrainedAdversary:
    """Train one adversary on a source of the evidence and let it decide about test records.

    With `share_train` below one it has such a share of the labels that it would use. With
    `only_first` the first fold alone judges, where it has records enough.

    Raises
    ------
    ConvergenceError
        If its decisions are not finite.
    """
    adversary = attack_options.find_adversary(name, ADVERSARIES)
    splits, n_classes = target.split_records(), target.n_classes
    if only_first and is_shown_by_one(target):
        splits = splits[:1]
    # Of several splits all judge, and the bound is of all of them.
    most = min(adversary.max_test, target.options.max_test) // len(splits)
    tests = draw_tests(target, splits, most)
    values = target.evidence.sources[source].values
    read = adversary.read(values) if adversary.read else np.asarray
    x = read(values)
    found, learners = list[scoring.Decided](), list[_Learner]()
    trials = dict[bytes, problems.Trial]()
    for fold, (split, test) in enumerate(zip(splits, tests, strict=True)):
        before = _know_before(target, source, split, fold)
        problem, scale = _pose(target, x, split, before)
        if split.choose is not None:
            # Folds that share these records share what they choose, and none is judged by them.
            key = split.choose.tobytes()
            if key not in trials:
                tried = _pose(target, x, replace(split, train=split.choose), before)[0]
                most = math.ceil(share_train * min(adversary.max_train, len(split.choose)))
                trials[key] = problems.Trial(tried.sample(most, adversary.max_tune))
            problem = replace(problem, trial=trials[key])
        # The share is of the labels that it would use, not of those that there are: half of what a
        # bounded adversary never reads would change nothing.
        most_train = math.ceil(share_train * min(adversary.max_train, len(split.train)))
        problem = problem.sample(most_train, adversary.max_tune)
        learners.append(_Learner(problem, adversary.fit(problem), scale, before))
        found.append(learners[-1].decide(x[test], test))
    learned = np.unique(np.concatenate([split.train for split in splits]))
    decided = problems.join_decided(found, n_classes)
    guess, first = problems.guess_target(target.truth[learned], n_classes), learners[0]
    about = guess, first.fitted.settings, len(first.problem.x_train), len(first.problem.x_tune)
    return TrainedAdversary(splits, tests, tuple(learners), decided, *about, read)


@dataclass(frozen=True, eq=False)
class _Learner:
    """An adversary fitted to one split, with mean and deviation of the numbers that it guesses.

    Where it reads bits of a number, `before` is what who knows the target says of each record. That
    is one more column, the last, which it reads as well.
    """

    problem: problems.Problem
    fitted: problems.Fitted
    scale: tuple[float, float]
    before: FloatArray | None = None

    def decide(self, x: FloatArray, rows: IntArray) -> scoring.Decided:
        """What is said of records, in the unit of the variable, and how it ranks them.

        They are read as `x` is, and know the target of the records at `rows`.
        """
        if self.before is not None:
            x = np.column_stack([x, (self.before[rows] - self.scale[0]) / self.scale[1]])
        problem, decision = self.problem, np.asarray(self.fitted.decide(x), np.float64)
        expected = (len(x), problem.n_classes) if problem.n_classes else (len(x),)
        if decision.shape != expected or not np.isfinite(decision).all():
            raise ConvergenceError("The adversary's decisions are not finite, or too few.")
        signs: FloatArray = np.ones(1)
        if problem.n_classes is not None:
            # Signs with which classes are ranked are chosen by tuning records: the records that
            # judge would turn every area above a half.
            tuned = np.asarray(self.fitted.decide(problem.x_tune), np.float64)
            signs = orient_ranking(problem.y_tune.astype(np.int64), tuned)
        return self.scale[0] + self.scale[1] * decision, decision * signs


_BASELINES: WeakKeyDictionary[coordinates.TrainingMatrix, dict[tuple[int, int], _Learner | None]]
_BASELINES = WeakKeyDictionary()
"""Who knows the desired variables, of each variable and fold. Fitted once, for all attacks of a
worker, and for the leaks that it plants in copies of the evidence."""


_REFERENCES: WeakKeyDictionary[
    coordinates.TrainingMatrix, dict[tuple[int, bytes], scoring.ScoredAgainst]
] = WeakKeyDictionary()
"""What that says of the records that judge, of each variable and these records."""


def compare_to_desired(
    target: Target, splits: tuple[RecordSplit, ...], tests: tuple[IntArray, ...]
) -> scoring.ScoredAgainst:
    """What who knows the target says of test records, and the cells of equal target they are in.

    None where nothing is desired; of a target that reveals nothing records have cells all the same.
    Where partners have exchanged their releases one knows the target, and no more.
    """
    folds, rows, units = _number_folds(tests), np.concatenate(tests), target.units
    if (desired := target.evidence.sources.get("wanted")) is None:
        return scoring.ScoredAgainst(folds=folds)
    held, key = _REFERENCES.setdefault(desired, {}), (target.position, rows.tobytes())
    if key in held:
        return held[key]
    known = decide_by_desired(target, splits, tests)
    more = None if known is None else known[1], None if units is None else units[rows]
    cells = cut_cells(folds, desired.values[rows], *more)
    held[key] = scoring.ScoredAgainst(known, folds, *cells, known)
    return held[key]


def decide_by_desired(
    target: Target, splits: tuple[RecordSplit, ...], tests: tuple[IntArray, ...]
) -> scoring.Decided | None:
    """What is said of test records by who knows the true desired variables and no more.

    None without such, or where they reveal nothing of tuning records. Then all that is found is
    gained, and limits need not bear what a second guess adds to them.
    """
    truth, n_classes = target.truth, target.n_classes
    if (desired := target.evidence.sources.get("wanted")) is None:
        return None
    found, knows = list[scoring.Decided](), False
    for fold, (split, test) in enumerate(zip(splits, tests, strict=True)):
        if (learner := _find_baseline(target, desired, split, fold)) is not None:
            found.append(learner.decide(desired.values[test], test))
            knows = True
            continue
        # A fold without a baseline guesses, so that all folds are scored alike.
        if n_classes is None:
            same = np.full(len(test), float(truth[split.train].mean()))
        else:
            counts = np.bincount(truth[split.train].astype(np.int64), minlength=n_classes)
            same = np.tile(counts / counts.sum(), (len(test), 1))
        found.append((same, same))
    return problems.join_decided(found, n_classes) if knows else None


BLIND = ("bits", "surroundings")
"""Sources beside which the target is not read: of a class cells of equal target make up for it."""


def _know_before(target: Target, source: str, split: RecordSplit, fold: int) -> FloatArray | None:
    """What who knows the target says of a number of every record, for a source that is `BLIND`.

    What bits reveal beyond the target must be found where the target alone reveals more than they.
    """
    desired = target.evidence.sources.get("wanted")
    if source not in BLIND or target.n_classes is not None or desired is None:
        return None
    if (learner := _find_baseline(target, desired, split, fold)) is None:
        return None
    said = np.full(len(desired.values), np.nan)
    said[target.rows] = learner.decide(desired.values[target.rows], target.rows)[0]
    return said


def _find_baseline(
    target: Target, desired: coordinates.TrainingMatrix, split: RecordSplit, fold: int
) -> _Learner | None:
    fitted, key = _BASELINES.setdefault(desired, {}), (target.position, fold)
    if key not in fitted:
        fitted[key] = _fit_baseline(target, desired.values, split)
    return fitted[key]


def _fit_baseline(target: Target, x: FloatArray, split: RecordSplit) -> _Learner | None:
    from privpipe.attacks.adversaries.desired_baseline import beats_shuffled  # slow to import

    adversary = attack_options.find_adversary(KNOWS_DESIRED, ADVERSARIES)
    problem, scale = _pose(target, x, split)
    problem = problem.sample(adversary.max_train, adversary.max_tune)
    fitted = adversary.fit(problem)
    return _Learner(problem, fitted, scale) if beats_shuffled(problem, fitted) else None


def draw_tests(target: Target, splits: tuple[RecordSplit, ...], most: int) -> tuple[IntArray, ...]:
    """At most so many judging records of each split."""
    is_class, seed = target.column.is_categorical, target.options.seed
    kinds = [target.truth[s.test].astype(np.int64) if is_class else None for s in splits]
    return tuple(draw_rows(s.test, some, most, seed) for s, some in zip(splits, kinds, strict=True))


def _pose(
    target: Target, x: FloatArray, split: RecordSplit, before: FloatArray | None = None
) -> tuple[problems.Problem, tuple[float, float]]:
    """What is to be learned from a split, and mean and deviation of its numbers."""
    y, scale = target.truth, (0.0, 1.0)
    if target.n_classes is None:
        scale = problems.measure_target(y[split.train])
    y_train, y_tune = ((y[rows] - scale[0]) / scale[1] for rows in (split.train, split.tune))
    if before is not None:
        x = np.column_stack([x, (before - scale[0]) / scale[1]])
    given, seed = (x[split.train], y_train, x[split.tune], y_tune), target.options.seed
    return problems.Problem(*given, target.n_classes, seed, n_known=int(before is not None)), scale
