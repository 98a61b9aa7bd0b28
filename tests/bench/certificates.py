"""Certificates of filters beside the strongest of twelve adversaries, part of `bench_filters`.

What an adversary finds is the correlation of the best function of its scores with the confidential
classes, given the target, in the records that the certificate measures; what their scores fit of
noise is taken off as there. Adversaries learn on released training records. From these the filter
has learned to hide, so each learns again on one half of the held-out records and judges the other,
in turn: that is who knows some people whom the fit never saw.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import chndtr, chndtrix

from flows.reproduce.hamm_accuracies import draw_har_trial
from privpipe import MinimaxOptions, Records, certify_filter, fit_minimax_filter
from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.problem import Problem, one_hot
from privpipe.errors import GuaranteeError
from privpipe.numerics.minimax.dependence import PartialCovariance, remove_noise
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.minimax.linear_filter import LinearFilter
from tests.bench.bench_peers import READERS, split

Row = tuple[str, float, str, str, float, float]
KINDS: dict[str, dict[str, Any]] = {"logistic": {}, "kernel": {"adversary": ("logistic", "kernel")}}


def decide(name: str, z: Any, labels: Any, seed: int) -> FloatArray:
    """Scores of judging records, by an adversary of the audit that learned on the others."""
    tune = np.random.default_rng(seed).permutation(len(z[0])) < len(z[0]) // 5
    y, row = labels[0].astype(np.float64), ADVERSARIES[name]
    problem = Problem(z[0][~tune], y[~tune], z[0][tune], y[tune], int(y.max()) + 1, seed)
    return row.fit(problem.sample(row.max_train, row.max_tune)).decide(z[1])


def find_in_halves(
    name: str, z: FloatArray, private: IntArray, target: IntArray, seed: int
) -> float:
    """What an adversary finds that learned on the other half of held-out records, in the mean."""
    side = np.random.default_rng(seed).permutation(len(z)) % 2 == 0
    squares = []
    for judges in (side, ~side):
        parts = (z[~judges], z[judges]), (private[~judges], private[judges])
        squares.append(correlate(decide(name, *parts, seed), private[judges], target[judges]) ** 2)
    return float(np.sqrt(np.mean(squares)))


def shuffle_within(private: IntArray, target: IntArray, seed: int) -> IntArray:
    """Confidential classes dealt anew among records of one target: nothing is left to be found."""
    random, dealt = np.random.default_rng(seed), private.copy()
    for one in np.unique(target):
        dealt[target == one] = random.permutation(private[target == one])
    return dealt


def bound_limit(n_records: float, n_functions: int, truth: float) -> float:
    """The least median that a .95 limit of so many functions can have, whoever makes it.

    With many records all that they say of k orthonormal functions is a normal vector around
    ``sqrt(n)`` times the covariances. A limit is a test of every length of these: of .05 it may be
    below the true one. Of tests of one length against a smaller one, directions being anything, the
    most powerful one compares the vector's length (Hunt and Stein), whose square is a noncentral
    chi-square. So no way to use the records, be it cross-fitting, a classifier's error, conformal
    or PAC-Bayes, is below this in more than half of the samples.

    >>> [round(bound_limit(970, k, 0.054) / 0.054, 2) for k in (1, 2, 24)]
    [1.98, 2.03, 2.57]
    """
    before = n_records * truth**2
    middle = chndtrix(0.5, n_functions, before)
    after = brentq(lambda a: chndtr(middle, n_functions, a) - 0.05, before, before + 500)
    return float(np.sqrt(after / n_records))


def count_records(correlation: float, n_functions: int) -> float:
    """Records at which `bound_limit` is twice a correlation of so many functions.

    >>> round(count_records(0.054, 1)), round(count_records(0.054, 24))
    (929, 1938)
    """
    most = 100 / correlation**2
    return float(
        brentq(lambda n: bound_limit(n, n_functions, correlation) - 2 * correlation, 1, most)
    )


def correlate(scores: FloatArray, private: IntArray, target: IntArray) -> float:
    """Largest correlation of a function of the scores with the classes, given the target."""
    sides = (one_hot(target, target.max() + 1), scores, one_hot(private, private.max() + 1))
    rows, n = np.column_stack(sides), len(scores)
    found = PartialCovariance.of(rows.T @ rows, n, sides[0].shape[1], scores.shape[1])
    noise = found.measure_influences(sides)[:, 2:].mean(axis=0) / n
    return remove_noise(float(found.correlate()[0][0]), *noise)


def read_split(name: str, seed: int) -> Any:
    """Features, target and confidential classes, each of two parts."""
    if name == "har":  # windows of one run depend on one another: random halves, as in the paper
        trial = draw_har_trial(os.environ["PRIVPIPE_PAPER_DATA"], seed)
        return trial.features, trial.target, trial.private
    drawn = split(name, seed, 4_000)
    return drawn.x, drawn.y, drawn.s


def certify_set(name: str, seed: int, n_seeds: int) -> list[Row]:
    """Limits of two filters of a data set, and how far seeds of the landmarks move the last."""
    x, y, s = read_split(name, seed)
    train, held_out = (
        Records(one, desired=wanted.astype(str), confidential=hidden.astype(str))
        for one, wanted, hidden in zip(x, y, s, strict=True)
    )
    rows: list[Row] = []
    for kind, given in KINDS.items():
        options = MinimaxOptions(n_filtered=5 if name == "har" else 3, max_iterations=60, **given)
        fitted = fit_minimax_filter(train, options)
        z = tuple(np.asarray(fitted.apply(part), np.float64) for part in x)
        z = tuple((part - z[0].mean(axis=0)) / z[0].std(axis=0) for part in z)
        scores = {one: decide(one, z, s, seed) for one in ADVERSARIES}
        scores["nystroem"] = READERS["kernel"](seed).fit(z[0], s[0]).predict_proba(z[1])
        found = {who: correlate(said, s[1], y[1]) for who, said in scores.items()}
        halves = {one: find_in_halves(one, z[1], s[1], y[1], seed) for one in ADVERSARIES}
        shown = [certify_filter(fitted, held_out, seed=j) for j in range(n_seeds)]
        of, n_functions = [one.correlation_limit for one in shown], shown[0].n_landmarks
        for where, by in (("training", found), ("other held-out", halves)):
            best = max(by, key=lambda who: by[who])
            title = f"limit, {name}, {kind}, against {where} records"
            rows.append((title, of[0], "correlation", best, by[best], of[0] / max(by[best], 1e-12)))
            if s[0].max() > 1:  # of several classes there are more directions than functions
                continue
            needed, there = count_records(max(by[best], 0.01), n_functions), shown[0].n_records
            title = f"records at which it would be twice that, {name}, {kind}"
            rows.append((title, needed, "records", "there are", there, needed / there))
        if s[0].max() == 1:
            least = bound_limit(there, n_functions, shown[0].correlation)
            title = f"limit, {name}, {kind}, where the truth is {shown[0].correlation:.3f}"
            rows.append((title, of[0], "correlation", "best possible", least, of[0] / least))
        mixed, strongest = shuffle_within(s[1], y[1], seed), max(halves.values())
        chance = max(find_in_halves(one, z[1], mixed, y[1], seed) for one in ADVERSARIES)
        title = f"strongest on other held-out records, {name}, {kind}"
        rows.append(
            (title, strongest, "correlation", "shuffled labels", chance, strongest / chance)
        )
        apart = float(np.abs(np.array(of) - np.mean(of)).max())
        title = f"{n_seeds} seeds from their mean, {name}, {kind}"
        rows.append((title, apart, "correlation", "bar", 0.02, apart / 0.02))
    return rows


def certify_dead(seed: int) -> list[Row]:
    """Filters that must get no certificate: constant, without the target, not converged."""
    random = np.random.default_rng(seed)
    train, held_out = (
        Records(x, desired=x[:, 0] > 0, confidential=x[:, 1] > 0)
        for x in random.normal(size=(2, 1000, 4))
    )
    constant, lost = np.zeros((4, 2)), np.eye(4)[:, 2:]
    filters = [LinearFilter("rand", weights, np.zeros(2)) for weights in (constant, lost)]
    certified = 0
    for fitted in (*filters, fit_minimax_filter(train, MinimaxOptions(max_iterations=1))):
        with suppress(GuaranteeError):
            certify_filter(fitted, held_out)
            certified += 1
    return [("dead or unfinished, yet certified", certified, "of 3", "bar", 0, float(certified))]
