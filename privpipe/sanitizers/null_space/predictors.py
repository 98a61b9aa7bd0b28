"""From shards to predictors: one pass of co-moments, a second by TSQR where they do not suffice.

Desired and confidential predictors, training mean and covariance all come from the same pass. The
options that algorithms 1 and 2 of null-space cleaning share, and what their cleaners are made of,
are here too, once for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from privpipe import protocols
from privpipe.errors import InputError, OptionError, RankError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import keep_rows
from privpipe.numerics.moments import Coding, CoMoments, LeastSquares
from privpipe.numerics.null_space.knapsack import check_budget
from privpipe.numerics.tsqr import Frame, TriangularFactor, solve_triangular
from privpipe.protocols import ArrayLike, BoolArray, FloatArray, Role, Shard, Shards, ShardSchema
from privpipe.sanitizers import arrays
from privpipe.sanitizers.null_space import linear_cleaner
from privpipe.sanitizers.options import MethodOptions, make_options, method_options

TargetRole = Literal["desired", "confidential"]

WORST_CONDITION = 1e5
"""Above this condition of the scaled Gram matrix the predictor is fitted by TSQR."""


@dataclass(frozen=True, eq=False)
class DesignMoments:
    """Co-moments of features and targets, apart for records with different labels missing.

    Parameters
    ----------
    n_features
        Number of features.
    n_targets
        Number of target columns of each requested role.
    parts
        By the roles whose labels are complete: co-moments of ``[features, their targets]``.
    n_read
        Records read.
    n_incomplete
        Records whose labels of a role are not complete, by role.
    """

    n_features: int
    n_targets: Mapping[TargetRole, int]
    parts: Mapping[tuple[TargetRole, ...], CoMoments] = field(default_factory=dict)
    n_read: int = 0
    n_incomplete: Mapping[TargetRole, int] = field(default_factory=dict)

    def merge(self, other: "DesignMoments") -> "DesignMoments":
        """Summary of the records of both."""
        parts = dict(self.parts)
        for roles, moments in other.parts.items():
            parts[roles] = parts[roles].merge(moments) if roles in parts else moments
        both = self.n_incomplete.keys() | other.n_incomplete.keys()
        n_read = self.n_read + other.n_read
        lost = {r: self.n_incomplete.get(r, 0) + other.n_incomplete.get(r, 0) for r in both}
        return DesignMoments(self.n_features, self.n_targets, parts, n_read, lost)

    def say_incomplete(self) -> None:
        """Warn of records that lack labels, by role."""
        for role, count in sorted(self.n_incomplete.items()):
            arrays.say_incomplete(count, self.n_read, role)

    def of_role(self, role: TargetRole | None) -> CoMoments:
        """Co-moments of ``[features, targets of the role]`` where these are complete."""
        width = self.n_targets[role] if role else 0
        mine = [part for part in sorted(self.parts.items()) if role is None or role in part[0]]
        found = [moments.select(self._pick(roles, role)) for roles, moments in mine]
        return reduce(CoMoments.merge, found, CoMoments.empty(self.n_features + width))

    def _pick(self, roles: tuple[TargetRole, ...], role: TargetRole | None) -> protocols.IntArray:
        features = np.arange(self.n_features)
        if role is None:
            return features
        start = self.n_features + sum(self.n_targets[r] for r in roles[: roles.index(role)])
        return np.concatenate([features, np.arange(start, start + self.n_targets[role])])


def summarise_design(
    shard: Shard, *, schema: ShardSchema, coding: Coding, roles: tuple[TargetRole, ...]
) -> DesignMoments:
    """Co-moments of features and targets of the roles; without roles, of all features.

    Raises
    ------
    InputError
        If features are not finite.
    """
    arrays.check_training(shard.features)
    targets = {role: code_role(shard, schema, role, coding) for role in roles}
    whole = {role: ~np.isnan(y).any(axis=1) for role, y in targets.items()}
    parts = {}
    # Records with the same complete roles are summed together: at most four parts, in one pass.
    for there in (some for k in range(len(roles) + 1) for some in combinations(roles, k)):
        rows = np.ones(len(shard.features), np.bool_)
        for role in roles:
            rows &= whole[role] == (role in there)
        if rows.any() and (there or not roles):
            parts[there] = _summarise_rows(shard, rows, [targets[role] for role in there])
    sizes = {role: regression.count_targets(getattr(schema, role)) for role in roles}
    incomplete = {role: int(np.count_nonzero(~rows)) for role, rows in whole.items()}
    return DesignMoments(schema.n_features, sizes, parts, len(shard.features), incomplete)


def _summarise_rows(part: Shard, rows: BoolArray, labels: list[FloatArray]) -> CoMoments:
    n = part.features.shape[1]
    block = np.empty((int(rows.sum()), n + sum(y.shape[1] for y in labels)))
    block[:, :n] = keep_rows(part.features, rows)
    if labels:
        block[:, n:] = np.hstack([keep_rows(y, rows) for y in labels])
    return CoMoments.of(block, _weights(part, rows), in_place=True).check_squares()


def fit_predictor(
    shards: Shards,
    role: TargetRole,
    *,
    moments: DesignMoments,
    coding: Coding,
    ridge: float,
    with_intercept: bool,
) -> LeastSquares:
    """Fit one role's predictor: from the co-moments, or by TSQR where they are too coarse.

    Parameters
    ----------
    shards
        The records; read once more when the condition of the scaled Gram matrix exceeds 1e5.
    role
        Whose labels to predict.
    moments
        What the pass over the same shards found.
    coding
        Values of categorical targets.
    ridge, with_intercept
        See `solve_least_squares`.

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If there is no label of the role, or fewer than two complete records.
    """
    schema = shards.schema
    if not getattr(schema, role):
        problem = f"There is no {role} variable to fit a predictor to."
        raise InputError(problem, remedy=f"Name one in {role}, or give a predictor.")
    n, sums = schema.n_features, moments.of_role(role)
    try:
        found = regression.solve_least_squares(
            sums, n, ridge=ridge, with_intercept=with_intercept, names=schema.feature_names
        )
        # Beyond, the factor of the records themselves sees twice as many digits.
        if found.condition <= WORST_CONDITION:
            return found
    except RankError:
        pass  # as far as the Gram matrix can show; the factor sees twice as many digits
    scale = regression.measure_scale(sums, n, with_intercept)
    # The mean of the first pass, so that little cancels in the second.
    frame = Frame(sums.mean * with_intercept, scale, with_intercept)
    ask = partial(summarise_triangle, schema=schema, role=role, coding=coding, frame=frame)
    return solve_triangular(shards.reduce(ask), frame, ridge=ridge, names=schema.feature_names)


def summarise_triangle(
    shard: Shard, *, schema: ShardSchema, role: TargetRole, coding: Coding, frame: Frame
) -> TriangularFactor:
    """Triangular factor of features and targets of the records whose targets are complete."""
    y = code_role(shard, schema, role, coding)
    rows: BoolArray = np.asarray(~np.isnan(y).any(axis=1))
    features = shard.features[rows].astype(np.float64)
    return TriangularFactor.of_design(features, y[rows], frame, _weights(shard, rows))


def check_varies(moments: CoMoments, n_features: int, role: TargetRole) -> None:
    """Raise InputError if all features, or all targets of the role, are constant."""
    variance = np.diag(moments.scatter) / moments.count
    for what, of in (("feature", slice(n_features)), (f"{role} variable", slice(n_features, None))):
        arrays.check_spread(what, variance[of], moments.mean[of])


def code_role(shard: Shard, schema: ShardSchema, role: TargetRole, coding: Coding) -> FloatArray:
    """Target columns of a role, (n_records, n_targets), NaN where missing."""
    return regression.code_targets(getattr(shard, role), getattr(schema, role), coding)


def _weights(shard: Shard, rows: BoolArray) -> FloatArray | None:
    return shard.weights[rows] if shard.weights.size else None


DESIGN_STATISTICS = (DesignMoments, CoMoments, TriangularFactor)
"""What a fit by least squares sums up over the records."""

UTILITY_PROMISE = "loss of utility at most the budget, for every record, in floating point"

T = TypeVar("T", bound=MethodOptions)

Intercept = Literal["separate", "augmented", "none"]

Arrays = Mapping[str, ArrayLike]
"""Of a predictor that is given instead of fitted, as its file holds them."""


Ridge = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method_options
class CleanerOptions(MethodOptions):
    """Options that both algorithms of null-space cleaning have."""

    name: str
    utility_budget: float = Field(ge=0, allow_inf_nan=False)
    """Largest loss of utility per record, in squared units of the desired prediction; 0 removes the
    exact null space only."""
    budget: linear_cleaner.BudgetBasis = "total"
    """total: the budget covers all desired labels together. per_label: it is multiplied by their
    number, as in the paper's tables."""
    ridge: Ridge = 0.0
    """Added to the unit diagonal of the standardised features' Gram matrix."""
    intercept: Intercept = "separate"
    """separate: fitted and stored apart. augmented: a column of ones is appended to the record and
    cleaned along (the paper's reading). none."""
    centre: bool | None = None
    """Clean deviations from the training mean. Default: true with a separate intercept, false
    otherwise."""
    representative: linear_cleaner.Representative = "closest"
    """Which record carries the released coordinates: the closest to the centre (the paper's) or the
    most likely under the training covariance."""
    on_unrepresentable: linear_cleaner.OnUnrepresentable = "fail"
    """What becomes of a record that rounding alone may carry over a positive budget: fail, or
    withhold it as a row of NaN."""
    label_coding: Coding = "zero_one"
    """Values of categorical targets: `0/1` or `-1/+1`."""
    predictor: str | None = None
    """File with the desired predictor (.npy: coefficients; .npz or Zarr group: coefficients and
    optionally intercept), instead of fitting it."""

    multiplies: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    files_of: ClassVar[Mapping[TargetRole, str]] = {"desired": "predictor"}
    """The option that names a file, by the role that its predictor is of."""

    @property
    def centres(self) -> bool:
        """Whether deviations from the training mean are cleaned."""
        return self.intercept == "separate" if self.centre is None else self.centre

    def files(self) -> Mapping[str, str]:
        """Of the predictors that are given."""
        return {name: url for name in self.files_of.values() if (url := getattr(self, name))}

    def needs(self) -> frozenset[Role]:
        """The roles whose predictors are not given."""
        return frozenset().union(*self.needs_labels())

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Each predictor is fitted apart, to the records that have its labels."""
        given = self.files()
        return tuple(frozenset({role}) for role, name in self.files_of.items() if name not in given)

    def may_factor(self) -> bool:
        """Coordinates say all."""
        return True

    def factor(self, fitted: Any, dtype: protocols.DTypeLike) -> linear_cleaner.FactoredCleaner:
        """Releases coordinates."""
        return linear_cleaner.FactoredCleaner.of(fitted, dtype)


def as_file(coefficients: ArrayLike | None, intercept: ArrayLike | None) -> dict[str, ArrayLike]:
    """A predictor of the caller's as a file would bring it; empty when there is none."""
    if coefficients is None:
        return {}
    return {"coefficients": coefficients} | ({} if intercept is None else {"intercept": intercept})


