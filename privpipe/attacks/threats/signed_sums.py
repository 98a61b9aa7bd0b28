"""Attacks on signed sums, and their controls: settings in which each must succeed.

That an attack fails on a release says nothing unless it succeeds on records like these. Each
control breaks the rule that the attack is about, with fresh signs, and nothing of it is stored.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.problem import QUIET
from privpipe.attacks.threats import record_recovery
from privpipe.attacks.threats.membership import MembershipReport, measure_membership
from privpipe.attacks.threats.membership import attack as attack_membership
from privpipe.errors import InputError
from privpipe.protocols import FloatArray

MOST_SURROGATES = 20_000
"""Of those given to independent components; more add little to moments of the fourth order."""

MOST_ROUNDS = 300


def attack_independent_components(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> record_recovery.RecoveryReport:
    """FastICA of the surrogates; arrays as of a `Sample`.

    Raises
    ------
    InputError
        If it finds no components: what it would have found is unknown.
    """
    from sklearn.decomposition import FastICA

    frame = record_recovery.find_frame(released)
    rows = released[:MOST_SURROGATES] @ frame.T
    # The rank is that of the features, which may depend on one another: no more is unmixed.
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
    # Columns of the mixing matrix are records up to sign and size, as cosines are.
    guesses = search.mixing_.T
    if not np.isfinite(guesses).all():
        raise InputError(
            "Independent components of the surrogates could not be found.",
            remedy="Their records are unknown to this attack, not safe from it.",
        )
    return record_recovery.report_recovery(
        members @ frame.T, others @ frame.T, guesses, level=options.level
    )


def attack_outlying_record(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> record_recovery.RecoveryReport:
    """The farthest records, by the singular vectors of the surrogates; arrays as of a `Sample`.

    As many of those in the sample are attacked as the limit needs trials, in units of the bulk: a
    standardised outlier is none any more. The farthest is looked for in the strongest one as well.
    """
    record_recovery.find_frame(released)  # refuses what cannot be attacked
    moments = released.T @ released
    # Centred and scaled by what every outsider knows; whitening would hide an outlier in the spread
    # that it makes.
    centred = np.eye(len(moments))
    centred[:-1, -1] = -moments[-1, :-1] / moments[-1, -1]
    # Medians are not moved by the record that is looked for.
    spread = np.median(np.abs(others @ centred.T), axis=0)
    shape = centred / np.where(spread > 0, spread, 1.0)[:, None]
    n_trials = record_recovery.count_needed_trials(options.max_exposed, options.level)
    targets, alike = (_find_farthest(rows @ shape.T, n_trials) for rows in (members, others))
    _, _, vectors = np.linalg.svd(released @ shape.T, full_matrices=False)
    found = record_recovery.report_recovery(targets, alike, vectors, level=options.level)
    met = (
        record_recovery.measure_cosines(others @ shape.T, vectors[:1]) >= record_recovery.RECOVERED
    )
    farthest = float(record_recovery.measure_cosines(targets[:1], vectors[:1])[0])
    return replace(found, farthest=farthest, farthest_by_chance=float(met.mean()))


def _find_farthest(rows: FloatArray, n: int) -> FloatArray:
    """So many records at most, the farthest first."""
    return rows[np.argsort(-np.linalg.norm(rows, axis=1))[:n]]


def attack_tracing(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> MembershipReport:
    """Who is in, by second moments; arrays as of a `Sample`.

    Raises
    ------
    InputError
        If there are fewer than twenty other records.
    """
    inside, outside = trace(released, members, others)
    return measure_membership(inside, outside, level=options.level, seed=options.seed)


def trace(
    released: FloatArray, members: FloatArray, others: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Surprise at members, and at every second of the other records; the rest are the population.

    Returns
    -------
    members : (n_members,)
    others : (n_others // 2,)
    """
    if len(others) < 20:
        raise InputError(
            f"{len(others)} records that are not in are too few to trace by.",
            remedy="Hold out more.",
        )
    frame = record_recovery.find_frame(released)
    # Whoever traces has records of the population that are not in; these may not judge as well.
    inside, known, judged = (rows @ frame.T for rows in (members, others[::2], others[1::2]))
    sums = frame @ (released.T @ released) @ frame.T
    population = known.T @ known
    # Either per record, by the bias feature, whose products count the records.
    gap = sums / sums[-1, -1] - population / population[-1, -1]
    whitened = np.linalg.pinv(population / len(known), 1e-10, hermitian=True)
    direction = whitened @ gap @ whitened
    mine, theirs = (-np.sum((rows @ direction) * rows, axis=1) for rows in (inside, judged))
    return mine, theirs


