"""Privacy as Xu et al. measure it: e_privacy and complete privacy, the one place for both.

Xu et al. 2017, "Experimental results". Both are sums over records, held as one table per view of
the records, so that tables of shards add. A record released as the mean is predicted as the mean
is, so ties are common. Computed as two different sums they differ in the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from privpipe.numerics.moments import LeastSquares
from privpipe.numerics.rounding import exceeds
from privpipe.protocols import FloatArray, IntArray

PARTS = 64
"""Parts of the records whose sums stay apart: an interval needs the spread between some."""


@dataclass(frozen=True)
class ViewPrivacy:
    """What one predictor finds of the confidential variables in released records.

    Parameters
    ----------
    e_privacy
        Mean over records and confidential targets of a squared difference, in squared units of the
        target. It is between the prediction from the released record and the confidential
        prediction from the raw one.
    complete_privacy
        Share of (record, target) pairs whose true value is predicted from the released record
        with a larger squared error than from the mean training record. Equal up to rounding is not
        larger. Pairs of unknown truth do not count.
    e_privacy_by_target, complete_privacy_by_target
        The same for each target, by name.
    """

    e_privacy: float
    complete_privacy: float
    e_privacy_by_target: dict[str, float]
    complete_privacy_by_target: dict[str, float]


def sum_privacy(
    adversary: LeastSquares,
    shown: FloatArray,
    expected: FloatArray,
    truth: FloatArray,
    raw: LeastSquares,
    mean: FloatArray,
    predicted: FloatArray,
    parts: IntArray,
) -> FloatArray:
    """What some records add to e_privacy and complete privacy.

    Parameters
    ----------
    adversary
        Predicts confidential targets from what is shown.
    shown : (n_records, n_shown)
        Of the released records.
    expected : (n_records, n_targets)
        What `raw` predicts from the raw records.
    truth : (n_records, n_targets)
        True values; NaN where unknown.
    raw
        Predictor of the same targets, fitted to raw records.
    mean : (n_features,)
        Mean raw training record.
    predicted : (n_records, n_targets)
        What `adversary` predicts from what is shown.
    parts : (n_records,)
        One of `PARTS` parts of each record, from which intervals are found; subjects are whole.

    Returns
    -------
    table : (PARTS, 4, n_targets)
        Per target, of each part: squared changes of the prediction, records, pairs that are
        completely private, and pairs whose truth is known. Tables of different records add.

    References
    ----------
    Xu et al. 2017, definitions of e_privacy and complete privacy.
    """
    # The paper's "greater": who does just as well as from the mean, up to the rounding of both
    # sums, does not count, and neither does an unknown truth. What rounding may do is bounded for
    # all records together first, and alone for a record with a pair that this does not decide.
    left, right = np.abs(predicted - truth), np.abs(raw.predict(mean[None, :]) - truth)
    rest = raw.sum_terms(mean[None, :]) + 2 * np.abs(truth)
    n_terms = max(shown.shape[1], len(mean))
    # The largest entries of all records bound the rounding of each: few are left to bound alone.
    largest = np.maximum(shown.max(axis=0, initial=0.0), -shown.min(axis=0, initial=0.0))
    private = exceeds(left, right, adversary.sum_terms(largest[None, :]) + rest, n_terms)
    close = np.flatnonzero(((left > right) & ~private).any(axis=1))
    if len(close):
        terms = adversary.sum_terms(shown[close]) + rest[close]
        private[close] = exceeds(left[close], right[close], terms, n_terms)
    changed, n = (predicted - expected) ** 2, len(parts)
    columns = (changed, np.ones_like(changed), private, ~np.isnan(truth))
    # One product with indicators of the parts: sums of all columns at once.
    chosen = csr_array((np.ones(n), parts, np.arange(n + 1)), shape=(n, PARTS)).T
    return np.stack([chosen @ column.astype(np.float64) for column in columns], axis=1)


def report_privacy(table: FloatArray, names: Sequence[str]) -> ViewPrivacy:
    """The figures of a table of `sum_privacy`, whose targets are called `names`."""
    changed, count, private, known = table
    e_privacy = changed / np.maximum(count, 1)
    complete = private / np.maximum(known, 1)
    return ViewPrivacy(
        e_privacy=float(e_privacy.mean()),
        complete_privacy=float(private.sum() / max(known.sum(), 1)),
        e_privacy_by_target=dict(zip(names, e_privacy.tolist(), strict=True)),
        complete_privacy_by_target=dict(zip(names, complete.tolist(), strict=True)),
    )
