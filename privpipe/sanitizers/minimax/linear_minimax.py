"""Linear minimax filters: options and fit.

Hamm, JMLR 2017: the filter minimises the trade-off ``Phi(U)`` between the best analyst's loss and
the best adversary's. Both are solved anew for every U. Records stay on their shards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.errors import ConvergenceError, InputError, OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax.descent import Descent, descend_alternating, descend_quasi_newton
from privpipe.numerics.minimax.filters import InputScaling, LinearFamily
from privpipe.numerics.minimax.lifts import OutputMoments
from privpipe.numerics.minimax.objective import bound_generalisation_gap
from privpipe.numerics.minimax.spectra import scale_to_unit_variance, whiten
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import spread
from privpipe.sanitizers.minimax import baselines
from privpipe.sanitizers.minimax.linear_filter import HAMM, LinearFilter, MinimaxFilter
from privpipe.sanitizers.minimax.training import adversary_rounds
from privpipe.sanitizers.minimax.training import tasks as planning
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, measure_radius
from privpipe.sanitizers.options import method_options

Ended = tuple[Descent, Any, Mapping[str, Any]]
"""A descent, its adversaries, and what the map records of both."""

# As little as keeps its inverse finite: directions of next to no variance must not blow up.
WHITENING = 1e-3
"""Ridge of the whitening, relative to the mean eigenvalue."""
START_RIDGE = 1e-8
"""Ridge of the eigenproblems that give a starting point, likewise."""
START_PENALTY = 0.1
"""Most that the ridge of an output may weigh where the descent starts, in nats."""
LEARNING_RATE = 0.1
"""Step of the alternating solver."""


@method_options
class MinimaxOptions(adversary_rounds.FilterTraining):
    """Options of ``[method] name = "minimax"``."""

    source: ClassVar[str] = f"{HAMM}, Algorithm 1 and section 4"
    name: Literal["minimax"] = "minimax"
    n_filtered: int | None = Field(default=None, ge=1)
    """Features released. Default: the reduced form, one less than the classes of each desired
    variable (one for a number). It attains the optimum of every larger filter for linear
    predictors."""
    solver: Literal["quasi_newton", "alternating"] = "quasi_newton"
    """quasi_newton: L-BFGS on Phi in whitened features, with a line search. alternating: the
    paper's Algorithm 1 verbatim, for comparison."""
    regularisation: planning.NonNegative = 1e-6
    max_iterations: adversary_rounds.Iterations = 10
    start: Literal["auto", "zero", "least_squares", "privacy_lds", "rand"] = "auto"
    """auto: zero in the reduced form, Privacy LDS otherwise."""
    starts: int | None = Field(default=None, ge=1)
    """Descents, with the iterations of so many. The first is that of a single start. A third of the
    iterations, six at most, are from others: the targets' own filter, ends with a larger ridge,
    closed forms, and random filters. Of 1,000 records or more each of these leaves out a fifth. The
    one whose Phi is least on all, those that it left out included, resumes with all, for the
    iterations that are left. The lower end counts. On a cluster these descents are tasks, where
    workers have room for all records, with the same bits. Default: six for at most 50,000 numbers
    against logistic adversaries, unless start or an earlier filter is given; one otherwise."""

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError or InputError if tasks, width or start do not suit the records."""
        super().check(schema)
        if self.draws_features and self.solver == "alternating":
            raise OptionError(
                'solver = "alternating" is the paper\'s algorithm, whose adversary is logistic.',
                remedy='Use solver = "quasi_newton" against any other.',
            )
        if self.n_filtered is None and self.reconstruction_weight:
            problem = "n_filtered is not set, and reconstruction has no reduced form."
            remedy = "Set n_filtered to the number of features to release."
            raise OptionError(problem, remedy=remedy)
        if self.n_filtered is None:
            planning.check_reduced_width(schema.desired, schema.n_features)
        if self.reconstruction_weight and self.start == "zero":
            raise _no_zero()


Lead = tuple[FloatArray, MinimaxOptions, Sequence[planning.Task], dict[str, Any]]
"""Where a descent starts, by which options, against whom, and with which more."""


@keep_names
def fit_minimax_filter(
    shards: Shards, options: MinimaxOptions | None = None, *, earlier: LinearFilter | None = None
) -> MinimaxFilter:
    """Learn a linear filter that preserves the target tasks and spoils the private ones.

    One pass collects moments. Then every evaluation of Phi takes two rounds or a few more. The
    inner problems are warm from the last one, and Newton's steps settle them.

    Parameters
    ----------
    shards
        Training records with desired and confidential variables.
    options
        `MinimaxOptions`; the defaults choose the reduced form.
    earlier
        A filter of fewer or older records, from which the first descent begins. With `starts` of 2
        or more others are judged beside it: first what the targets alone make of it.

    Returns
    -------
    MinimaxFilter
        With the history of the fit. In the reduced form its outputs are the scores of the target
        classes in a zero-sum basis (for a number, its standardised prediction).

    Raises
    ------
    InputError
        If labels or features cannot be used; no partial model is returned.
    OptionError
        If options contradict the data.
    ConvergenceError
        If an inner problem cannot be solved.

    Warns
    -----
    UserWarning
        If `n_filtered` exceeds what the targets can use.

    Notes
    -----
    Guarantee: none for single records. In expectation, and for the adversaries trained against.
    Departure: the paper descends Phi by plain gradient steps on U with a head per target. With
    linear filter and linear heads Phi depends on U through ``U W`` alone. So the default takes U
    with the heads' dimension, without inner target problem. L-BFGS in whitened features needs a
    tenth of the rounds.

    References
    ----------
    Hamm, JMLR 2017, equations (7), (10), (73), Algorithm 1.

    Examples
    --------
    >>> from privpipe import Records
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(400, 3))
    >>> fitted = fit_minimax_filter(Records(x, desired=x[:, 0] > 0, confidential=x[:, 1] > 0))
    >>> fitted.weights.shape, bool(abs(fitted.weights[0, 0]) > 10 * abs(fitted.weights[1, 0]))
    ((3, 1), True)
    """
    options = options or MinimaxOptions()
    moments, tasks = options.measure_tasks(shards)
    width, tasks = _plan_width(options, tasks, len(moments.mean))
    reduced = any(task.is_fixed for task in tasks)
    centre = moments.mean if options.with_intercept else np.zeros_like(moments.mean)
    family = LinearFamily(centre, width, with_offset=reduced and options.with_intercept)

    def find_outputs(parameters: FloatArray) -> OutputMoments:
        weights, offset = family.split(parameters)
        mean = (moments.mean - centre) @ weights + offset
        return OutputMoments.of(mean, weights.T @ moments.covariance @ weights)

    # Zero is no stationary point of the reduced form, whose heads are fixed: the gradient there
    # is that of the target alone.
    lower = _choose_descent(options, moments, width)

    def descend(shards: Shards, lead: Lead) -> Ended | ConvergenceError:
        start, given, against, more = lead
        more = more | {"n_penalised": family.n_weights, "find_outputs": find_outputs}
        try:
            return adversary_rounds.descend_in_rounds(
                given, shards, family, against, start, lower, **more
            )
        except ConvergenceError as error:  # another start may be solved
            return error

    def begin(kind: str, seed: int) -> FloatArray:
        start = np.zeros(family.n_parameters)
        start[: family.n_weights] = _find_start(kind, seed, options, tasks, moments, width)
        return start

    # Of drawn adversaries each has a Phi of its own.
    small = not options.draws_features and moments.count * len(moments.mean) <= SMALL
    free = earlier is None and options.start == "auto" and options.solver == "quasi_newton"
    n_starts = options.starts or (SIX if small and free else 1)
    listed = _list_starts(options, reduced, n_starts)
    first = begin(*listed[0]) if earlier is None else _resume(earlier, family, centre)
    starts = [first, *(begin(*one) for one in listed[1:])]
    held_out = HELD_OUT if moments.count * HELD_OUT >= JUDGES else 0.0
    whole: Lead = (first, options, tasks, {"resumes": earlier is not None})
    # The first descent is the one that a single start has: several end no higher. Of drawn
    # adversaries the first rounds may have a lower Phi than any filter has against all.
    found, adversaries, record = descend_several(
        partial(spread, shards, descend), whole, starts, n_starts, held_out
    )
    weights, offset = family.split(found.parameters)
    return MinimaxFilter(
        method=options.name,
        weights=weights.copy(),
        # The frozen map takes records as they are.
        offset=offset - centre @ weights,
        generalisation_bound=_bound_gap(shards, found, adversaries, family, moments.count),
        **record,
    )


def descend_several(
    descend_each: Callable[[Sequence[Lead]], list[Ended | ConvergenceError]],
    whole: Lead,
    starts: Sequence[FloatArray],
    n_starts: int,
    held_out: float,
) -> Ended:
    """The lower end of a descent, and of another from the best of several short ones.

    ConvergenceError if none is solved. None of a round of descents needs another.
    """
    first, options, tasks, _ = whole
    most = options.max_iterations
    short = replace(options, max_iterations=min(most, LONGEST, max(FEWEST, -(-most // SHORT))))
    leads: list[Lead] = [
        (first, short, [task for task in tasks if task.weight > 0], {}),
        *((one, *_smooth(short, tasks, at), {}) for one, at in zip(starts, SMOOTH, strict=False)),
    ]
    ended, *led = descend_each([whole, *leads[: n_starts - 1]])
    ends = [ended]
    candidates = [*starts[len(SMOOTH) :], *(one[0].parameters for one in _solved(led))]
    if n_starts > 1 and candidates:
        judged = descend_each([(one, short, tasks, {"held_out": held_out}) for one in candidates])
        if solved := _solved(judged):
            best = min(solved, key=_judge)[0].parameters
            left = (n_starts - 1) * (most - short.max_iterations)
            long = replace(options, max_iterations=max(most, left))
            ends += descend_each([(best, long, tasks, {"resumes": True})])
    if not _solved(ends):
        raise next(one for one in ends if isinstance(one, ConvergenceError))
    return min(_solved(ends), key=lambda end: float(end[0].history[-1, 1]))


def _solved(ends: Sequence[Ended | ConvergenceError]) -> list[Ended]:
    return [one for one in ends if not isinstance(one, ConvergenceError)]


def _judge(ended: Ended) -> float:
    """Phi of all records by heads of those fitted to: a fifth alone are too few to choose by."""
    last = dict(zip(ended[2]["history_columns"], ended[2]["history"][-1], strict=True))
    phi = float(last["phi"])
    return phi + HELD_OUT * (float(last.get("held_out_phi", phi)) - phi)


def _resume(earlier: LinearFilter, family: LinearFamily, centre: FloatArray) -> FloatArray:
    """Parameters of a filter that was fitted before."""
    expected = family.n_features_in, family.n_features_out
    if earlier.weights.shape != expected:
        raise InputError(
            f"The earlier filter has weights of shape {earlier.weights.shape}, not {expected}.",
            remedy="Give one of the same features, targets and n_filtered, or none.",
            code="shape",
        )
    offset = earlier.offset + centre @ earlier.weights
    return np.concatenate([earlier.weights.ravel(), offset])[: family.n_parameters]


HELD_OUT = 0.2
"""Share of the records that judge between starts."""
JUDGES = 200
"""Records that judge, at least; of fewer a filter that had learned least was the best."""


SHORT, FEWEST, LONGEST = 3, 3, 6
"""What divides the iterations of descents of which one resumes; the fewest and most of them."""
SIX, SMALL = 6, 50_000
"""Starts where none are set and records times features are so many at most: a second or two."""
SMOOTH = (1e-3, 1e-3, 1e-2)
"""Ridges of descents that only lead to a start: from the first, of the targets, a random one."""
ROUGH = 1e-4
"""Accuracy of their inner problems, in nats."""


def _smooth(
    options: MinimaxOptions, tasks: Sequence[planning.Task], ridge: float
) -> tuple[MinimaxOptions, list[planning.Task]]:
    """Options and tasks with a larger ridge, against logistic adversaries alone.

    With a small ridge Phi of classes that are all but separable has kinks, and descents end in one.
    With a larger one it has fewer, and from its minimum another descent ends lower.
    """
    larger = max(options.regularisation, ridge)
    rough = max(options.inner_tolerance, ROUGH)
    smooth = replace(options, regularisation=larger, adversary=("logistic",), inner_tolerance=rough)
    # Of the reduced form the filter is the head.
    return smooth, [t if t.is_fixed else replace(t, ridge=max(t.ridge, ridge)) for t in tasks]


def _list_starts(options: MinimaxOptions, reduced: bool, n_starts: int) -> list[tuple[str, int]]:
    """Kind and seed of every start: what is set, two to be smoothed, closed forms, random filters.

    What the targets alone would take, and the first one smoothed, come to these.
    """
    first = ("zero" if reduced else "privacy_lds") if options.start == "auto" else options.start
    kinds = [first, "targets", "rand"][: max(1, n_starts - 2)]
    kinds += [k for k in ("least_squares", "privacy_lds") if k != first]
    kinds += ["targets", "rand"] * n_starts
    # Every random filter is another one, also where the start that is set is random.
    return [(kind, options.seed + j) for j, kind in enumerate(kinds[: max(1, n_starts - 2)])]


def _choose_descent(
    options: MinimaxOptions, moments: LabelledMoments, width: int
) -> adversary_rounds.Descend:
    if options.solver == "alternating":
        return partial(descend_alternating, rate=LEARNING_RATE)
    covariance = moments.covariance
    # Second moments about zero: without intercepts features are not centred.
    if not options.with_intercept:
        covariance = covariance + np.outer(moments.mean, moments.mean)
    scaling = InputScaling(whiten(covariance, WHITENING), width)
    return partial(descend_quasi_newton, scaling=scaling, tolerance=options.tolerance)


def _bound_gap(
    shards: Shards, found: Descent, tasks: Sequence[planning.Task], family: LinearFamily, n: int
) -> float:
    """Generalisation bound at the norms of the fitted predictors; -1 unless all are softmax."""
    # Fewer heads: the fit ended before an adversary was drawn.
    drawn = len(found.heads) == len(tasks)
    if not drawn or not all(task.is_classification and task.lift is None for task in tasks):
        return -1.0
    affine = np.vstack(family.split(found.parameters))
    norms = []
    for task, head in zip(tasks, found.heads, strict=True):
        if head is None:
            product = affine[:, slice(*task.columns)]
        else:
            product = affine @ head[: family.n_features_out]
            if task.with_intercept:
                product[-1] += head[-1]
        norms.append(float(np.linalg.norm(product)))
    # Predictors see centred records with a one appended: the largest of these is what counts.
    radius = float(np.hypot(measure_radius(shards, family.centre), 1.0))
    weights = np.array([task.weight for task in tasks])
    n_scores = np.array([task.n_scores for task in tasks])
    return bound_generalisation_gap(weights, np.array(norms), n_scores, radius, n)


def _plan_width(
    options: MinimaxOptions, tasks: tuple[planning.Task, ...], n_features: int
) -> tuple[int, tuple[planning.Task, ...]]:
    """Outputs of the filter, and the tasks with fixed heads when that is the reduced form."""
    targets = [task for task in tasks if task.weight > 0 or task.role == "desired"]
    useful = sum(task.n_scores for task in targets)
    # More outputs add nothing that a linear predictor of the target could use, and show others
    # more.
    width = useful if options.n_filtered is None else options.n_filtered
    planning.check_width(width, n_features)
    planning.warn_of_width(width, useful)
    if width != useful or any(task.role == "features" for task in tasks):
        return width, tasks
    fixed, first = [], 0
    for task in tasks:
        if task.role == "desired":
            # Phi depends on filter and head through their product alone: the filter takes the
            # head's place, and there is no inner problem of the target, nor a ridge on it.
            task = replace(task, columns=(first, first + task.n_scores), ridge=0.0)
            first += task.n_scores
        fixed.append(task)
    return width, tuple(fixed)


def _find_start(
    kind: str,
    seed: int,
    options: MinimaxOptions,
    tasks: Sequence[planning.Task],
    moments: LabelledMoments,
    width: int,
) -> FloatArray:
    """Parameters to start from, (n_features * width,); outputs of unit variance."""
    n_features, random = len(moments.mean), np.random.default_rng(seed)
    if kind == "zero":
        if not any(task.is_fixed for task in tasks):
            raise _no_zero()
        return np.zeros(n_features * width)
    u: FloatArray
    if kind == "rand":
        u = random.standard_normal((n_features, width))
    elif kind == "targets":
        # Of the few directions that predict them: a wide filter of full rank hardly loses one.
        white = whiten(moments.covariance, WHITENING)
        crosses = [baselines.cross_moments(task, moments) for task in tasks if task.weight > 0]
        cross = np.column_stack(crosses)
        u = white @ (white.T @ cross @ random.standard_normal((cross.shape[1], width)))
    elif kind == "least_squares":
        find = baselines.find_least_squares_directions
        u = find(tasks, moments, width, START_RIDGE, fill=True)[0]
    else:
        u = baselines.find_privacy_lds(tasks, moments, width, START_RIDGE, fill=True)[0]
    u = scale_to_unit_variance(u, moments.covariance)
    # Of tiny features that takes weights whose ridge outweighs all losses (3,600 nats of a feature
    # of deviation 1e-5), and no step leads back: heads make up for outputs that are smaller.
    ridge = options.regularisation * np.einsum("ij,ij->j", u, u) / 2
    return np.asarray(u * np.sqrt(START_PENALTY / np.maximum(ridge, START_PENALTY))).ravel()


def _no_zero() -> OptionError:
    problem = 'start = "zero" is a stationary point unless the form is reduced.'
    return OptionError(problem, remedy='Use start = "auto", or leave n_filtered unset.')
