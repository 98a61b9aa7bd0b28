"""Sums of products of bounded records on a public scale, and the noise that makes them private."""

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privpipe.capabilities import AddsUp
from privpipe.errors import InputError
from privpipe.numerics import finite, moments
from privpipe.numerics.noise.gaussian import MARGIN, draw_discrete_gaussian, find_slack
from privpipe.numerics.noise.mechanism import Lattice
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import BoolArray, FloatArray, IntArray, Shard, ShardSchema

GRID = 2.0**-16
"""Of the records. Products of two are below `2**33`, so that `2**30` records add up in 63 bits."""

MOST_RECORDS = 2**30

BLOCK_RECORDS = 2**13
"""Records whose products are summed in float64 at once: below 2**46, and so without rounding."""

FEATURE_SHARE, RESPONSE_SHARE = math.sqrt(2 / 3), math.sqrt(1 / 3)
"""Of the norm of a record. Products of features get half of the noise that those of responses get,
since every coefficient rests on many of them. Their squares sum to one."""


FAR = 1e3
"""Scaled values of canaries, which the bounds take to 1."""


MOST_FEATURES, MOST_RESPONSES = 4, 2
"""Columns of canaries: noise is drawn product by product, and is the same for all of them."""


@dataclass(frozen=True, eq=False)
class PublicScale:
    """Origins, units and the largest norm, all known without the records.

    Parameters
    ----------
    origin, unit : (n_features,)
        A feature is ``(value - origin) / unit``, clipped to -1 and 1.
    response_origin, response_unit : (n_responses,)
    threshold
        Largest norm of the features so scaled; longer ones are shortened.
    inner
        Steps of the grid in a norm of one, less what rounding may add.
    """

    origin: FloatArray
    unit: FloatArray
    response_origin: FloatArray
    response_unit: FloatArray
    threshold: float
    inner: float

    @property
    def n_columns(self) -> int:
        """Features, one, and responses."""
        return len(self.origin) + 1 + len(self.response_origin)

    @property
    def n_products(self) -> int:
        """Different products of two columns."""
        return self.n_columns * (self.n_columns + 1) // 2

    def count_canaries(self, sigma: float) -> int:
        """Of a sum: so few that under such noise they hardly hide one another."""
        return max(1, int(self.n_products * min(1.0, sigma**2 / 8)))

    @property
    def factors(self) -> FloatArray:
        """Scaled value of one step of each column, (n_columns,)."""
        q, t = len(self.origin), len(self.response_origin)
        longest = [math.hypot(self.threshold, 1.0) / FEATURE_SHARE] * (q + 1)
        return np.array([*longest, *[math.sqrt(t) / RESPONSE_SHARE] * t]) / self.inner

    def clip(self, features: FloatArray, responses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Scaled features and responses within the bounds, as they are summed up."""
        z = np.clip((features - self.origin) / self.unit, -1.0, 1.0)
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        z *= np.minimum(1.0, self.threshold / np.maximum(norms, self.threshold))
        return z, np.clip((responses - self.response_origin) / self.response_unit, -1.0, 1.0)

    def bound(self, features: FloatArray, responses: FloatArray) -> tuple[FloatArray, int]:
        """[features, 1, responses] of norm at most one, and how many records were changed."""
        z, y = self.clip(features, responses)
        raw = (features - self.origin) / self.unit, (responses - self.response_origin)
        away = np.abs(z - raw[0]).max(axis=1, initial=0.0)
        moved = np.abs(y * self.response_unit - raw[1]).max(axis=1, initial=0.0)
        # Beyond rounding: what lies on a bound is no clipped record.
        changed = (away > 1e-9) | (moved > 1e-9 * self.response_unit.max())
        rows = np.column_stack([z, np.ones(len(z)), y]) / (self.factors * self.inner)
        return rows, int(np.count_nonzero(changed))

    def restore(self, z: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Features and responses in their own units."""
        return z * self.unit + self.origin, y * self.response_unit + self.response_origin


@dataclass(frozen=True, eq=False)
class PrivateSums(AddsUp):
    """Sums of products of some records, whole numbers; before noise, and seen by no one.

    Parameters
    ----------
    products : (p, p)
        Of [features, 1, responses] on the grid.
    n_records, n_left_out, n_clipped
        Records read, those of them without a response, and those that a bound changed.
    """

    products: IntArray
    n_records: int
    n_left_out: int
    n_clipped: int


def place_records(scale: PublicScale, x: FloatArray, y: FloatArray) -> tuple[FloatArray, int]:
    """Whole steps of bounded records, (n_records, p), and how many records a bound changed."""
    bounded, clipped = scale.bound(x, y)
    # Their norms are compared in integers: the sensitivity rests on no rounding.
    return Lattice(GRID, scale.n_columns, "l2").place(bounded).astype(np.float64), clipped


def sum_products(shard: Shard, *, schema: ShardSchema, scale: PublicScale) -> PrivateSums:
    """Sum up the products of the records of a shard.

    Raises
    ------
    InputError
        If features are not finite; with how many records are concerned.
    """
    p = scale.n_columns
    total = np.zeros((p, p), np.int64)
    n_left_out, n_clipped = 0, 0
    for start in range(0, len(shard.features), BLOCK_RECORDS):
        part = slice(start, start + BLOCK_RECORDS)
        features = np.asarray(shard.features[part], np.float64)
        if bad := int(np.count_nonzero(~finite.find_finite_rows(features))):
            raise InputError(
                f"{bad} of {len(features)} records hold features that are missing or infinite.",
                remedy="Leave them out, or ingest a value of your choice for them: a completion "
                "that is learned from the records is outside the promise.",
                code="nonfinite",
            )
        responses = moments.code_targets(shard.desired[part], schema.desired, "zero_one")
        known = np.isfinite(responses).all(axis=1)
        steps, clipped = place_records(scale, features[known], responses[known])
        n_left_out += int(np.count_nonzero(~known))
        n_clipped += clipped
        total += (steps.T @ steps).astype(np.int64)
    return PrivateSums(total, len(shard.features), n_left_out, n_clipped)


def add_noise(
    total: IntArray, sigma: float, key: bytes, n_runs: int = 1, run: str = ""
) -> tuple[FloatArray, FloatArray, Fraction]:
    """Noisy `total`, the standard deviation of each, and what is left to add to epsilon.

    A record may be in `n_runs` such totals. Of one key each `run` has draws of its own.

    The noise is that of sensitivity ``sqrt(2) radius^2`` in Frobenius norm. There a product of two
    different columns counts twice and has half of the variance.
    """
    p, radius = len(total), round(1 / GRID)
    # Twice the squared sensitivity, and rounded up: less noise than that was never promised.
    single = math.ceil(Fraction(sigma) ** 2 * radius**4 * n_runs)
    rows, columns = np.triu_indices(p)
    variances = [2 * single if i == j else single for i, j in zip(rows, columns, strict=True)]
    stream = KeyedStream(key, partition=f"moments{run}", first_record=0, n_records=len(variances))
    drawn = draw_discrete_gaussian(variances, stream)
    slack = n_runs * find_slack(single, len(variances))
    assert slack < MARGIN / 4, "the deviation is billions of steps"
    noisy = np.zeros((p, p))
    # Whole numbers are added; only then may floating point round the sum.
    sums = [int(total[i, j]) + one for i, j, one in zip(rows, columns, drawn, strict=True)]
    noisy[rows, columns] = noisy[columns, rows] = np.array([float(one) for one in sums])
    deviations = np.full((p, p), math.sqrt(single))
    np.fill_diagonal(deviations, math.sqrt(2 * single))
    return noisy, deviations, slack


def narrow_scale(scale: PublicScale) -> PublicScale:
    """A scale of a few of the columns, whose records are of norm one, too: for canaries."""
    q, t = slice(0, MOST_FEATURES), slice(0, MOST_RESPONSES)
    columns = (scale.origin[q], scale.unit[q], scale.response_origin[t], scale.response_unit[t])
    return PublicScale(*columns, min(scale.threshold, math.sqrt(len(columns[0]))), scale.inner)


def release_canaries(
    scale: PublicScale, sigma: float, kinds: BoolArray, key: bytes
) -> tuple[FloatArray, IntArray]:
    """What noisy sums of canaries alone show of each canary's kind.

    Every canary has two kinds, which differ in the response and a quarter of the signs. Their
    products are as far apart as those of any two records. Both lie far beyond all bounds.

    Returns
    -------
    shown : (n_canaries, 2)
        The sum in the direction that is the canary's own, and what noise that is the same in all
        products would be in it.
    sums : (n_canaries,)
        Of independent noise, in which each is.
    """
    q, t = len(scale.origin), len(scale.response_origin)
    n_each, shown = scale.count_canaries(sigma), np.empty((len(kinds), 2))
    rng = np.random.default_rng(list(key))
    for start in range(0, len(kinds), n_each):
        mine = kinds[start : start + n_each]
        z, y = (rng.choice([-FAR, FAR], (len(mine), width)) for width in (q, t))
        turned = z * np.where(np.arange(q) < round(q / 4), -1.0, 1.0)
        one, other = (place_records(scale, *scale.restore(*k))[0] for k in ((z, y), (turned, -y)))
        steps = np.where(mine[:, None], one, other)
        key = hashlib.sha256(key).digest()
        noisy = add_noise((steps.T @ steps).astype(np.int64), sigma, key)[0]
        left = noisy - (one.T @ one + other.T @ other) / 2
        # Products of one kind less those of the other are a direction; along it lies what is left.
        along = (np.einsum("ij,jk,ik->i", ends, left, ends) for ends in (one, other))
        ones = (one.sum(axis=1) ** 2, other.sum(axis=1) ** 2)
        sizes = (one**2).sum(axis=1) ** 2 + (other**2).sum(axis=1) ** 2
        sizes -= 2 * (one * other).sum(axis=1) ** 2
        pairs = np.column_stack([np.subtract(*along), np.subtract(*ones) * left.mean()])
        shown[start : start + n_each] = pairs / sizes[:, None]
    return shown, np.arange(len(kinds)) // n_each
