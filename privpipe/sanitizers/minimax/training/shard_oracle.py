"""One round over a shard: filter its records, ask every task's head, send sums back.

The function is module-level and picklable; its resident arguments (family and tasks) are small.
Records are read once per round, block by block, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from privpipe.numerics.minimax.filters import DifferentiableFilter, Pullback
from privpipe.numerics.minimax.newton import HeadSolver
from privpipe.numerics.minimax.objective import Answer, MinimaxObjective, Question
from privpipe.numerics.record_hash import choose_share
from privpipe.numerics.regression.logistic import (
    bound_softmax_curvature,
    measure_softmax,
    measure_squares,
    pack_symmetric,
    sum_softmax_curvature,
)
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
from privpipe.sanitizers.minimax.training.labelled_moments import read_labels
from privpipe.sanitizers.minimax.training.tasks import Task

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
        ``(counts (2,), losses (n_tasks, 2), gradient)``, then slope, packed Hessian and packed
        bounding block of each task; what was not asked is an empty array.
    """
    counts, losses = np.zeros(2), np.zeros((len(tasks), 2))
    sums = [_Sums(task, head, question.want) for task, head in _pair(tasks, question)]
    gradient = np.zeros(family.n_parameters) if question.want == "gradient" else NOTHING
    rows_at_once = max(256, BLOCK_BYTES // (8 * _widest(family, tasks)))
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
        flat += [part.slope, *part.packed()]
    return tuple(flat)


def _widest(family: DifferentiableFilter, tasks: Sequence[Task]) -> int:
    """Columns of the widest table that a block of records is turned into."""
    d = family.n_features_out
    heads = [
        task.n_inputs(d) * task.n_scores
        if task.uses_hessian(task.n_inputs(d))
        else task.n_inputs(d)
        for task in tasks
    ]
    return max(family.n_features_in, (d + 1) * (d + 2) // 2, *heads)


class _Sums:
    """What one task sums over the blocks of a shard."""

    def __init__(self, task: Task, head: FloatArray | None, want: str) -> None:
        self.slope = np.zeros(() if head is None else head.shape)
        self.hessian = self.block = NOTHING
        if head is not None and want == "curvature":
            self.block = np.zeros((len(head), len(head)))
            if task.uses_hessian(len(head)):
                self.hessian = np.zeros((head.size, head.size))

    def packed(self) -> list[FloatArray]:
        return [pack_symmetric(m) if m.size else NOTHING for m in (self.hessian, self.block)]

    def add(
        self,
        task: Task,
        head: FloatArray | None,
        z: FloatArray,
        truth: FloatArray | IntArray,
        fitted: BoolArray,
    ) -> tuple[FloatArray, Any]:
        """Add a block; return the losses of its records and how to pull them back to z."""
        read, lower = (z, None) if task.lift is None else task.lift.map(z)
        inputs = read if not task.with_intercept else np.column_stack([read, np.ones(len(z))])
        scores = z[:, slice(*task.columns)] if head is None else inputs @ head
        p: FloatArray = NOTHING
        if task.is_classification:
            per_record, slopes, p = measure_softmax(scores, truth.astype(np.int64), task.basis)
        else:
            per_record, slopes = measure_squares(scores, np.asarray(truth, np.float64))
        slopes *= fitted[:, None]
        if head is not None:
            self.slope += inputs.T @ slopes
        if self.block.size:
            self._bend(task, inputs[fitted], p[fitted] if p.size else p)
        return per_record, partial(_pull, task=task, head=head, slopes=slopes, lower=lower)

    def _bend(self, task: Task, inputs: FloatArray, probabilities: FloatArray) -> None:
        moments = inputs.T @ inputs
        # The Hessian of squared errors is the same block for every output.
        self.block += bound_softmax_curvature(moments) if task.is_classification else 2 * moments
        if self.hessian.size:
            self.hessian += sum_softmax_curvature(inputs, probabilities, task.basis)


def _pull(
    dz: FloatArray,
    *,
    task: Task,
    head: FloatArray | None,
    slopes: FloatArray,
    lower: Pullback | None,
) -> None:
    """Add the weighted slope of a task's loss by the filter's outputs, in place."""
    if head is None:
        dz[:, slice(*task.columns)] += task.weight * slopes
    else:
        n_read = dz.shape[1] if task.lift is None else task.lift.n_features
        change = (task.weight * slopes) @ head[:n_read].T
        dz += change if lower is None else lower(change)


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
            quasi=task.is_classification and not task.uses_hessian(task.n_inputs(d)),
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
    pairs = tuple(zip(rest[1::3], rest[2::3], strict=True))
    return Answer(counts, losses, tuple(rest[::3]), pairs, gradient)
