"""One round over a shard: filter its records, evaluate every task's head, send sums back.

The functions are module-level and picklable; what is resident (family and tasks) is small. Records
are read once per round, block by block, whatever is summed.

Sets of records of one group are drawn where the records are. Which records share a set depends on
the records and their group alone, so that no sharding that keeps groups changes it. Whether groups
are whole in their shards is checked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from privpipe.errors import InputError
from privpipe.numerics import logistic
from privpipe.numerics.minimax.filters import DifferentiableFilter
from privpipe.numerics.minimax.lifts import Lift, OutputMoments, Pool, sum_by_landmark
from privpipe.numerics.minimax.objective import Question, Want
from privpipe.numerics.random.record_hash import choose_share, rank_records
from privpipe.protocols import BoolArray, FloatArray, IntArray, Shard, Shards, ShardSchema, Sums
from privpipe.sanitizers.arrays import read_labels
from privpipe.sanitizers.minimax.training.tasks import Task

# Bounds what a block of records is turned into. The cut depends on the tasks alone, so that a
# round is the same bit for bit wherever it runs.
BLOCK_BYTES = 1 << 23
NOTHING = np.empty(0)


class TaskInRound(NamedTuple):
    """Number of a resident task, and what its adversary reads in this round."""

    task: int
    lift: Lift | None = None
    pool: Pool | None = None


class ShardRound(NamedTuple):
    """A question of the objective, and about which tasks."""

    question: Question
    tasks: tuple[TaskInRound, ...]

    def sum_over(self, shard: Shard, resident: Resident) -> Sums:
        """``(counts (2,), losses (n_tasks, 2), gradient)``, then three arrays for each task.

        These are its slope, packed Hessian and packed bounding block; what the question does not
        need is an empty array.
        """
        question, family = self.question, resident.family
        wants_gradient = question.gradient
        # A task is rarely another than the resident one: copies took a tenth of a small round.
        tasks = [replace(resident.tasks[t], lift=lift, pool=pool) for t, lift, pool in self.tasks]
        sums = [_TaskSums(task, question, t) for t, task in enumerate(tasks)]
        # Losses of fixed heads are summed where the gradient is, once: they need no trial head.
        live = [
            one
            for one in sums
            if one.head is not None or (one.task.is_fixed and one.weight != 0 and wants_gradient)
        ]
        counts = np.zeros(2)
        # Each question is answered from the records alone: filtered outputs that a worker
        # remembered would spare a reading, and be lost with the worker.
        gradient = np.zeros(family.n_parameters) if wants_gradient else NOTHING
        for block in resident.blocks(shard, [one.task for one in live]):
            counts += np.count_nonzero(block.fitted), np.count_nonzero(~block.fitted)
            # One product with the records down, one up, whatever the number of tasks.
            z, pullback = family.map_records(question.parameters, block.x)
            dz = np.zeros_like(z)
            for one in live:
                one.add(z, block, dz if wants_gradient and one.weight else None)
            if wants_gradient:
                gradient += pullback(dz)
        found = [counts, np.array([one.losses for one in sums]), gradient]
        for one in sums:
            found += [one.slope, _pack(one.hessian), _pack(one.block)]
        return tuple(found)


class Outputs(NamedTuple):
    """Requests number, sum and products of a filter's outputs, less `centre`."""

    parameters: FloatArray
    centre: FloatArray

    def sum_over(self, shard: Shard, resident: Resident) -> Sums:
        """``(count, sum (n_filtered,), products (n_filtered, n_filtered))``."""
        d = resident.family.n_features_out
        count, total, products = 0.0, np.zeros(d), np.zeros((d, d))
        for block in resident.blocks(shard, ()):
            # Less a point near their mean, so that products do not cancel.
            z = resident.family.map_records(self.parameters, block.x)[0] - self.centre
            count += len(z)
            total += z.sum(axis=0)
            products += z.T @ z
        return count, total, products


