"""Cleaners whose released record is made of the target prediction on a grid, and of nothing else.

For algorithm 1 and algorithm 2, records or coordinates, any utility budget, closest or likely
representative, with or without a column of ones, and also for which records rounding withholds. Not
for the printed form of algorithm 2, nor for what happens before: imputed values are another record.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from privpipe.numerics.null_space.cleaning import clean_block
from privpipe.numerics.null_space.grid.prediction_grid import predict_on_grid
from privpipe.protocols import FloatArray
from privpipe.sanitizers.arrays import as_records
from privpipe.sanitizers.names import by_name
from privpipe.sanitizers.null_space.maps.linear_cleaner import LinearCleaner


class TargetRelease(LinearCleaner):
    """The capability `FollowsTarget`.

    Examples
    --------
    >>> from privpipe import NullSpaceCleaner
    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0.1)
    >>> x = np.array([[3.0, 1.0], [5.0, 1.0]])
    >>> made = cleaner.release_target(cleaner.predict_target(x), "float64")
    >>> made.tobytes() == cleaner.apply(x).tobytes()
    True
    """

    @property
    def target_theorem(self) -> str:
        """What it rests on, in a sentence."""
        return (
            "null-space cleaning rounds the exact desired prediction A^T x correctly to a grid and "
            "computes everything after it from that value, element by element in a fixed order"
        )

    def predict_target(self, x: npt.ArrayLike) -> FloatArray:
        """Values on the grid of the exact predictions ``A^T x``.

        Parameters
        ----------
        x : (n_records, n_features_in)
            Finite.

        Returns
        -------
        values : (n_records, n_desired), float64
        """
        records, _ = as_records(by_name(self, x), self.n_features_in)
        form = self._form(np.dtype(np.float64))  # the grid knows nothing of the dtype
        wide = np.asarray(records, np.float64)
        return predict_on_grid(wide, form.predictor, form.weights, form.grid)

    def release_target(self, values: FloatArray, dtype: npt.DTypeLike) -> FloatArray:
        """What is released of records of these predictions.

        Parameters
        ----------
        values : (n_records, n_desired)
            On the grid.
        dtype
            Of the released records.

        Returns
        -------
        released : (n_records, n_features_cleaned), in `dtype`
            As readers see them; NaN where withheld.

        Notes
        -----
        The predictions are cleaned as if they were the record, under the identity as predictor: a
        value on the grid is its own rounding, and no other number of a record is at hand.
        """
        form = self._form(np.dtype(dtype))
        n = form.n_predictions
        alone = replace(form, predictor=np.eye(n), weights=np.ones(n))
        return clean_block(np.asarray(values, np.float64), alone, dtype).released
