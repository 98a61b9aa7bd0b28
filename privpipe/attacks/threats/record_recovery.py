"""Single records of a surrogate release: how many are recovered, and controls that show it.

Surrogates are signed sums of records, whose last column is a bias feature that is one in every
record. Directions are compared in coordinates that are centred and standardised by the second
moments of the surrogates themselves, which every outsider has.

Surrogates carry the coefficients W of all records exactly, ``(X'X) W = X'y``. Without the record
(x, y) both sides lose its products, so that ``x (y - x'W) = X'X W - X'y`` over all others. Who
knows these has the record, whose bias entry is one. Of W before and after one record was added, ``x
(y - x'W) = X'X (W after - W before)``. There the surrogates' second moments replace X'X, so who
knows no record has that one. No number of surrogates hinders either. Normal equations; Cook 1977
for the second.

That an attack of an outsider fails on a release says nothing unless it succeeds on records like
these. So each has a control: a setting that breaks the rule that the attack is about, with fresh
signs, in which it must succeed. Nothing of a control is stored.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.problem import QUIET
from privpipe.attacks.statistics.intervals import Interval, measure_exact_interval
from privpipe.attacks.threats.membership import MembershipReport, attack_nearest, measure_membership
from privpipe.errors import InputError
from privpipe.protocols import FloatArray

MOST_TARGETS = 2000
"""Records that are attacked in turn."""

RESOLVED = 1e-9
"""Of the coefficients: differences below are rounding, and show no record."""

RECOVERED = 0.97
"""Cosine from which a direction counts as a record: a relative error of a quarter."""


@dataclass(frozen=True)
class RecoveryReport:
    """How often a direction that an attack found is a record.

    Parameters
    ----------
    recovered
        Share of the attacked records that were found, with exact limits.
    by_chance
        The same for records that the surrogates were not made of.
    cosine
        Median over the attacked records of the largest cosine.
    n_attacked
    farthest
        Largest cosine of the record that lies farthest, where that is looked for by itself.
    farthest_by_chance
        Share of records in no surrogate that meet that one direction as well.
    """

    recovered: Interval
    by_chance: Interval
    cosine: float
    n_attacked: int
    farthest: float | None = None
    farthest_by_chance: float | None = None

    @property
    def succeeded(self) -> bool:
        """Whether more is recovered than chance explains."""
        return self.recovered.estimate > 2 * self.by_chance.estimate + 1e-9

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "succeeded": self.succeeded}, indent=1)


def count_needed_trials(limit: float, level: float) -> int:
    """Trials of which none may succeed, so that the upper limit of the share is below a limit.

    Four times as many as that takes, so that single successes by chance decide nothing.

    >>> count_needed_trials(0.01, 0.99)
    2112
    """
    alpha = (1 - level) / 2  # Clopper and Pearson's upper limit after no success in n trials
    return 4 * math.ceil(math.log(alpha) / math.log1p(-min(max(limit, 1e-6), 1 - 1e-6)))


def find_frame(released: FloatArray) -> FloatArray:
    """Matrix that turns (x, 1) into ((x - mean) / deviation, 1), from surrogates with a bias.

    Parameters
    ----------
    released : (n_surrogates, n_features + 1)

    Raises
    ------
    InputError
        If the surrogates are fewer than the features, or their bias feature vanishes.
    """
    moments = released.T @ released
    if len(released) < released.shape[1] or moments[-1, -1] <= 0:
        problem = f"{len(released)} surrogates of {released.shape[1]} features cannot be attacked."
        remedy = "Release at least as many surrogates as features, the last of them the bias."
        raise InputError(problem, remedy=remedy)
    # The bias feature is one in every record, so its products sum up to counts and means.
    mean = moments[-1, :-1] / moments[-1, -1]
    variance = np.diag(moments)[:-1] / moments[-1, -1] - mean**2
    # Below that a variance is what rounding left of the difference: the feature is constant.
    scale = np.sqrt(np.where(variance > 1e-12 * mean**2, variance, 1.0))
    frame = np.eye(released.shape[1])
    frame[:-1, :-1] /= scale[:, None]
    # The bias stays one, so that centring is a matrix and sums of records can be turned by it.
    frame[:-1, -1] = -mean / scale
    return frame


def report_recovery(
    targets: FloatArray, others: FloatArray, guesses: FloatArray, *, level: float
) -> RecoveryReport:
    """Compare records with directions, one guess for all of them or one for each.

    Parameters
    ----------
    targets, others : (n, n_features + 1)
        Records in the frame of `find_frame`: attacked ones, and ones that are not in.
    guesses : (n_guesses, n_features + 1) or (n_targets, n_guesses, n_features + 1)
        Directions in the same frame; those of each target alone where there are three axes.
    level
    """
    mine = measure_cosines(targets, guesses)
    # The more guesses, the more of them any record meets: chance is that of a few at random.
    flat = guesses.reshape(-1, guesses.shape[-1])
    few = np.linspace(0, len(flat) - 1, min(64, len(flat)), dtype=int)
    strange = measure_cosines(others, flat[few])
    hits, alarms = int((mine >= RECOVERED).sum()), int((strange >= RECOVERED).sum())
    limit = partial(measure_exact_interval, level=level)
    found, by_chance = limit(hits, len(mine)), limit(alarms, len(strange))
    return RecoveryReport(found, by_chance, float(np.median(mine)), len(mine))


def measure_cosines(records: FloatArray, guesses: FloatArray) -> FloatArray:
    """Largest cosine of each record with the guesses, whatever their sign; (n_records,)."""
    norms = np.linalg.norm(guesses, axis=-1, keepdims=True)
    # A guess of zeros meets no record.
    unit = guesses / np.where(norms > 0, norms, 1.0)
    rows = records / np.linalg.norm(records, axis=1, keepdims=True)
    products = rows @ unit.T if unit.ndim == 2 else np.einsum("ij,ikj->ik", rows, unit)
    return np.asarray(np.abs(products).max(axis=1))


def attack_all_but_one(
    released: FloatArray,
    surrogate_responses: FloatArray,
    members: FloatArray,
    member_responses: FloatArray,
    others: FloatArray,
    gram: FloatArray,
    *,
    options: AttackOptions,
) -> RecoveryReport:
    """The record that is left over, by who knows all others; arrays as of a `Sample`."""
    frame = find_frame(released)
    sums, q = _turn(gram, frame), len(frame)
    coefficients = np.linalg.lstsq(released @ frame.T, surrogate_responses, rcond=None)[0]
    targets = members[:MOST_TARGETS] @ frame.T
    residuals = member_responses[:MOST_TARGETS] - targets @ coefficients
    whole = sums[:q, :q] @ coefficients - sums[:q, q:]
    # Sums over all but record i: those over all, less its own products.
    left = whole[None] + targets[:, :, None] * residuals[:, None, :]
    guesses = np.linalg.svd(left, full_matrices=False)[0][:, None, :, 0]
    return report_recovery(targets, others @ frame.T, guesses, level=options.level)


def attack_with_and_without(
    released: FloatArray,
    members: FloatArray,
    others: FloatArray,
    gram: FloatArray,
    *,
    options: AttackOptions,
) -> RecoveryReport:
    """The record that is in one of two releases, by who has both; arrays as of a `Sample`.

    The other release is that of all records but the one. Its coefficients are least squares of
    these, and the second moments are those of this release's surrogates.
    """
    frame = find_frame(released)
    made, q = released @ frame.T, len(frame)
    targets = members[:MOST_TARGETS] @ frame.T
    # Features may depend on one another: the pseudo-inverse stays within their span.
    inverse = np.linalg.pinv(_turn(gram, frame)[:q, :q], 1e-12, hermitian=True)
    # Of least squares without record i: less inverse @ x_i r_i' / (1 - leverage).
    guesses = targets @ inverse @ (made.T @ made)
    return report_recovery(targets, others @ frame.T, guesses[:, None, :], level=options.level)


def attack_two_releases(
    released: FloatArray,
    surrogate_responses: FloatArray,
    earlier: tuple[FloatArray, FloatArray],
    members: FloatArray,
    others: FloatArray,
    *,
    options: AttackOptions,
) -> RecoveryReport:
    """The record by which this release differs from an earlier one; arrays as of a `Sample`.

    One guess for all known records: it is found, or it is not. `by_chance` is the chance that any
    of so many records lies as near a direction drawn at random. A record is found only where that
    is below one in a hundred.
    """
    frame = find_frame(released)
    made, before = released @ frame.T, earlier[0] @ frame.T
    new = np.linalg.lstsq(made, surrogate_responses, rcond=None)[0]
    old = np.linalg.lstsq(before, earlier[1], rcond=None)[0]
    step = (new - old) / np.maximum(np.abs(new).max(axis=0), np.finfo(float).tiny)
    moments = made.T @ made + before.T @ before
    records = np.concatenate([members, others]) @ frame.T
    best = 0.0
    if np.abs(step).max() > RESOLVED:
        directions, sizes, _ = np.linalg.svd(moments @ step, full_matrices=False)
        best = float(measure_cosines(records, directions.T[sizes > 0]).max())
    # A direction at random is as near to one record with a probability that is an incomplete beta
    # function: the share of the sphere within that angle of a line.
    near = float(scipy.special.betainc((len(frame) - 1) / 2, 0.5, max(0.0, 1 - best**2)))
    chance = min(1.0, len(records) * near)
    hit = int(best >= RECOVERED and chance < 0.01)
    limit = partial(measure_exact_interval, level=options.level)
    return RecoveryReport(limit(hit, 1), limit(round(1000 * chance), 1000), best, 1)


def _turn(gram: FloatArray, frame: FloatArray) -> FloatArray:
    """Sums of products of [features, responses] with the features in the frame."""
    turn = np.eye(len(gram))
    turn[: len(frame), : len(frame)] = frame
    return np.asarray(turn @ gram @ turn.T)


MOST_SURROGATES = 20_000
"""Of those given to independent components; more add little to moments of the fourth order."""

MOST_ROUNDS = 300


def attack_independent_components(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> RecoveryReport:
    """FastICA of the surrogates; arrays as of a `Sample`.

    Raises
    ------
    InputError
        If it finds no components: what it would have found is unknown.
    """
    from sklearn.decomposition import FastICA

    frame = find_frame(released)
    rows = released[:MOST_SURROGATES] @ frame.T
    # A bias that is one in every surrogate has nothing to unmix, and would be divided by zero.
    varies = np.ptp(rows, axis=0) > 0
    rows = rows[:, varies]
    # The rank is that of the features, which may depend on one another: no more is unmixed.
    values = np.linalg.svd(rows, compute_uv=False)
    rank = int((values > 1e-8 * values[0]).sum())
    settings: dict[str, Any] = {"whiten": "unit-variance", "fun": "cube", "tol": 1e-5}
    search = FastICA(rank, max_iter=MOST_ROUNDS, random_state=options.seed, **settings)
    with QUIET:  # what it has found by then is judged
        search.fit(rows)
    # Columns of the mixing matrix are records up to sign and size, as cosines are.
    guesses = np.zeros((rank, len(varies)))
    guesses[:, varies] = search.mixing_.T
    if not np.isfinite(guesses).all():
        problem = "Independent components of the surrogates could not be found."
        remedy = "Their records are unknown to this attack, not safe from it."
        raise InputError(problem, remedy=remedy)
    return report_recovery(members @ frame.T, others @ frame.T, guesses, level=options.level)


def attack_outlying_record(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> RecoveryReport:
    """The farthest records, by the singular vectors of the surrogates; arrays as of a `Sample`.

    As many of those in the sample are attacked as the limit needs trials, in units of the bulk. A
    standardised outlier is none any more. The farthest is looked for in the strongest one as well.
    """
    find_frame(released)  # refuses what cannot be attacked
    moments = released.T @ released
    # Centred and scaled by what every outsider knows; whitening would hide an outlier in the spread
    # that it makes.
    centred = np.eye(len(moments))
    centred[:-1, -1] = -moments[-1, :-1] / moments[-1, -1]
    # Medians are not moved by the record that is looked for.
    spread = np.median(np.abs(others @ centred.T), axis=0)
    shape = centred / np.where(spread > 0, spread, 1.0)[:, None]
    n_trials = count_needed_trials(options.max_exposed, options.level)
    shaped = members @ shape.T, others @ shape.T
    # So many records at most, the farthest.
    targets, alike = (x[np.argsort(-np.linalg.norm(x, axis=1))[:n_trials]] for x in shaped)
    _, _, vectors = np.linalg.svd(released @ shape.T, full_matrices=False)
    found = report_recovery(targets, alike, vectors, level=options.level)
    met = measure_cosines(others @ shape.T, vectors[:1]) >= RECOVERED
    farthest = float(measure_cosines(targets[:1], vectors[:1])[0])
    return replace(found, farthest=farthest, farthest_by_chance=float(met.mean()))


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
    return measure_membership(inside, outside, options=options)


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
        problem = f"{len(others)} records that are not in are too few to trace by."
        raise InputError(problem, remedy="Hold out more.")
    frame = find_frame(released)
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
) -> RecoveryReport | MembershipReport:
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
    report: RecoveryReport | MembershipReport = attack(released, chosen, others, options=options)
    return report


def _sum(members: FloatArray, n_surrogates: int, random: np.random.Generator) -> FloatArray:
    """Signed sums of these members alone."""
    signs = random.choice([-1.0, 1.0], (len(members), n_surrogates)) / np.sqrt(n_surrogates)
    return np.asarray(signs.T @ members)


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
    return measure_membership(mine, theirs, options=options)


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
    "membership": (attack_nearest, _copy),
    "independent_components": (attack_independent_components, _sum_rank),
    "outlying_record": (attack_outlying_record, _move_out),
}
"""Attacks on single records, and what makes a release on which each must succeed; tracing has a
way of its own."""
