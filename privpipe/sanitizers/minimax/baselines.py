"""Linear filters from one pass or none: least squares minimax, Privacy LDS, PCA, random.

Hamm, JMLR 2017, sections 4.1 and 6.1: the closed-form filters and those that minimax filters are
compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.numerics.spectra import guard_directions
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Method, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.linear_filter import EMPIRICAL, LinearFilter
from privpipe.sanitizers.minimax.training.closed_forms import (
    find_least_squares_directions,
    find_privacy_lds,
)
from privpipe.sanitizers.minimax.training.filter_widths import check_width, warn_of_width
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LABEL_STATISTICS,
    LabelledMoments,
    measure_moments,
)
from privpipe.sanitizers.minimax.training.task_planning import check_tasks, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions
from privpipe.sanitizers.names import keep_names
from privpipe.sanitizers.options import MethodOptions

Width = Annotated[int, Field(ge=1, description="Features released.")]
OptionalWidth = Annotated[
    int | None, Field(ge=1, description="Features released. Default: the informative directions.")
]
Ridge = Annotated[
    float,
    Field(
        gt=0,
        allow_inf_nan=False,
        description="Added to the metric of the eigenproblem, relative to its mean eigenvalue.",
    ),
]
Find = Callable[[Sequence[Task], LabelledMoments, int, float], tuple[FloatArray, int]]


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class LeastSquaresOptions(TaskOptions):
    """Options of ``[method] name = "minimax_least_squares"``."""

    name: Literal["minimax_least_squares"] = "minimax_least_squares"
    n_filtered: OptionalWidth = None
    ridge: Ridge = 1e-6


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PrivacyLdsOptions(TaskOptions):
    """Options of ``[method] name = "privacy_lds"``."""

    name: Literal["privacy_lds"] = "privacy_lds"
    n_filtered: OptionalWidth = None
    ridge: Ridge = 1e-8


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PcaOptions(MethodOptions):
    """Options of ``[method] name = "pca"``."""

    name: Literal["pca"] = "pca"
    n_filtered: Width
    centre: Annotated[
        bool, Field(description="Subtract the training mean. False: the paper's, on raw records.")
    ] = True

    scales: ClassVar[bool] = True

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without all labels are left out, as by every filter."""
        return (frozenset({"desired", "confidential"}),)


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class RandOptions(MethodOptions):
    """Options of ``[method] name = "rand"``."""

    name: Literal["rand"] = "rand"
    n_filtered: Width
    seed: Annotated[
        int, Field(ge=0, description="Of the projection; public, for it protects nothing.")
    ] = 0

    scales: ClassVar[bool] = True
    learns: ClassVar[bool] = False


@keep_names
def fit_least_squares_filter(
    shards: Shards, options: LeastSquaresOptions | None = None
) -> LinearFilter:
    """Learn the minimax filter of least squares tasks exactly, from one pass.

    Classes are predicted as indicators, numbers as they are; see
    `find_least_squares_directions`.

    Returns
    -------
    LinearFilter
        On centred features; its outputs are uncorrelated with unit variance.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If options contradict the data.

    Warns
    -----
    UserWarning
        If `n_filtered` exceeds the informative directions.

    References
    ----------
    Hamm, JMLR 2017, equations (47)-(58).
    """
    options = options or LeastSquaresOptions()
    return _fit_directions(shards, options, find_least_squares_directions)


@keep_names
def fit_privacy_lds_filter(
    shards: Shards, options: PrivacyLdsOptions | None = None
) -> LinearFilter:
    """Learn Privacy LDS from one pass: target classes apart, private classes together.

    Returns
    -------
    LinearFilter
        On centred features; informative directions first, then guarded principal ones.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If more directions are asked for than avoid the confidential classes.

    Warns
    -----
    UserWarning
        If `n_filtered` exceeds the informative directions.

    References
    ----------
    Hamm, JMLR 2017, equations (59)-(62).
    """
    return _fit_directions(shards, options or PrivacyLdsOptions(), find_privacy_lds)


def _fit_directions(
    shards: Shards, options: LeastSquaresOptions | PrivacyLdsOptions, find: Find
) -> LinearFilter:
    moments = measure_moments(shards)
    tasks = plan_tasks(options, shards.schema, moments)
    check_directions(options, shards.schema)
    directions, n_informative = find(tasks, moments, options.n_filtered or 0, options.ridge)
    warn_of_width(directions.shape[1], max(n_informative, 1))
    return make_centred_filter(options.name, directions, moments.mean)


@keep_names
def fit_pca_filter(shards: Shards, options: PcaOptions) -> LinearFilter:
    """Keep the directions of largest variance; hides nothing on purpose.

    Raises
    ------
    OptionError
        If `n_filtered` exceeds the features.
    """
    moments = measure_moments(shards)
    n_features = len(moments.mean)
    check_projection(options, shards.schema)
    mean = moments.mean if options.centre else np.zeros(n_features)
    second = moments.covariance
    if not options.centre:
        second = second + np.outer(moments.mean, moments.mean)
    nothing = np.empty((n_features, 0))
    directions = guard_directions(second, nothing, nothing, options.n_filtered)
    return make_centred_filter("pca", directions, mean)


@keep_names
def fit_rand_filter(shards: Shards, options: RandOptions) -> LinearFilter:
    """Draw a random projection of full rank; reads no record.

    Raises
    ------
    OptionError
        If `n_filtered` exceeds the features.
    """
    check_shards(shards)
    check_projection(options, shards.schema)
    n_features = shards.schema.n_features
    drawn = np.random.default_rng(options.seed).standard_normal((n_features, options.n_filtered))
    return make_centred_filter("rand", drawn / np.sqrt(n_features), np.zeros(n_features))


def check_projection(options: PcaOptions | RandOptions, schema: ShardSchema) -> None:
    """Raise OptionError if more features are to be released than the records have."""
    check_width(options.n_filtered, schema.n_features)


def check_directions(options: LeastSquaresOptions | PrivacyLdsOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks or width do not suit the records."""
    check_tasks(options, schema)
    if options.n_filtered is not None:
        check_width(options.n_filtered, schema.n_features)


def make_centred_filter(method: str, directions: FloatArray, mean: FloatArray) -> LinearFilter:
    """The filter ``(x - mean) U``."""
    return LinearFilter(method, np.ascontiguousarray(directions), -(mean @ directions))


METHODS = (
    Method(
        name="minimax_least_squares",
        options=LeastSquaresOptions,
        releases="rows",
        fit=fit_least_squares_filter,
        source="Hamm 2017, Minimax Filter, JMLR 18, equations (47)-(58)",
        maps=(LinearFilter,),
        check=check_directions,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
    Method(
        name="privacy_lds",
        options=PrivacyLdsOptions,
        releases="rows",
        fit=fit_privacy_lds_filter,
        source="Hamm 2017, Minimax Filter, JMLR 18, equations (59)-(62)",
        maps=(LinearFilter,),
        check=check_directions,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
    Method(
        name="pca",
        options=PcaOptions,
        releases="rows",
        fit=fit_pca_filter,
        source="Hamm 2017, Minimax Filter, JMLR 18, section 6.1",
        maps=(LinearFilter,),
        check=check_projection,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
    Method(
        name="rand",
        options=RandOptions,
        releases="rows",
        fit=fit_rand_filter,
        source="Hamm 2017, Minimax Filter, JMLR 18, section 6.1",
        maps=(LinearFilter,),
        check=check_projection,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
)
