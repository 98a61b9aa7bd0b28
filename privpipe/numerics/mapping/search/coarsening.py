"""Coarse versions of an ordered alphabet, and the way back for mappings and potentials.

Neighbouring symbols form cells; columns of one cell with like posteriors become one column. Back on
the fine alphabet the released masses of each group are spread over the symbols of a cell in
proportion to the prior. The monotone coupling, which is the cheapest, joins them to the group's
columns. Potentials are interpolated. Neither needs the prior or the positions to be even: what
comes back is always measured on the fine alphabet.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.ordered_pricing import PosteriorBins
from privpipe.protocols import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class CoarseAlphabet:
    """A coarse problem and how its cells and columns come from the fine one.

    Parameters
    ----------
    fine
        Problem with ascending positions of symbols and of columns.
    problem
        The coarse problem: cells as symbols, (cell, bin) groups as columns.
    bins
        Groups of like posteriors of the fine columns.
    cell : (n_symbols,)
        Cell of each fine symbol.
    column_bin : (n_coarse_columns,)
        Bin of each coarse column.
    """

    fine: programme.Programme
    problem: programme.Programme
    bins: PosteriorBins
    cell: IntArray
    column_bin: IntArray

    def refine_duals(self, at: programme.Duals) -> programme.Duals:
        """Interpolate the cells' potentials at the fine symbols; the multiplier stays."""
        centres, x = _positions(self.problem), _positions(self.fine)
        # Monotone cubics do not overshoot: a potential above its neighbours would weaken the bound.
        g = np.maximum(at.potentials, programme.LOWEST)
        between = scipy.interpolate.PchipInterpolator(centres, g, axis=0)
        fine = between(np.clip(x, centres[0], centres[-1]))
        return programme.Duals(programme.normalise_potentials(fine, self.fine.prior), at.multiplier)

    def coarsen_duals(self, at: programme.Duals) -> programme.Duals:
        """Fine potentials at the cells' centres; the multiplier stays."""
        centres, x = _positions(self.problem), _positions(self.fine)
        g = np.stack([np.interp(centres, x, column) for column in at.potentials.T], axis=1)
        return programme.Duals(programme.normalise_potentials(g, self.problem.prior), at.multiplier)

    def refine_plan(self, plan: programme.Plan, spacing: int = 1) -> programme.Plan:
        """Carry coarse masses to the fine alphabet; feasible and measured there.

        Parameters
        ----------
        plan
        spacing
            One of so many neighbours is released. Where the posteriors of a group differ, what many
            columns release together reveals less of each. The noise of a released posterior falls
            with the spacing; distortion rises with it, by squared distance with its square.
        """
        fine, n_cells = self.fine, self.problem.n_symbols
        share = self._shares()
        parts = []
        for b in range(len(self.bins.low)):
            inside = np.flatnonzero(self.bins.bin == b)
            mine = self.column_bin[plan.columns] == b
            target: FloatArray = (
                np.bincount(plan.symbols[mine], plan.weights[mine], n_cells)[self.cell] * share
            )
            target = _gather(target, spacing)
            source = fine.mass[inside]
            i, j, y = _monotone_coupling(target * (source.sum() / target.sum()), source)
            parts.append((i, inside[j], y))
        i, j, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        return programme.make_feasible(fine, *programme.Pairs.sort(fine, i, j, y))

    def _shares(self) -> FloatArray:
        """Share of a cell's mass that each fine symbol takes: its prior's, else equal."""
        prior = np.zeros(self.fine.n_symbols)
        np.add.at(prior, self.fine.stay, self.fine.mass)
        n_cells = self.problem.n_symbols
        mass = np.bincount(self.cell, prior, n_cells)
        n = np.bincount(self.cell, minlength=n_cells)
        empty = mass[self.cell] <= 0
        return np.where(empty, 1.0 / n[self.cell], prior / np.where(mass > 0, mass, 1.0)[self.cell])


def _gather(target: FloatArray, spacing: int) -> FloatArray:
    """Move the masses of so many neighbours to the middle one."""
    if spacing == 1:
        return target
    starts = np.arange(0, len(target), spacing)
    ends = np.append(starts[1:], len(target))
    gathered = np.zeros_like(target)
    gathered[(starts + ends) // 2] = np.add.reduceat(target, starts)
    return gathered


def _monotone_coupling(goal: FloatArray, base: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """The coupling of two measures on the line that keeps order, up to the end of the shorter."""
    ends, starts = np.cumsum(goal), np.cumsum(base)
    # Two runs in order, which a stable sort merges. Rounding is put right with the columns' sums.
    edges = np.sort(np.concatenate([ends, starts]), kind="stable")
    edges = np.minimum(edges, min(ends[-1], starts[-1]))
    weights = np.diff(edges, prepend=0.0)
    used = weights > 0
    middle, weights = edges[used] - 0.5 * weights[used], weights[used]
    return np.searchsorted(ends, middle), np.searchsorted(starts, middle), weights


def _positions(problem: programme.Programme) -> FloatArray:
    assert isinstance(problem.distance, programme.CodeDistance)
    return problem.distance.symbols[:, 0]


def coarsen_alphabet(
    problem: programme.Programme, bins: PosteriorBins, n_cells: int
) -> CoarseAlphabet:
    """Group the symbols of an ordered problem into cells of equal count.

    Parameters
    ----------
    problem
        Positions of symbols and columns ascend.
    bins
        Groups of like posteriors.
    n_cells
        At most the number of symbols; equal to it, only the groups are coarse.
    """
    assert isinstance(problem.distance, programme.CodeDistance)
    n, n_bins = problem.n_symbols, len(bins.low)
    # Of equal count, not width: uneven positions would leave most cells empty.
    cell = np.arange(n) * n_cells // n
    groups, member = np.unique(cell[problem.stay] * n_bins + bins.bin, return_inverse=True)
    member = member.ravel()
    mass = np.bincount(member, problem.mass)
    columns = [np.bincount(member, problem.mass * column) for column in problem.posterior.T]
    posterior = np.stack(columns, axis=1)
    x = _positions(problem)
    # A cell without mass lies in the middle of its symbols.
    weight = np.bincount(problem.stay, problem.mass, n) + 1e-12 / n
    centres = np.bincount(cell, weight * x, n_cells) / np.bincount(cell, weight, n_cells)
    stay, column_bin = np.divmod(groups, n_bins)
    apart = programme.CodeDistance(problem.distance.kind, centres[:, None], centres[stay][:, None])
    shares = np.asarray(mass / mass.sum(), dtype=np.float64)
    rows = np.asarray(posterior / mass[:, None], dtype=np.float64)
    coarse = programme.Programme(shares, rows, apart, problem.budget, stay)
    return CoarseAlphabet(problem, coarse, bins, cell, column_bin)
