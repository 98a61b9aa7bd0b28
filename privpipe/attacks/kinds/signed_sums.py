"""Attacks on signed sums by outsiders, and by whoever kept the signs.

Known signs: least squares of the surrogates on P. Independent components: signed sums of few
records are unmixed into the records. Outlying records: those far from all others are the strongest
directions of the sums. Tracing: the statistic of Homer et al. 2008 for second moments, by which
members lie further than others along what sets the surrogates' moments apart from the population's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.quiet_fits import QUIET
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.membership import MembershipReport, measure_membership
from privpipe.attacks.kinds.recovery import (
    RECOVERED,
    RecoveryReport,
    count_needed_trials,
    find_frame,
    measure_cosines,
    report_recovery,
)
from privpipe.errors import InputError
from privpipe.protocols import FloatArray

MOST_SURROGATES = 20_000
"""Of those given to independent components; more add little to moments of the fourth order."""

MOST_ROUNDS = 300


def attack_known_signs(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "known_signs": exact from as many surrogates as records."""
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    assert sample.signs is not None
    frame = find_frame(sample.released)
    solved = np.linalg.lstsq(sample.signs.T.astype(np.float64), sample.released, rcond=1e-10)[0]
    guesses = (solved @ frame.T)[:, None, :]
    members, others = sample.members @ frame.T, sample.others @ frame.T
    return report_recovery(members, others, guesses, level=options.level)


def attack_independent_components(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "independent_components": FastICA of the surrogates.

    Raises
    ------
    InputError
        If it finds no components: what it would have found is unknown.
    """
    from sklearn.decomposition import FastICA

    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    frame = find_frame(sample.released)
    rows = sample.released[:MOST_SURROGATES] @ frame.T
    values = np.linalg.svd(rows, compute_uv=False)
    rank = int((values > 1e-8 * values[0]).sum())
    search = FastICA(
        rank,
        whiten="unit-variance",
        fun="cube",
        max_iter=MOST_ROUNDS,
        tol=1e-5,
        random_state=options.seed,
    )
    with QUIET:  # what it has found by then is judged
        search.fit(rows)
    guesses = search.mixing_.T
    if not np.isfinite(guesses).all():
        raise InputError(
            "Independent components of the surrogates could not be found.",
            remedy="Their records are unknown to this attack, not safe from it.",
        )
    members, others = sample.members @ frame.T, sample.others @ frame.T
    return report_recovery(members, others, guesses, level=options.level)


def attack_outlying_record(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "outlying_record": the farthest records, by the singular vectors of the surrogates.

    As many of those in the sample are attacked as the limit needs trials, in units of the bulk: a
    standardised outlier is none any more. The farthest is looked for in the strongest one as well.
    """
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    find_frame(sample.released)  # refuses what cannot be attacked
    moments = sample.released.T @ sample.released
    centred = np.eye(len(moments))
    centred[:-1, -1] = -moments[-1, :-1] / moments[-1, -1]
    # Medians are not moved by the record that is looked for.
    spread = np.median(np.abs(sample.others @ centred.T), axis=0)
    shape = centred / np.where(spread > 0, spread, 1.0)[:, None]
    n_trials = count_needed_trials(options.max_exposed, options.level)
    members, others = (
        _find_farthest(rows @ shape.T, n_trials) for rows in (sample.members, sample.others)
    )
    _, _, vectors = np.linalg.svd(sample.released @ shape.T, full_matrices=False)
    found = report_recovery(members, others, vectors, level=options.level)
    met = measure_cosines(sample.others @ shape.T, vectors[:1]) >= RECOVERED
    farthest = float(measure_cosines(members[:1], vectors[:1])[0])
    return replace(found, farthest=farthest, farthest_by_chance=float(met.mean()))


def _find_farthest(rows: FloatArray, n: int) -> FloatArray:
    """So many records at most, the farthest first."""
    return rows[np.argsort(-np.linalg.norm(rows, axis=1))[:n]]


def attack_tracing(sample: Sample, options: AttackOptions) -> MembershipReport:
    """The row "tracing".

    Raises
    ------
    InputError
        If there are fewer than twenty other records.
    """
    inside, outside = trace(sample)
    return measure_membership(inside, outside, level=options.level, seed=options.seed)


def trace(sample: Sample) -> tuple[FloatArray, FloatArray]:
    """Surprise at members, and at every second of the other records; the rest are the population.

    Returns
    -------
    members : (n_members,)
    others : (n_others // 2,)
    """
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    if len(sample.others) < 20:
        raise InputError(
            f"{len(sample.others)} records that are not in are too few to trace by.",
            remedy="Hold out more.",
        )
    frame = find_frame(sample.released)
    members, known, judged = (
        rows @ frame.T for rows in (sample.members, sample.others[::2], sample.others[1::2])
    )
    released = frame @ (sample.released.T @ sample.released) @ frame.T
    population = known.T @ known
    gap = released / released[-1, -1] - population / population[-1, -1]
    whitened = np.linalg.pinv(population / len(known), 1e-10, hermitian=True)
    direction = whitened @ gap @ whitened
    inside, outside = (-np.sum((rows @ direction) * rows, axis=1) for rows in (members, judged))
    return inside, outside
