"""The map of a noisy filter: filter, bound, noise; or bound, noise, filter."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from privpipe import protocols
from privpipe.capabilities import AddsUp, BoundCounts, Layered, Projects
from privpipe.described import record_map
from privpipe.errors import OptionError
from privpipe.fitted_names import giving_back
from privpipe.numerics.noise import bounding, estimates, group_estimates
from privpipe.numerics.noise.estimates import Estimate, Quantity, choose_response
from privpipe.numerics.noise.logistic_estimates import estimate_logistic
from privpipe.numerics.noise.mechanism import Law, Mechanism, Order
from privpipe.numerics.noise.privunit import MOST_EPSILON, PrivUnitNoise, find_least_error
from privpipe.numerics.random.record_hash import digest_records
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.promises import check_promise
from privpipe.protocols import FloatArray, Guarantee, IntArray, RecordMap, RecordStream, Role, Shard
from privpipe.sanitizers import arrays, feature_map

_PER_OCTAVE = 64
_LOWEST, _HIGHEST = -128, 128
"""Powers of two between which norms are distinguished, 1.1 % from one to the next."""


@dataclass(frozen=True, eq=False)
class FilteredMean(AddsUp):
    """Sum of filtered records.

    Parameters
    ----------
    n_records
        How many.
    total : (n_filtered,)
    """

    n_records: int
    total: FloatArray

    @classmethod
    def of(cls, shard: Shard, noisy: "NoisyFilter") -> "FilteredMean":
        """Of what `noisy` filters, with its shift."""
        filtered = noisy.filter_features(np.asarray(shard.features, np.float64))
        return cls(len(filtered), filtered.sum(axis=0))

    @property
    def mean(self) -> FloatArray:
        """(n_filtered,); zeros of no records."""
        return cast(FloatArray, self.total / max(self.n_records, 1))


@dataclass(frozen=True, eq=False)
class NormCounts(AddsUp):
    """How many filtered records have a norm of each size.

    Parameters
    ----------
    counts : (n_sizes,)
        By the logarithm, in 64 steps an octave; the first are zeros.
    """

    counts: IntArray

    @classmethod
    def of(cls, shard: Shard, noisy: "NoisyFilter") -> "NormCounts":
        """Of what `noisy` filters and centres."""
        filtered = noisy.filter_features(np.asarray(shard.features, np.float64))
        norms = bounding.measure_norms(filtered, noisy.norm)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.ceil((np.log2(norms) - _LOWEST) * _PER_OCTAVE)
        # 16,384 counts, whatever the records: sums of shards stay small.
        size = (_HIGHEST - _LOWEST) * _PER_OCTAVE
        places = np.clip(np.nan_to_num(steps, nan=size, posinf=size, neginf=0), 0, size)
        return cls(np.bincount(places.astype(np.int64), minlength=size + 1))

    def quantile(self, share: float) -> float:
        """A norm that this share of the records do not exceed, at most 1.1 % too large."""
        reached = np.cumsum(self.counts) >= share * self.counts.sum()
        return float(2.0 ** (np.argmax(reached) / _PER_OCTAVE + _LOWEST))


NORM_STATISTICS = (FilteredMean, NormCounts)
"""Sums that a fit of a noisy filter may checkpoint."""


FARTHEST = 1e6
"""Size of canaries in thresholds: beyond any bound."""

LEAST_CANARIES, CANARY_VALUES = 20_000, 25 * 2**20
"""Of an audit, and values of all of their releases, raw or released: 200 MiB.

