"""Linear concept erasure (LEACE): what to use when no desired predictor is known.

Belrose et al. 2023: the least change of the records, in the sense of least squares. After it no
linear predictor finds the confidential variables any better than a constant. `solve_erasure` is the
closed form, from co-moments. Directions that co-moments of the features do not show are summed up
and erased by themselves (`erase_unseen`). One is that between two columns that are nearly equal.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from privpipe.described import record_map
from privpipe.errors import InputError, PrivacyWarning
from privpipe.fitted_names import keep_names
from privpipe.numerics.finite import MOST_BINARY
from privpipe.numerics.moments import CoMoments, measure_scale
from privpipe.numerics.rounding import bound_rank_error
from privpipe.protocols import FloatArray, Guarantee, Method, Role, Shard, Shards
from privpipe.sanitizers import arrays, feature_map, grounds
from privpipe.sanitizers.null_space import predictors
from privpipe.sanitizers.options import MethodOptions, method_options

_SUMMARISE = partial(predictors.summarise_design, coding="zero_one", roles=("confidential",))
"""Sums for an erasure, of some records; the schema is given with them."""


@method_options
class LeaceOptions(MethodOptions):
    """Options of ``[method] name = "leace"``: there are none."""

    name: Literal["leace"] = "leace"

    multiplies: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    uses: ClassVar[frozenset[Role]] = frozenset({"confidential"})
    """What is erased; records without it are left out."""


@record_map
class LeaceEraser(feature_map.FeatureMap):
    """Projects each record obliquely: ``x~ = x - left (right^T (x - mean))``.

    The promise is about covariance and holds to rounding. No record is released equal to another,
    and low-order digits depend on what was erased, and on the shape of the block. A contrast of
    columns that are equal, or that erasure makes constant, is constant but for rounding. It
    consists of such digits, and they may reveal the confidential variable.

    Parameters
    ----------
    mean : (n_features,)
        Mean training record.
    left, right : (n_features, rank)
        See `solve_erasure`; those of `erase_unseen` follow where there are some.
    """

    kind: ClassVar[str] = "leace_eraser"

    mean: FloatArray
    left: FloatArray
    right: FloatArray

    @property
    def n_features_in(self) -> int:
        return len(self.mean)

    n_features_out = n_features_in

    guarantee: ClassVar[Guarantee] = grounds.say_promise("leace", 0.0)
    """No linear predictor is left, on the distribution of the training records."""

    def map_records(self, records: FloatArray) -> FloatArray:
        """Erase."""
        records = drop_tiny(records)
        # Two thin products, never an n x n matrix.
        return records - ((records - self.mean) @ self.right) @ self.left.T


@keep_names
def fit_leace_eraser(shards: Shards) -> LeaceEraser:
    """Fit the eraser of the confidential variables, from one pass of co-moments.

    A categorical variable is erased class by class (one against rest). Records with a missing
    confidential label are left out, and counted in a warning. Where features are dependent, or
    nearly, there is a second pass; see `erase_unseen`.

    Parameters
    ----------
    shards
        Training records with at least one confidential variable.

    Returns
    -------
    LeaceEraser

    Raises
    ------
    InputError
        If there is no confidential variable or it is constant, fewer than two complete records,
        or features are constant or not finite.

    Warns
    -----
    PrivacyWarning
        If next to nothing is left of a feature, such as a copy of a confidential variable.

    References
    ----------
    Belrose et al. 2023, LEACE: Perfect linear concept erasure in closed form.

    Examples
    --------
    >>> from privpipe import Records
    >>> x = np.random.default_rng(1).normal(size=(50, 3))
    >>> secret = x[:, 1] + x[:, 2]
    >>> released = fit_leace_eraser(Records(x, confidential=secret)).apply(x)
    >>> bool(abs(np.corrcoef(released[:, 0] + released[:, 1], secret)[0, 1]) < 1e-9)
    True
    """
    arrays.check_shards(shards, products=True)
    schema = shards.schema
    shards = arrays.ChangedShards(shards, _drop_tiny, schema)
    if not schema.confidential:
        problem = "There is no confidential variable to erase."
        raise InputError(problem, remedy="Name one in confidential.")
    found = shards.reduce(partial(_SUMMARISE, schema=schema))
    found.say_incomplete()
    moments = found.of_role("confidential")
    if moments.count < 2:
        problem = f"{moments.count:g} complete training records are too few to erase from."
        remedy = "Train on more records; records with missing labels do not count."
        raise InputError(problem, remedy=remedy)
    n = schema.n_features
    mean, scale = moments.mean[:n], measure_scale(moments, n, with_intercept=True)
    left, right, unseen = solve_erasure(moments, scale)
    predictors.check_varies(moments, n, "confidential")
    _say_gone(schema.named_features, left, np.diag(moments.scatter)[:n] / moments.count)
    # A constant feature is a direction that nothing is in: it costs no pass.
    if unseen.shape[1] > np.count_nonzero(np.diag(moments.scatter)[:n] == 0):
        more = erase_unseen(shards, mean, scale, unseen, right)
        left, right = np.hstack([left, more[0]]), np.hstack([right, more[1]])
    return LeaceEraser(mean, left, right)


LEAST = 2.0**-MOST_BINARY
"""Of larger values float64 holds the squares of deviations, down to the last digit."""


def drop_tiny(records: FloatArray) -> FloatArray:
    """Records with 0 for what is smaller than `LEAST`, where sums take a class for a constant.

    >>> drop_tiny(np.array([1.0, -1e-163, 0.0]))
    array([1., 0., 0.])
    """
    tiny = (records < LEAST) & (records > -LEAST) & (records != 0)
    return np.where(tiny, records.dtype.type(0), records) if tiny.any() else records


def _drop_tiny(shard: Shard) -> Shard:
    return replace(shard, features=drop_tiny(shard.features))


def erase_unseen(
    shards: Shards, mean: FloatArray, scale: FloatArray, unseen: FloatArray, right: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Erase where the co-moments of features see nothing, from one more pass.

    Records are projected on these directions before they are multiplied, so that co-moments resolve
    deviations of `1e-14` of a feature's instead of `1e-7`. Only the unseen directions are changed,
    with the help of what the seen ones say. A small contrast, magnified until it says the class,
    never moves what is large.

    Parameters
    ----------
    shards
        The records.
    mean, scale : (n_features,)
        Of the features.
    unseen : (n_features, n_unseen)
        Orthonormal, in standardised features; see `solve_erasure`.
    right : (n_features, rank)
        Of the seen directions.

    Returns
    -------
    left, right : (n_features, rank)
        Of the features. Rank 0 where they are dependent but for rounding, as copies are.
    """
    directions = np.hstack([right, unseen / scale[:, None]])
    rank, n = right.shape[1], directions.shape[1]
    schema = replace(shards.schema, n_features=n, feature_names=())
    ask = partial(_SUMMARISE, schema=schema)
    change = partial(_project, mean=mean, directions=directions)
    found = arrays.ChangedShards(shards, change, schema).reduce(ask).of_role("confidential")
    spread = float(np.sqrt(np.diag(found.scatter)[rank:n].max() / found.count))
    # What deviates less than a projection is rounded is rounding: many a sum or share is.
    least = bound_rank_error(len(scale))
    if spread <= least:
        return right[:, :0], right[:, :0]
    sizes = np.where(np.arange(n) < rank, 1.0, spread)
    left, turned, _ = solve_erasure(found, sizes, least=least / spread)
    return scale[:, None] * (unseen @ left[rank:]), directions @ turned


