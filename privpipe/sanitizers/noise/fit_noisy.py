"""Learning a noisy filter from public records: filter, mean and threshold; the row of the method.

Hamm 2017, Noisy Minimax Filters, sections 2.2 and 3. The filter is any row-wise method of the
table; the table is handed in, so that this wing knows none of the others.
"""

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.capabilities import Preview, Projects
from privpipe.errors import GuaranteeError, InputError, OptionError, PrivpipeError
from privpipe.fitted_names import keep_names
from privpipe.numerics.noise.bounding import Bound, Norm
from privpipe.numerics.noise.mechanism import Law, Mechanism, Order, plan_promised
from privpipe.promises import say_odds
from privpipe.protocols import FloatArray, Guarantee, Method, RecordMap, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted
from privpipe.sanitizers.grounds import say_grounds, say_promise
from privpipe.sanitizers.noise import noisy_filter
from privpipe.sanitizers.options import MethodOptions, method_options

Filters = Mapping[str, Method]

THRESHOLD_QUANTILE = 0.95
"""Of the norms of public records, where no threshold is given."""


@method_options
class NoisyOptions(MethodOptions):
    """Options of ``[method] name = "noisy"``; `rows` adds the filters of the table."""

    name: Literal["noisy"] = "noisy"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """Privacy loss of one record, in nats: any released record is at most exp(epsilon) times as
    likely from one person's record as from another's. Which are drawn exactly depends on the
    coordinates; from 13.8 on (a millionfold) nothing is called a promise."""
    bound: Bound = "hard"
    """With n the norm of x. hard: x / max(T, n). soft: tanh(n / T) x / n. normalise: x / n."""
    threshold: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """T. Default: that of 95 in 100 public training records."""
    centre: bool = True
    """Subtract the mean of the public training records first."""
    orthonormalise: bool = True
    """Turn the columns of a linear filter before the noise into orthonormal ones: every direction
    then has the same noise. False: keep the filter's own scales, and directions that it stretches
    have less noise to bear."""
    order: Order = "filter_then_noise"
    """filter_then_noise (the paper's preprocessing) or noise_then_filter: the filter sees bounded,
    noisy records alone."""
    norm: Norm = "l2"
    """In which records are bounded."""
    noise: Law = "knorm"
    """knorm: the paper's, density exp(-epsilon norm / 2), delta at most 2**-100. discrete: per
    coordinate, by comparisons of whole numbers alone, delta 0; in the l2 norm up to 1.41 times as
    much noise. privunit: the least squared error, delta 0, for epsilon .01 to 20; suits means."""
    grid: float | None = None
    """Step of released numbers, a power of two from `2**-20` to `2**-10`. Default: `2**-16` of the
    noise."""
    allow_data_bound: bool = False
    """Release even if filter, mean or threshold are learned from records that are not public; the
    release then promises nothing."""
    filter: Any = None

    @property
    def within(self) -> MethodOptions:
        """Options of the filter, or of none."""
        return MethodOptions() if self.filter is None else self.filter

    def needs(self) -> frozenset[Role]:
        """What the filter needs."""
        return self.within.needs()

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """What the filter learns from."""
        return self.within.needs_labels()

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """What the filter requires."""
        return self.within.columns()

    def files(self) -> Mapping[str, str]:
        """What the filter names."""
        return self.within.files()

    def consumes(self) -> float | None:
        """Epsilon, where there is a promise."""
        return None if self.allow_data_bound else self.epsilon


def find_learned(options: NoisyOptions) -> tuple[str, ...]:
    """What would be learned from training records with these options."""
    found = {
        "filter": options.filter is not None and options.filter.learns,
        "mean": options.centre,
        "threshold": options.threshold is None and options.bound != "normalise",
    }
    return tuple(name for name, learned in found.items() if learned)


