"""The row of noisy filters in the table of methods, over the rows of the other wings."""

from __future__ import annotations

import functools
import operator
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.option_values import FORBID
from privpipe.protocols import Method
from privpipe.sanitizers.noise.fit_noisy import (
    Filters,
    NoisyOptions,
    ask_filter,
    check_noisy,
    fit_noisy_filter,
)
from privpipe.sanitizers.noise.noise_forecast import forecast_noise
from privpipe.sanitizers.noise.noisy_filter import NoisyFilter
from privpipe.sanitizers.noise.public_norms import NORM_STATISTICS


def list_methods(filters: Filters) -> tuple[Method[Any], ...]:
    """The row of this wing, over the other rows of the table."""
    options = _make_options_class(filters)
    return (
        Method(
            name="noisy",
            options=options,
            needs=lambda o: ask_filter(filters, o, lambda row, f: row.needs(f), frozenset()),
            columns=lambda o: ask_filter(filters, o, lambda row, f: row.columns(f), {}),
            files=lambda o: ask_filter(filters, o, lambda row, f: row.files(f), {}),
            releases="rows",
            needs_labels=lambda o: ask_filter(filters, o, lambda row, f: row.needs_labels(f), ()),
            fit=partial(fit_noisy_filter, filters=filters),
            source="Hamm 2017, Noisy Minimax Filters, sections 2.2 and 3",
            maps=(NoisyFilter,),
            promise="local differential privacy of every record, in floating point: (epsilon, 0) "
            "or (epsilon, at most 2**-100)",
            statistics=NORM_STATISTICS,
            check=partial(check_noisy, filters=filters),
            forecast=partial(forecast_noise, filters=filters),
            loses=lambda o: None if o.allow_data_bound else o.epsilon,
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
