"""The ball of laws around counts: how many cells a law may have, how far it may be.

Which records make the centre, and how many cells there are, is decided by the schema and by how
many records there are, never by what they hold: the radius is proven for a number of cells fixed
beforehand (see `numerics.mapping.likelihood_ball`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privpipe.errors import OptionError
from privpipe.numerics.mapping.likelihood_ball import find_radius
from privpipe.protocols import ShardSchema

SHARES = {"held_out": 0.6, "ball": 0.2, "distortion": 0.2}
"""How the chance to fail is shared among the bounds that are all looked at."""

_BALL_ALONE = {"held_out": 0.0, "ball": 1.0, "distortion": 0.0}
_MEAN = 0.4
"""Of the held-out bound's chance to fail, what its mean may use."""


@dataclass(frozen=True)
class Cells:
    """What the schema allows.

    Parameters
    ----------
    n_private
        Private values that a law may have.
    n_cells
        Pairs of private value and profile, a missing attribute counted as a value.
    """

    n_private: int
    n_cells: float


def count_private(schema: ShardSchema, n_seen: int) -> int:
    """Private values that the law may have: those declared, or those seen where none are."""
    sizes = [column.n_categories for column in schema.confidential]
    declared = math.prod(size for size in sizes if size is not None)
    return max(n_seen, declared) if None not in sizes else n_seen


def count_cells(schema: ShardSchema, n_seen: int) -> Cells:
    """Cells that a law may give mass to; infinitely many where an attribute declares no size."""
    n_private = count_private(schema, n_seen)
    sizes = [column.n_categories for column in schema.attributes]
    if None in sizes:
        return Cells(n_private, math.inf)
    return Cells(n_private, float(n_private * math.prod((size or 0) + 1 for size in sizes)))


def choose_shares(held_out: float) -> dict[str, float]:
    """How the chance to fail is shared: where no record is held out the ball has all of it."""
    return SHARES if held_out > 0 else _BALL_ALONE


def find_robust_radius(
    cells: Cells, n_fitted: int, n_fresh: int, held_out: float, confidence: float
) -> float:
    """Radius of the ball that a robust mapping is chosen for, nats.

    Parameters
    ----------
    cells
    n_fitted, n_fresh
        Records that choose the mapping, and that judge it.
    held_out
        Share asked for; 0 means that the ball itself is the promise.
    confidence

    Returns
    -------
    radius
        Without records held out, the one that holds the law with this confidence. With some, that
        of a ball which holds the mean of one function (Duchi, Glynn and Namkoong 2021): what fresh
        records then leave open is a mean, and any radius is sound, since they judge.

    Raises
    ------
    OptionError
        If the ball must be the promise and has more cells than records.
    """
    miss = 1 - confidence
    if held_out > 0 and n_fresh > 0:
        return math.log(1 / (SHARES["held_out"] * _MEAN * miss)) / n_fresh
    if cells.n_cells > n_fitted:
        raise OptionError(
            f'robust = "ball" without records held out: the schema allows {cells.n_cells:,.0f} '
            f"pairs of private value and profile, and there are {n_fitted:,} records; the ball "
            "would hold every law.",
            remedy="Set held_out to 0.5, name fewer attributes, or give more records than pairs.",
            code="ball-holds-all",
        )
    return find_radius(int(cells.n_cells), n_fitted, miss)