MANY_PER_RECORD = 20
"""Surrogates per square of the records whose second moments are to be seen without noise."""

OUTLYING = 30.0
"""How many times as far from the mean the farthest record is moved."""

N_TRACED = 150
"""Releases of few records that are traced jointly: one has too few to count."""

MOST_CONTROLLED = 2000
"""Records of a control, so that it costs little beside the attack itself."""


def run_control(
    name: str, members: FloatArray, others: FloatArray, options: AttackOptions
) -> record_recovery.RecoveryReport | MembershipReport:
    """Run an attack on records like the given ones, released so that it must succeed.

    Parameters
    ----------
    name
        One of `CONTROLS`, or "tracing".
    members, others : (n, n_features + 1)
        As of a `Sample`.
    options
        As for the attack itself.
    """
    others, random = others[:MOST_CONTROLLED], np.random.default_rng(options.seed)
    if name == "tracing":
        return _trace_few(members, others, random, options)
    attack, release = CONTROLS[name]
    chosen, released = release(members, random)
    report: record_recovery.RecoveryReport | MembershipReport = attack(
        released, chosen, others, options=options
    )
    return report


def _sum(members: FloatArray, n_surrogates: int, random: np.random.Generator) -> FloatArray:
    """Signed sums of these members alone."""
    signs = random.choice([-1.0, 1.0], (len(members), n_surrogates)) / np.sqrt(n_surrogates)
    summed: FloatArray = signs.T @ members
    return summed


def _take(members: FloatArray, n: int, random: np.random.Generator) -> FloatArray:
    return members[random.permutation(len(members))[:n]]


def _copy(members: FloatArray, _: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Surrogates that are records."""
    few = members[:MOST_CONTROLLED]
    return few, few


def _trace_few(
    members: FloatArray, others: FloatArray, random: np.random.Generator, options: AttackOptions
) -> MembershipReport:
    """Moments of so few records that each of them weighs; of many such releases jointly."""
    n = members.shape[1]
    pairs = []
    for _ in range(N_TRACED):
        few = _take(members, n, random)
        inside, outside = trace(_sum(few, MANY_PER_RECORD * n, random), few, others)
        pairs.append((inside, random.permutation(outside)[: len(inside)]))
    mine, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return measure_membership(mine, theirs, level=options.level, seed=options.seed)


def _sum_rank(members: FloatArray, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """As many records as dimensions: the components are the records."""
    few = _take(members, int(np.linalg.matrix_rank(members[:MOST_CONTROLLED])), random)
    return few, _sum(few, 4000, random)


def _move_out(members: FloatArray, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """One record far from all others."""
    few = _take(members, MOST_CONTROLLED, random).copy()
    mean, spread = few[:, :-1].mean(axis=0), few[:, :-1].std(axis=0)
    shift = few[0, :-1] - mean
    shift = np.where(np.abs(shift) > spread, shift, spread)  # far in every feature
    # At root 2n its square weighs as much as those of all others; the bias feature stays one.
    few[0, :-1] = mean + max(OUTLYING, np.sqrt(2 * len(few))) * shift
    return few, _sum(few, 1000, random)


CONTROLS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[FloatArray, FloatArray]]]] = {
    "membership": (attack_membership, _copy),
    "independent_components": (attack_independent_components, _sum_rank),
    "outlying_record": (attack_outlying_record, _move_out),
}
"""Attacks on single records, and what makes a release on which each must succeed; tracing has a
way of its own."""
