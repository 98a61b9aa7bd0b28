"""One round over a shard: filter its records, ask every task's head, send sums back.

The function is module-level and picklable; its resident arguments (family and tasks) are small.
Records are read once per round, block by block, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from privpipe.numerics.families import DifferentiableFilter
from privpipe.numerics.fingerprints import choose_share
from privpipe.numerics.logistic import (
    bound_softmax_curvature,
    measure_softmax,
    measure_squares,
    pack_symmetric,
    sum_softmax_curvature,
)
from privpipe.numerics.minimax import Answer, MinimaxObjective, Question
from privpipe.numerics.newton import HeadSolver
from privpipe.protocols import (
    BoolArray,
    FloatArray,
    IntArray,
    Oracle,
    Shard,
    Shards,
    ShardSchema,
    Sums,
)
from privpipe.sanitizers.labelled import read_labels
from privpipe.sanitizers.tasks import Task

__all__ = ["ask_shard", "make_objective"]

BLOCK_BYTES = 1 << 23
NOTHING = np.empty(0)


def ask_shard(
    shard: Shard,
    question: Question,
    *,
    schema: ShardSchema,
    family: DifferentiableFilter,
    tasks: tuple[Task, ...],
    held_out: float,
) -> Sums:
    """Losses, slopes, and curvatures or the filter's gradient, summed over a shard.

    Parameters
    ----------
    question
        Parameters of the filter, heads, and what is wanted.
    schema
        What the variables are.
    family
        Filters under training.
    tasks
        Predictions to keep and to spoil.
    held_out
        Share of the records whose losses are summed apart and do nothing else.

    Returns
    -------
    sums
        ``(counts (2,), losses (n_tasks, 2), gradient, slope and curvature of each task ...)``;
        what was not asked is an empty array.
    """
    counts, losses = np.zeros(2), np.zeros((len(tasks), 2))
    sums = [_Sums.start(task, head, question.want) for task, head in _pair(tasks, question)]
    gradient = np.zeros(family.n_parameters) if question.want == "gradient" else NOTHING
    rows_at_once = max(256, BLOCK_BYTES // (8 * max(family.n_features_in, 32)))
    for first in range(0, len(shard.features), rows_at_once):
        rows = slice(first, first + rows_at_once)
        labels, complete = read_labels(shard, rows, schema)
        # A copy of our own: arrays that came over the network are not aligned.
        x, labels = np.array(shard.features[rows], np.float64)[complete], labels[complete]
        fitted = ~choose_share(x, held_out) if held_out else np.ones(len(x), np.bool_)
        counts += np.count_nonzero(fitted), np.count_nonzero(~fitted)
        z, pullback = family.map_records(question.parameters, x)
        dz = np.zeros_like(z)
        for t, (task, head) in enumerate(_pair(tasks, question)):
            per_record, pulled = sums[t].add(task, head, z, _read(task, x, labels), fitted)
            losses[t] += per_record[fitted].sum(), per_record[~fitted].sum()
            if gradient.size:
                pulled(dz)
        if gradient.size:
            gradient += pullback(dz)
    flat: list[FloatArray] = [counts, losses, gradient]
    for part in sums:
        flat += [part.slope, part.packed()]
    return tuple(flat)


class _Sums:
    """What one task sums over the blocks of a shard."""

    def __init__(self, slope: FloatArray, curvature: FloatArray) -> None:
        self.slope = slope
        self.curvature = curvature

    @classmethod
    def start(cls, task: Task, head: FloatArray | None, want: str) -> _Sums:
        if head is None:
            return cls(NOTHING, NOTHING)
        full = task.is_classification and not task.uses_bound(len(head) - task.with_intercept)
        size = head.size if full else len(head)
        return cls(np.zeros(head.shape), np.zeros((size, size)) if want == "curvature" else NOTHING)

    def packed(self) -> FloatArray:
        return pack_symmetric(self.curvature) if self.curvature.size else NOTHING

    def add(
        self,
        task: Task,
        head: FloatArray | None,
        z: FloatArray,
        truth: FloatArray | IntArray,
        fitted: BoolArray,
    ) -> tuple[FloatArray, Any]:
        """Add a block; return the losses of its records and how to pull them back to z."""
        inputs = z if not task.with_intercept else np.column_stack([z, np.ones(len(z))])
        scores = z[:, slice(*task.columns)] if head is None else inputs @ head
        p: FloatArray = NOTHING
        if task.is_classification:
            per_record, slopes, p = measure_softmax(scores, truth.astype(np.int64), task.basis)
        else:
            per_record, slopes = measure_squares(scores, np.asarray(truth, np.float64))
        slopes *= fitted[:, None]
        if head is not None:
            self.slope += inputs.T @ slopes
        if head is not None and self.curvature.size:
            self._bend(task, inputs[fitted], p[fitted] if p.size else p)
        return per_record, partial(_pull, task=task, head=head, slopes=slopes)

    def _bend(self, task: Task, inputs: FloatArray, probabilities: FloatArray) -> None:
        if not task.is_classification:
            self.curvature += 2.0 * (inputs.T @ inputs)
        elif len(self.curvature) == inputs.shape[1] and task.n_scores > 1:
            self.curvature += bound_softmax_curvature(inputs.T @ inputs)
        else:
            self.curvature += sum_softmax_curvature(inputs, probabilities, task.basis)


def _pull(dz: FloatArray, *, task: Task, head: FloatArray | None, slopes: FloatArray) -> None:
    """Add the weighted slope of a task's loss by the filter's outputs, in place."""
    if head is None:
        dz[:, slice(*task.columns)] += task.weight * slopes
    else:
        dz += (task.weight * slopes) @ head[: dz.shape[1]].T


def _pair(tasks: Sequence[Task], question: Question) -> list[tuple[Task, FloatArray | None]]:
    return list(zip(tasks, question.heads, strict=True))


def _read(task: Task, x: FloatArray, labels: FloatArray) -> FloatArray | IntArray:
    return task.read_classes(labels) if task.is_classification else task.read_numbers(x, labels)


def make_objective(
    shards: Shards,
    family: DifferentiableFilter,
    tasks: tuple[Task, ...],
    *,
    held_out: float = 0.0,
    ridge: float = 0.0,
    n_penalised: int = 0,
    inner_tolerance: float = 1e-6,
) -> MinimaxObjective:
    """Phi over sharded records; see `MinimaxObjective`."""
    oracle = shards.oracle(
        ask_shard, schema=shards.schema, family=family, tasks=tasks, held_out=held_out
    )
    d = family.n_features_out
    solvers = [
        None
        if task.is_fixed
        else HeadSolver(
            np.zeros((task.n_inputs(d), task.n_scores)),
            ridge=task.ridge,
            n_free=int(task.with_intercept),
            quasi=task.uses_bound(d),
        )
        for task in tasks
    ]
    return MinimaxObjective(
        partial(_ask, oracle),
        solvers,
        np.array([task.weight for task in tasks]),
        ridge=ridge,
        n_penalised=n_penalised,
        inner_tolerance=inner_tolerance,
    )


def _ask(oracle: Oracle[Question, Sums], question: Question) -> Answer:
    counts, losses, gradient, *rest = oracle(question)
    return Answer(counts, losses, tuple(rest[::2]), tuple(rest[1::2]), gradient)
