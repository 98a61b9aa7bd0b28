"""Private partial least squares: a linear filter that trades covariances, one pass.

Enev, Jung, Bo, Ren and Kohno 2012, SensorSift, Algorithm 1, as compared with in Hamm, JMLR 2017.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import scipy.linalg as sl
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.numerics.spectra import fix_signs
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Method, Shards, ShardSchema
from privpipe.sanitizers.minimax.baselines import Width, make_centred_filter
from privpipe.sanitizers.minimax.linear_filter import EMPIRICAL, LinearFilter
from privpipe.sanitizers.minimax.training.closed_forms import cross_moments
from privpipe.sanitizers.minimax.training.filter_widths import check_width
from privpipe.sanitizers.minimax.training.labelled_moments import LABEL_STATISTICS, measure_moments
from privpipe.sanitizers.minimax.training.task_planning import check_tasks, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import TaskOptions
from privpipe.sanitizers.names import keep_names


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PplsOptions(TaskOptions):
    """Options of ``[method] name = "ppls"``."""

    name: Literal["ppls"] = "ppls"
    n_filtered: Width
    tradeoff: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Weight of target covariance against private covariance (one over the "
            "paper's lambda).",
        ),
    ] = 1.0


def find_ppls_directions(
    wanted: FloatArray, unwanted: FloatArray, covariance: FloatArray, n_directions: int
) -> FloatArray:
    """Directions w that maximise ``|S^T w|^2 - |R^T w|^2``, the target deflated after each.

    Parameters
    ----------
    wanted : (n_features, n_targets)
        S, covariance of features and targets.
    unwanted : (n_features, n_private)
        R, covariance of features and private variables.
    covariance : (n_features, n_features)
        Of the features.
    n_directions

    Returns
    -------
    directions : (n_features, n_directions)
        Weights of unit length. Records are filtered with the weights, not with the loadings
        that deflation uses.

    References
    ----------
    Enev et al. 2012, Algorithm 1.
    """
    n = len(covariance)
    private = unwanted @ unwanted.T
    s, loadings, found = wanted, np.zeros((n, 0)), []
    for _ in range(n_directions):
        matrix = s @ s.T - private
        _, top = sl.eigh(matrix, subset_by_index=(n - 1, n - 1), check_finite=False)
        w = fix_signs(top)
        found.append(w[:, 0])
        loading = covariance @ w
        loading /= max(float(w[:, 0] @ loading[:, 0]), 1e-300)
        basis = loading - loadings @ (loadings.T @ loading)
        basis -= loadings @ (loadings.T @ basis)  # once more: rounding leaves a little
        loadings = np.column_stack([loadings, basis / max(float(np.linalg.norm(basis)), 1e-300)])
        s = wanted - loadings @ (loadings.T @ wanted)
    return np.array(found).T


@keep_names
def fit_ppls_filter(shards: Shards, options: PplsOptions) -> LinearFilter:
    """Learn a private partial least squares filter from one pass.

    Returns
    -------
    LinearFilter
        On centred features.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If `n_filtered` exceeds the features.

    Notes
    -----
    Guarantee: none. Small covariance with a private variable is not small information: every
    direction may still be rescaled by the adversary.

    References
    ----------
    Enev et al. 2012, SensorSift, Algorithm 1.
    """
    moments = measure_moments(shards)
    check_ppls(options, shards.schema)
    tasks = plan_tasks(options, shards.schema, moments)
    scaled = [(t, np.sqrt(abs(t.weight)) * cross_moments(t, moments)) for t in tasks]
    directions = find_ppls_directions(
        np.column_stack([cross for t, cross in scaled if t.role != "confidential"]),
        np.column_stack([cross for t, cross in scaled if t.role == "confidential"]),
        moments.covariance,
        options.n_filtered,
    )
    return make_centred_filter("ppls", directions, moments.mean)


def check_ppls(options: PplsOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks or width do not suit the records."""
    check_tasks(options, schema)
    check_width(options.n_filtered, schema.n_features)


METHODS = (
    Method(
        name="ppls",
        options=PplsOptions,
        releases="rows",
        fit=fit_ppls_filter,
        source="Enev et al. 2012, SensorSift, Algorithm 1",
        maps=(LinearFilter,),
        check=check_ppls,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
)
