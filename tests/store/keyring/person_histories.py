"""Random histories of persons: what an account counts of them, against what was really released.

A history is of a few partitions that overlap, or are ingested again under another digest, and of
runs that draw local noise or noisy moments of some of them. Runs repeat one another, die before
they write anything, die in the middle, and are refused by a limit. The oracle knows each person's
draws by the person alone. It sums up what came out, exactly, with no line of the account.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from privpipe.errors import GuaranteeError
from privpipe.numerics.noise.composition import find_rho
from privpipe.numerics.noise.gaussian import find_sigma
from privpipe.numerics.random.record_overlap import Overlap
from privpipe.store.keyring.account import Account, Charge
from privpipe.store.keyring.sketches import Ties
from tests.numerics.noise.histories import find_exact

SIZES = (0.05, 0.3, 1.0)
"""Epsilons of draws: few, so that equal ones are counted together by the oracle."""


@cache
def draw_size(epsilon: float, delta: float) -> float:
    """Deviation of Gaussian noise at sensitivity 1."""
    return find_sigma(epsilon, delta)


@cache
def find_loss(drawn: tuple[tuple[tuple[str, float], int], ...], delta: float) -> float:
    """Exact epsilon, at a delta, of so many draws of each kind and size."""
    squares = (n / draw_size(size, delta) ** 2 for (kind, size), n in drawn if kind == "g")
    groups = [(n, size) for (kind, size), n in drawn if kind == "n"]
    mu = math.sqrt(sum(squares))

    def exceed(epsilon: float) -> float:
        return find_exact(mu, groups, epsilon) - delta

    return float(brentq(exceed, 0.0, 200.0)) if exceed(0.0) > 0 else 0.0


@dataclass
class World:
    """Partitions as sets of persons, and what was released of each person."""

    parts: dict[str, frozenset[int]]
    released: dict[int, set[tuple[str, str, float]]] = field(default_factory=dict)
    """Of each person: name of the draw and partition, kind, and epsilon."""

    def tie(self) -> Ties:
        """Which partitions have persons in common."""
        found: dict[str, dict[str, Overlap]] = {}
        for one, mine in self.parts.items():
            for other, theirs in self.parts.items():
                if one != other and (both := len(mine & theirs)):
                    found.setdefault(one, {})[other] = Overlap(both / len(mine), both / len(theirs))
        return Ties(found)

    def release(self, part: str, draw: str, kind: str, size: float) -> None:
        for person in self.parts[part]:
            self.released.setdefault(person, set()).add((f"{draw} of {part}", kind, size))

    def find_loss(self, person: int, delta: float) -> float:
        """Exact epsilon, at a delta, of all that was released of a person."""
        drawn = Counter((kind, size) for _, kind, size in self.released.get(person, ()))
        return find_loss(tuple(sorted(drawn.items())), delta)


def draw_world(rng: np.random.Generator) -> World:
    """Two to five partitions: apart, overlapping, or another file of the same persons."""
    parts, next_person = dict[str, frozenset[int]](), 0
    for k in range(int(rng.integers(2, 6))):
        fresh = frozenset(range(next_person, next_person + int(rng.integers(1, 4))))
        next_person += len(fresh)
        how = rng.random() if parts else 0.0
        if how > 0.4:
            earlier = sorted(parts[str(rng.choice(sorted(parts)))])
            if how > 0.7:  # ingested again
                fresh = frozenset(earlier)
            else:
                fresh |= {int(one) for one in earlier[: int(rng.integers(1, len(earlier) + 1))]}
        parts[f"{k:064x}"] = fresh
    return World(parts)


def play_history(rng: np.random.Generator, place: Path, delta: float) -> tuple[World, Account]:
    """Up to 12 runs; what they released is in the world, what was counted in the account."""
    world = draw_world(rng)
    account = Account(str(place), world.tie())
    draws = list[tuple[str, str, float, list[str]]]()
    limit = float(rng.choice([1.0, 3.0])) if rng.random() < 0.5 else None
    for number in range(int(rng.integers(1, 13))):
        if draws and rng.random() < 0.2:  # the same draws again, maybe of fewer partitions
            draw, kind, size, parts = draws[int(rng.integers(len(draws)))]
            parts = parts[: int(rng.integers(1, len(parts) + 1))]
        else:
            draw, kind = f"draw {number}", str(rng.choice(["g", "n"]))
            size = float(rng.choice(SIZES))
            several = int(rng.integers(1, len(world.parts) + 1))
            parts = [str(one) for one in rng.permutation(sorted(world.parts))[:several]]
            draws.append((draw, kind, size, parts))
        rho = find_rho(1 / draw_size(size, delta)) if kind == "g" else None
        lost = delta if kind == "g" else 0.0
        charges = [Charge(one, f"{draw} {one}", size, lost, "record", rho) for one in parts]
        run, end = f"run {number}", rng.random()
        try:
            account.reserve(charges, run, limit, delta if limit else 1.0)
        except GuaranteeError:
            continue
        if end < 0.15:  # dies before the first chunk, and gives it back
            account.record("void", charges, run)
            continue
        if end < 0.2:  # dies before the first chunk, by SIGKILL: stays charged
            continue
        # Dies in the middle: some partitions are out, all are charged.
        for one in parts if end > 0.35 else parts[:1]:
            world.release(one, draw, kind, size)
        if end > 0.35:
            account.record("confirm", charges, run)
    return world, account


def measure_persons(n: int, seed: int, place: Path) -> tuple[float, np.ndarray]:
    """Least ratio of what is counted to the exact loss, and the ratios of the dearest persons.

    Parameters
    ----------
    n, seed
        Of histories.
    place
        An empty folder.

    Returns
    -------
    least
        Of all persons of all partitions whose exact loss is at least .02.
    ratios : (n_histories,)
        Of each history with such a person: the least ratio of a partition, for its dearest person.
    """
    rng, delta, least, ratios = np.random.default_rng(seed), 1e-6, math.inf, list[float]()
    for k in range(n):
        world, account = play_history(rng, place / str(k), delta)
        losses = {person: world.find_loss(person, delta) for person in sorted(world.released)}
        mine = list[float]()
        for part, persons in world.parts.items():
            counted = account.read_joined(part).find_epsilon(delta)
            exact = max((losses.get(person, 0.0) for person in persons), default=0.0)
            if exact >= 0.02:
                mine.append(counted / exact)
        least = min([least, *mine])
        ratios += [min(mine)] if mine else []
    return least, np.array(ratios)
