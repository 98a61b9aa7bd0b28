"""A mechanism of local differential privacy: lattice, law of the noise, and what they promise.

Bounded records are placed on a power-of-two grid, with a norm that is a fact of integers. In
floating point |b| <= 1 is false in up to half of all records, by an ulp; rounding to a grid then
leaves the ball. Here the ball is shrunk by what rounding can add. The sum of the squares (or sizes)
of the whole numbers is compared with the radius in integers. So the sensitivity rests on no
analysis of the bounding function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

import numpy as np

from privpipe.errors import GuaranteeError, InputError, OptionError
from privpipe.numerics.compiler import compiled
from privpipe.numerics.noise import discrete, knorm
from privpipe.numerics.noise.bounding import Norm
from privpipe.numerics.noise.privunit import LEAST_EPSILON, MOST_EPSILON, PrivUnitNoise
from privpipe.protocols import FloatArray, Guarantee, IntArray, RecordStream

Law = Literal["knorm", "discrete", "privunit"]
Order = Literal["filter_then_noise", "noise_then_filter"]

DIAMETER = 2.0
"""Largest distance of two bounded records."""

MOST_DELTA = 2.0**-100
"""Largest delta, and largest slack of epsilon, that a release may promise."""

_SECRET = (
    "AES-256 is pseudorandom and the release key stays secret (destroy it by `privpipe forget-key`)"
)
_NOT_HIDDEN = (
    "Records are protected one by one, not what several records of one person reveal together. Nor "
    "is what is published beside the features: other variables, which records are withheld, "
    "counts of clipped ones, the audit's figures and time. The source's digest confirms guesses."
)

_THEOREMS: dict[Law, str] = {
    "discrete": "Geometric mechanism (Ghosh et al. 2009) on whole numbers, their norm checked in "
    "integers: every output, after floating point, retry and re-chunking",
    "privunit": "PrivUnit (Bhowmick et al. 2018) on vectors of signs, whose chances are two alone, "
    "in whole numbers: every output, after floating point, retry and re-chunking",
    "knorm": "Hamm 2017, Noisy Minimax Filters, eq. (8), correctly rounded to a grid: "
    "post-processing of the real mechanism",
}

FINEST, COARSEST = 2.0**-20, 2.0**-10
"""Steps of a grid that are allowed, in units of the ball's radius."""

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
        if not held or total > (radius if norm == 1 else radius * radius):
            outside += 1
    return outside


@dataclass(frozen=True)
class Lattice:
    """Whole multiples of a grid within a ball of radius 1.

    Parameters
    ----------
    grid
        Step, a power of two with an exponent from -20 to -10.
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
            remedy = "Use a power of two: 2.0**n with n from -20 to -10."
            raise OptionError(f"The grid is {self.grid}.", remedy=remedy, code="grid")
        if not 1 <= self.width <= MOST_WIDTH:
            problem = f"A record has {self.width} coordinates."
            raise OptionError(problem, remedy="Use 1 to 2**20 of them.")
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
        (l1). The further step takes what floating point may add to a norm of 1.
        """
        # So no bounded record is refused; were the bound wrong, `place` would refuse, not release.
        return self.radius - 1 - (math.sqrt(self.width) if self.norm == "l2" else self.width) / 2

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
            problem = f"Bounded records have shape {bounded.shape}."
            remedy = f"Give an array of shape (n_records, {self.width})."
            raise InputError(problem, remedy=remedy, code="shape")
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
    return min(COARSEST, max(FINEST, min(suited, 2.0 ** math.floor(-math.log2(64 * moved)))))