Noise of half its scale in 20 coordinates takes over a million canaries at epsilon 1. Guessing takes
a hundred bytes a canary, so that of one coordinate there are no more than of three. These are nine
million, which show .9 of an epsilon of 12.
"""

CANARY_ERRORS = 70.0
"""Deviations of a floor in an epsilon: a tenth is then seven, more than a level needs."""

_BLOCK = 1 << 12
"""Records whose words are made at once."""


def change_shards(shards: protocols.Shards, noisy: "NoisyFilter") -> arrays.ChangedShards:
    """What a filter after the noise learns from: what the noise makes of records, without names."""
    schema = replace(shards.schema, n_features=noisy.n_bounded, feature_names=())
    return arrays.ChangedShards(shards, partial(_make_noisy, noisy=noisy), schema)


def _make_noisy(shard: Shard, *, noisy: "NoisyFilter") -> Shard:
    """Worker side: what a fit sees of a shard; the same noise in every round."""
    x = np.asarray(shard.features, np.float64)
    features, _ = noisy.bound_features(x)
    for at in range(0, len(x), _BLOCK):
        rows = slice(at, at + _BLOCK)
        words = RecordWords(digest_records(x[rows]))
        features[rows] = noisy.mechanism.release(features[rows], words)
    return replace(shard, features=features)


class RecordWords:
    """A stream whose words belong to the content of a record, whatever lies before it.

    Parameters
    ----------
    digests : (n_records,), uint64
    """

    def __init__(self, digests: protocols.WordArray) -> None:
        # Record numbers are below 2**63: a hash of the record serves as its number.
        self._places = (digests >> np.uint64(1)).astype(np.int64)
        self._stream = KeyedStream(
            bytes(KEY_BYTES), partition="training", first_record=0, n_records=2**63 - 1
        )

    @property
    def n_records(self) -> int:
        return len(self._places)

    def words(self, purpose: str, words_per_record: int) -> protocols.WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record)."""
        return self.words_at(purpose, words_per_record, np.arange(self.n_records))

    def tiles(self, purpose: str, words_per_record: int) -> Any:
        """The same in one tile."""
        yield slice(0, self.n_records), self.words(purpose, words_per_record)

    def words_at(
        self, purpose: str, words_per_record: int, records: IntArray, places: IntArray | None = None
    ) -> protocols.WordArray:
        """Words of some records; see `RecordStream`."""
        found = np.minimum(self._places[records], 2**63 - 2)
        return self._stream.words_at(purpose, words_per_record, found, places)