class Landmarks(NamedTuple):
    """Requests number and sum of the whitened outputs nearest to each landmark of each draw."""

    parameters: FloatArray
    outputs: OutputMoments
    drawn: tuple[FloatArray, ...]

    def sum_over(self, shard: Shard, resident: Resident) -> Sums:
        """Of each draw ``counts (n_landmarks,), sums (n_landmarks, n_directions)``."""
        found = [part for one in self.drawn for part in (np.zeros(len(one)), np.zeros_like(one))]
        for block in resident.blocks(shard, ()):
            z = resident.family.map_records(self.parameters, block.x)[0][block.fitted]
            w = self.outputs.whiten(z)
            more = (part for one in self.drawn for part in sum_by_landmark(w, one))
            found = [total + part for total, part in zip(found, more, strict=True)]
        return tuple(found)


def sum_over_shard(
    shard: Shard, question: ShardRound | Outputs | Landmarks, *, resident: Resident
) -> Sums:
    """Answer a question about a shard, as sums over its records."""
    return question.sum_over(shard, resident)


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
        Predictions to preserve and to spoil.
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
                # By the record's own bits: shards that leave out rows do not know record numbers,
                # and no sharding moves a record from one side to the other.
                fitted = ~choose_share(x, self.held_out)
            groups = shard.groups[rows][complete] if pooled else NOTHING.astype(np.int64)
            yield _Block(x, labels, fitted, groups)

    def _widest(self, tasks: Sequence[Task]) -> int:
        """Columns of the widest table that a block of records is turned into."""
        d = self.family.n_features_out
        # A Hessian is summed over products of inputs and scores: its table is the widest.
        heads = [
            task.n_inputs(d) * (task.n_scores if task.uses_hessian(task.n_inputs(d)) else 1)
            for task in tasks
        ]
        return max(self.family.n_features_in, (d + 1) * (d + 2) // 2, *heads, 1)


class _Block(NamedTuple):
    """Some complete records: features, variables, whether they are fitted to, groups."""

    x: FloatArray
    labels: FloatArray
    fitted: BoolArray
    groups: IntArray


class _TaskSums:
    """What one task sums over the blocks of a shard."""

    def __init__(self, task: Task, question: Question, t: int) -> None:
        self.task, self.weight, want = task, float(question.weights[t]), question.wants[t]
        self.head = question.heads[t]
        self.direction = question.directions[t] if question.directions else None
        self.losses = np.zeros(2)
        self.slope: FloatArray = np.zeros(() if self.head is None else self.head.shape)
        self.hessian = self.block = NOTHING
        if self.head is not None and want is not None and want.is_curved:
            self.block = np.zeros((len(self.head), len(self.head)))
            if want is Want.CURVATURE and task.is_classification:
                self.hessian = np.zeros((self.head.size, self.head.size))

    def add(self, z: FloatArray, block: _Block, dz: FloatArray | None) -> None:
        """Add a block, and its weighted slopes by the filter's outputs to `dz` unless None."""
        task, head = self.task, self.head
        if task.loss is not None:
            per_record, slopes = task.loss.measure(z, block.x, block.labels)
            self._count(per_record, block.fitted)
            if dz is not None:
                dz += self.weight * slopes * block.fitted[:, None]
            return
        truth, fitted, counts, mixing = self._sample(block)
        read, lower = (z, None) if task.lift is None else task.lift.map(z)
        # The mean over a set, scaled so that independent noise stays as large as in one record.
        if mixing is not None:
            read = mixing @ read
        inputs = read if not task.with_intercept else np.column_stack([read, np.ones(len(read))])
        scores = z[:, slice(*task.columns)] if head is None else inputs @ head
        p: FloatArray | None = None
        if task.is_classification:
            per_record, slopes, p = logistic.measure_softmax(scores, truth, task.basis)
        else:
            per_record, slopes = logistic.measure_squares(scores, truth)
        slopes *= (fitted if counts is None else fitted * counts)[:, None]
        self._count(per_record if counts is None else per_record * counts, fitted)
        if head is not None:
            if self.direction is None:
                self.slope += inputs.T @ slopes
            if self.direction is not None or self.block.size:
                # Moments of sets count as often as their records: the weight enters both factors
                # by its root.
                root = inputs if counts is None else np.sqrt(counts)[:, None] * inputs
                self._bend(root[fitted], None if p is None else p[fitted])
        if dz is None:
            return
        slopes = self.weight * slopes
        if head is None:
            dz[:, slice(*task.columns)] += slopes
            return
        change = slopes @ head[: read.shape[1]].T
        if mixing is not None:
            change = mixing.T @ change
        dz += change if lower is None else lower(change)

    def _sample(self, block: _Block) -> tuple[Any, BoolArray, FloatArray | None, Any]:
        """What the task predicts in a block, and which of these are fitted to.

        Of its records; or of the sets that are drawn of them. With sets come the records that each
        represents, for it counts as often, and the sparse table that mixes them.
        """
        truth = self.task.read_truth(block.x, block.labels)
        if self.task.pool is None:
            return truth, block.fitted, None, None
        sets = draw_pools(block.x, block.groups, block.fitted, self.task.pool)
        return truth[sets.firsts], sets.fitted, sets.weights, sets.mixing

    def _count(self, per_record: FloatArray, fitted: BoolArray) -> None:
        self.losses += float(per_record[fitted].sum()), float(per_record[~fitted].sum())

    def _bend(self, inputs: FloatArray, shares: FloatArray | None) -> None:
        """Add a product of the Hessian, or the Hessian and its bound, of records fitted to."""
        basis = self.task.basis if shares is not None else NOTHING
        if self.direction is not None:
            assert shares is not None, "only heads of classes are solved by products"
            self.slope += logistic.multiply_softmax_curvature(inputs, shares, basis, self.direction)
            return
        moments = inputs.T @ inputs
        # The Hessian of squared errors is the same block for every output.
        self.block += 2 * moments if shares is None else logistic.bound_softmax_curvature(moments)
        if self.hessian.size and shares is not None:
            self.hessian += logistic.sum_softmax_curvature(inputs, shares, basis)


def _pack(matrix: FloatArray) -> FloatArray:
    return logistic.pack_symmetric(matrix) if matrix.size else NOTHING


@dataclass(frozen=True, eq=False)
class PooledRows:
    """Sets of records of one group, some rows of a block each.

    Parameters
    ----------
    mixing : (n_sets, n_rows), sparse
        Takes features of records to those of sets: their mean, times the root of the set's size. So
        noise that is independent stays as large as in one record.
    firsts : (n_sets,)
        A row of each set.
    weights : (n_sets,)
        Records that a set represents: summed over all deals, every record counts once.
    fitted : (n_sets,)
        False for sets of held-out records.
    """

    mixing: sp.csr_array
    firsts: IntArray
    weights: FloatArray
    fitted: BoolArray


def draw_pools(x: FloatArray, groups: IntArray, fitted: BoolArray, pool: Pool) -> PooledRows:
    """Deal the records of every group into sets of `pool.size` records or a few more.

    Parameters
    ----------
    x : (n_rows, n_features), float64
        Records as they were read, which decide who is dealt with whom.
    groups, fitted : (n_rows,)
        Group of each record, and whether it is fitted to; sets do not cross from one to the other.
    """
    n_rows = len(x)
    side = np.stack([groups, fitted.astype(np.int64)])
    counts, runs = [], []
    for deal in range(pool.deals):
        # Ranked by a mix of the record's bits: a deal that no order of records and no sharding
        # changes.
        order = np.lexsort((rank_records(x, seed=pool.seed + deal), side[1], side[0]))
        # Runs of one group and side: where they begin, how long they are, whose each row is.
        edges = np.diff(side[:, order], axis=1).any(axis=0)
        starts = np.flatnonzero(np.concatenate([[n_rows > 0], edges]))
        sizes = np.diff(np.append(starts, n_rows))
        run = np.repeat(np.arange(len(starts)), sizes)
        # As many sets as there are whole ones; what is left over goes to them, so that none is
        # smaller.
        n_sets = np.maximum(sizes // pool.size, 1)
        within = (np.arange(n_rows) - starts[run]) * n_sets[run] // sizes[run]
        before = np.concatenate([[0], np.cumsum(n_sets)[:-1]])
        counts.append(np.bincount(before[run] + within, minlength=int(n_sets.sum())))
        runs.append(order)
    sizes, rows = np.concatenate(counts), np.concatenate(runs)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    data = np.repeat(1.0 / np.sqrt(sizes), sizes)
    mixing = sp.csr_array((data, rows, edges), shape=(len(sizes), n_rows))
    firsts = rows[edges[:-1]]
    return PooledRows(mixing, firsts, sizes / pool.deals, fitted[firsts])


def cut_at_groups(groups: IntArray, n_rows: int) -> list[IntArray]:
    """Row numbers in blocks of about `n_rows`, every group whole in one of them."""
    # Stable, so that blocks preserve the order of the records.
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    cuts: list[int] = []
    last = 0
    for end in ends.tolist():
        if end - last >= n_rows:
            cuts.append(end)
            last = end
    return [np.sort(part) for part in np.split(order, cuts)]


@dataclass(frozen=True, eq=False)
class GroupTally:
    """Size of every group, in how many shards it is, and its classes.

    Parameters
    ----------
    table
        By group: its `records`, the `shards` that hold some, and the `lowest` and `highest` of each
        confidential variable, numbered. The last two differ where some record has another class.
    """

    table: pd.DataFrame

    def merge(self, other: GroupTally) -> GroupTally:
        """Tally of the records of both."""
        return GroupTally(_add_up(pd.concat([self.table, other.table])))


def _add_up(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each group."""
    how = {"records": "sum", "shards": "sum", "lowest": "min", "highest": "max"}
    return rows.groupby(level=0).agg({name: how[str(name).split()[0]] for name in rows})


def tally_groups(shard: Shard, schema: ShardSchema) -> GroupTally:
    """Tally the groups of the complete records of a shard."""
    labels, complete = read_labels(shard, slice(None), schema)
    rows = pd.DataFrame({"records": 1}, index=shard.groups[complete])
    for j, classes in enumerate(labels[complete][:, len(schema.desired) :].T):
        rows[f"lowest {j}"] = rows[f"highest {j}"] = classes
    return GroupTally(_add_up(rows).assign(shards=1))


def check_groups(shards: Shards, size: int) -> None:
    """Count groups, and refuse those of which no set can be drawn.

    Raises
    ------
    InputError
        If a group lies in several shards, holds fewer records than a set, is the only one, or a
        confidential variable differs within groups.
    """
    schema = shards.schema
    table = shards.reduce(partial(tally_groups, schema=schema)).table
    name, n_groups = schema.groups[0].name, len(table)
    if n_groups < 2:
        problem = f"All training records are of one group of {name!r}."
        remedy = "Train on records of several groups, or leave the adversary group out."
        raise InputError(problem, remedy=remedy, code="one_group")
    # Sets are drawn where records are: of a group in two shards each would see half, and which
    # half would depend on the sharding.
    if cut := int((table["shards"] > 1).sum()):
        raise InputError(
            f"{cut} of {n_groups} groups of {name!r} lie in more than one chunk: records "
            "of a group are read together where they are.",
            remedy="Sort the records by group and ingest them again: a group across the edge of a "
            "chunk is then read whole. Or leave the adversary group out.",
            code="group_cut",
        )
    if small := int((table["records"] < size).sum()):
        least = int(table["records"].min())
        shorter = f"Set group_size to at most {least}" if least > 1 else "Leave the adversary out"
        raise InputError(
            f"{small} of {n_groups} groups of {name!r} have fewer than {size} training records.",
            remedy=f"{shorter}, or train on more records of these groups.",
            code="group_size",
        )
    mixed = [
        column.name
        for j, column in enumerate(schema.confidential)
        if (table[f"lowest {j}"] != table[f"highest {j}"]).any()
    ]
    if mixed:
        raise InputError(
            f"{', '.join(map(repr, mixed))} differs between records of one group of {name!r}: "
            "there is no value of the group to infer.",
            remedy="Train against single records, or name the variable that groups share.",
            code="group_mixed",
        )
