"""Which places reveal more of a confidential variable than the rest, with proof.

Of a contrast and a column ``T`` is the sum of their products, ``D`` the information. ``T / 2D`` is
at most the total variation between the column's laws in the two classes, given the desired
variables: the advantage that somebody gains by this column alone. Given the labels, ``T`` is a sum
of independent terms of bounded range, so Hoeffding's inequality limits its error whatever the
column's law, however rare a class, however little a place holds. All columns, contrasts, places
and (of codes) sets of categories share one level by Bonferroni's inequality.

References
----------
Hoeffding 1963, Probability inequalities for sums of bounded random variables, theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.attacks.statistics.place_sums import PlaceSums
from privpipe.protocols import BoolArray, FloatArray


def add_total(sums: PlaceSums) -> PlaceSums:
    """All places as one."""
    return sums.add_up(np.zeros(len(sums.chunk), np.int64), 1)


@dataclass(frozen=True, eq=False)
class PlaceTest:
    """The test of places against the rest of a release.

    Parameters
    ----------
    total
        All places as one; see `add_total`.
    n_codes
        Codes of each column of codes.
    n_places
        How many places are tested in all, of every size.
    allowed
        Advantage beyond the rest that is allowed.
    level
        Confidence of all tests together.
    """

    total: PlaceSums
    n_codes: tuple[int, ...]
    n_places: int
    allowed: float
    level: float

    @property
    def n_columns(self) -> int:
        """Columns that are told apart: two of each measured one, then those of codes."""
        return 2 * int(self.total.measured.shape[3]) + len(self.n_codes)

    @property
    def _log_tests(self) -> float:
        n_contrasts = self.total.measured.shape[1]
        tests = 2 * self.n_places * n_contrasts * max(1, self.n_columns)
        return math.log(tests) - math.log1p(-self.level)

    @property
    def _sets(self) -> FloatArray:
        """Logarithm of the number of sets of categories among which the worst is chosen."""
        measured = np.zeros(2 * self.total.measured.shape[3])
        return np.concatenate([measured, np.log(2) * np.array(self.n_codes, float)])

    def find_excess(self, places: PlaceSums) -> tuple[FloatArray, FloatArray]:
        """Advantage of each place, and by how much that of the rest it surely exceeds.

        Returns
        -------
        advantage : (n_places, n_contrasts, n_columns)
            Estimate in the place.
        excess : (n_places, n_contrasts, n_columns)
            Lower limit of what it is beyond that of the rest; minus infinity where nothing is
            known of either. All limits hold together with the confidence `level`.
        """
        rest = _subtract(self.total, places)
        mine, error = self._estimate(places)
        others, other_error = self._estimate(rest)
        radius = np.sqrt(2 * (error + other_error) * (self._log_tests + self._sets))
        with np.errstate(invalid="ignore"):
            excess = np.where(np.isfinite(radius), mine - others - radius, -np.inf)
        return mine, excess

    def finds_copies(self, places: PlaceSums) -> BoolArray:
        """(n_places, n_contrasts): whether a column of codes or, where there is none, a measured
        one that equals the contrast in this place alone would be found."""
        _, error = self._estimate(places)
        _, other_error = self._estimate(_subtract(self.total, places))
        radius = np.sqrt(2 * (error + other_error) * (self._log_tests + self._sets))
        columns = slice(None) if not self.n_codes else slice(-len(self.n_codes), None)
        return np.asarray((radius[:, :, columns] < 1 - self.allowed).all(axis=2))

    def _estimate(self, places: PlaceSums) -> tuple[FloatArray, FloatArray]:
        """Advantage by each column, and the proxy of its variance."""
        n, k, _, d = places.measured.shape
        with np.errstate(divide="ignore", invalid="ignore"):
            half = 1 / (2 * places.information)
            error = places.proxy * half**2
        error = np.where(places.information > 0, error, np.inf)
        half = np.where(places.information > 0, half, 0.0)
        measured = np.abs(places.measured).reshape(n, k, 2 * d) * half[:, 0, :, None]
        coded = _sum_columns(np.abs(places.coded), self.n_codes) * half[:, 1, :, None]
        errors = [
            np.broadcast_to(error[:, i, :, None], part.shape)
            for i, part in enumerate((measured, coded))
        ]
        return np.concatenate([measured, coded], axis=2), np.concatenate(errors, axis=2)


def _sum_columns(values: FloatArray, n_codes: Sequence[int]) -> FloatArray:
    """Sums over the codes of each column."""
    if not n_codes:
        return np.zeros((*values.shape[:2], 0))
    starts = np.cumsum([0, *n_codes[:-1]])
    summed: FloatArray = np.add.reduceat(values, starts, axis=2)
    return summed


def _subtract(total: PlaceSums, places: PlaceSums) -> PlaceSums:
    """The rest of each place; never less information than none."""
    return PlaceSums(
        places.chunk,
        places.partition,
        np.maximum(total.information - places.information, 0),
        np.maximum(total.proxy - places.proxy, 0),
        total.measured - places.measured,
        total.coded - places.coded,
    )