@record_map
class NoisyFilter:
    """Filters, bounds and adds noise to records, or bounds, adds noise and filters.

    A record x becomes ``z = x W + shift``, or what the maps `before` make of it, less the centre.
    That becomes, in turn, ``b`` of norm at most 1, a vector of whole numbers on the grid, and that
    plus whole noise. The maps `after` see nothing else.

    Parameters
    ----------
    epsilon, norm, law, grid
        Of the mechanism; see `Mechanism`.
    order
        "filter_then_noise" (the paper's preprocessing) or "noise_then_filter".
    bound, threshold
        See `bound_records`.
    before
        The filter before the noise, where it is no linear one; at most one.
    projection : (n_features, n_filtered)
        A linear filter before the noise, its columns orthonormal unless its own scales were to be
        retained; of no rows where there is none.
    shift : (n_bounded,)
        Added before bounding: less the public mean.
    after
        The filter after the noise; at most one.
    guarantee
        What is promised for every record.

    Raises
    ------
    OptionError
        If the parts do not fit, or a filter draws, or reads or releases codes.
    GuaranteeError
        If it promises more than its noise.
    """

    kind: ClassVar[str] = "noisy_filter"
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = True
    keeps_features: ClassVar[bool] = False

    epsilon: float
    norm: bounding.Norm
    law: Law
    grid: float
    order: Order
    bound: bounding.Bound
    threshold: float
    before: tuple[RecordMap, ...]
    projection: FloatArray
    shift: FloatArray
    after: tuple[RecordMap, ...]
    guarantee: Guarantee

    def __post_init__(self) -> None:
        for each in (*self.before, *self.after):
            check_filter(each)
        widths = [self.n_bounded, *(each.n_features_in for each in self.after)]
        if self.before:
            widths.append(self.before[-1].n_features_out)
        elif self.projection.size:
            widths.append(self.projection.shape[1])
        if len(set(widths)) > 1 or max(len(self.before), len(self.after)) > 1:
            problem = f"The parts of a noisy filter have {widths} features between them."
            remedy = "Give at most one filter before and one after, of features that fit."
            raise OptionError(problem, remedy=remedy)
        mechanism = self.mechanism
        # A stored model is opened by this, too: its promise must be that of its noise.
        check_promise(self.guarantee, {"local_dp": mechanism.epsilon}, delta=mechanism.delta)

    @property
    def n_bounded(self) -> int:
        """Coordinates that get noise."""
        return len(self.shift)

    @property
    def n_features_in(self) -> int:
        if self.before:
            return self.before[0].n_features_in
        return len(self.projection) if self.projection.size else self.n_bounded

    @property
    def n_features_out(self) -> int:
        return self.after[-1].n_features_out if self.after else self.n_bounded

    @cached_property
    def mechanism(self) -> Mechanism:
        """Lattice and law."""
        return Mechanism(self.epsilon, self.n_bounded, self.norm, self.law, self.grid)

    @giving_back
    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Release records; (n_records, n_features_out) in their floating dtype.

        The bytes are a function of each record and its words: no chunking changes them.

        Raises
        ------
        OptionError
            If there is no stream, or it is not of as many records.
        InputError
            If the shape is wrong or values are not finite.
        """
        return self.apply_measured(x, stream)[0]

    def apply_measured(
        self, x: npt.ArrayLike, stream: RecordStream | None = None, *, overwrite_x: bool = False
    ) -> tuple[FloatArray, BoundCounts]:
        """As `apply`, and how many records were clipped or overflowed."""
        records, dtype = feature_map.as_records(self, x)
        feature_map.check_finite_records(records)
        # Never noise from anywhere else: a second draw for a record lets a reader average.
        if stream is None or stream.n_records != len(records):
            problem = f"The noisy filter needs a stream of {len(records)} records."
            remedy = "Give apply a KeyedStream of these records, or use the pipeline."
            raise OptionError(problem, remedy=remedy)
        bounded, counts = self.bound_features(records)
        noisy = self.mechanism.release(bounded, stream)
        for each in self.after:
            noisy = apply_in_order(each, noisy)
        released: FloatArray = noisy.astype(dtype, copy=False)
        return (released[0] if np.ndim(x) == 1 else released), counts

    @property
    def n_canaries(self) -> int:
        """As many as show a floor of .9 of epsilon where there is one coordinate, if memory allows.

        Guesses, of nearly half of the canaries, are right with odds of exp(epsilon). The log of the
        odds then has a deviation of a fiftieth of epsilon. More coordinates take more: few releases
        then show what epsilon allows.
        """
        width = max(3, self.n_features_in, self.n_features_out, self.mechanism.noise.n_words // 6)
        epsilon, more = min(self.epsilon, 20.0), 5.0 * self.n_bounded
        enough = (CANARY_ERRORS / epsilon) ** 2 * (1 + math.cosh(epsilon)) * more
        return min(max(LEAST_CANARIES, math.ceil(enough)), max(1_000, CANARY_VALUES // width))

    @property
    def canary_noise(self) -> float | None:
        """Not behind a filter unless it is linear; nor of PrivUnit where it drops coordinates."""
        after: object = self.after[0] if self.after else None
        spread, noise = self.mechanism.spread, self.mechanism.noise
        if isinstance(noise, PrivUnitNoise):
            # About their mean, the corner, releases vary by no less, whatever table was made.
            whole = after is None and noise.n_signs == self.n_bounded
            n, epsilon = self.n_bounded, noise.epsilon
            return math.sqrt(find_least_error(n, epsilon) / n) if whole else None
        if not isinstance(after, Projects | None):
            return None
        mixed = np.ones(1) if after is None else (after.weights**2).sum(axis=0)
        return spread * float(np.sqrt(mixed.mean()))

    def release_canaries(
        self, kinds: protocols.BoolArray, key: bytes, loss: float = 1.0
    ) -> tuple[FloatArray, None]:
        """Records far beyond every bound, at opposite corners of what gets noise.

        No two records are farther apart. Of the l2 norm they are corners of a cube within the ball,
        which differ in all coordinates. Of the l1 norm they are ends of an axis. Signs alternate,
        so that noise which all coordinates share would show.
        """
        at = np.arange(self.n_bounded)
        corner = np.where(at % 2, -1.0, 1.0) if self.norm == "l2" else (at == 0) * 1.0
        ends = FARTHEST * (1 + self.threshold) * np.stack([corner, -corner]) - self.shift
        if self.projection.size:
            ends = ends @ np.linalg.pinv(self.projection)
        elif self.before:
            # What such a filter sends to a corner is not known: a direction at random.
            row = np.random.default_rng(0).standard_normal(self.n_features_in)
            ends = FARTHEST * np.stack([row, -row])
        nothing = replace(self.guarantee, kind="none", number=None)
        most = MOST_EPSILON if self.law == "privunit" else math.inf
        noisy = replace(self, epsilon=min(loss * self.epsilon, most), guarantee=nothing)
        released = np.empty((len(kinds), self.n_features_out))
        # A few at a time: while they are drawn, four times as many bytes are held.
        for k in range(0, len(kinds), _BLOCK):
            rows = ends[np.where(kinds[k : k + _BLOCK], 0, 1)]
            stream = KeyedStream(key, partition="canaries", first_record=k, n_records=len(rows))
            released[k : k + len(rows)] = noisy.apply(rows, stream)
        return released, None

    def estimate(
        self, of: Quantity, column: str | None, open_release: Callable[[], Any]
    ) -> list[Estimate]:
        """Of the released records, block by block, corrected for the noise."""
        if self.after:
            raise OptionError(
                "The filter came after the noise and mixed it: columns no longer have its law.",
                remedy='Release with [method] order = "filter_then_noise".',
                code="estimate",
            )
        if self.law == "privunit" and of not in ("means", "differences", "shares"):
            raise OptionError(
                "Noise of privunit is not added: how it varies depends on the record, so that "
                f"{of} of the release are not those of records.",
                remedy='Estimate means or differences; or release with [method] noise = "knorm".',
                code="estimate",
            )
        if of == "quantiles" and self.law == "knorm" and self.n_bounded > 1:
            problem = "Noise of knorm is Laplace's in one coordinate alone: of more none undoes it."
            remedy = 'Release with [method] noise = "discrete", or one feature; or estimate means.'
            raise OptionError(problem, remedy=remedy, code="estimate")
        opened = open_release()
        width = self.n_bounded
        names = [str(one) for one in opened.coords.get("feature", np.arange(width)).values]
        by_groups = of in ("differences", "shares")
        if by_groups and column in names:
            problem = f"{column!r} is a feature with noise: of no record is its group known."
            remedy = "Give --by an included categorical variable; it has no noise."
            raise OptionError(problem, remedy=remedy, code="estimate")
        kind = np.floating if of == "regression" else np.integer
        what = "column of groups" if by_groups else "response"
        single = ((str(name), one) for name, one in opened.data_vars.items() if one.ndim == 1)
        fitting = {name: one for name, one in single if np.issubdtype(one.dtype, kind)}
        if of == "logistic":
            what = "response of two categories"
            fitting = {k: one for k, one in fitting.items() if len(_list_groups(one)) == 2}
        included = list(fitting)
        reads = by_groups or of in ("regression", "logistic")
        chosen = [included[choose_response(column, included, what)]] if reads else []
        # Placing records on the grid shrank them by a factor that is known.
        factor = (self.threshold if self.bound == "hard" else 1.0) / self.mechanism.factor
        # Without a filter, the centre that was subtracted is added again.
        plain = not self.before and not self.projection.size and self.bound == "hard"
        offset = -self.shift if plain else np.zeros(width)
        noise = np.zeros(width + len(chosen))
        noise[:width] = (factor * self.mechanism.spread) ** 2
        blocks = partial(_read_blocks, opened, chosen, factor, offset)
        if of == "means":
            return estimates.estimate_means(blocks, names)
        if of == "quantiles":
            return group_estimates.estimate_quantiles(blocks, names, self.mechanism, factor, offset)
        if of == "covariances":
            return estimates.estimate_covariances(blocks, names, noise)
        if of == "correlations":
            return estimates.estimate_correlations(blocks, names, noise)
        if of != "regression":
            groups = _list_groups(opened[chosen[0]])
            if of == "logistic":
                columns, joint = [*names, *chosen], self.law == "knorm"
                return estimate_logistic(blocks, columns, noise[:-1], joint=joint)
            if of == "differences":
                return group_estimates.estimate_differences(blocks, names, groups)
            bins = np.arange(len(groups) + 1) - 0.5
            each = (np.histogram(block[:, -1], bins)[0] for block in blocks())
            return group_estimates.estimate_shares(sum(each, np.zeros(len(groups))), groups)
        return estimates.estimate_regression(blocks, [*names, *chosen], noise)

    def bound_features(self, x: FloatArray) -> tuple[FloatArray, BoundCounts]:
        """What gets noise: filtered, centred and bounded records, (n_records, n_bounded)."""
        bounded, clipped, overflowing = bounding.bound_records(
            self.filter_features(x), self.bound, self.norm, self.threshold
        )
        return bounded, BoundCounts(len(x), clipped, overflowing)

    def filter_features(self, x: FloatArray) -> FloatArray:
        """Filtered, centred records before bounding, (n_records, n_bounded), float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # counted, and bounded to 0
            if self.before:
                return apply_in_order(self.before[0], x) + self.shift
            if self.projection.size:
                return bounding.project_in_order(x, self.projection, self.shift)
            return x.astype(np.float64) + self.shift


