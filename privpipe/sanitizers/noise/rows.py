"""The row of noisy filters in the table of methods, over the rows of the other wings."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from functools import reduce as fold
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.capabilities import Preview
from privpipe.errors import OptionError, PrivpipeError
from privpipe.option_values import FORBID
from privpipe.promises import say_odds
from privpipe.protocols import Method, Oracle, Shard, ShardSchema, Sums
from privpipe.sanitizers.noise.fit_noisy import Filters, NoisyOptions, check_noisy, fit_noisy_filter
from privpipe.sanitizers.noise.noisy_filter import NORM_STATISTICS, NoisyFilter

MOST_RECORDS = 20_000
"""Records that a forecast looks at."""


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
    """

    about: ClassVar[str] = "noise"

    epsilon: float
    delta: float
    n_coordinates: int
    noise: float
    spread: float
    clipped: float

    def describe(self) -> str:
        """In a few sentences."""
        times = self.noise / self.spread if self.spread > 0 else float("inf")
        return (
            f"epsilon {self.epsilon:g} (delta {self.delta:.1g}) adds noise of root mean square "
            f"{self.noise:.3g} to each of {self.n_coordinates} coordinates, {times:.3g} times the "
            f"spread of bounded records ({self.spread:.3g}); {self.clipped:.1%} of the records "
            f"read are clipped. In words: {say_odds(self.epsilon)}."
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
    preview: Preview, options: NoisyOptions, *, filters: Mapping[str, Method]
) -> NoiseForecast | None:
    """What the noise will do, from a filter fitted to a few chunks of training records.

    None where these chunks do not make a filter, or it is made of files.

    Raises
    ------
    OptionError
        If no noise suits the filter that they make: the run would refuse it.
    """
    if options.files():
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
    except OptionError:
        raise  # the run would refuse them, too
    except PrivpipeError:
        return None  # the run itself will say what is wrong, on all records
    x = np.concatenate([np.asarray(shard.features, np.float64) for shard in shards])
    bounded, counts = noisy.bound_features(x[:MOST_RECORDS])
    return NoiseForecast(
        epsilon=options.epsilon,
        delta=noisy.mechanism.delta,
        n_coordinates=noisy.n_bounded,
        noise=noisy.mechanism.spread,
        spread=float(np.sqrt(bounded.var(axis=0).mean())),
        clipped=counts.n_clipped / max(counts.n_records, 1),
    )


def list_methods(filters: Filters) -> tuple[Method, ...]:
    """The row of this wing, over the other rows of the table."""
    options = _make_options_class(filters)
    return (
        Method(
            name="noisy",
            options=options,
            releases="rows",
            fit=partial(fit_noisy_filter, filters=filters),
            source="Hamm 2017, Noisy Minimax Filters, sections 2.2 and 3",
            maps=(NoisyFilter,),
            promise="local differential privacy of every record, in floating point: (epsilon, 0) "
            "or (epsilon, at most 2**-100)",
            statistics=NORM_STATISTICS,
            check=partial(check_noisy, filters=filters),
            forecast=partial(forecast_noise, filters=filters),
        ),
    )


def _make_options_class(filters: Filters) -> type[NoisyOptions]:
    """The options, with those of every filter as a table of their own."""
    kinds: Any = functools.reduce(operator.or_, [row.options for row in filters.values()])
    told_apart: Any = Annotated[kinds, Field(discriminator="name")]
    described: Any = Annotated[
        told_apart | None,
        Field(
            description="A table [method.filter] with the name and options of any row-wise "
            "method. Not set: noise alone."
        ),
    ]
    space: dict[str, Any] = {
        "__annotations__": {"filter": described},
        "__doc__": NoisyOptions.__doc__,
        "__module__": __name__,
        "__qualname__": "NoisyOptions",
        "filter": None,
    }
    made: Any = type("NoisyOptions", (NoisyOptions,), space)
    found: Any = options_dataclass(frozen=True, kw_only=True, config=FORBID)(made)
    return found  # type: ignore[no-any-return]