def take_options(kind: type[T], name: str, choices: Mapping[str, Any]) -> T:
    """Options of a method from the keywords of its fit.

    Raises
    ------
    OptionError
        If they are wrong, or name a file: from Python a predictor is given as arrays.
    """
    check_budget(choices.get("utility_budget", 0.0))
    options = make_options(kind, {"name": name, **choices}, name)
    if files := sorted(options.files()):
        remedy = "Give coefficients: desired_predictor=..., confidential_predictor=..."
        raise OptionError(f"{', '.join(files)} names a file.", remedy=remedy)
    return options


def check_augmented(options: CleanerOptions, schema: ShardSchema) -> None:
    """Raise OptionError if a column of ones is to be cleaned along, and deviations too."""
    if options.intercept == "augmented" and (options.centres or options.representative == "likely"):
        remedy = 'Leave centre unset and representative = "closest", or use "separate".'
        raise OptionError('intercept = "augmented" cleans records as they are.', remedy=remedy)


def learn_predictors(
    shards: Shards, options: CleanerOptions, files: Mapping[str, Arrays]
) -> tuple[dict[TargetRole, FloatArray], linear_cleaner.CleanerChoices]:
    """Fit or take the predictors; one pass collects all that the records must say.

    Parameters
    ----------
    shards
        Training records.
    options
        How they are fitted, and what the cleaner needs beside them.
    files
        Predictors to use instead of fitting them, by the option that names their file. Each has
        ``coefficients`` (n_features, n_predictions), and ``intercept`` (n_predictions,) where there
        is one.

    Returns
    -------
    predictors
        By role, (n_features_cleaned, n_predictions); the last row is that of the column of ones
        where it is cleaned along.
    choices
        What the cleaner takes beside them; the intercept is zero where it is cleaned along.

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.
    """
    arrays.check_shards(shards, products=not files)
    schema = shards.schema
    check_augmented(options, schema)
    likely, augmented = options.representative == "likely", options.intercept == "augmented"
    given = {role: files.get(name) for role, name in options.files_of.items()}
    # What is given needs no labels.
    roles = tuple(role for role, taken in given.items() if not taken)
    moments = DesignMoments(schema.n_features, {})
    # A given predictor without centre or covariance needs no record at all.
    if roles or options.centres or likely:
        ask = partial(summarise_design, schema=schema, coding=options.label_coding, roles=roles)
        moments = shards.reduce(ask)
        moments.say_incomplete()
    fit = partial(
        fit_predictor,
        shards,
        moments=moments,
        coding=options.label_coding,
        ridge=options.ridge,
        with_intercept=options.intercept != "none",
    )
    n = schema.n_features
    found = {role: _take(taken, n, role) if taken else fit(role) for role, taken in given.items()}
    target = found["desired"]
    overall = moments.of_role("desired" if "desired" in roles else None)
    predictors = {
        role: np.vstack([one.coefficients, *([one.intercept] if augmented else [])])
        for role, one in found.items()
    }
    return predictors, {
        "intercept": np.zeros_like(target.intercept) if augmented else target.intercept,
        "centre": overall.mean[:n] if options.centres else None,
        "covariance": overall.scatter[:n, :n] / max(overall.count, 1) if likely else None,
        "representative": options.representative,
        "augmented": augmented,
        "budget": options.budget,
        "on_unrepresentable": options.on_unrepresentable,
        "condition": target.condition,
        "solver": target.solver,
    }


def _take(given: Arrays, n_features: int, role: str) -> LeastSquares:
    a = arrays.as_predictor(given["coefficients"], f"{role} predictor")
    if len(a) != n_features:
        problem = f"The {role} predictor has {len(a)} rows, the records {n_features} features."
        remedy = f"Give coefficients of shape ({n_features}, n_predictions)."
        raise InputError(problem, remedy=remedy, code="predictor")
    what = f"intercept of the {role} predictor"
    intercept = arrays.as_finite(given.get("intercept"), a.shape[1:], what)
    return LeastSquares(a, intercept, 0.0, "given")
