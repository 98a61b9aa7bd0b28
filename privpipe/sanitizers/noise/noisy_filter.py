"""The map of a noisy filter: filter, bound, noise; or bound, noise, filter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from privpipe.capabilities import BoundCounts, Layered, Projects
from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.noise.bounding import Bound, Norm, bound_records
from privpipe.numerics.noise.projection import project_in_order
from privpipe.protocols import FloatArray, Guarantee, RecordMap, RecordStream, Role
from privpipe.sanitizers.arrays import as_records, check_finite_records
from privpipe.sanitizers.names import by_name
from privpipe.sanitizers.noise.mechanism import Law, Mechanism, Order
from privpipe.stored_promises import check_promise


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class NoisyFilter:
    """Filters, bounds and adds noise to records, or bounds, adds noise and filters.

    A record x becomes ``z = x W + shift`` (or what the maps `before` make of it, less the
    centre), ``b`` of norm at most 1, a vector of whole numbers on the grid, and that plus whole
    noise; the maps `after` see nothing else.

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
        kept; of no rows where there is none.
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
    norm: Norm
    law: Law
    grid: float
    order: Order
    bound: Bound
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
            raise OptionError(
                f"The parts of a noisy filter have {widths} features between them.",
                remedy="Give at most one filter before and one after, of features that fit.",
            )
        mechanism = self.mechanism
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
        return self.apply_bounded(x, stream)[0]

    def apply_bounded(
        self, x: npt.ArrayLike, stream: RecordStream | None = None
    ) -> tuple[FloatArray, BoundCounts]:
        """As `apply`, and how many records were clipped or overflowed."""
        records, dtype = as_records(by_name(self, x), self.n_features_in)
        check_finite_records(records)
        if stream is None or stream.n_records != len(records):
            raise OptionError(
                f"The noisy filter needs a stream of {len(records)} records.",
                remedy="Give a KeyedStream of these records.",
            )
        bounded, counts = self.bound_features(records)
        noisy = self.mechanism.release(bounded, stream)
        for each in self.after:
            noisy = apply_in_order(each, noisy)
        released: FloatArray = noisy.astype(dtype, copy=False)
        return (released[0] if np.ndim(x) == 1 else released), counts

    def bound_features(self, x: FloatArray) -> tuple[FloatArray, BoundCounts]:
        """What gets noise: filtered, centred and bounded records, (n_records, n_bounded)."""
        filtered = self.filter_features(x)
        n_finite = np.isfinite(filtered).all(axis=1).sum() if filtered.size else len(filtered)
        bounded, clipped, _ = bound_records(filtered, self.bound, self.norm, self.threshold)
        return bounded, BoundCounts(len(x), clipped, len(x) - int(n_finite))

    def filter_features(self, x: FloatArray) -> FloatArray:
        """Filtered, centred records before bounding, (n_records, n_bounded), float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # counted, and bounded to 0
            if self.before:
                return apply_in_order(self.before[0], x) + self.shift
            if self.projection.size:
                return project_in_order(x, self.projection, self.shift)
            return x.astype(np.float64) + self.shift


def check_filter(fitted: RecordMap) -> None:
    """Raise OptionError unless a map turns rows of features into rows of features, without draws.

    A filter that draws needs words of its own, and codes have no norm.
    """
    if fitted.draws or fitted.reads != "features":
        what = "draws at random" if fitted.draws else "reads and releases codes"
        raise OptionError(
            f"The filter {fitted.kind!r} {what}.",
            remedy="Filter by a method that maps features to features without drawing.",
            code="filter",
        )


def apply_in_order(fitted: RecordMap, x: FloatArray) -> FloatArray:
    """What a map makes of records, float64, the same bits for a record in any block.

    Linear maps and layers are summed in an order of their own. Any other map gets one record at a
    time: its matrix products would add up in an order that changes with the number of rows.
    """
    if isinstance(fitted, Projects):
        return project_in_order(x, fitted.weights, fitted.offset)
    if isinstance(fitted, Layered):
        for weights, offset in fitted.layers:
            x = fitted.activate(project_in_order(x, weights, offset))
        return x
    out, rows = np.empty((len(x), fitted.n_features_out)), x.astype(np.float64)
    for i in range(len(x)):
        out[i] = fitted.apply(rows[i : i + 1])[0]
    return out
