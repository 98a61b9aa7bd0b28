"""One round over a shard: filter its records, ask every task's head, send sums back.

The functions are module-level and picklable; what is resident (family and tasks) is small. Records
are read once per round, block by block, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from privpipe.numerics.minimax.filters import DifferentiableFilter, Pullback
from privpipe.numerics.minimax.hidden_units import HiddenUnits
from privpipe.numerics.minimax.lifts import Lift, OutputMoments, Pool
from privpipe.numerics.minimax.nystroem_features import sum_by_landmark
from privpipe.numerics.minimax.objective import BENDS, Question
from privpipe.numerics.random.record_hash import choose_share
from privpipe.numerics.regression.logistic import (
    bound_softmax_curvature,
    measure_softmax,
    measure_squares,
    multiply_softmax_curvature,
    pack_symmetric,
    sum_softmax_curvature,
)
from privpipe.protocols import BoolArray, FloatArray, IntArray, Shard, ShardSchema, Sums
from privpipe.sanitizers.arrays import read_labels
from privpipe.sanitizers.minimax.training.group_pooling import PooledRows, cut_at_groups, draw_pools
from privpipe.sanitizers.minimax.training.tasks import RecordLoss, Task

BLOCK_BYTES = 1 << 23
NOTHING = np.empty(0)


class Asked(NamedTuple):
    """Which resident task is asked, and what its adversary reads in this round."""

    task: int
    lift: Lift | None = None
    pool: Pool | None = None


class ShardRound(NamedTuple):
    """A question of the objective, and of which tasks."""

    question: Question
    asked: tuple[Asked, ...]


class Outputs(NamedTuple):
    """Asks for number, sum and products of a filter's outputs, less `centre`."""

    parameters: FloatArray
    centre: FloatArray


class Landmarks(NamedTuple):
    """Asks for number and sum of the whitened outputs nearest to each landmark."""

    parameters: FloatArray
    outputs: OutputMoments
    landmarks: FloatArray


class Units(NamedTuple):
    """Asks for the loss of an adversary's network, and its slopes by head and hidden layer."""

    parameters: FloatArray
    task: int
    units: HiddenUnits
    head: FloatArray