def _say_gone(names: Sequence[str], left: FloatArray, variance: FloatArray) -> None:
    """Warn of features that erasure makes constant but for rounding, or unseen contrasts."""
    # What is taken from the variance of each.
    taken = np.einsum("ij,ij->i", left, left)
    gone = (variance > 0) & (taken >= (1 - bound_rank_error(len(names))) * variance)
    if n_gone := int(gone.sum()):
        some = [names[j] for j in np.flatnonzero(gone)[:8]]
        more = f" and {n_gone - 8} more" if n_gone > 8 else ""
        warnings.warn(
            f"Erasure leaves next to nothing of {', '.join(some)}{more}, and last digits of it may "
            "reveal the confidential variables: leave such features out.",
            PrivacyWarning,
            stacklevel=4,
        )


def _project(shard: Shard, *, mean: FloatArray, directions: FloatArray) -> Shard:
    return replace(shard, features=(shard.features.astype(np.float64) - mean) @ directions)


def fit_leace(shards: Shards, options: LeaceOptions) -> LeaceEraser:
    """Fit from options."""
    return fit_leace_eraser(shards)


METHOD = Method(
    options=LeaceOptions,
    fit=fit_leace,
    source="Belrose et al. 2023, LEACE: Perfect linear concept erasure in closed form",
    maps=(LeaceEraser,),
    promise="no linear prediction of the confidential variables is left, on the training records",
    statistics=predictors.DESIGN_STATISTICS,
)