def check_noisy(options: NoisyOptions, schema: ShardSchema, *, filters: Filters) -> None:
    """Refuse what no training records of this schema can be fitted with.

    Raises
    ------
    OptionError
        If the filter is not row-wise or draws, or bound, norm, noise and grid do not go together.
    GuaranteeError
        If something is learned from records that are not public.
    """
    check_unweighted(schema)
    if options.filter is not None:
        options.filter.check_size(schema)
        filters[options.filter.name].check(options.filter, schema)
    learned = find_learned(options)
    # Whatever is learned from records that are not public is outside the promise.
    if learned and not schema.public and not options.allow_data_bound:
        raise GuaranteeError(
            f"The {' and the '.join(learned)} of the noisy filter would be learned from records "
            "that are not said to be public: what they reveal is outside the promise.",
            remedy="Name public records as [training] with public = true. Or give a threshold, "
            "centre = false and no learned filter. Or allow_data_bound = true: no promise.",
            code="not-public",
        )
    first = options.filter is not None and options.order == "filter_then_noise"
    plan(options, 1 if first else schema.n_features)  # how wide a filter is, its fit will know


def plan(options: NoisyOptions, width: int) -> Mechanism:
    """The mechanism of these options, for records of this width."""
    return plan_promised(options.epsilon, width, options.norm, options.noise, options.grid)


@keep_names
def fit_noisy_filter(
    shards: Shards, options: NoisyOptions, *, filters: Filters, **files: Mapping[str, FloatArray]
) -> noisy_filter.NoisyFilter:
    """Learn a noisy filter from public records.

    Parameters
    ----------
    shards
        Public records; see `Shards`. Passes: those of the filter, one for the mean, one for the
        threshold, where these are not given.
    options
        What to learn and promise.
    filters
        Rows of the table of methods, by name.
    **files
        Arrays of the files that the filter's options name.

    Raises
    ------
    GuaranteeError
        If something is learned from records that are not public, unless that is allowed.
    OptionError, InputError
        If options and records do not go together.
    """
    check_shards(shards)
    check_noisy(options, shards.schema, filters=filters)
    first = options.order == "filter_then_noise" and options.filter is not None
    # Behind the noise the filter learns below, from noisy records, as it will read them.
    fitted = _fit_filter(shards, options, filters, files) if first else None
    noisy = _bound_records(shards, options, fitted)
    if options.filter is None or first:
        return noisy
    trained = noisy_filter.change_shards(shards, noisy)
    return replace(noisy, after=(_fit_filter(trained, options, filters, files),))


def _fit_filter(
    shards: Any, options: NoisyOptions, filters: Filters, files: Mapping[str, Any]
) -> RecordMap:
    fitted = filters[options.filter.name].fit(shards, options.filter, **files)
    noisy_filter.check_filter(fitted)
    return fitted


def _bound_records(
    shards: Shards, options: NoisyOptions, fitted: RecordMap | None
) -> noisy_filter.NoisyFilter:
    """Noise behind an optional filter: the mean and the threshold of what it filters."""
    n_features = shards.schema.n_features
    before: tuple[RecordMap, ...] = ()
    projection: FloatArray = np.empty((0, 0))
    shift: FloatArray = np.zeros(n_features)
    linear: Any = fitted if isinstance(fitted, Projects) else None
    if linear is not None:
        projection, shift = linear.weights, linear.offset
        if options.orthonormalise:
            projection, shift = _orthonormalise(projection, shift)
    elif fitted is not None:
        before, shift = (fitted,), np.zeros(fitted.n_features_out)
    # Now the width is known: noise that is not drawn exactly is refused before any record is read.
    mechanism = plan(options, len(shift))
    noisy = noisy_filter.NoisyFilter(
        epsilon=options.epsilon,
        norm=options.norm,
        law=options.noise,
        grid=mechanism.grid,
        order=options.order,
        bound=options.bound,
        threshold=options.threshold or 1.0,
        before=before,
        projection=projection,
        shift=shift,
        after=(),
        guarantee=_promise(options, mechanism),
    )
    # Each pass reads what the one before has fixed: first the mean, then norms about it.
    if options.centre:
        mean = shards.reduce(partial(noisy_filter.FilteredMean.of, noisy=noisy)).mean
        if not np.isfinite(mean).all():
            problem = "The mean of the filtered training records is not finite."
            remedy = "Scale the features, or set centre = false."
            raise InputError(problem, remedy=remedy, code="nonfinite")
        noisy = replace(noisy, shift=shift - mean)
    if options.threshold is None and options.bound != "normalise":
        norms = shards.reduce(partial(noisy_filter.NormCounts.of, noisy=noisy))
        noisy = replace(noisy, threshold=norms.quantile(THRESHOLD_QUANTILE))
    return noisy


