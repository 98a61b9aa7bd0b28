"""Few copied columns among many independent ones: which sets of columns recur in a release?

By the distance in all columns one copied column drowns. Sets of columns are tried on one half of
the known records: in how many released rows does the cell of a record recur? The set that
distinguishes members best is attacked on the other half, so that trying many costs no confidence.
"""

from functools import reduce

import numpy as np
import pandas as pd
import scipy

from privpipe.protocols import BoolArray, FloatArray, IntArray

GRIDS = 1e-5, 0.1
"""Widths of cells, in deviations: of copies to rounding, and of copies with noise."""

MOST_SETS = 600
"""Sets of columns that are tried of one size; of many columns the best sets are extended."""

SIMILAR = 0.1
"""Distance of two distributions below which a column may be another under a new name."""

Axes = dict[str, FloatArray]
Nodes = frozenset[tuple[str, float]]
Cells = dict[tuple[str, float], IntArray]


def find_copied(known: Axes, released: Axes, is_member: BoolArray) -> list[str]:
    """The columns whose cells, taken as one, recur most for members and least for controls.

    Parameters
    ----------
    known, released
        Coordinates by column, (n_records, n_axes); rows of the release are a sample.
    is_member : (n_known,)
        Which of the known records are members; the others are controls.
    """
    cells: Cells = {}
    for name, x in known.items():
        # Each category has a number of its own.
        axis = np.concatenate([x, released[name]]) @ np.arange(1, x.shape[1] + 1)
        for grid in GRIDS:
            # Shifted, so that no round number is at the edge of a cell.
            cells[name, grid] = pd.factorize(np.floor(axis / grid + 0.371))[0]
    tried: dict[Nodes, FloatArray] = {}
    parents: list[Nodes] = [frozenset()]
    while True:
        pairs = ((one, node) for one in parents for node in cells if node[0] not in dict(one))
        grown = {one | {node}: None for one, node in pairs}
        found = {one: _judge(cells, one, is_member) for one in grown}
        tried |= found
        if max(tried, key=lambda one: tried[one][0]) not in found:
            best = max(tried, key=lambda one: tried[one][1])
            return [name for name in known if name in dict(best)]
        parents = sorted(found, key=lambda one: -found[one][0])[: MOST_SETS // len(cells) + 1]


def _judge(cells: Cells, nodes: Nodes, is_member: BoolArray) -> FloatArray:
    """How much a set is copied, and how it distinguishes members, in deviations."""
    codes = reduce(lambda a, b: pd.factorize(a * (b.max() + 1) + b)[0], [cells[n] for n in nodes])
    mine, rows = codes[: len(is_member)], codes[len(is_member) :]
    known, released = (np.bincount(part, minlength=codes.max() + 1)[mine] for part in (mine, rows))
    # Of a copy also the counts of frequent cells are alike, which no single recurrence shows.
    score = np.stack([released / known, released > 0])
    members, controls = (score[:, side].mean(axis=1) for side in (is_member, ~is_member))
    return np.asarray((members - controls) / np.maximum(score.std(axis=1), 1e-9))


def find_renamed(known: Axes, released: Axes) -> dict[str, tuple[str, str]]:
    """By a name for both: a known column, and one that only the release has, of the same law."""
    pairs = [(a, b) for b in released if b not in known for a in known]
    apart = [scipy.stats.ks_2samp(known[a], released[b], method="asymp") for a, b in pairs]
    return {" as ".join(p): p for p, d in zip(pairs, apart, strict=True) if d.statistic < SIMILAR}
