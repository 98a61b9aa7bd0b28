"""The frozen maps of linear filters: drawn, from a closed form, or learned in rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privpipe.described import described, facts_of_map
from privpipe.protocols import FloatArray, Guarantee, Method, RecordMap
from privpipe.sanitizers.feature_map import FeatureMap
from privpipe.sanitizers.minimax.training.adversary_rounds import TrainingRecord
from privpipe.sanitizers.minimax.training.labelled_moments import LABEL_STATISTICS

HAMM = "Hamm 2017, Minimax Filter, JMLR 18"
EMPIRICAL = "none in advance: measured against named adversaries"
"""What a filter promises, for a table."""

_ADVERSARIES = "Adversaries are of the family trained against; audit the release with others."
_NO_ADVERSARY = "What it hides is found out by the audit alone."

_GROUNDS: dict[str, tuple[str, str]] = {
    "minimax": (
        "None in advance. Hamm, JMLR 2017, Theorem 4 bounds the loss on new records of the global "
        "minimiser, which no descent certifies",
        _ADVERSARIES,
    ),
    "minimax_least_squares": (
        "Hamm, JMLR 2017, equations (47)-(58): of all linear filters of this width the least "
        "trade-off of squared losses, on the training records",
        _ADVERSARIES,
    ),
    "privacy_lds": (
        "Hamm, JMLR 2017, equations (59)-(62): orthogonal to the differences of the private "
        "classes' means, of the training records",
        _NO_ADVERSARY,
    ),
    "ppls": ("None: covariances are traded, no adversary is modelled", _NO_ADVERSARY),
    "ddd": ("None: a mask is undone by dividing through it wherever it is not zero", _NO_ADVERSARY),
    "pca": ("None: principal components hide nothing on purpose", _NO_ADVERSARY),
    "rand": ("None: a random projection hides nothing on purpose", _NO_ADVERSARY),
}
"""What is known of each method's filters, and under which assumption."""


def promise_nothing(method: str) -> Guarantee:
    """The guarantee of a filter: none for single records, and what is known instead.

    Parameters
    ----------
    method
        Name of the method that made the filter; of an unknown one nothing is known.
    """
    theorem, assumptions = _GROUNDS.get(method, ("None", _NO_ADVERSARY))
    return Guarantee("none", None, "nats", "in expectation", theorem, assumptions)


class FeatureFilter(FeatureMap):
    """A map that gives features new meanings, and promises nothing of single records."""

    keeps_features: ClassVar[bool] = False

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing("minimax")


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class LinearFilter(FeatureFilter):
    """Maps records to ``x U + offset``, in float64 to rounding.

    Nothing is promised of what U does not see: the last digits are those of a plain product.

    Parameters
    ----------
    method
        Name of the method that made it.
    weights : (n_features_in, n_features_out)
        U.
    offset : (n_features_out,)

    Examples
    --------
    >>> LinearFilter("rand", np.array([[1.0], [2.0]]), np.zeros(1)).apply(np.eye(2))
    array([[1.],
           [2.]])
    """

    kind: ClassVar[str] = "linear_filter"

    method: str
    weights: FloatArray
    offset: FloatArray

    @property
    def n_features_in(self) -> int:
        return len(self.weights)

    @property
    def n_features_out(self) -> int:
        return int(self.weights.shape[1])

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing(self.method)

    def map_records(self, records: FloatArray) -> FloatArray:
        return np.asarray(records @ self.weights + self.offset)


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class MinimaxFilter(TrainingRecord, LinearFilter):
    """A linear filter learned in rounds, and how learning went.

    Parameters
    ----------
    method, weights, offset
        As of `LinearFilter`.
    stopped, history, history_columns, task_names, baselines
        As of `TrainingRecord`.
    generalisation_bound
        Bound on the expected rise of Phi on new records, in nats, for predictors no larger than
        the fitted ones; see `bound_generalisation_gap` for what it assumes. -1 where it cannot
        be stated, because some task is a number and its loss has no Lipschitz constant.
    """

    kind: ClassVar[str] = "minimax_filter"

    generalisation_bound: float


def as_method(
    options: type[Any], fit: Callable[..., RecordMap], made: type[RecordMap] = LinearFilter
) -> Method:
    """A row of the table of methods, for a filter that promises nothing in advance.

    Parameters
    ----------
    options, fit
        As of `Method`; the options have its name, its source and its check.
    made
        Class of the maps that `fit` returns.
    """
    return Method(
        name=options.name,
        options=options,
        releases="rows",
        fit=fit,
        source=options.source,
        maps=(made,),
        check=options.check,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    )