@dataclass(frozen=True)
class Resident:
    """What stays where the records are.

    Parameters
    ----------
    schema
        What the variables are.
    family
        Filters under training.
    tasks
        Predictions to keep and to spoil.
    held_out
        Share of the records whose losses are summed apart and do nothing else.
    """

    schema: ShardSchema
    family: DifferentiableFilter
    tasks: tuple[Task, ...]
    held_out: float

    def blocks(self, shard: Shard, tasks: Sequence[Task]) -> Iterator[_Block]:
        """Complete records of a shard, so many at once that memory holds what is made of them."""
        rows_at_once = max(256, BLOCK_BYTES // (8 * self._widest(tasks)))
        n_rows = len(shard.features)
        pooled = any(task.pool is not None for task in tasks)
        cuts: list[Any] = [slice(at, at + rows_at_once) for at in range(0, n_rows, rows_at_once)]
        if pooled:
            cuts = list(cut_at_groups(shard.groups, rows_at_once))
        for rows in cuts:
            labels, complete = read_labels(shard, rows, self.schema)
            # A copy of our own: arrays that came over the network are not aligned.
            x, labels = np.array(shard.features[rows], np.float64)[complete], labels[complete]
            fitted = np.ones(len(x), np.bool_)
            if self.held_out:
                fitted = ~choose_share(x, self.held_out)
            groups = shard.groups[rows][complete] if pooled else NOTHING.astype(np.int64)
            yield _Block(x, labels, fitted, groups)

    def _widest(self, tasks: Sequence[Task]) -> int:
        """Columns of the widest table that a block of records is turned into."""
        d = self.family.n_features_out
        heads = [
            task.n_inputs(d) * task.n_scores
            if task.uses_hessian(task.n_inputs(d), self.family.n_parameters)
            else task.n_inputs(d)
            for task in tasks
        ]
        return max(self.family.n_features_in, (d + 1) * (d + 2) // 2, *heads, 1)


class _Block(NamedTuple):
    """Some complete records: features, variables, whether they are fitted to, groups."""

    x: FloatArray
    labels: FloatArray
    fitted: BoolArray
    groups: IntArray


def ask_shard(shard: Shard, question: Any, *, resident: Resident) -> Sums:
    """Answer one of the questions of this module about a shard, as sums over its records.

    Returns
    -------
    sums
        Of a `ShardRound`: ``(counts (2,), losses (n_tasks, 2), gradient)``, then slope, packed
        Hessian and packed bounding block of each task; what was not asked is an empty array.
    """
    if isinstance(question, ShardRound):
        return _ask_round(shard, question, resident)
    if isinstance(question, Outputs):
        return _ask_outputs(shard, question, resident)
    if isinstance(question, Landmarks):
        return _ask_landmarks(shard, question, resident)
    return _ask_units(shard, question, resident)


def _ask_round(shard: Shard, asked: ShardRound, resident: Resident) -> Sums:
    question, family = asked.question, resident.family
    tasks = tuple(
        replace(resident.tasks[one.task], lift=one.lift, pool=one.pool) for one in asked.asked
    )
    counts, losses = np.zeros(2), np.zeros((len(tasks), 2))
    directions = question.directions or (None,) * len(tasks)
    sums = [
        _Sums(task, head, direction, question)
        for task, head, direction in zip(tasks, question.heads, directions, strict=True)
    ]
    gradient = np.zeros(family.n_parameters) if question.want == "gradient" else NOTHING
    live = [
        t
        for t, (task, head) in enumerate(zip(tasks, question.heads, strict=True))
        if head is not None or (task.is_fixed and question.weights[t] != 0 and gradient.size)
    ]
    for block in resident.blocks(shard, [tasks[t] for t in live]):
        counts += np.count_nonzero(block.fitted), np.count_nonzero(~block.fitted)
        z, pullback = family.map_records(question.parameters, block.x)
        dz = np.zeros_like(z)
        for t in live:
            weight = float(question.weights[t])
            fitted, held_out, pulled = sums[t].add(z, block, weight)
            losses[t] += fitted, held_out
            if gradient.size and weight:
                pulled(dz)
        if gradient.size:
            gradient += pullback(dz)
    flat: list[FloatArray] = [counts, losses, gradient]
    for part in sums:
        flat += [part.slope, *part.packed()]
    return tuple(flat)


class _Sums:
    """What one task sums over the blocks of a shard."""

    def __init__(
        self, task: Task, head: FloatArray | None, direction: FloatArray | None, question: Question
    ) -> None:
        self.task, self.head, self.direction = task, _widen(head), _widen(direction)
        self.slope = np.zeros(() if head is None else head.shape)
        self.hessian = self.block = NOTHING
        if head is not None and question.want in BENDS:
            self.block = np.zeros((len(head), len(head)))
            if question.want == "curvature" and task.is_classification:
                self.hessian = np.zeros((head.size, head.size))

    def packed(self) -> list[FloatArray]:
        return [pack_symmetric(m) if m.size else NOTHING for m in (self.hessian, self.block)]

    def add(self, z: FloatArray, block: _Block, weight: float) -> tuple[float, float, Any]:
        """Add a block; return summed losses, fitted and held out, and how to pull them back to z.

        Sets of records count as often as they hold records.
        """
        task, head = self.task, self.head
        if task.loss is not None:
            return self._add_custom_loss(task.loss, z, block, weight)
        read, lower = (z, None) if task.lift is None else task.lift.map(z)
        truth, fitted, mixing, counts = self._read(block)
        if mixing is not None:
            read = mixing @ read
        inputs = read if not task.with_intercept else np.column_stack([read, np.ones(len(read))])
        scores = z[:, slice(*task.columns)] if head is None else inputs @ head
        p: FloatArray = NOTHING
        if task.is_classification:
            per_record, slopes, p = measure_softmax(scores, truth.astype(np.int64), task.basis)
        else:
            per_record, slopes = measure_squares(scores, np.asarray(truth, np.float64))
        slopes *= (fitted if counts is None else fitted * counts)[:, None]
        if counts is not None:
            per_record = per_record * counts
        if self.direction is not None:
            weighed = _scale(inputs, counts)[fitted]
            self.slope += multiply_softmax_curvature(weighed, p[fitted], task.basis, self.direction)
        elif head is not None:
            self.slope += inputs.T @ slopes
        if self.block.size:
            self._bend(_scale(inputs, counts)[fitted], p[fitted] if p.size else p)
        pulled = partial(
            _pull, task=task, head=head, slopes=weight * slopes, lower=lower, mixing=mixing
        )
        return float(per_record[fitted].sum()), float(per_record[~fitted].sum()), pulled

    def _add_custom_loss(
        self, loss: RecordLoss, z: FloatArray, block: _Block, weight: float
    ) -> tuple[float, float, Any]:
        """The same of a loss that reads the outputs themselves."""
        per_record, slopes = loss.measure(z, block.x, block.labels)
        pulled = partial(
            _pull,
            task=self.task,
            head=None,
            slopes=weight * slopes * block.fitted[:, None],
            lower=None,
            mixing=None,
        )
        fitted = block.fitted
        return float(per_record[fitted].sum()), float(per_record[~fitted].sum()), pulled

    def _read(
        self, block: _Block
    ) -> tuple[FloatArray | IntArray, BoolArray, sp.csr_array | None, FloatArray | None]:
        """Truth and side of the records, or of the sets that are drawn of them."""
        task = self.task
        if task.is_classification:
            truth: FloatArray | IntArray = task.read_classes(block.labels)
        else:
            truth = task.read_numbers(block.x, block.labels)
        if task.pool is None:
            return truth, block.fitted, None, None
        found: PooledRows = draw_pools(block.x, block.groups, block.fitted, task.pool)
        return truth[found.firsts], found.fitted, found.mixing, found.weights

    def _bend(self, inputs: FloatArray, probabilities: FloatArray) -> None:
        moments = inputs.T @ inputs
        # The Hessian of squared errors is the same block for every output.
        is_class = self.task.is_classification
        self.block += bound_softmax_curvature(moments) if is_class else 2 * moments
        if self.hessian.size:
            self.hessian += sum_softmax_curvature(inputs, probabilities, self.task.basis)


def _widen(sent: FloatArray | None) -> FloatArray | None:
    """What came in single precision, in double: sums are taken in that."""
    return None if sent is None else np.asarray(sent, np.float64)


def _scale(inputs: FloatArray, counts: FloatArray | None) -> FloatArray:
    """Inputs whose products count as often as their sets hold records."""
    return inputs if counts is None else np.asarray(np.sqrt(counts)[:, None] * inputs)


def _pull(
    dz: FloatArray,
    *,
    task: Task,
    head: FloatArray | None,
    slopes: FloatArray,
    lower: Pullback | None,
    mixing: sp.csr_array | None,
) -> None:
    """Add the weighted slope of a task's loss by the filter's outputs, in place."""
    if head is None:
        dz[:, slice(*task.columns)] += slopes
        return
    n_read = dz.shape[1] if task.lift is None else task.lift.n_features
    change = slopes @ head[:n_read].T
    if mixing is not None:
        change = mixing.T @ change
    dz += change if lower is None else lower(change)


def _ask_outputs(shard: Shard, asked: Outputs, resident: Resident) -> Sums:
    d = resident.family.n_features_out
    count, total, products = 0.0, np.zeros(d), np.zeros((d, d))
    for block in resident.blocks(shard, ()):
        z = resident.family.map_records(asked.parameters, block.x)[0] - asked.centre
        count += len(z)
        total += z.sum(axis=0)
        products += z.T @ z
    return count, total, products


def _ask_landmarks(shard: Shard, asked: Landmarks, resident: Resident) -> Sums:
    counts, sums = np.zeros(len(asked.landmarks)), np.zeros_like(asked.landmarks)
    for block in resident.blocks(shard, ()):
        z = resident.family.map_records(asked.parameters, block.x)[0][block.fitted]
        found = sum_by_landmark(asked.outputs.whiten(z), asked.landmarks)
        counts += found[0]
        sums += found[1]
    return counts, sums


def _ask_units(shard: Shard, asked: Units, resident: Resident) -> Sums:
    task, units, head = resident.tasks[asked.task], asked.units, asked.head
    count, loss = 0.0, 0.0
    slope, by_units = np.zeros_like(head), np.zeros(len(units.parameters))
    for block in resident.blocks(shard, ()):
        z = resident.family.map_records(asked.parameters, block.x)[0][block.fitted]
        read, _ = units.map(z)
        inputs = np.column_stack([read, np.ones(len(read))]) if task.with_intercept else read
        labels, x = block.labels[block.fitted], block.x[block.fitted]
        if task.is_classification:
            losses, slopes, _ = measure_softmax(
                inputs @ head, task.read_classes(labels), task.basis
            )
        else:
            losses, slopes = measure_squares(inputs @ head, task.read_numbers(x, labels))
        count += len(z)
        loss += float(losses.sum())
        slope += inputs.T @ slopes
        by_units += units.slope(z, slopes @ head[: units.n_features].T)
    return count, loss, slope, by_units
