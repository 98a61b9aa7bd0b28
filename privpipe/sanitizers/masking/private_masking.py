"""Private masking: surrogates of second moments that were released once, with noise.

One pass sums up the products of every record, as whole numbers. Noise is added once, by a key that
is never stored. All else is made of the noisy sums and costs nothing more, however many surrogates
are drawn. The options and the fit; `private_model` is what is stored. Proved in
`privpipe.numerics.masking`'s PROOF.md.
"""

import hashlib
import math
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.capabilities import AddsUp
from privpipe.errors import InputError, LeftOutWarning, OptionError
from privpipe.fitted_names import check_options
from privpipe.numerics.masking.private_moments import repair_moments
from privpipe.numerics.moments import name_targets
from privpipe.numerics.noise.gaussian import find_sigma
from privpipe.numerics.noise.mechanism import Lattice
from privpipe.numerics.noise.running_sums import MOST_PARTITIONS, find_runs, plan_runs
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.protocols import FloatArray, Method, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, say_incomplete
from privpipe.sanitizers.masking import private_sums, refusals
from privpipe.sanitizers.masking.private_model import PrivateMaskingModel
from privpipe.sanitizers.options import MethodOptions, method_options

Earlier = PrivateMaskingModel | None

LARGELY_CLIPPED = 0.05

FARTHEST = 1e150

ANY = "*"
"""Name in ``bound`` of all variables that it does not name."""


