"""The fitted private masking: public scales, noisy moments, and surrogates that carry them."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from privpipe.described import record_map
from privpipe.errors import GuaranteeError, OptionError
from privpipe.numerics.masking.private_moments import RepairedMoments, draw_rows
from privpipe.numerics.noise import estimates, gaussian
from privpipe.numerics.noise.estimates import Estimate, Quantity
from privpipe.numerics.noise.running_sums import find_runs
from privpipe.protocols import BoolArray, FloatArray, Guarantee, IntArray, Shard, ShardSchema
from privpipe.sanitizers.grounds import say_promise
from privpipe.sanitizers.masking import masked_records, record_survey
from privpipe.sanitizers.masking.private_sums import PublicScale, narrow_scale, release_canaries

PRODUCTS, LEAST_SUMS, TIMES_AT_MOST = 20_000, 100, 12.0
"""Whose noise an audit draws of epsilon 1, in a second, and independent sums of them.

Last, how many times as many it draws of a smaller epsilon: enough for half of .3."""


@record_map
class PrivateMaskingModel(masked_records.SurrogateModel, PublicScale):
    """Makes surrogates of noisy second moments; it knows nothing else of any record.

    Parameters
    ----------
    origin, unit, response_origin, response_unit, threshold, inner
        Of the `PublicScale`.
    moments : (n_columns, n_columns)
        Noisy sums of products of scaled [features, 1, responses]: unbiased, and not repaired.
    deviations : (n_columns, n_columns)
        Standard deviations of their noise.
    mean, root, weights, residual_root
        Of `RepairedMoments`, scaled.
    sigma, slack
        Deviation of the noise at sensitivity 1, and what being discrete adds to epsilon.
    epsilon, delta
        Promised.
    seed
        Of the rows; no secret.
    n_records, tile_rows
        Surrogates to make, and at once.
    feature_names, response_names
        Columns of the release; the bias feature, one in every surrogate, is the last.
    sums : (n_runs, n_columns, n_columns)
        Noisy sums of whole steps, of each run of partitions (`find_runs`); their sum, scaled, is
        `moments`.
    n_partitions, partitions_at_most
        Summed up, and those that are promised together.
    steps
        Digest of the newest sums of each release of a collection that grows.

    Raises
    ------
    GuaranteeError
        If it promises more than its noise.
    """

    kind: ClassVar[str] = "private_masking_model"
    way: ClassVar[str] = "the model's make_records"

    moments: FloatArray
    deviations: FloatArray
    mean: FloatArray
    root: FloatArray
    weights: FloatArray
    residual_root: FloatArray
    sigma: float
    slack: float
    epsilon: float
    delta: float
    seed: int
    n_records: int
    tile_rows: int
    feature_names: tuple[str, ...]
    response_names: tuple[str, ...]
    sums: FloatArray = field(default_factory=lambda: np.empty((0, 0, 0)))
    n_partitions: int = 1
    partitions_at_most: int = 1
    steps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A stored model is opened by this, too: sigma must be enough for what it says.
        if not gaussian.find_delta(self.sigma, self.epsilon * (1 - gaussian.MARGIN)) <= self.delta:
            problem = f"Noise {self.sigma:g} breaks epsilon {self.epsilon:g}, delta {self.delta:g}."
            remedy = "It was changed by somebody: get it from where it came, or train it again."
            raise GuaranteeError(problem, remedy=remedy, code="promise")
        last, n_columns = (self.n_records - 1) % self.tile_rows + 1, len(self.moments)
        if last < n_columns:
            raise OptionError(
                f"Of {self.n_records:,} surrogates in tiles of {self.tile_rows:,} the last tile "
                f"has {last}, and {n_columns} columns need as many.",
                remedy="Give another tile_rows, such as n_records itself.",
                code="tile",
            )

    @property
    def n_features_in(self) -> int:
        return len(self.origin)

    @property
    def coefficients(self) -> FloatArray:
        """Least squares of the surrogates, (n_features + 1, n_responses); last the intercept."""
        slopes = self.weights / self.unit[:, None] * self.response_unit
        q = len(self.origin)
        centre, level = self.restore(self.mean[:q], self.mean[q:])
        return np.asarray(np.vstack([slopes, level - centre @ slopes]))

    @property
    def guarantee(self) -> Guarantee:
        """Differential privacy of one record, for all that is ever made of the noisy moments."""
        return say_promise(
            "private",
            self.epsilon,
            delta=self.delta,
            parameters=(
                ("epsilon of one record", self.epsilon),
                ("slack of epsilon", self.slack),
                ("noise at sensitivity 1", self.sigma),
                ("threshold", self.threshold),
                ("n_surrogates", float(self.n_records)),
                ("partitions at most", float(self.partitions_at_most)),
            ),
        )

    def list_sums(self) -> dict[tuple[int, int], FloatArray]:
        """Noisy sums by run of partitions."""
        runs = find_runs(self.n_partitions, self.partitions_at_most)
        return dict(zip(runs, self.sums, strict=True))

    @property
    def n_canaries(self) -> int:
        """As many as sums of so many products hold that the floor is half of epsilon, above .3.

        The log of the odds of a guess is in proportion to epsilon, its error to the root of them.
        """
        narrow, more = narrow_scale(self), min(TIMES_AT_MOST, max(1.0, self.epsilon**-2))
        sums = max(LEAST_SUMS, int(PRODUCTS * more) // narrow.n_products)
        return sums * narrow.count_canaries(self.sigma)

    canary_noise = None

    def release_canaries(
        self, kinds: BoolArray, key: bytes, loss: float = 1.0
    ) -> tuple[FloatArray, IntArray]:
        """What noisy sums of this noise show of canaries; nothing of any record is in them."""
        return release_canaries(narrow_scale(self), self.sigma / loss, kinds, key)

    def finish_records(self, tile: Any) -> tuple[FloatArray, FloatArray]:
        """Features with the bias, and responses, of a tile; the same whenever they are made."""
        n_rows = min(self.tile_rows, self.n_records - tile * self.tile_rows)
        repaired = RepairedMoments(self.mean, self.root, self.weights, self.residual_root)
        z, y = draw_rows(repaired, n_rows, self.seed + tile)
        features, responses = self.restore(z, y)
        return np.column_stack([features, np.ones(n_rows)]), responses

    def estimate(
        self, of: Quantity, response: str | None, open_release: Callable[[], Any]
    ) -> list[Estimate]:
        """Of the noisy moments, which are all there is: no surrogate is read."""
        q, names = len(self.origin), self.response_names
        origins = np.concatenate([self.origin, self.response_origin]).tolist()
        units = np.concatenate([self.unit, self.response_unit]).tolist()
        if of not in ("means", "regression"):
            problem = f"Moments of all records were released: {of} needs more of them, or groups."
            remedy = "Estimate means or a regression; the model's moments hold sums of products."
            raise OptionError(problem, remedy=remedy, code="estimate")
        if of == "means":
            columns = [*self.feature_names[:q], *names]
            found = estimates.estimate_moment_means(self.moments, self.deviations, columns, q)
            pairs = zip(found, units, origins, strict=True)
            return [one.convert(unit, origin) for one, unit, origin in pairs]
        at = q + 1 + estimates.choose_response(response, names)
        scaled = estimates.estimate_moment_regression(
            self.moments, self.deviations, self.feature_names, q, at
        )
        return self._unscale(scaled, at - q - 1)

    def _unscale(self, scaled: Sequence[Estimate], at: int) -> list[Estimate]:
        """Slopes in the units of the records; the intercept where features are at their origins."""
        unit, level = float(self.response_unit[at]), float(self.response_origin[at])
        factors = (unit / self.unit).tolist()
        slopes = [one.convert(each) for one, each in zip(scaled[:-1], factors, strict=True)]
        # Of features whose range has no zero in it, zero is nowhere near the records.
        name = "response at centre" if self.origin.any() else "intercept"
        return [*slopes, replace(scaled[-1].convert(unit, level), name=name)]

    def make_records(self) -> masked_records.MaskedRecords:
        """The surrogates; they cost no epsilon beyond that of the model."""
        return self.join_tiles(self.finish_records(tile) for tile in range(self.n_tiles))

    def restore_records(
        self, shard: Shard, *, schema: ShardSchema, reads_responses: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Records as they are summed up, in their own units: bounded; NaN where none is known."""
        responses = record_survey.code_responses(shard, schema)
        bounded = self.clip(np.asarray(shard.features, np.float64), responses)
        features, clipped = self.restore(*bounded)
        made = np.column_stack([features, np.ones(len(features))])
        return made, clipped if reads_responses else responses
