"""Random histories of releases: what the account counts, over the exact loss of fixed sizes."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from privpipe.numerics.noise.composition import find_rho
from privpipe.numerics.noise.gaussian import find_sigma
from privpipe.store.keyring.account import Charge, TotalLoss

KINDS = ("Gaussian", "pure", "both")


def find_exact(mu: float, groups: list[tuple[int, float]], epsilon: float) -> float:
    """Exact delta of Gaussian noise beside randomised responses.

    Parameters
    ----------
    mu
        Of the noise, ``1 / sigma``.
    groups
        Number and epsilon of equal responses, the worst of that epsilon (Kairouz et al. 2015).
    """
    losses, chances = np.zeros(1), np.ones(1)
    for n, size in groups:
        more = (2 * np.arange(n + 1) - n) * size
        weights = stats.binom.pmf(np.arange(n + 1), n, 1 / (1 + math.exp(-size)))
        losses = np.add.outer(losses, more).ravel()
        chances = np.outer(chances, weights).ravel()
    left = epsilon - losses
    if mu == 0:
        return float(chances @ np.maximum(-np.expm1(np.minimum(left, 0.0)), 0.0))
    second = np.exp(np.minimum(left + log_ndtr(-mu / 2 - left / mu), 0.0))
    return float(chances @ (ndtr(mu / 2 - left / mu) - second))


def measure_histories(n: int, seed: int) -> list[float]:
    """Largest ratio of what is counted, of each of `KINDS`, and the least of all.

    Histories of 2 to 730 draws at random sizes, whose exact loss is .05 to 20.
    """
    rng, ratios = np.random.default_rng(seed), [[1.0] for _ in KINDS]
    least, done = math.inf, 0
    while done < n:
        delta = float(rng.choice([1e-5, 1e-6, 1e-8]))
        n_gaussian = int(rng.choice([0, 1, 5, 40, 365]))
        groups = [
            (int(rng.choice([0, 1, 2, 5, 20, 60])), float(10 ** rng.uniform(-2, 0.5)))
            for _ in range(2)
        ]
        n_pure = sum(many for many, _ in groups)
        size = float(10 ** rng.uniform(-2, 0.3))
        sigma = find_sigma(size, delta)
        mu = math.sqrt(n_gaussian) / sigma
        top = sum(many * one for many, one in groups) + mu * (mu / 2 + 9) + 1
        if n_gaussian + n_pure < 2 or find_exact(mu, groups, 0.05) <= delta:
            continue
        exact = float(
            brentq(lambda x: find_exact(mu, groups, x) - delta, 0.0, top, xtol=1e-12)  # noqa: B023
        )
        if exact > 20:
            continue
        done += 1
        # As many equal charges as their sum says: a history of 700 is slow to write down.
        total = TotalLoss()
        noise = Charge("p", "g", size, delta, "record", find_rho(1 / sigma))
        for many, charge in (
            (n_gaussian, noise),
            *((many, Charge("p", "n", one, 0.0, "record")) for many, one in groups),
        ):
            total = total.add(TotalLoss.of([charge]), many)
        ratio = total.find_epsilon(delta) / exact
        ratios[0 if not n_pure else 1 if not n_gaussian else 2].append(ratio)
        least = min(least, ratio)
    return [*map(max, ratios), least]