@method_options
class MaskingPrivateOptions(MethodOptions):
    """Options of ``[method] name = "masking_private"``."""

    name: Literal["masking_private"] = "masking_private"
    epsilon: float = Field(gt=0, le=100, allow_inf_nan=False)
    """Privacy loss of one record, in nats, of all surrogates together. Whoever replaces one record
    by another changes any outcome at most exp(epsilon)-fold, but for a chance of delta."""
    delta: float = Field(gt=0, lt=1)
    """That chance. Above one in as many as the records nothing is promised."""
    n_surrogates: int = Field(ge=1)
    """Surrogate records to release: at least the columns and two. All carry the same noisy moments,
    so that more of them reveal nothing more."""
    bound: dict[str, tuple[float, float]]
    """Least and largest value of each variable, by its name or "*" for all others. They are public
    knowledge, never read off the records, which are clipped to them. Classes need none:
    {age = [0, 99], "*" = [-1, 1]}."""
    threshold: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Largest norm of a record's features in units of their bounds, public knowledge; records
    beyond it are shortened. Less of it is less noise: of indicators, the root of how many may be
    one. Default: the root of the number of features."""
    partitions_at_most: int = Field(default=1, ge=1, le=MOST_PARTITIONS)
    """Partitions that a growing collection will ever have. Epsilon and delta are then of all its
    releases together, each of which continues the one before. Noise grows with the logarithm of
    this number. With 1 the collection is released as a whole, once."""

    uses: ClassVar[frozenset[Role]] = frozenset({"desired"})
    """What the regression model predicts: records without it add nothing to the sums."""

    @property
    def grows(self) -> bool:
        return self.partitions_at_most > 1

    def consumes(self) -> float | None:
        """Epsilon, once for all surrogates."""
        return self.epsilon

    def concentrates(self) -> float | None:
        """That of Gaussian noise, rounded up."""
        rho = 0.5 / find_sigma(self.epsilon, self.delta) ** 2
        return math.nextafter(rho, math.inf) * (1 + 1e-15)

    def try_fit(self, shards: Shards, key: bytes) -> PrivateMaskingModel:
        """`fit_with_key`, for trials of which nothing is released."""
        return fit_with_key(shards, self, key)


@check_options
def fit_masking_private(
    shards: Shards, options: MaskingPrivateOptions, *, earlier: Earlier = None
) -> PrivateMaskingModel:
    """Release the second moments of records once, with noise, and repair them.

    Parameters
    ----------
    shards
        Training records with at least one desired variable; a categorical one becomes an indicator
        per class (one for two classes).
    options
        See `MaskingPrivateOptions`.
    earlier
        Of options with `partitions_at_most`: the model of the first of these partitions, whose
        noisy sums are used again. To continue one model twice costs epsilon twice.

    Raises
    ------
    OptionError
        If bounds are missing or wrong, delta is above one in the number of records, or there are
        too few surrogates. If there are more partitions than declared, or `earlier` is of other
        options or of as many partitions.
    InputError
        If records are fewer than columns, or hold features that are not finite.

    Notes
    -----
    Guarantee: (epsilon, delta)-differential privacy, where neighbouring collections differ in the
    content of one record. Let v be the scaled record, of norm at most 1. The products v v' of two
    of them differ by at most the root of 2 in Frobenius norm.

    References
    ----------
    Balle and Wang 2018, theorem 8; Canonne, Kamath and Steinke 2020. Dwork et al. 2014, Analyze
    Gauss, for the release of second moments.

    Examples
    --------
    >>> from privpipe.records.memory import Records
    >>> x = np.random.default_rng(0).uniform(size=(20000, 3))
    >>> options = MaskingPrivateOptions(
    ...     epsilon=1.0, delta=1e-6, n_surrogates=9, bound={"*": (0, 1), "desired_0": (0, 3)}
    ... )
    >>> model = fit_masking_private(Records(x, desired=x @ [1.0, 2.0, 0.0]), options)
    >>> bool(np.abs(model.coefficients.ravel() - [1, 2, 0, 0]).max() < 0.5)
    True
    """
    # Drawn here and never stored: what was added can then never be subtracted.
    return fit_with_key(shards, options, secrets.token_bytes(KEY_BYTES), earlier)


def fit_with_key(
    shards: Shards, options: MaskingPrivateOptions, key: bytes, earlier: Earlier = None
) -> PrivateMaskingModel:
    """`fit_masking_private` with noise that a key repeats: of a known key it protects no one."""
    check_shards(shards)
    schema = replace(shards.schema, n_records=shards.n_records)
    check_private(options, schema)
    scale = make_scale(options, schema)
    sigma, most = find_sigma(options.epsilon, options.delta), options.partitions_at_most
    parts: Sequence[Shards] = getattr(shards, "partitions", [shards]) if most > 1 else [shards]
    _check_growth(len(parts), options, scale, earlier)
    known = {} if earlier is None else earlier.list_sums()
    summarise = partial(private_sums.sum_products, schema=shards.schema, scale=scale)
    noisy, changed = list[FloatArray](), list[private_sums.PrivateSums]()
    runs, (_, held) = find_runs(len(parts), most), plan_runs(most)
    for run in runs:
        if run in known:
            noisy.append(known[run])
            continue
        sums = reduce(AddsUp.merge, [part.reduce(summarise) for part in parts[slice(*run)]])
        drawn, each, slack = private_sums.add_noise(sums.products, sigma, key, held, f" {run}")
        noisy, changed = [*noisy, drawn], [*changed, sums]
    # The last run is always a new one: it ends with a partition that no earlier model has.
    _say_changed(reduce(AddsUp.merge, changed))
    moments, deviations = np.sum(noisy, axis=0), each * math.sqrt(len(runs))
    # From here on nothing is known but the noisy sums.
    factors = scale.factors
    moments, deviations = (each * np.outer(factors, factors) for each in (moments, deviations))
    q = schema.n_features
    if moments[q, q] <= max(5 * deviations[q, q], q + 2):
        raise _refuse_few(options, deviations[q, q])
    repaired = repair_moments(moments, deviations, len(scale.response_origin))
    return PrivateMaskingModel(
        **vars(scale),
        moments=moments,
        deviations=deviations,
        mean=repaired.mean,
        root=repaired.root,
        weights=repaired.coefficients,
        residual_root=repaired.residual_root,
        sigma=sigma,
        slack=float(slack),
        epsilon=options.epsilon,
        delta=options.delta,
        seed=int(_digest(moments)[:12], 16),
        n_records=options.n_surrogates,
        tile_rows=_plan_tile(options.n_surrogates, scale.n_columns),
        feature_names=(*schema.named_features, "bias"),
        response_names=name_targets(schema.desired),
        sums=np.array(noisy),
        n_partitions=len(parts),
        partitions_at_most=most,
        steps=(*(earlier.steps if earlier else ()), *[_digest(drawn)] * (most > 1)),
    )


def _digest(noisy: FloatArray) -> str:
    """SHA-256 of noisy sums, hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(noisy).tobytes()).hexdigest()


