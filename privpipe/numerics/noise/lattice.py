"""Bounded records on a power-of-two grid, with a norm that is a fact of integers.

In floating point |b| <= 1 is false in up to half of all records, by an ulp; rounding to a grid
then leaves the ball. Here the ball is shrunk by what rounding can add, and the sum of the squares
(or sizes) of the whole numbers is compared with the radius in integers: the sensitivity rests on
no analysis of the bounding function.
"""

import math
from dataclasses import dataclass

import numpy as np

from privpipe.errors import GuaranteeError, InputError, OptionError
from privpipe.numerics.compiler import compiled
from privpipe.numerics.noise.bounding import Norm
from privpipe.protocols import FloatArray, IntArray

FINEST, COARSEST = 2.0**-20, 2.0**-10
"""Steps allowed, in units of the ball's radius."""

MOST_SHRUNK = 0.25
"""The ball loses at most this share of its radius to rounding."""

MOST_WIDTH = 2**20
"""Coordinates per record: their squares then add up below 2**63."""


@compiled
def _place(bounded: FloatArray, inner: float, radius: int, norm: int, out: IntArray) -> int:
    """Whole numbers of every record, and how many records are outside the ball."""
    outside = 0
    for i in range(bounded.shape[0]):
        total = np.int64(0)
        held = True
        for j in range(bounded.shape[1]):
            value = bounded[i, j]
            # NaN included. Steps of such a number might not fit 64 bits: it is outside, whatever it
            # is.
            if not abs(value) <= 2.0:
                held = False
                value = 0.0
            step = np.int64(np.rint(value * inner))
            out[i, j] = step
            total += abs(step) if norm == 1 else step * step
        # Whole numbers are compared: this, not the bounding function, is what the sensitivity rests
        # on.
        limit = radius if norm == 1 else radius * radius
        if not held or total > limit:
            outside += 1
    return outside


@dataclass(frozen=True)
class Lattice:
    """Whole multiples of a grid within a ball of radius 1.

    Parameters
    ----------
    grid
        Step, a power of two from 2**-20 to 2**-10.
    width
        Coordinates per record.
    norm
        Of the ball, "l1" or "l2".

    Raises
    ------
    OptionError
        If the grid is no such power of two, or so coarse for this width that rounding would take
        a quarter of the ball.

    Examples
    --------
    >>> lattice = Lattice(2.0**-12, 2, "l2")
    >>> lattice.radius, lattice.place(np.array([[0.6, 0.8]]))
    (4096, array([[2457, 3275]]))
    """

    grid: float
    width: int
    norm: Norm

    def __post_init__(self) -> None:
        if not FINEST <= self.grid <= COARSEST or math.frexp(self.grid)[0] != 0.5:
            raise OptionError(
                f"The grid is {self.grid}.",
                remedy="Use a power of two from 2**-20 (9.5e-7) to 2**-10 (.00098).",
                code="grid",
            )
        if not 1 <= self.width <= MOST_WIDTH:
            raise OptionError(
                f"A record has {self.width} coordinates.", remedy="Use 1 to 2**20 of them."
            )
        if self.inner < (1 - MOST_SHRUNK) * self.radius:
            raise OptionError(
                f"The grid {self.grid:g} is too coarse for {self.width} coordinates in the "
                f"{self.norm} norm: rounding would take more than a quarter of the ball.",
                remedy="Use a finer grid, the l2 norm, or a filter of fewer features.",
                code="grid",
            )

    @property
    def radius(self) -> int:
        """Largest norm of a vector of whole numbers: 1 / grid."""
        return round(1 / self.grid)

    @property
    def inner(self) -> float:
        """What a coordinate is multiplied by: the radius, less what rounding may add and a step.

        Rounding to nearest moves a vector by at most ``sqrt(width) / 2`` (l2) or ``width / 2``
        (l1); the further step takes what floating point may add to a norm of 1.
        """
        moved = math.sqrt(self.width) if self.norm == "l2" else self.width
        # So no bounded record is refused; were the bound wrong, `place` would refuse, not release.
        return self.radius - 1 - moved / 2

    @property
    def diameter(self) -> int:
        """Largest distance of two vectors, in steps and in the norm of the ball."""
        return 2 * self.radius

    @property
    def diameter_l1(self) -> int:
        """Largest l1 distance of two vectors, in steps."""
        if self.norm == "l1":
            return self.diameter
        # |v|_1 <= sqrt(width) |v|_2 (Cauchy and Schwarz), rounded down: l1 norms are whole numbers.
        return math.isqrt(self.width * self.diameter**2)

    def place(self, bounded: FloatArray) -> IntArray:
        """Whole numbers whose norm is at most `radius`, checked in integers.

        Parameters
        ----------
        bounded : (n_records, width), float64
            Of norm at most 1, but for rounding.

        Returns
        -------
        steps : (n_records, width), int64
            ``round(bounded * inner)``: unbiased but for the factor ``inner * grid``.

        Raises
        ------
        InputError
            If the shape is wrong.
        GuaranteeError
            If a vector is outside the ball, so that nothing of it may be released.
        """
        if bounded.ndim != 2 or bounded.shape[1] != self.width:
            raise InputError(
                f"Bounded records have shape {bounded.shape}.",
                remedy=f"Give an array of shape (n_records, {self.width}).",
                code="shape",
            )
        steps = np.empty(bounded.shape, np.int64)
        norm = 1 if self.norm == "l1" else 2
        rows = np.ascontiguousarray(bounded, np.float64)
        outside = _place(rows, self.inner, self.radius, norm, steps)
        if outside:
            raise GuaranteeError(
                f"{outside} of {len(bounded)} bounded records are outside the unit ball.",
                remedy="Nothing was released. Bound them with `bound_records`; if they were, this "
                "is a fault of privpipe: report it.",
                code="outside-ball",
            )
        return steps


def plan_grid(spread: float, width: int, norm: Norm) -> float:
    """Power of two near 2**-16 of the noise's spread, fine enough for the width.

    Parameters
    ----------
    spread
        Root mean square of one coordinate of the noise, in units of the ball's radius.
    width, norm
        As of `Lattice`. Where rounding would shrink the ball by more than a 64th, the grid is
        finer than the noise requires.

    Examples
    --------
    >>> math.log2(plan_grid(9.2, 20, "l2")), math.log2(plan_grid(1e9, 20, "l2"))
    (-13.0, -10.0)
    """
    suited = 2.0 ** math.floor(math.log2(max(spread, 2.0**-100) * 2.0**-16))
    # What `Lattice.inner` takes away: at most a 64th of the ball.
    moved = 1 + (math.sqrt(width) if norm == "l2" else width) / 2
    narrow = 2.0 ** math.floor(-math.log2(64 * moved))
    return min(COARSEST, max(FINEST, min(suited, narrow)))
