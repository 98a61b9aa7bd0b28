"""Sets of records of one group, drawn where the records are; and whether groups are whole there.

Which records share a set depends on the records and their group alone, so that no sharding that
keeps groups changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import scipy.sparse as sp

from privpipe.errors import InputError
from privpipe.numerics.minimax.lifts import Pool
from privpipe.numerics.random.record_hash import rank_records
from privpipe.protocols import BoolArray, FloatArray, IntArray, Shard, Shards, ShardSchema
from privpipe.sanitizers.arrays import read_labels


@dataclass(frozen=True, eq=False)
class PooledRows:
    """Sets of records of one group, some rows of a block each.

    Parameters
    ----------
    mixing : (n_sets, n_rows), sparse
        Takes features of records to those of sets: their mean, times the root of the set's size,
        so that noise that is independent stays as large as in one record.
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
        confidential variable, numbered; they differ where some record has another class.
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
        raise InputError(
            f"All training records are of one group of {name!r}.",
            remedy="Train on records of several groups, or leave the adversary group out.",
            code="one_group",
        )
    # Sets are drawn where records are: of a group in two shards each would see half, and which
    # half would depend on the sharding.
    if cut := int((table["shards"] > 1).sum()):
        raise InputError(
            f"{cut} of {n_groups} groups of {name!r} lie in more than one chunk: records "
            "of a group are read together where they are.",
            remedy="Sort the records by group and ingest them again (a group across the edge of a "
            "chunk is read whole), or leave the adversary group out.",
            code="group_cut",
        )
    if small := int((table["records"] < size).sum()):
        raise InputError(
            f"{small} of {n_groups} groups of {name!r} have fewer than {size} training records.",
            remedy=f"Set group_size to at most {table['records'].min()}, or train on more records "
            "of these groups.",
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
