"""A mechanism of local differential privacy: lattice, law of the noise, and what they promise."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.noise.bounding import Norm
from privpipe.numerics.noise.discrete import DiscreteLaplaceNoise
from privpipe.numerics.noise.knorm import KNormNoise
from privpipe.numerics.noise.lattice import Lattice, plan_grid
from privpipe.protocols import FloatArray, Guarantee, RecordStream

Law = Literal["knorm", "discrete"]
Order = Literal["filter_then_noise", "noise_then_filter"]

DIAMETER = 2.0
"""Largest distance of two bounded records."""

MOST_DELTA = 2.0**-100
"""Largest delta, and largest slack of epsilon, that a release may promise."""

_SECRET = (
    "AES-256 is pseudorandom and the release key stays secret (destroy it by `privpipe forget-key`)"
)
_NOT_HIDDEN = (
    "Records are protected one by one, not what several records of one person reveal together, nor "
    "what is published beside the released features: other variables, which records are withheld, "
    "counts of clipped records, the digest of the source (it confirms a guess of all of them), "
    "figures of the audit, and how long it took."
)


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
        "knorm" or "discrete"; see `privpipe.numerics.noise`.
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
        if self.law == "knorm" and self.norm == "l1":
            raise OptionError(
                'noise = "knorm" is the law of the l2 norm, but the norm is "l1".',
                remedy='Use norm = "l2", or noise = "discrete", which suits either.',
                code="norm",
            )
        _ = self.lattice, self.noise  # refuse what they refuse

    @cached_property
    def lattice(self) -> Lattice:
        return Lattice(self.grid, self.width, self.norm)

    @cached_property
    def noise(self) -> KNormNoise | DiscreteLaplaceNoise:
        """The law; its scale is rounded up, its sensitivity is that of the lattice in integers."""
        if self.law == "knorm":
            return KNormNoise(_widest_scale(self.epsilon), self.grid, self.width)
        return DiscreteLaplaceNoise(self.epsilon, self.lattice.diameter_l1, self.width)

    @property
    def limit(self) -> int:
        """Released whole numbers are clipped to at most this."""
        return self.noise.limit(self.lattice.radius)

    @property
    def spread(self) -> float:
        """Root mean square of one coordinate of the noise, in units of the ball's radius."""
        return find_spread(self.epsilon, self.width, self.norm, self.law)

    @property
    def slack(self) -> float:
        """What the rounding of stored probabilities may add to epsilon."""
        return self.noise.slack

    @property
    def delta(self) -> float:
        """Of (epsilon, delta); 0 for the discrete law."""
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
        steps += self.noise.draw(stream)
        # Post-processing of the noisy number: it costs no epsilon.
        np.clip(steps, -self.limit, self.limit, out=steps)
        # A whole number below 2**53 times a power of two: exact, so that no last bit shows the
        # record.
        released: FloatArray = steps * self.grid
        return released

    def promise(self, order: Order, grounds: str) -> Guarantee:
        """What it promises for every record, in words a privacy officer can quote."""
        if self.law == "discrete":
            theorem = (
                "Geometric mechanism (Ghosh et al. 2009) on whole numbers, their norm checked in "
                "integers: every output, after floating point, retry and re-chunking"
            )
        else:
            theorem = (
                "Hamm 2017, Noisy Minimax Filters, eq. (8), correctly rounded to a grid: "
                "post-processing of the real mechanism"
            )
        return Guarantee(
            kind="local_dp",
            number=self.epsilon,
            unit="epsilon, nats",
            scope="every record",
            theorem=f"{theorem}. Order: {order}, norm {self.norm}",
            assumptions=f"{_SECRET}. {grounds} {_NOT_HIDDEN}",
            delta=self.delta,
            parameters=tuple(self._list_parameters(order)),
        )

    def _list_parameters(self, order: Order) -> Iterator[tuple[str, float]]:
        yield "epsilon of one record", self.epsilon
        yield "slack of epsilon", self.slack
        yield "norm", 1.0 if self.norm == "l1" else 2.0
        yield "diameter", DIAMETER
        yield "grid", self.grid
        yield "noise, root mean square", self.spread
        yield "filtered before the noise", float(order == "filter_then_noise")


def check_epsilon(epsilon: float) -> None:
    """Raise OptionError unless epsilon is a finite number above 0."""
    if not 0 < epsilon < math.inf:
        raise OptionError(
            f"epsilon is {epsilon}.", remedy="Use a finite number above 0.", code="epsilon"
        )


def _widest_scale(epsilon: float) -> float:
    """DIAMETER / epsilon, rounded up: the loss is then at most epsilon."""
    # Upwards: a scale rounded down would promise less noise than epsilon. requires.
    return math.nextafter(DIAMETER / epsilon, math.inf)


def find_spread(epsilon: float, width: int, norm: Norm, law: Law) -> float:
    """Root mean square of one coordinate of the noise, in units of the ball's radius."""
    if law == "knorm":
        return DIAMETER / epsilon * math.sqrt(width + 1)
    diameter = DIAMETER * (math.sqrt(width) if norm == "l2" else 1.0)
    return math.sqrt(2) * diameter / epsilon


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
    try:
        planned = plan_mechanism(epsilon, width, norm, law, grid)
        if _is_sharp(planned):
            return planned
        problem = (
            f"its delta would be {planned.delta:.2g} and its slack {planned.slack:.2g}, above "
            f"{MOST_DELTA:.2g}."
        )
    except OptionError as error:
        least, most = find_epsilons(width, norm, law, grid)
        if least > most or least <= epsilon <= most or not 0 < epsilon < math.inf:
            raise  # no other epsilon would help
        problem = f"noise of that size is not drawn exactly: {error.message}"
    least, most = find_epsilons(width, norm, law, grid)
    raise OptionError(
        f"epsilon is {epsilon:g}, and for {width} coordinates under {law!r} {problem}",
        remedy=f"Use {_round_in(least, most)}.",
        code="epsilon",
    )


def _is_sharp(planned: Mechanism) -> bool:
    """Whether next to nothing is added to what epsilon says."""
    return planned.delta <= MOST_DELTA and planned.slack <= MOST_DELTA


def find_epsilons(
    width: int, norm: Norm, law: Law, grid: float | None = None
) -> tuple[float, float]:
    """Least and largest epsilon of a release, to a hundredth; the least above the largest if none.

    The epsilons that are allowed are an interval around those whose noise suits the grid.
    """

    def is_allowed(power: float) -> bool:
        try:
            return _is_sharp(plan_mechanism(10.0**power, width, norm, law, grid))
        except OptionError:
            return False

    allowed = [power for power in np.arange(-10.0, 10.25, 0.25).tolist() if is_allowed(power)]
    if not allowed:
        return math.inf, 0.0
    return (
        10.0 ** _bisect(is_allowed, allowed[0], allowed[0] - 0.25),
        10.0 ** _bisect(is_allowed, allowed[-1], allowed[-1] + 0.25),
    )


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