def solve_erasure(
    moments: CoMoments, scale: FloatArray, *, least: float = 0.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The smallest change of records that leaves their targets uncorrelated with them.

    Let ``W`` be the pseudo-inverse root of the features' covariance. Let ``U`` be an orthonormal
    basis of ``W cov(x, z)``. The erased record is ``x - W^+ U U^T W (x - mean)``: an oblique
    projection of the rank of the cross-covariance.

    Parameters
    ----------
    moments
        Of rows ``[features, targets]``.
    scale : (n_features,)
        Features are divided by it first.
    least
        Directions of a smaller deviation, in scaled features, are unseen.

    Returns
    -------
    left, right : (n_features, rank)
        ``W^+ U`` and ``W U``; ``right^T left`` is the identity. Rank 0 where nothing covaries.
    unseen : (n_features, n_unseen)
        Orthonormal directions of scaled features that are not in the pseudo-inverse.

    Notes
    -----
    The projection does not depend on the features' scales. The ranks found in float64 do: they
    count what exceeds the rounding of the co-moments on every processor (`bound_rank_error`).

    References
    ----------
    Belrose et al. 2023, LEACE: Perfect linear concept erasure in closed form, section 4.
    """
    n_features = len(scale)
    covariance = moments.scatter / moments.count
    values, vectors = np.linalg.eigh(covariance[:n_features, :n_features] / np.outer(scale, scale))
    rounding = bound_rank_error(n_features)
    # The pseudo-inverse: of other directions rounding leaves nothing in these sums.
    seen = values > max(rounding * values[-1], least**2)
    values, unseen, vectors = values[seen], vectors[:, ~seen], vectors[:, seen]
    spread = np.sqrt(np.diag(covariance)[n_features:])
    cross = covariance[:n_features, n_features:] / scale[:, None]
    cross = cross / np.where(spread > 0, spread, 1.0)
    # In the eigenbasis W is a diagonal: correlations of the whitened features with the targets.
    u, s, _ = np.linalg.svd((vectors.T @ cross) / np.sqrt(values)[:, None], full_matrices=False)
    # Whitening magnifies the rounding of the cross-covariance by the root of the condition; what
    # lies below is no correlation but the last bits of one, and differs from kernel to kernel.
    u = u[:, s > max(np.sqrt(n_features) * 2.0**-40, rounding / np.sqrt(values.min(initial=1.0)))]
    left = scale[:, None] * (vectors @ (np.sqrt(values)[:, None] * u))
    return left, (vectors @ (u / np.sqrt(values)[:, None])) / scale[:, None], unseen
