"""How a filter is trained: against which adversaries, until when, and in which outer rounds.

Hamm, JMLR 2017, trains against a logistic adversary. Who reads more is a convex head on features of
the filter's outputs; several adversaries count alike. Their features are drawn anew between outer
rounds for the filter at hand. With features drawn once, a filter can hide from these and from no
others. Within a round they stay, their heads are solved for every filter, and Phi falls.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.minimax.descent import HISTORY_TAIL, MEMORY, Descent
from privpipe.numerics.minimax.filters import DifferentiableFilter
from privpipe.numerics.minimax.lifts import Lift, NystroemFeatures, OutputMoments, Pool, SetFeatures
from privpipe.numerics.minimax.newton import HeadSolver, InexactSolver, Pairs
from privpipe.numerics.minimax.objective import MinimaxObjective, Question
from privpipe.protocols import FloatArray, Oracle, Role, Shards, ShardSchema, Sums
from privpipe.sanitizers.minimax.training import shard_oracle
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, measure_tasks
from privpipe.sanitizers.minimax.training.tasks import NonNegative, Positive, Task, TaskOptions
from privpipe.sanitizers.options import method_options

AdversaryKind = Literal["logistic", "kernel", "group"]

GROUP_DEALS = 4
"""Times that records of a group are dealt into sets."""
# Every row of its head is penalised, so that the gap is bounded by the slope: sum of |g_r|^2 / (2
# p_r).
RIDGE = 1e-4
"""Of every adversary but the logistic one; it also certifies how well each is solved."""

Iterations = Annotated[int, Field(ge=0)]


@method_options
class FilterTraining(TaskOptions):
    """Against whom a filter is trained, and until when."""

    adversary: tuple[AdversaryKind, ...] = Field(default=("logistic",), min_length=1)
    """Who the filter is trained against, one or several: logistic (the paper's), kernel, group
    (knows several records of one group). The kernel is a Gaussian one by Nystroem's method, on
    k-means of the outputs, drawn anew every few iterations."""
    group: str | None = None
    """Says whose records belong together, for the adversary group."""
    group_size: int = Field(default=10, ge=2)
    """Records of one group that the adversary group knows."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of what is drawn: the start, adversaries."""
    regularisation: NonNegative = 1e-4
    """Ridge of every predictor, and half of it of the filter."""
    with_intercept: bool = True
    """Predictors have an intercept. False, of linear filters: the paper's."""
    max_iterations: Iterations = 100
    """Most outer iterations; more fit the training records closer and let non-linear adversaries
    see more."""
    tolerance: NonNegative = 1e-5
    """Stop when an iteration lowers Phi by less than this share."""
    inner_tolerance: Positive = 1e-6
    """Accuracy of the inner problems, in nats: a Newton decrement, at the last filter a bound."""

    @field_validator("adversary", mode="before")
    @classmethod
    def _take_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    in_rounds: ClassVar[bool] = True

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """The groups, for the adversary that knows some."""
        return {"groups": (self.group,)} if self.group and self.reads_groups else {}

    def examine(self, shards: Shards) -> None:
        """Raise InputError for groups of which the adversary group can make no sets."""
        if self.reads_groups:
            shard_oracle.check_groups(shards, self.group_size)

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError for adversaries named twice, or no groups; see `TaskOptions.check`."""
        super().check(schema)
        if len(set(self.adversary)) < len(self.adversary):
            raise OptionError("adversary names one twice.", remedy="Name each once.")
        if not self.reads_groups:
            return
        if not schema.groups:
            raise OptionError(
                "The adversary group knows records of one group; no variable says whose they are.",
                remedy='Name it: [method] group = "subject"; in Python, Records(..., groups=...) '
                "or open_collection(..., groups=...).",
                code="group_missing",
            )
        numbers = [c.name for c in schema.confidential if not c.is_categorical]
        if self.confidential_task == "regression" and numbers:
            problem = f"The adversary group infers classes; {numbers[0]!r} is read as a number."
            remedy = 'Set confidential_task = "classification", or drop the adversary group.'
            raise OptionError(problem, remedy=remedy)

    def measure_tasks(self, shards: Shards) -> tuple[LabelledMoments, tuple[Task, ...]]:
        """Moments of the records, and their tasks with a logistic adversary each."""
        return measure_tasks(
            self, shards, ridge=self.regularisation, with_intercept=self.with_intercept
        )

    @property
    def reads_groups(self) -> bool:
        """Whether some adversary knows several records of one group."""
        return "group" in self.adversary

    @property
    def draws_features(self) -> bool:
        """Whether what some adversary reads is drawn between rounds."""
        return set(self.adversary) != {"logistic"}


def name_adversaries(
    options: FilterTraining,
    tasks: Sequence[Task],
    lifts: Mapping[str, Lift] | None = None,
    seed: int = 0,
) -> tuple[Task, ...]:
    """Every private task once for each adversary, its weight shared among them.

    Parameters
    ----------
    tasks
        With the logistic adversary each.
    lifts
        What each drawn adversary reads, by its name.
    seed
        Of the sets of a group.
    """
    # Alike: weights that users gave and the smooth maximum were tried, and went.
    share, lifts = 1.0 / len(options.adversary), lifts or {}
    pool = Pool(options.group_size, GROUP_DEALS, seed)
    changes: list[dict[str, Any]] = []
    for name in options.adversary:
        drawn: dict[str, Any] = {"adversary": f" ({name})", "lift": lifts.get(name), "ridge": RIDGE}
        drawn |= {"pool": pool if name == "group" else None}
        changes.append({} if name == "logistic" else drawn)
    made: list[Task] = []
    for task in tasks:
        private = [replace(task, weight=share * task.weight, **change) for change in changes]
        made += [task] if task.weight >= 0 else private
    return tuple(made)


FEWEST = 5
"""Records of a landmark, at least: with fewer it stays where it was drawn."""
LLOYD_STEPS = 2
"""Steps of k-means for each draw of landmarks, each a round; with more filters are no better."""
# With one draw a filter hides from these landmarks alone; each draw takes four to ten rounds, so
# not every iteration.
RESAMPLE_EVERY = 5
"""Iterations after which adversaries are drawn anew."""
LANDMARKS = 64
"""Points that the kernel adversary is spanned by; half as many of the group adversary."""
CUMULATIVE = ("rounds", "bytes")
"""Columns of a history that are sums from its beginning."""


class TrainingRounds:
    """Questions about training records, whoever is trained against.

    Parameters
    ----------
    shards
        The records.
    family
        Filters under training.
    tasks
        With the logistic adversary each; tasks of other adversaries are these with other features.
    held_out
        Share of the records that only judge when to stop.
    """

    def __init__(
        self,
        shards: Shards,
        family: DifferentiableFilter,
        tasks: Sequence[Task],
        *,
        held_out: float = 0.0,
    ) -> None:
        self.family = family
        # One task of each variable: weight, ridge and name are the driver's business alone.
        unique = {(task.role, task.column): task for task in tasks}
        self.places = {key: place for place, key in enumerate(unique)}
        resident = shard_oracle.Resident(shards.schema, family, tuple(unique.values()), held_out)
        self.oracle: Oracle[object, Sums] = shards.oracle(
            shard_oracle.sum_over_shard, resident=resident
        )
        self.solvers: dict[str, tuple[object, HeadSolver]] = {}
        self.spent = np.zeros(2, np.int64)
        self.centre: FloatArray = np.zeros(family.n_features_out)

    def make_objective(
        self, tasks: Sequence[Task], *, ridge: float, n_penalised: int, inner_tolerance: float
    ) -> MinimaxObjective:
        """Phi against the adversaries of these tasks; see `MinimaxObjective`."""
        view, places = shard_oracle.TaskInRound, self.places
        views = [view(places[one.role, one.column], one.lift, one.pool) for one in tasks]
        made = MinimaxObjective(
            partial(self._query, views),
            [None if task.is_fixed else self._find_solver(task, inner_tolerance) for task in tasks],
            np.array([task.weight for task in tasks], np.float64),
            [0 if task.lift is None else task.lift.n_bytes for task in tasks],
            ridge=ridge,
            n_penalised=n_penalised,
            inner_tolerance=inner_tolerance,
        )
        made.n_rounds, made.n_bytes = self.spent.tolist()
        self.spent[:] = 0
        return made

    def _query(self, views: Sequence[shard_oracle.TaskInRound], question: Question) -> Sums:
        """One round; lifts travel with the heads that read them only."""
        pairs = zip(views, question.heads, strict=True)
        lean = tuple(one._replace(lift=None) if head is None else one for one, head in pairs)
        return self.oracle(shard_oracle.ShardRound(question, lean))

    def _find_solver(self, task: Task, tolerance: float) -> HeadSolver:
        """A head at zero, or as an earlier round left it if it reads the same."""
        # Warm while its features are the same object: drawn anew they mean something else.
        known = self.solvers.get(task.label)
        if known is not None and known[0] is task.lift:
            return known[1]
        n_inputs = task.n_inputs(self.family.n_features_out)
        start = np.zeros((n_inputs, task.n_scores))
        n_free = int(task.with_intercept and task.lift is None)
        solver = HeadSolver(start, ridge=task.ridge, n_free=n_free)
        if task.is_classification and not task.uses_hessian(n_inputs):
            solver = InexactSolver(start, ridge=task.ridge, n_free=n_free, tolerance=tolerance)
        self.solvers[task.label] = task.lift, solver
        return solver

    def measure_outputs(self, parameters: FloatArray) -> OutputMoments:
        """Moments of a filter's outputs."""
        count, total, products = self._spend(shard_oracle.Outputs(parameters, self.centre))
        mean = total / count
        # From sums less the last centre, which is near, so that the difference does not cancel.
        self.centre = self.centre + mean
        return OutputMoments.of(self.centre, products / count - np.outer(mean, mean))

    def move_landmarks(
        self, parameters: FloatArray, outputs: OutputMoments, drawn: Sequence[FloatArray]
    ) -> list[FloatArray]:
        """One step of k-means on whitened outputs, of several draws; see `sum_by_landmark`."""
        sums = self._spend(shard_oracle.Landmarks(parameters, outputs, tuple(drawn)))
        moved = []
        for landmarks, n, total in zip(drawn, sums[::2], sums[1::2], strict=True):
            # A mean of fewer would be nearly a record, and landmarks travel.
            many = n[:, None] >= FEWEST
            moved.append(np.where(many, total / np.maximum(n, 1)[:, None], landmarks))
        return moved

    def _spend(self, question: shard_oracle.Outputs | shard_oracle.Landmarks) -> Sums:
        """A round beside those of an objective, which counts with its first."""
        sums = self.oracle(question)
        self.spent += 1, sum(np.asarray(part).nbytes for part in (*sums, question.parameters))
        return sums


Descend = Callable[..., Descent]
"""Lowers an objective from a start, in so many iterations at most, perhaps with known `Pairs`."""


def descend_in_rounds(
    options: FilterTraining,
    shards: Shards,
    family: DifferentiableFilter,
    tasks: Sequence[Task],
    start: FloatArray,
    descend: Descend,
    *,
    n_penalised: int,
    held_out: float = 0.0,
    find_outputs: Callable[[FloatArray], OutputMoments] | None = None,
    resumes: bool = False,
) -> tuple[Descent, tuple[Task, ...], dict[str, Any]]:
    """Descend against the adversaries of the options; drawn ones from the second round on.

    Parameters
    ----------
    shards, family, held_out
        As of `TrainingRounds`.
    tasks
        With a logistic adversary each.
    start : (n_parameters,)
    descend
        Lowers Phi of some tasks.
    n_penalised
        First parameters of the filter, which have a ridge.
    find_outputs
        Moments of the outputs of a filter; None where only a round over the records knows them.
    resumes
        Whether the start is a filter that was trained: all adversaries are drawn for it at once.

    Returns
    -------
    descent, tasks
        Of the last round.
    record
        Of all: what a trained map holds of it, by the names of the fields of `TrainingRecord`.
    """
    rounds = TrainingRounds(shards, family, tasks, held_out=held_out)

    pairs: Pairs = deque(maxlen=MEMORY)

    def lower(tasks: Sequence[Task], start: FloatArray, n: int, *, is_last: bool) -> Descent:
        objective = rounds.make_objective(
            tasks,
            ridge=options.regularisation,
            n_penalised=n_penalised,
            inner_tolerance=options.inner_tolerance,
        )
        objective.certifies_end = is_last
        return descend(objective, start, n, **({} if alone else {"pairs": pairs}))

    most, adversaries = options.max_iterations, tuple(tasks)
    alone = not options.draws_features or all(task.weight >= 0 for task in tasks)
    if alone:
        found = lower(tasks, start, most, is_last=True)
    else:
        rng = np.random.default_rng(options.seed)
        adversaries = name_adversaries(options, tasks)
        histories: list[FloatArray] = []
        if resumes and most:
            done, found = 0, Descent(start, np.empty(0), "iterations", ())
        else:
            # Lifts are of the outputs of a filter: first there are logistic adversaries alone, in
            # half of the iterations at most, so that short fits meet the others, too.
            done = min(RESAMPLE_EVERY, most // 2)
            found = lower(tasks, start, done, is_last=done == most)
            histories = [_spread_losses(found.history, tasks, adversaries)]
        while done < most and found.stopped != "inner":
            step = min(RESAMPLE_EVERY, most - done)
            try:
                outputs = (find_outputs or rounds.measure_outputs)(found.parameters)
                lifts = draw_lifts(options, rounds, found.parameters, outputs, rng)
                # The order of draws is part of the fit: a fit that is resumed draws the same.
                drawn = name_adversaries(options, tasks, lifts, int(rng.integers(2**31)))
                found = lower(drawn, found.parameters, step, is_last=done + step == most)
            except ConvergenceError:  # against these adversaries not even the start is known
                if not histories:
                    raise
                found = replace(found, stopped="inner")
                break
            adversaries = drawn
            histories.append(found.history)
            done += step
        found = replace(found, history=_join_histories(histories))
    losses = [f"loss_{task.label}" for task in adversaries]
    # Of a few records the share that is held out may be none.
    held = ["held_out_phi"] if found.history.shape[1] > 2 + len(losses) + len(HISTORY_TAIL) else []
    record = {
        "stopped": found.stopped,
        "history": found.history,
        "history_columns": ("iteration", "phi", *losses, *held, *HISTORY_TAIL),
        "task_names": tuple(task.label for task in adversaries),
        "baselines": np.array([task.baseline for task in adversaries]),
    }
    return found, adversaries, record


def draw_lifts(
    options: FilterTraining,
    rounds: TrainingRounds,
    parameters: FloatArray,
    outputs: OutputMoments,
    rng: np.random.Generator,
) -> dict[str, Lift]:
    """What the drawn adversaries read, for the outputs of a filter as they are, by their names."""
    lifts: dict[str, Lift] = {}
    # Half the landmarks of groups: their heads read products of outputs as well.
    numbers = {"kernel": LANDMARKS, "group": LANDMARKS // 2}
    names = [name for name in options.adversary if name != "logistic"]
    width = outputs.n_directions
    drawn: list[FloatArray] = [rng.standard_normal((numbers[name], width)) for name in names]
    for _ in range(LLOYD_STEPS):
        drawn = rounds.move_landmarks(parameters, outputs, drawn)
    for name, landmarks in zip(names, drawn, strict=True):
        kernel = NystroemFeatures(outputs, landmarks)
        lifts[name] = SetFeatures(kernel) if name == "group" else kernel
    return lifts


def _spread_losses(path: FloatArray, tasks: Sequence[Task], rivals: Sequence[Task]) -> FloatArray:
    """A history of the first round with the columns of the later ones."""
    at = {task.label: path[:, 2 + j] for j, task in enumerate(tasks)}
    losses = [at.get(task.label, np.full(len(path), task.baseline)) for task in rivals]
    return np.column_stack([path[:, :2], *losses, path[:, 2 + len(tasks) :]])


def _join_histories(parts: Sequence[FloatArray]) -> FloatArray:
    """Histories one after the other: iterations, rounds and bytes continue counting."""
    counted = [0, *(j - len(HISTORY_TAIL) for j, n in enumerate(HISTORY_TAIL) if n in CUMULATIVE)]
    joined, before = [parts[0]], parts[0][-1, counted]
    for part in parts[1:]:
        further = part.copy()
        further[:, counted] += before
        before = further[-1, counted]
        # The start of a round is the end of the last one; a round without a step leaves nothing.
        joined.append(further[1:])
    return np.vstack(joined)
