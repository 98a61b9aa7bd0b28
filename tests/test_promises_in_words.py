"""What an epsilon and a number of nats mean for guesses: bounds that hold, pages that say them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from privpipe.promises import say_nats

ROOT = Path(__file__).parent.parent


def bound_guesses(epsilon: float, before: float) -> float:
    """Most guesses that are right with a release, of those that are right without it (Bayes)."""
    # Of the two forms the one whose power is at most 1: exp of 1,000 is too large for a float64.
    return math.ceil(1000 * before / (before + (1 - before) * math.exp(-epsilon)) - 1e-9) / 1000


def test_bound_guesses__is_reached_by_randomised_response_and_never_exceeded() -> None:
    for epsilon in (0.1, 1.0, 5.0):
        for before in (0.5, 0.1, 0.01):
            truth = np.exp(epsilon) / (1 + np.exp(epsilon))  # says the truth so often
            after = before * truth / (before * truth + (1 - before) * (1 - truth))
            assert after <= bound_guesses(epsilon, before) <= after + 0.001 + 1e-9
    assert bound_guesses(1e4, 0.5) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_say_nats__bounds_the_best_guess_of_any_law(seed: int) -> None:
    random = np.random.default_rng(seed)
    prior = random.dirichlet(np.ones(4))
    mixed = np.stack([random.dirichlet(np.full(6, 3.0)) for _ in prior])
    joint = prior[:, None] * mixed
    nats = float(np.sum(joint * np.log(joint / np.outer(prior, joint.sum(axis=0)))))
    gained = joint.max(axis=0).sum() - prior.max()
    said = re.search(r"at most (\d+) more", say_nats(nats))
    assert said is not None
    assert 100 * gained <= int(said[1])


def test_page__of_noise_says_the_table_of_epsilons() -> None:
    page = (ROOT / "docs" / "methods" / "bodies" / "noisy.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert [float(row[0]) for row in rows] == [0.1, 0.5, 1, 2, 5, 10]
    for epsilon, *shares in rows:
        for share, before in zip(shares, (0.5, 0.1, 0.01), strict=True):
            assert float(share) == pytest.approx(100 * bound_guesses(float(epsilon), before))
