"""Attacks on signed sums, and their controls: settings in which each must succeed.

That an attack fails on a release says nothing unless it succeeds on records like these. Each
control breaks the rule that the attack is about, with fresh signs, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.problem import QUIET
from privpipe.attacks.threats.attack_table import Sample, SaysJson, run_kind
from privpipe.attacks.threats.membership import MembershipReport, measure_membership
from privpipe.attacks.threats.recovery import (
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


MANY_PER_RECORD = 20
"""Surrogates per square of the records whose second moments are to be seen without noise."""

OUTLYING = 30.0
"""How many times as far from the mean the farthest record is moved."""

N_TRACED = 150
"""Releases of few records that are traced together: one has too few to count."""

MOST_RECORDS = 2000
"""Of a control, so that it costs little beside the attack itself."""


def run_control(kind: str, sample: Sample, options: AttackOptions) -> SaysJson:
    """Run an attack on a sample like the given one, made so that it must succeed.

    Parameters
    ----------
    kind
        One of `CONTROLS`.
    sample
        With `members` and `others`; the rest of it is not read.
    options
        As for the attack itself.
    """
    assert sample.others is not None
    bounded = replace(sample, others=sample.others[:MOST_RECORDS])
    random = np.random.default_rng(options.seed)
    if kind == "tracing":
        return _trace_few(bounded, random, options)
    return run_kind(kind, CONTROLS[kind](bounded, random), options)


def _sum(
    sample: Sample, members: FloatArray, n_surrogates: int, random: np.random.Generator
) -> Sample:
    """Signed sums of these members alone."""
    signs = random.choice([-1.0, 1.0], (len(members), n_surrogates)) / np.sqrt(n_surrogates)
    gram = members.T @ members
    return replace(sample, members=members, released=signs.T @ members, gram=gram)


def _take(sample: Sample, n: int, random: np.random.Generator) -> FloatArray:
    assert sample.members is not None
    rows = random.permutation(len(sample.members))[:n]
    found: FloatArray = sample.members[rows]
    return found


def _copy(sample: Sample, _: np.random.Generator) -> Sample:
    """Surrogates that are records."""
    assert sample.members is not None
    members = sample.members[:MOST_RECORDS]
    return replace(sample, members=members, released=members)


def _trace_few(
    sample: Sample, random: np.random.Generator, options: AttackOptions
) -> MembershipReport:
    """Moments of so few records that each of them weighs; of many such releases together."""
    assert sample.members is not None
    n = sample.members.shape[1]
    pairs = []
    for _ in range(N_TRACED):
        inside, outside = trace(_sum(sample, _take(sample, n, random), MANY_PER_RECORD * n, random))
        pairs.append((inside, random.permutation(outside)[: len(inside)]))
    members, others = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return measure_membership(members, others, level=options.level, seed=options.seed)


def _sum_rank(sample: Sample, random: np.random.Generator) -> Sample:
    """As many records as dimensions: the components are the records."""
    assert sample.members is not None
    rank = int(np.linalg.matrix_rank(sample.members[:MOST_RECORDS]))
    return _sum(sample, _take(sample, rank, random), 4000, random)


def _move_out(sample: Sample, random: np.random.Generator) -> Sample:
    """One record far from all others."""
    members = _take(sample, MOST_RECORDS, random).copy()
    mean = members[:, :-1].mean(axis=0)
    shift = members[0, :-1] - mean
    spread = members[:, :-1].std(axis=0)
    shift = np.where(np.abs(shift) > spread, shift, spread)  # far in every feature
    members[0, :-1] = mean + max(OUTLYING, np.sqrt(2 * len(members))) * shift
    return _sum(sample, members, 1000, random)


CONTROLS: dict[str, Callable[[Sample, np.random.Generator], Sample]] = {
    "membership": _copy,
    "independent_components": _sum_rank,
    "outlying_record": _move_out,
}
"""What is broken for each kind of attack on single records; tracing has a way of its own."""