def _orthonormalise(weights: FloatArray, offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same filter up to a change of coordinates, with orthonormal columns.

    Distances then mean the same in every direction, and no direction gets more noise than
    another for the scale of its column alone.
    """
    basis, change = np.linalg.qr(weights)
    # LAPACK chooses the signs of a QR factor; a fixed choice gives one filter on every kernel.
    signs = np.where(np.diagonal(change) < 0, -1.0, 1.0)
    basis, change = basis * signs, change * signs[:, None]
    return np.ascontiguousarray(basis), np.linalg.lstsq(change.T, offset, rcond=None)[0]


def _promise(options: NoisyOptions, mechanism: Mechanism) -> Guarantee:
    if options.allow_data_bound:
        return say_promise("data_bound")
    grounds = "Filter, mean and threshold come from records said to be public."
    return mechanism.promise(options.order, grounds)


MOST_RECORDS = 20_000
"""Records that a forecast looks at."""


DROWNED = 100
"""Times the spread of a coordinate that its noise may be before it is said to drown."""


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
    n_drowned
        Coordinates of which the noise is `DROWNED` times the spread.
    """

    about: ClassVar[str] = "noise"

    epsilon: float
    delta: float
    n_coordinates: int
    noise: float
    spread: float
    clipped: float
    n_drowned: int = 0

    def describe(self) -> str:
        """In a few sentences."""
        times = self.noise / self.spread if self.spread > 0 else float("inf")
        said = say_grounds("noise_forecast", self=self, times=times, odds=say_odds(self.epsilon))
        return said + say_grounds("noise_drowned", self=self) * (self.n_drowned > 0)


def forecast_noise(
    preview: Preview, options: NoisyOptions, *, filters: Filters
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
    whole, few = preview.read_labelled()
    if not whole.n_records:
        return None
    # What follows the noise changes nothing of it, and takes long to train.
    short = options if options.order == "filter_then_noise" else replace(options, filter=None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            noisy = fit_noisy_filter(few, short, filters=filters)
    except OptionError:
        raise  # the run would refuse them, too
    except PrivpipeError:
        return None  # the run itself will say what is wrong, on all records
    bounded, counts = noisy.bound_features(np.asarray(whole.features[:MOST_RECORDS], np.float64))
    used, spread = noisy.mechanism, float(np.sqrt(bounded.var(axis=0).mean()))
    about = options.epsilon, used.delta, noisy.n_bounded, used.spread, spread
    drowned = int((DROWNED * bounded.std(axis=0) < used.spread).sum())
    return NoiseForecast(*about, counts.n_clipped / max(counts.n_records, 1), drowned)


def list_methods(filters: Filters) -> tuple[Method, ...]:
    """The row of this wing, over the other rows of the table."""
    return (
        Method(
            options=_make_options_class(filters),
            fit=partial(fit_noisy_filter, filters=filters),
            source="Hamm 2017, Noisy Minimax Filters, sections 2.2 and 3",
            maps=(noisy_filter.NoisyFilter,),
            promise="local differential privacy of every record, in floating point: (epsilon, 0) "
            "or (epsilon, at most 2**-100)",
            statistics=noisy_filter.NORM_STATISTICS,
            check=partial(check_noisy, filters=filters),
            forecast=partial(forecast_noise, filters=filters),
        ),
    )


def _make_options_class(filters: Filters) -> type[NoisyOptions]:
    """The options, with those of every filter as a table of their own."""
    # Row-wise ones of features: no surrogates, and no codes that are drawn at random.
    rows = [row.options for row in filters.values() if row.releases == "rows"]
    kinds: Any = reduce(operator.or_, [one for one in rows if not hasattr(one, "attributes")])
    any_filter: Any = Annotated[kinds, Field(discriminator="name")]
    about = "A table [method.filter] with the name and options. Not set: noise alone."
    described: Any = Annotated[any_filter | None, Field(description=about)]
    # A class statement in here could not have the name of its base, which it takes the place of.
    space: dict[str, Any] = {"__annotations__": {"filter": described}, "filter": None}
    for name in ("__doc__", "__module__", "__qualname__"):
        space[name] = getattr(NoisyOptions, name)
    made: Any = type("NoisyOptions", (NoisyOptions,), space)
    return method_options(made)