@dataclass(frozen=True)
class Mechanism:
    """Adds whole noise to bounded records on a lattice.

    Parameters
    ----------
    epsilon
        Privacy loss of one record.
    width
        Coordinates of a bounded record.
    norm
        In which records are bounded by 1.
    law
        "knorm", "discrete" or "privunit"; see `privpipe.numerics.noise`.
    grid
        Step, a power of two.

    Raises
    ------
    OptionError
        If epsilon is not positive and finite, or law, norm and grid do not go together.
    """

    epsilon: float
    width: int
    norm: Norm
    law: Law
    grid: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.law != "discrete" and self.norm == "l1":
            problem = f'noise = "{self.law}" is the law of the l2 norm, but the norm is "l1".'
            remedy = 'Use norm = "l2", or noise = "discrete", which suits either.'
            raise OptionError(problem, remedy=remedy, code="norm")
        _ = self.lattice, self.noise  # refuse what they refuse

    @cached_property
    def lattice(self) -> Lattice:
        return Lattice(self.grid, self.width, self.norm)

    @cached_property
    def noise(self) -> knorm.KNormNoise | discrete.DiscreteLaplaceNoise | PrivUnitNoise:
        """The law; its scale is rounded up, its sensitivity is that of the lattice in integers."""
        if self.law == "knorm":
            # Upwards: a scale rounded down would promise less noise than epsilon requires.
            scale = math.nextafter(DIAMETER / self.epsilon, math.inf)
            return knorm.KNormNoise(scale, self.grid, self.width)
        if self.law == "privunit":
            return PrivUnitNoise(self.epsilon, self.width)
        return discrete.DiscreteLaplaceNoise(self.epsilon, self.lattice.diameter_l1, self.width)

    @property
    def limit(self) -> int:
        """Released whole numbers are clipped to at most this."""
        return self.noise.limit(self.lattice.radius)

    @property
    def spread(self) -> float:
        """Root mean square of one coordinate of the noise, in units of the ball's radius."""
        return find_spread(self.epsilon, self.width, self.norm, self.law)

    @property
    def factor(self) -> float:
        """Mean of a release over the bounded record: placing records on the grid shrinks them."""
        return 1.0 if self.law == "privunit" else self.lattice.inner * self.grid

    @property
    def delta(self) -> float:
        """Of (epsilon, delta); 0 for all laws but the K-norm."""
        # Undecided records are released as zeros: two laws within `undecided` of the true ones, and
        # (1 + e^epsilon) undecided is the delta of that. 700 keeps exp finite.
        return min(1.0, (1 + math.exp(min(self.epsilon, 700.0))) * self.noise.undecided)

    def release(self, bounded: FloatArray, stream: RecordStream) -> FloatArray:
        """Noisy records, (n_records, width): whole multiples of the grid, exactly.

        Parameters
        ----------
        bounded : (n_records, width), float64
            Of norm at most 1, but for rounding.
        stream
            Of as many records.
        """
        # Bounded, placed and checked first, then noise: after this line only whole numbers are
        # added.
        steps = self.lattice.place(bounded)
        if isinstance(self.noise, PrivUnitNoise):
            # Checked in integers all the same: beyond the ball the mean would be another.
            drawn = self.noise.draw(bounded, stream)
            return cast(FloatArray, np.rint(drawn / self.grid) * self.grid)
        steps += self.noise.draw(stream)
        # Post-processing of the noisy number: it costs no epsilon.
        np.clip(steps, -self.limit, self.limit, out=steps)
        # A whole number below 2**53 times a power of two: exact, so that no last bit shows the
        # record.
        return steps * self.grid

    def promise(self, order: Order, grounds: str) -> Guarantee:
        """What it promises for every record, in words a privacy officer can quote."""
        return Guarantee(
            kind="local_dp",
            number=self.epsilon,
            unit="epsilon, nats",
            scope="every record",
            theorem=f"{_THEOREMS[self.law]}. Order: {order}, norm {self.norm}",
            assumptions=f"{_SECRET}. {grounds} {_NOT_HIDDEN}",
            delta=self.delta,
            parameters=(
                ("epsilon of one record", self.epsilon),
                # What the rounding of stored probabilities may add to epsilon.
                ("slack of epsilon", self.noise.slack),
                ("norm", 1.0 if self.norm == "l1" else 2.0),
                ("diameter", DIAMETER),
                ("grid", self.grid),
                ("noise, root mean square", self.spread),
                ("filtered before the noise", float(order == "filter_then_noise")),
            ),
        )


