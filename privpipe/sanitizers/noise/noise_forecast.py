"""What an epsilon means before a run: noise against spread, records clipped, which order suits.

Hamm 2017, Noisy Minimax Filters, section 2.2.2: between-subject and within-subject sensitivity.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from typing import Any, ClassVar

import numpy as np

from privpipe.capabilities import Preview
from privpipe.errors import PrivpipeError
from privpipe.protocols import FloatArray, Method, Oracle, Shard, ShardSchema, Sums
from privpipe.sanitizers.noise.fit_noisy import NoisyOptions, fit_noisy_filter

__all__ = ["NoiseForecast", "forecast_noise", "measure_sensitivities"]

MOST_RECORDS = 20_000
"""Records that a forecast looks at."""

MOST_COMPARED = 1_000
"""Records whose distances are compared, all with all."""


@dataclass(frozen=True)
class NoiseForecast:
    """Counts and ratios over a few chunks of training records; no value of one.

    Parameters
    ----------
    epsilon, delta
        Promised for every record.
    n_coordinates
        Coordinates that get noise.
    noise
        Root mean square of one coordinate of the noise, in units of the bounded record's ball.
    spread
        The same of the bounded records about their mean.
    clipped
        Share of the records read that are beyond the threshold.
    between, within
        S_b and S_w, the largest distances of two records before any filter that differ in the
        confidential class alone, and in the desired one alone; None without such classes.
    order
        As configured.
    """

    about: ClassVar[str] = "noise"

    epsilon: float
    delta: float
    n_coordinates: int
    noise: float
    spread: float
    clipped: float
    between: float | None
    within: float | None
    order: str

    @property
    def suggested(self) -> str | None:
        """The order that the sensitivities speak for; None where they are not known."""
        if self.between is None or self.within is None:
            return None
        return "filter_then_noise" if self.between > self.within else "noise_then_filter"

    def describe(self) -> str:
        """In a few sentences."""
        times = self.noise / self.spread if self.spread > 0 else float("inf")
        text = (
            f"epsilon {self.epsilon:g} (delta {self.delta:.1g}) adds noise of root mean square "
            f"{self.noise:.3g} to each of {self.n_coordinates} coordinates, {times:.3g} times the "
            f"spread of bounded records ({self.spread:.3g}); {self.clipped:.1%} of the records "
            "read are clipped."
        )
        if self.suggested is None:
            return text
        return (
            f"{text} Largest distance between confidential classes {self.between:.3g}, within "
            f"them {self.within:.3g}: speaks for {self.suggested}; configured is {self.order}."
        )


@dataclass(frozen=True)
class _Few:
    """The shards that were read, as a fit asks for them."""

    held: Sequence[Shard]
    schema: ShardSchema

    @property
    def n_records(self) -> int:
        return sum(shard.n_records for shard in self.held)

    def reduce(self, summarise: Callable[[Shard], Any]) -> Any:
        return fold(lambda left, right: left.merge(right), map(summarise, self.held))

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        def ask(parameters: Any, /) -> Sums:
            parts = [function(shard, parameters, **resident) for shard in self.held]
            return tuple(fold(lambda a, b: a + b, c) for c in zip(*parts, strict=True))

        return ask


def forecast_noise(
    preview: Preview, options: NoisyOptions, *, filters: Mapping[str, Method[Any]]
) -> NoiseForecast | None:
    """What the noise will do, from a filter fitted to a few chunks of training records.

    None where these chunks do not make a filter, or it is made of files.
    """
    if options.filter is not None and filters[options.filter.name].files(options.filter):
        return None
    shards, schema = preview.read_labelled()
    if not sum(shard.n_records for shard in shards):
        return None
    few = _Few(shards, schema)
    # What follows the noise changes nothing of it, and takes long to train.
    first = options.order == "filter_then_noise"
    short = options if first else replace(options, filter=None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            noisy = fit_noisy_filter(few, short, filters=filters)
    except PrivpipeError:
        return None  # the run itself will say what is wrong, on all records
    x = np.concatenate([np.asarray(shard.features, np.float64) for shard in shards])
    bounded, counts = noisy.bound_features(x[:MOST_RECORDS])
    between, within = measure_sensitivities(x, *_classes(shards, schema, len(x)))
    return NoiseForecast(
        epsilon=options.epsilon,
        delta=noisy.mechanism.delta,
        n_coordinates=noisy.n_bounded,
        noise=noisy.mechanism.spread,
        spread=float(np.sqrt(bounded.var(axis=0).mean())),
        clipped=counts.n_clipped / max(counts.n_records, 1),
        between=between,
        within=within,
        order=options.order,
    )


def _classes(shards: Sequence[Shard], schema: ShardSchema, n: int) -> tuple[Any, Any]:
    """Codes of the first confidential and the first desired classes; None where there are none."""
    found: list[Any] = []
    for role, columns in (("confidential", schema.confidential), ("desired", schema.desired)):
        place = next((j for j, column in enumerate(columns) if column.is_categorical), None)
        values = None
        if place is not None:
            values = np.concatenate([getattr(shard, role)[:, place] for shard in shards])[:n]
        found.append(values)
    return found[0], found[1]


def measure_sensitivities(
    features: FloatArray, confidential: Any, desired: Any
) -> tuple[float | None, float | None]:
    """S_b and S_w: largest distances of records that differ in one of two classes alone.

    Parameters
    ----------
    features : (n_records, n_features)
    confidential, desired : (n_records,) or None
        Codes of the classes; NaN where unknown.

    Returns
    -------
    between, within
        Between confidential classes at equal desired ones, and the other way round; None where
        there are no such pairs. Of at most 1,000 records, evenly spread.

    References
    ----------
    Hamm 2017, Noisy Minimax Filters, eqs. (10) and (11).
    """
    if confidential is None or desired is None:
        return None, None
    rows = np.unique(np.linspace(0, len(features) - 1, MOST_COMPARED).astype(int))
    rows = rows[~(np.isnan(confidential[rows]) | np.isnan(desired[rows]))]
    x, y, z = features[rows], confidential[rows], desired[rows]
    squares = (x**2).sum(axis=1)
    distance = squares[:, None] + squares - 2 * x @ x.T
    same_y, same_z = y[:, None] == y, z[:, None] == z
    pairs = (~same_y & same_z, same_y & ~same_z)
    found = [float(np.sqrt(max(distance[p].max(), 0.0))) if p.any() else None for p in pairs]
    return found[0], found[1]