def _check_growth(
    n: int, options: MaskingPrivateOptions, scale: private_sums.PublicScale, earlier: Earlier
) -> None:
    """Raise OptionError unless so many partitions can be summed up, after those of `earlier`."""
    most, problem = options.partitions_at_most, ""
    if n > most:
        problem = f"There are {n:,} partitions, and [method] partitions_at_most is {most:,}."
    elif earlier is not None:
        promised = (earlier.epsilon, earlier.delta, earlier.partitions_at_most)
        same = all(np.array_equal(one, getattr(earlier, name)) for name, one in vars(scale).items())
        if not same or promised != (options.epsilon, options.delta, most):
            problem = "The earlier model has other bounds, epsilon, delta or partitions_at_most."
        elif earlier.n_partitions >= n:
            problem = f"The earlier model has {earlier.n_partitions:,} of {n:,} partitions already."
    if problem:
        remedy = "Continue as was declared; or begin anew, by which all records are charged again."
        raise OptionError(problem, remedy=remedy, code="growth")


def _refuse_few(options: MaskingPrivateOptions, deviation: float) -> InputError:
    """Of a count whose noise has this deviation."""
    return InputError(
        f"There are too few records for epsilon {options.epsilon:g}: their noisy number is noise.",
        remedy=f"Mask at least {math.ceil(10 * deviation):,} records, or allow a larger epsilon or "
        "delta, or a smaller threshold.",
        code="few-records",
    )


TILE_BYTES = 2**26
"""Of the surrogates that are made at once, each tile with exactly the noisy moments."""


