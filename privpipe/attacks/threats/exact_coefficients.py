"""Single records from exact coefficients: two closed forms, which no number of surrogates hinders.

Surrogates carry the coefficients W of all records exactly, ``(X'X) W = X'y``. Without the record
(x, y) both sides lose its products, so that ``x (y - x'W) = X'X W - X'y`` over all others: who
knows these has the record, whose bias entry is one. And of W before and after one record was
added, ``x (y - x'W) = X'X (W after - W before)``, where the surrogates' second moments stand for
X'X: who knows no record has that one. Normal equations; Cook 1977 for the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.threats.attack_table import Sample
from privpipe.attacks.threats.recovery import (
    RECOVERED,
    RecoveryReport,
    find_frame,
    measure_cosines,
    report_recovery,
)
from privpipe.protocols import FloatArray

MOST_TARGETS = 2000
"""Records that are attacked in turn."""

RESOLVED = 1e-9
"""Of the coefficients: differences below are rounding, and show no record."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What the attacks are given, in the frame of `find_frame`.

    Parameters
    ----------
    moments : (q, q)
        Second moments of the surrogates.
    coefficients : (q, n_responses)
        Of the surrogates, by least squares.
    gram : (q + n_responses, q + n_responses)
        Sums of products of [features, responses] of all records.
    targets, others : (n, q)
    residuals : (n_targets, n_responses)
        Of the targets under the coefficients.
    """

    moments: FloatArray
    coefficients: FloatArray
    gram: FloatArray
    targets: FloatArray
    others: FloatArray
    residuals: FloatArray


def attack_all_but_one(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "all_but_one": the record that is left over, by who knows all others."""
    known = _frame(sample)
    q = len(known.coefficients)
    whole = known.gram[:q, :q] @ known.coefficients - known.gram[:q, q:]
    # Sums over all but record i: those over all, less its own products.
    left = whole[None] + known.targets[:, :, None] * known.residuals[:, None, :]
    guesses = np.linalg.svd(left, full_matrices=False)[0][:, None, :, 0]
    return report_recovery(known.targets, known.others, guesses, level=options.level)


def attack_with_and_without(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "with_and_without": the record that is in one of two releases, by who has both.

    The other release is that of all records but the one; its coefficients are least squares of
    these, and the second moments are those of this release's surrogates.
    """
    known = _frame(sample)
    q = len(known.coefficients)
    inverse = np.linalg.pinv(known.gram[:q, :q], 1e-12, hermitian=True)
    # Of least squares without record i: less inverse @ x_i r_i' / (1 - leverage).
    guesses = known.targets @ inverse @ known.moments
    return report_recovery(known.targets, known.others, guesses[:, None, :], level=options.level)


def attack_two_releases(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "two_releases": the record by which this release differs from an earlier one.

    One guess for all known records: it is found, or it is not. `by_chance` is the chance that any
    of so many records lies as near a direction drawn at random; a record is found only where that
    is below one in a hundred.
    """
    assert sample.released is not None
    assert sample.surrogate_responses is not None
    assert sample.earlier is not None
    assert sample.members is not None
    assert sample.others is not None
    frame = find_frame(sample.released)
    (made, answered), (before, before_answered) = (
        (features @ frame.T, responses)
        for features, responses in ((sample.released, sample.surrogate_responses), sample.earlier)
    )
    new, old = (
        np.linalg.lstsq(rows, responses, rcond=None)[0]
        for rows, responses in ((made, answered), (before, before_answered))
    )
    scale = np.maximum(np.abs(new).max(axis=0), np.finfo(float).tiny)
    step = (new - old) / scale
    moments = made.T @ made + before.T @ before
    records = np.concatenate([sample.members, sample.others]) @ frame.T
    best = 0.0
    if np.abs(step).max() > RESOLVED:
        directions, sizes, _ = np.linalg.svd(moments @ step, full_matrices=False)
        best = float(measure_cosines(records, directions.T[sizes > 0]).max())
    chance = min(1.0, len(records) * _meet_by_chance(best, len(frame)))
    hit = int(best >= RECOVERED and chance < 0.01)
    return RecoveryReport(
        measure_exact_interval(hit, 1, level=options.level),
        measure_exact_interval(round(1000 * chance), 1000, level=options.level),
        best,
        1,
    )


def _meet_by_chance(cosine: float, n_dimensions: int) -> float:
    """Probability that a direction drawn at random is as near to a record."""
    from scipy.special import betainc

    return float(betainc((n_dimensions - 1) / 2, 0.5, max(0.0, 1 - cosine**2)))


def _frame(sample: Sample) -> _Known:
    assert sample.released is not None
    assert sample.surrogate_responses is not None
    assert sample.members is not None
    assert sample.member_responses is not None
    assert sample.others is not None
    assert sample.gram is not None
    frame = find_frame(sample.released)
    q = len(frame)
    made = sample.released @ frame.T
    coefficients = np.linalg.lstsq(made, sample.surrogate_responses, rcond=None)[0]
    turn = np.eye(len(sample.gram))
    turn[:q, :q] = frame
    targets = sample.members[:MOST_TARGETS] @ frame.T
    residuals = sample.member_responses[:MOST_TARGETS] - targets @ coefficients
    return _Known(
        made.T @ made,
        coefficients,
        turn @ sample.gram @ turn.T,
        targets,
        sample.others @ frame.T,
        residuals,
    )
