"""Few copied columns among many independent ones: which sets of columns recur in a release?

By the distance in all columns one copied column drowns. Sets of columns are tried on one half of
the known records: in how many released rows does the cell of a record recur? The set that
distinguishes members best is attacked on the other half, so that trying many costs no confidence.
"""

from collections.abc import Callable
from functools import partial, reduce
from itertools import product

import numpy as np
import pandas as pd
import scipy

from privpipe.attacks.statistics.compared_columns import LEAST_NUMBERS, Column, read_intervals
from privpipe.protocols import BoolArray, FloatArray, IntArray

GRIDS = 1e-5, 0.1
"""Widths of cells, in deviations: of copies to rounding, and of copies with noise."""

MOST_SETS = 600
"""Sets of columns that are tried of one size; of many columns the best sets are extended."""

SIMILAR = 0.1
"""Distance of two distributions below which a column may be another under a new name."""

RANKS = np.linspace(0, 1, 1001)
"""Shares of rows at whose quantiles a scale is undone."""

N_ENDS = 6
"""Least and greatest known values of which one is that of the release's least and greatest row."""

Curve = list[FloatArray]
"""Values of a release, rising, and the known values that they were made of."""

Read = Callable[[pd.DataFrame], Column]
"""Reads a column of released rows in the units of the known one."""

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


def find_images(known: pd.DataFrame, released: pd.DataFrame) -> dict[str, tuple[str, Read]]:
    """By a name for both: a number column, and how a rising or falling scale of it is undone.

    A straight scale is undone exactly; of any other a value is that of the same rank.
    """
    found: dict[str, tuple[str, Read]] = {}
    for name in [str(name) for name in known if name in released]:
        x, z = (read_intervals(table[name])[0] for table in (known, released))
        x, z = np.sort(x[np.isfinite(x)]), z[np.isfinite(z)]
        is_number = len(x) > LEAST_NUMBERS * len(known) and len(z) > LEAST_NUMBERS * len(released)
        if not is_number or np.isin(z, x).mean() > LEAST_NUMBERS:
            continue
        for sign, word in ((1, "in order"), (-1, "reversed")):
            curve = _find_line(sign * z, x) or [np.quantile(one, RANKS) for one in (sign * z, x)]
            found[f"{name} {word}"] = name, partial(_undo, name, sign, curve)
    return found


def _find_line(z: FloatArray, x: FloatArray) -> Curve | None:
    """The straight scale on which nearly all of a column are known values: through extreme ones."""
    ends, kinds = (z.min(), z.max()), np.unique(x)
    some, near = z[:: len(z) // len(RANKS) + 1], 1e-6 * x.std()
    for pair in (ends, *product(kinds[:N_ENDS], kinds[-N_ENDS:])):
        y = np.interp(some, ends, pair)
        above = kinds[np.minimum(np.searchsorted(kinds, y - near), len(kinds) - 1)]
        if (np.abs(above - y) <= near).mean() > LEAST_NUMBERS:
            return [np.array(ends), np.array(pair)]
    return None


def _undo(name: str, sign: int, curve: Curve, rows: pd.DataFrame) -> Column:
    z = sign * read_intervals(rows[name])[0]
    return pd.Series(np.interp(z, curve[0], curve[1]), rows.index)
