"""How often the places of a sound release are accused, and a leak in few of them is found.

``python -m tests.bench.place_errors [audits]``: simulated audits of 640 chunks of 400 records (of a
rare class 1,500), twenty measured columns and a column of codes, none of which reveals the secret
but in the chunks that leak. Laws drift from chunk to chunk; tails are heavy; a class is rare;
labels come in runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privpipe.attacks.statistics.places import (
    PlaceSums,
    PlaceTest,
    add_total,
    code_column,
    count_codes,
    sum_place,
)
from privpipe.protocols import Column

N_CODES = 5

Random = np.random.Generator
Labels = Callable[[Random, int], np.ndarray]


def draw_even(random: Random, n: int) -> np.ndarray:
    """Two classes whose shares drift."""
    return (random.random(n) < random.uniform(0.3, 0.7)).astype(float)


def draw_rare(random: Random, n: int) -> np.ndarray:
    """Two classes, one of them of a record in fifty."""
    return (random.random(n) < random.uniform(0.0, 0.04)).astype(float)


def draw_many(random: Random, n: int) -> np.ndarray:
    """Five classes, some missing."""
    return np.where(random.random(n) < 0.1, np.nan, random.integers(0, 5, n).astype(float))


def draw_runs(random: Random, n: int) -> np.ndarray:
    """Two classes in runs of some twenty records."""
    return (np.cumsum(random.random(n) < 0.05) % 2).astype(float)


@dataclass(frozen=True)
class Law:
    """A law of records: a confidential variable, and the features that do not depend on it."""

    labels: Labels
    column: Column
    heavy: bool = False
    slow: bool = False
    """Whether features change slowly along the records."""
    n: int = 400
    """Records of a chunk: of a class of fewer than some fifteen not even a copy is found."""


LAWS = {
    "two classes that drift": Law(draw_even, Column("secret", 2)),
    "heavy tails": Law(draw_even, Column("secret", 2), heavy=True),
    "a rare class": Law(draw_rare, Column("secret", 2), heavy=True, n=1500),
    "five classes, some missing": Law(draw_many, Column("secret", 5)),
    "a number": Law(lambda random, n: random.standard_cauchy(n), Column("secret")),
    "runs and slow features": Law(draw_runs, Column("secret", 2), slow=True),
}


def draw_audit(
    law: Law, seed: int, *, leaking: frozenset[int] = frozenset(), n_chunks: int = 640
) -> PlaceSums:
    """The sums of an audit; in the chunks that leak the codes are the secret (a number's sign)."""
    random, n = np.random.default_rng(seed), law.n
    parts = []
    for chunk in range(n_chunks):
        secret, desired = law.labels(random, n), random.integers(0, 3, n).astype(float)
        x = (random.standard_cauchy if law.heavy else random.standard_normal)((n, 20))
        x = np.cumsum(x, axis=0) / 5 if law.slow else x
        x = x * random.uniform(0.5, 2, 20) + random.normal(size=20) + desired[:, None]
        codes = random.integers(0, N_CODES, n)
        if chunk in leaking:
            number = law.column.n_categories is None
            copied = secret > np.median(secret) if number else np.nan_to_num(secret, nan=-1)
            codes = copied.astype(np.int64)
        parts.append(
            sum_place(
                [(law.column, secret)],
                [(Column("desired", 3), desired)],
                x,
                np.arange(n),
                [(code_column(codes, N_CODES), count_codes(N_CODES))],
                chunk=chunk,
            )
        )
    return PlaceSums.concatenate(parts)


def find_chunks(sums: PlaceSums, allowed: float = 0.1) -> frozenset[int]:
    """Chunks, and groups of eight by their first, that surely reveal more than is allowed."""
    n_chunks = len(sums.chunk)
    groups = sums.add_up(sums.chunk // 8, -(-n_chunks // 8))
    test = PlaceTest(
        add_total(sums), (count_codes(N_CODES),), n_chunks + len(groups.chunk), allowed, 0.95
    )
    found = set[int]()
    for places, size in ((sums, 1), (groups, 8)):
        _, excess = test.find_excess(places)
        found.update(size * np.flatnonzero(excess.max(axis=(1, 2)) > allowed))
    return frozenset(map(int, found))


def count_errors(law: Law, n_audits: int, *, n_chunks: int = 640) -> tuple[int, int]:
    """Audits that accuse a sound release of anything at all, and that find a leak in 1 %."""
    alarms = finds = 0
    for seed in range(n_audits):
        alarms += bool(find_chunks(draw_audit(law, seed, n_chunks=n_chunks), allowed=0.0))
        chosen = np.random.default_rng([7, seed]).choice(n_chunks, max(1, n_chunks // 100), False)
        leaking = frozenset(map(int, chosen))
        sums = draw_audit(law, 10**6 + seed, leaking=leaking, n_chunks=n_chunks)
        finds += bool(find_chunks(sums) & leaking)
    return alarms, finds


def main(n_audits: int = 200) -> None:
    """Print false alarms and finds of each law."""
    for name, law in LAWS.items():
        alarms, finds = count_errors(law, n_audits)
        print(f"{name:28s} alarms {alarms}/{n_audits}  found {finds}/{n_audits}", flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
