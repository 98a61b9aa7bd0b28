"""A certificate of a fitted filter on records it never saw: how far anyone in a class can read it.

An adversary that fails shows nothing of the next one. Upper limits of HSIC and of the maximal
correlation hold for all functions in the span of a kernel on the release, given the target. See
`numerics.minimax.dependence`. Dead filters and those that have not converged get none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from privpipe.errors import GuaranteeError, OptionError
from privpipe.numerics.minimax import dependence
from privpipe.numerics.minimax.filters import Pullback
from privpipe.numerics.minimax.lifts import NystroemFeatures
from privpipe.protocols import FloatArray, RecordMap, Shard, Shards, Sums
from privpipe.sanitizers.minimax.linear_filter import TrainingRecord
from privpipe.sanitizers.minimax.training import adversary_rounds, shard_oracle
from privpipe.sanitizers.minimax.training.adversary_rounds import TrainingRounds
from privpipe.sanitizers.minimax.training.labelled_moments import measure_tasks
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions

FALLS = 0.01
"""Share of Phi (of one nat, where Phi is less) that a last iteration may still gain."""
CHANCE = 0.01
"""Of a target that is lost: its dependence is no greater than this often by chance."""
DRAWS, FEWEST_DRAWS = 20, 10
"""Of the fewest landmarks and of more; certificates are means, and hardly depend on the seed."""
PER_LANDMARK, LLOYD_STEPS = 40, 3
"""Records of a landmark, at least: more landmarks fit noise, and limits rise. Steps of k-means."""
TIMES = (1, 2, 4)
"""So many times as many span more functions: taken while they surely show more than fewer seem."""
HARDLY, NEARLY, SURELY = 0.6, 0.9, 1.15
"""Shares of what fewer seem to show. Up to the first no more are tried, from the second on more are
taken in part, from the third on whole. Another seed shows up to .05 less, and its certificate must
not jump. With a step from 1.0 in place of a slope, seeds moved one of motion records by .05."""


@dataclass(frozen=True)
class Certificate:
    """What held-out records show of a release, at most.

    Parameters
    ----------
    hsic, hsic_limit
        HSIC of release and confidential variables given the target, and its upper limit.
    correlation, correlation_limit
        Maximal correlation of a function of the release and one of the confidential variables,
        given the target, and its upper limit; 0 says nothing, 1 everything. What so many
        landmarks fit of the noise is taken off.
    target_correlation
        The same of the target, not given anything.
    n_records, n_landmarks
        That were measured; points that span the functions.
    confidence
        Of each limit.
    """

    hsic: float
    hsic_limit: float
    correlation: float
    correlation_limit: float
    target_correlation: float
    n_records: int
    n_landmarks: int
    confidence: float


def certify_filter(
    fitted: RecordMap, held_out: Shards, *, confidence: float = 0.95, seed: int = 0
) -> Certificate:
    """Bound what the release of held-out records says of their confidential variables.

    Parameters
    ----------
    fitted
        A filter, linear, neural or custom.
    held_out
        Records, with desired and confidential variables, that the fit never saw.
    confidence
        Of each limit.
    seed
        Of the landmarks.

    Raises
    ------
    GuaranteeError
        If the filter has not converged, or is dead: its outputs are constant, or say nothing of
        the target.
    InputError, OptionError
        If the variables cannot be used.

    Notes
    -----
    Guarantee: see `limit_dependence`. It is for functions in the span of the kernel features,
    independent records, and the target's classes, which are additive where there are several.
    Records of one person are not independent: hold out one of each, or few. The limits are
    asymptotic. With six held-out records of a class they are too low about twice as often as said;
    hold out twenty of each. Kernel features are one for 40 records. They are one for 20, and for
    10, where these surely show more: records few or noisy hide it, so hold out a thousand.

    References
    ----------
    Gretton et al. 2005, Measuring Statistical Dependence with Hilbert-Schmidt Norms. Renyi 1959, On
    Measures of Dependence.

    Examples
    --------
    >>> from privpipe import MinimaxOptions, Records, fit_minimax_filter
    >>> x = np.random.default_rng(0).normal(size=(3000, 3))
    >>> halves = [
    ...     Records(part, desired=part[:, 0] > 0, confidential=part[:, 1] > 0)
    ...     for part in (x[:1500], x[1500:])
    ... ]
    >>> fitted = fit_minimax_filter(halves[0], MinimaxOptions(max_iterations=50))
    >>> shown = certify_filter(fitted, halves[1])
    >>> shown.correlation_limit < 0.4 < 0.7 < shown.target_correlation
    True
    """
    if not 0 < confidence < 1:
        raise OptionError(f"confidence is {confidence}.", remedy="Use one between 0 and 1: 0.95.")
    if isinstance(fitted, TrainingRecord):
        check_converged(fitted)
    _, tasks = measure_tasks(TaskOptions(), held_out)
    # Landmarks are placed by outputs alone, so all records judge: given the outputs, what noise
    # of the labels fits is what is taken off, wherever the landmarks lie.
    applied = _AppliedFilter(fitted, fitted.n_features_in, fitted.n_features_out)
    rounds = TrainingRounds(held_out, applied, tasks)
    shown: Certificate | None = None
    fewest = int(np.clip(held_out.n_records // PER_LANDMARK, 2, adversary_rounds.LANDMARKS))
    for times in TIMES:
        drawn = [
            # More landmarks would hide a weak target in noise: the fewest say whether it is lost.
            _measure(rounds, tasks, lift, confidence, chance=1.0 if shown else CHANCE)
            for rng in np.random.default_rng(seed).spawn(max(DRAWS // times, FEWEST_DRAWS))
            for lift in [_place_landmarks(rounds, times * fewest, rng)]
        ]
        least, before = np.mean([one for one, _ in drawn]), shown or drawn[0][1]
        share = _rise(float(least)) / max(_rise(shown.correlation), 1e-300) if shown else SURELY
        if share <= HARDLY:
            break
        part = float(np.clip((share - NEARLY) / (SURELY - NEARLY), 0, 1))
        names = [field.name for field in fields(Certificate)[:5]]
        means = {k: float(np.mean([getattr(one, k) for _, one in drawn])) for k in names}
        mixed: Any = {k: part * v + (1 - part) * getattr(before, k) for k, v in means.items()}
        # Limits of more functions in part are no limits of all of these.
        shown = replace(before if part < 1 else drawn[0][1], **mixed)
    assert shown is not None, "the fewest landmarks come first"
    return shown


def _rise(correlation: float) -> float:
    """Of two correlations near 1 shares as well say which is larger by how much: the tangent."""
    return float(np.tan(np.arcsin(correlation)))


def _measure(
    rounds: TrainingRounds,
    tasks: Sequence[Task],
    lift: NystroemFeatures,
    confidence: float,
    *,
    chance: float,
) -> tuple[float, Certificate]:
    """The certificate of one draw of landmarks, after its lower limit of the correlation."""
    n, products = rounds.oracle(Dependence(lift, tasks))
    desired = [t for t in tasks if t.weight > 0]
    widths = [t.n_classes if t.is_classification else len(t.centre) for t in desired]
    n_given, n_left = 1 + sum(widths), lift.n_features
    # The same sums, with the constant alone as given: what the release says of the target.
    order = [0, *range(n_given, n_given + n_left), *range(1, n_given)]
    of_target = dependence.PartialCovariance.of(products[np.ix_(order, order)], n, 1, n_left)
    found = of_target.correlate()[0]
    if dependence.measure_chance(found, n, n_left, n_given - 1) > chance:
        raise _dead("its outputs say nothing of the target in held-out records")
    partial = dependence.PartialCovariance.of(products, n, n_given, n_left)
    _, influences = rounds.oracle(Dependence(lift, tasks, partial))
    limits = dependence.limit_dependence(partial, influences, n, confidence)
    shown = Certificate(partial.norm**2, *limits[:3], float(found[0]), int(n), n_left, confidence)
    return limits[3], shown


def check_converged(record: TrainingRecord) -> None:
    """Raise GuaranteeError for a filter whose training ended before Phi had settled."""
    phi = record.history[:, record.history_columns.index("phi")]
    fall = float(phi[-2] - phi[-1]) if len(phi) > 1 else np.inf
    if record.stopped == "inner":
        why = "an inner problem was not solved"
    elif record.stopped == "iterations" and fall > FALLS * max(1.0, abs(float(phi[-1]))):
        why = f"its last iteration still lowered Phi by {fall:.2g} nats"
    else:
        return
    problem = f"The filter has not converged: {why}."
    remedy = "Raise max_iterations (or regularisation, of an unsolved inner problem)."
    raise GuaranteeError(problem, remedy=remedy, code="filter_not_converged")


def _dead(why: str) -> GuaranteeError:
    remedy = "Raise tradeoff, so that the target weighs more, and fit it again."
    return GuaranteeError(f"The filter is dead: {why}.", remedy=remedy, code="filter_dead")


def _place_landmarks(
    rounds: TrainingRounds, n_landmarks: int, rng: np.random.Generator
) -> NystroemFeatures:
    outputs = rounds.measure_outputs(np.empty(0))
    if not outputs.n_directions or not np.isfinite(outputs.turn).all() or outputs.is_constant:
        raise _dead("its outputs are constant")
    landmarks: FloatArray = rng.standard_normal((n_landmarks, outputs.n_directions))
    for _ in range(LLOYD_STEPS):
        (landmarks,) = rounds.move_landmarks(np.empty(0), outputs, [landmarks])
    return NystroemFeatures(outputs, landmarks)


@dataclass(frozen=True, eq=False)
class _AppliedFilter:
    """A frozen filter where rounds expect one under training: it has no parameters left."""

    fitted: RecordMap
    n_features_in: int
    n_features_out: int
    n_parameters: int = 0

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; nothing is ever pulled back."""
        return np.asarray(self.fitted.apply(x), np.float64), lambda _: parameters