def check_filter(fitted: RecordMap) -> None:
    """Raise OptionError unless a map turns rows of features into rows of features, without draws.

    A filter that draws needs words of its own, and codes have no norm.
    """
    if fitted.draws or fitted.reads != "features":
        what = "draws at random" if fitted.draws else "reads and releases codes"
        remedy = "Filter by a method that maps features to features without drawing."
        raise OptionError(f"The filter {fitted.kind!r} {what}.", remedy=remedy, code="filter")


def apply_in_order(fitted: RecordMap, x: FloatArray) -> FloatArray:
    """What a map makes of records, float64, the same bits for a record in any block.

    Linear maps and layers are summed in an order of their own. Any other map gets one record at a
    time: its matrix products would add up in an order that changes with the number of rows.
    """
    if isinstance(fitted, Projects):
        return bounding.project_in_order(x, fitted.weights, fitted.offset)
    if isinstance(fitted, Layered):
        for weights, offset in fitted.layers:
            x = fitted.activate(bounding.project_in_order(x, weights, offset))
        return x
    out, rows = np.empty((len(x), fitted.n_features_out)), x.astype(np.float64)
    for i in range(len(x)):
        out[i] = fitted.apply(rows[i : i + 1])[0]
    return out


def _list_groups(variable: Any) -> list[str]:
    return [str(one) for one in variable.attrs.get("categories", ())]


BLOCK_RECORDS = 2**16
"""Records of a release that are read at once for an estimate."""


def _read_blocks(
    opened: Any, chosen: Sequence[str], factor: float, offset: FloatArray
) -> Iterator[FloatArray]:
    """Records of a release as they were before the noise, but for it; withheld ones left out."""
    for start in range(0, opened["features"].shape[0], BLOCK_RECORDS):
        part = slice(start, start + BLOCK_RECORDS)
        features = np.asarray(opened["features"][part].values, np.float64) * factor + offset
        columns = [opened[name][part].values for name in chosen]
        # Of a category below 0 nothing is known.
        known = [np.where((c < 0) & (c.dtype.kind == "i"), np.nan, c) for c in columns]
        rows = np.column_stack([features, *known])
        whole = rows[np.isfinite(rows).all(axis=1)]
        if len(whole):
            yield whole
