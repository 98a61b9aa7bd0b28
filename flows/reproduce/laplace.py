"""Laplace noise on the features at the utility of null-space cleaning, for comparison only.

Xu et al. 2017, Figure 7. Noise that costs as little utility as cleaning hides next to nothing; it
is no differential privacy either: its scale follows from the utility, not from a sensitivity. No
method of the package offers it; models of it open where this module was imported.
"""

from typing import ClassVar, Self

import numpy as np

from privpipe.described import record_map
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import giving_back
from privpipe.numerics.compiler import compiled
from privpipe.numerics.null_space.knapsack import check_budget
from privpipe.numerics.random.draws import exponential_of
from privpipe.promises import check_promise
from privpipe.protocols import ArrayLike, FloatArray, Guarantee, RecordStream, WordArray
from privpipe.sanitizers import RECORD_MAPS
from privpipe.sanitizers.arrays import as_predictor
from privpipe.sanitizers.feature_map import FeatureMap, as_records, check_finite_records


@compiled
def _laplace(words: WordArray, out: FloatArray) -> None:
    for i in range(words.size):
        sign = 1.0 - 2.0 * np.float64(np.int64(words[i] & np.uint64(1)))
        number = np.float64(np.int64(words[i] >> np.uint64(1))) * 2.0 + 1.0
        rest = np.float64(np.int64(~words[i] >> np.uint64(1))) * 2.0 + 1.0
        out[i] = sign * exponential_of(number, rest)


def draw_laplace(words: WordArray) -> FloatArray:
    """Draw standard Laplace values (mean 0, scale 1), one word each, as `draw_uniform` draws.

    The lowest bit is the sign, the other 63 make an exponential, ``-log((word + 1/2) 2**-64)``
    within 7 * 2**-53 of itself.

    Notes
    -----
    Guarantee: none of differential privacy. The sum of a record and such a value betrays the
    record by its low bits; a private mechanism adds whole numbers on a grid.
    """
    out = np.empty(words.shape)
    _laplace(words.reshape(-1), out.reshape(-1))
    return out


@record_map
class LaplaceMechanism(FeatureMap):
    """Adds Laplace noise of mean 0 and one scale to every feature.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        The desired predictor whose loss of utility is held to the budget, on average.
    scale
        ``b = sqrt(budget / (2 |A|_F**2))``, in units of the features.
    utility_budget
        Mean loss of utility, in squared units of the desired prediction.

    Examples
    --------
    >>> mechanism = LaplaceMechanism.from_predictor(np.array([3.0, 4.0]), utility_budget=2.0)
    >>> mechanism.scale
    0.2
    """

    kind: ClassVar[str] = "laplace_mechanism"
    draws: ClassVar[bool] = True

    predictor: FloatArray
    scale: float
    utility_budget: float

    def __post_init__(self) -> None:
        check_budget(self.utility_budget)
        # The variance of Laplace noise is 2 b^2 per feature, weighed by the squared coefficients.
        cost = 2 * self.scale**2 * float((self.predictor**2).sum())
        check_promise(self.guarantee, {"mean_utility": cost})

    @classmethod
    def from_predictor(cls, desired_predictor: ArrayLike, *, utility_budget: float) -> Self:
        """Noise that costs as much utility, on average, as a cleaner may.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
        utility_budget
            Mean loss of utility over the noise, for every record.

        Raises
        ------
        OptionError
            If the budget is negative or not finite.
        InputError
            If the predictor is not a finite, non-zero matrix.
        """
        check_budget(utility_budget)
        predictor = as_predictor(desired_predictor)
        squares = float((predictor**2).sum())
        if squares == 0:
            raise InputError(
                "The predictor is zero: no noise costs it any utility.",
                remedy="Give a predictor that uses at least one feature.",
                code="predictor",
            )
        return cls(predictor, float(np.sqrt(utility_budget / (2 * squares))), float(utility_budget))

    @property
    def n_features_in(self) -> int:
        return len(self.predictor)

    n_features_out = n_features_in

    @property
    def guarantee(self) -> Guarantee:
        """Mean loss of utility; nothing is promised of privacy."""
        return Guarantee(
            kind="mean_utility",
            number=self.utility_budget,
            unit="squared units of the desired prediction",
            scope="in expectation",
            theorem="Variance of independent Laplace noise, 2 b^2 |A|_F^2",
            assumptions="No differential privacy: the scale does not come from a sensitivity.",
        )

    @giving_back
    def apply(self, x: ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Add noise; (n_records, n_features) in their floating dtype.

        Raises
        ------
        OptionError
            If there is no stream, or it is not of as many records.
        InputError
            If the shape is wrong or values are not finite.
        """
        records, dtype = as_records(self, x)
        check_finite_records(records)
        if stream is None or stream.n_records != len(records):
            raise OptionError(
                f"The Laplace mechanism needs a stream of {len(records)} records.",
                remedy="Give a KeyedStream of these records.",
            )
        noise = draw_laplace(stream.words("laplace mechanism", self.n_features_in))
        noise *= self.scale
        noise += records
        released: FloatArray = noise.astype(dtype, copy=False)
        return released[0] if np.ndim(x) == 1 else released


RECORD_MAPS[LaplaceMechanism.kind] = LaplaceMechanism