class Dependence(NamedTuple):
    """Requests products of target, kernel features and confidential variables; or influences."""

    lift: NystroemFeatures
    tasks: Sequence[Task]
    partial: dependence.PartialCovariance | None = None

    def sum_over(self, shard: Shard, resident: shard_oracle.Resident) -> Sums:
        """``(count, products)``; with a covariance ``(count, influences (2, 4))``, as sums."""
        count, total = 0.0, list[FloatArray]()
        for block in resident.blocks(shard, ()):
            x, labels = block.x, block.labels
            features = self.lift.map(resident.family.map_records(np.empty(0), x)[0])[0]
            sides = [
                [_spread(t, x, labels) for t in self.tasks if (t.weight > 0) == is_target]
                for is_target in (True, False)
            ]
            given = np.column_stack([np.ones(len(x)), *sides[0]])
            confidential = np.column_stack(sides[1])
            if self.partial is None:
                row = np.column_stack([given, features, confidential])
                total.append(row.T @ row)
            else:
                of = self.partial.measure_influences((given, features, confidential))
                total.append(np.array([of.sum(axis=0), (of**2).sum(axis=0)]))
            count += len(x)
        return count, np.sum(total, axis=0)


def _spread(task: Task, x: FloatArray, labels: FloatArray) -> FloatArray:
    truth = task.read_truth(x, labels)
    return np.eye(task.n_classes)[truth] if task.is_classification else np.asarray(truth)