def _plan_tile(n_surrogates: int, n_columns: int) -> int:
    """Rows of a tile: all, or as many as there is room for, and none with too few."""
    n_tiles = -(-n_surrogates // max(4 * n_columns, TILE_BYTES // (8 * n_columns)))
    return -(-n_surrogates // n_tiles)


def _say_changed(sums: private_sums.PrivateSums) -> None:
    """Warn the operator; the number is of the records and goes nowhere else."""
    say_incomplete(sums.n_left_out, sums.n_records, "desired")
    clipped = sums.n_clipped / max(sums.n_records, 1)
    if clipped > LARGELY_CLIPPED:
        warnings.warn(
            f"{clipped:.1%} of the records are changed by [method] bound or threshold, so that "
            "their moments are biased. This line is for you alone; it is not private.",
            LeftOutWarning,
            stacklevel=3,
        )


def make_scale(options: MaskingPrivateOptions, schema: ShardSchema) -> private_sums.PublicScale:
    """Origins and units of all columns, from what is public."""
    features = [_find_range(options.bound, name) for name in schema.named_features]
    responses: list[tuple[float, float]] = []
    for column in schema.desired:
        is_class, names = column.is_categorical, name_targets((column,))
        responses += [(0.0, 1.0) if is_class else _find_range(options.bound, n) for n in names]
    # A range with zero in it keeps its zero: indicators that are zero then add nothing to a norm.
    origin = [0.0 if a <= 0 <= b else (a + b) / 2 for a, b in features]
    unit = [max(abs(a - at), abs(b - at)) for (a, b), at in zip(features, origin, strict=True)]
    ends = np.array(responses)
    return private_sums.PublicScale(
        origin=np.array(origin),
        unit=np.array(unit),
        response_origin=ends.mean(axis=1),
        response_unit=(ends[:, 1] - ends[:, 0]) / 2,
        threshold=options.threshold or math.sqrt(schema.n_features),
        inner=Lattice(private_sums.GRID, schema.n_features + 1 + len(responses), "l2").inner,
    )


def _find_range(bound: Mapping[str, tuple[float, float]], name: str) -> tuple[float, float]:
    if name not in bound and ANY not in bound:
        raise OptionError(
            f"[method] bound has no range of {name!r}.",
            remedy=f'Give its least and largest value, as bound = {{"{name}" = [0, 120]}}, or one '
            'for all others, named "*". Take them from public knowledge, not from these records.',
            code="bound",
        )
    low, high = bound.get(name, bound.get(ANY, (0.0, 0.0)))
    # Squares of units must be float64.
    if not (max(abs(low), abs(high)) < FARTHEST and 1 / FARTHEST < high - low):
        problem = f"[method] bound of {name!r} is {low:g} to {high:g}."
        remedy = "Give a least and a largest value, the least first, within 1e150 and 1e-150 apart."
        raise OptionError(problem, remedy=remedy, code="bound")
    return low, high


def check_private(options: MaskingPrivateOptions, schema: ShardSchema) -> None:
    """Raise for options that no records of a schema can be masked with."""
    refusals.check_regression(schema)
    known = {*schema.named_features, *name_targets(schema.desired), ANY}
    if strange := sorted(set(options.bound) - known):
        problem = f"[method] bound names {strange[0]!r}, which is no feature and no response."
        remedy = f"Name some of: {', '.join(sorted(known)[:8])}."
        raise OptionError(problem, remedy=remedy, code="bound")
    scale = make_scale(options, schema)
    if options.n_surrogates < scale.n_columns + 1:
        raise OptionError(
            f"{options.n_surrogates} surrogates are too few for {scale.n_columns - 1} columns.",
            remedy=f"Set [method] n_surrogates to at least {scale.n_columns + 1}.",
            code="few-surrogates",
        )
    n = schema.n_records
    if n and n < scale.n_columns:
        problem = f"{n:,} records are fewer than the {scale.n_columns} columns."
        remedy = f"Mask at least {scale.n_columns:,} records, or fewer columns."
        raise InputError(problem, remedy=remedy, code="few-records")
    if n and options.delta > 1 / n:
        raise OptionError(
            f"delta is {options.delta:g}, above one in {n:,} records: to publish one record of "
            "them at random would keep it.",
            remedy=f"Use {10.0 ** math.floor(-math.log10(n)):g} or less; a tenth of that is usual.",
            code="delta",
        )
    if n > private_sums.MOST_RECORDS:
        problem = f"{n:,} records exceed the {private_sums.MOST_RECORDS:,} that sums hold exactly."
        raise InputError(problem, remedy="Mask parts of the collection, each a release of its own.")
    # Known before any record is read: the fit would most likely find no number but noise.
    sigma = find_sigma(options.epsilon, options.delta)
    sigma *= math.sqrt(plan_runs(options.partitions_at_most)[1])
    deviation = math.sqrt(2) * sigma * (scale.factors[schema.n_features] / private_sums.GRID) ** 2
    if 0 < n <= 5 * deviation:
        raise _refuse_few(options, deviation)


METHOD = Method(
    options=MaskingPrivateOptions,
    releases="surrogate",
    fit=fit_masking_private,
    source="Yi et al. 2014, problem (3), from second moments with noise: Dwork et al. 2014, "
    "Analyze Gauss; Balle and Wang 2018",
    maps=(PrivateMaskingModel,),
    promise="(epsilon, delta)-differential privacy of every record, in floating point, for any "
    "number of surrogates together",
    statistics=(private_sums.PrivateSums,),
    check=check_private,
)
"""Masking with differential privacy."""