def check_epsilon(epsilon: float) -> None:
    """Raise OptionError unless epsilon is a finite number above 0."""
    if not 0 < epsilon < math.inf:
        problem = f"epsilon is {epsilon}."
        raise OptionError(problem, remedy="Use a finite number above 0.", code="epsilon")


def find_spread(epsilon: float, width: int, norm: Norm, law: Law) -> float:
    """Root mean square of one coordinate of the noise, in units of the ball's radius."""
    if law == "privunit":
        return PrivUnitNoise(epsilon, width).spread
    if law == "knorm":
        return DIAMETER / epsilon * math.sqrt(width + 1)
    return math.sqrt(2) * (DIAMETER * (math.sqrt(width) if norm == "l2" else 1.0)) / epsilon


def plan_promised(
    epsilon: float, width: int, norm: Norm, law: Law, grid: float | None = None
) -> Mechanism:
    """The mechanism of a release: what `check` and the fit use alike.

    Raises
    ------
    OptionError
        If no noise of this epsilon is drawn exactly, or its delta or its slack would be above
        `MOST_DELTA`; with the epsilons that are allowed.
    """
    refused = None
    try:
        planned = plan_mechanism(epsilon, width, norm, law, grid)
        if _is_sharp(planned):
            return planned
        both = f"its delta would be {planned.delta:.2g} and its slack {planned.noise.slack:.2g}"
        problem = f"{both}, above {MOST_DELTA:.2g}."
    except OptionError as error:
        refused, problem = error, f"noise of that size is not drawn exactly: {error.message}"
    least, most = find_epsilons(width, norm, law, grid)
    if refused and (least > most or least <= epsilon <= most or not 0 < epsilon < math.inf):
        raise refused  # no other epsilon would help
    problem = f"epsilon is {epsilon:g}, and for {width} coordinates under {law!r} {problem}"
    raise OptionError(problem, remedy=f"Use {_round_in(least, most)}.", code="epsilon")


def _is_sharp(planned: Mechanism) -> bool:
    """Whether next to nothing is added to what epsilon says."""
    return planned.delta <= MOST_DELTA and planned.noise.slack <= MOST_DELTA


def find_epsilons(
    width: int, norm: Norm, law: Law, grid: float | None = None
) -> tuple[float, float]:
    """Least and largest epsilon of a release, to a hundredth; the least above the largest if none.

    The epsilons that are allowed are an interval around those whose noise suits the grid.
    """
    if law == "privunit":
        return LEAST_EPSILON, MOST_EPSILON

    def is_allowed(power: float) -> bool:
        try:
            return _is_sharp(plan_mechanism(10.0**power, width, norm, law, grid))
        except OptionError:
            return False

    allowed = [power for power in np.arange(-10.0, 10.25, 0.25).tolist() if is_allowed(power)]
    if not allowed:
        return math.inf, 0.0
    least = 10.0 ** _bisect(is_allowed, allowed[0], allowed[0] - 0.25)
    return least, 10.0 ** _bisect(is_allowed, allowed[-1], allowed[-1] + 0.25)


def _round_in(least: float, most: float) -> str:
    """Three digits of both, rounded to the inside."""
    low, high = (10.0 ** (math.floor(math.log10(one)) - 2) for one in (least, most))
    return f"{math.ceil(least / low) * low:.3g} to {math.floor(most / high) * high:.3g}"


def _bisect(is_allowed: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last power within a thousandth that is allowed."""
    while abs(outside - inside) > 1e-3:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_allowed(middle) else (inside, middle)
    return inside


def plan_mechanism(
    epsilon: float, width: int, norm: Norm, law: Law, grid: float | None = None
) -> Mechanism:
    """A mechanism on the grid that suits its noise, unless one is given.

    Examples
    --------
    >>> plan_mechanism(1.0, 20, "l2", "knorm").grid == 2.0**-13
    True
    """
    check_epsilon(epsilon)
    spread = find_spread(epsilon, width, norm, law)
    return Mechanism(epsilon, width, norm, law, grid or plan_grid(spread, width, norm))
