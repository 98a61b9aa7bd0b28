"""Privacy mappings: bounds about the law, limits on the worst case.

``python -m tests.bench mapping``. Times are processor seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from privpipe import PrivacyMappingOptions, fit_privacy_mapping
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from tests.laws_of_records import make_grid, make_laws

Row = tuple[Any, ...]


def _seconds(action: Callable[[], object]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def bound_the_law(name: str, n: int, **changes: Any) -> Row:
    """The promise of a fit beside what the mapping tells."""
    law = make_laws()[name]
    options = PrivacyMappingOptions(
        name="privacy_mapping",
        attributes=tuple(f"a{k}" for k in range(law.codes.shape[1])),
        private=("private",),
        distortion=law.distortion,  # type: ignore[arg-type]
        distortion_budget=law.budget,
        **changes,
    )
    mapping = fit_privacy_mapping(law.draw(n, np.random.default_rng(0)), options)  # type: ignore[arg-type]
    told, number = law.tell(mapping)[0], float(mapping.guarantee.number or 0.0)
    chosen = ", ".join(["promise", *(f"{key} = {value}" for key, value in changes.items())])
    return f"{chosen}, {name}, {n:,} records", number, "nats", "the truth", told, number / told


def limit_odds(sizes: tuple[int, ...]) -> Row:
    """A mapping of bounded posterior odds, by cutting planes."""
    rng, codes = np.random.default_rng(2), make_grid(*sizes)
    joint = rng.dirichlet([1.0, 1.0], len(codes)).T / len(codes)
    found: list[Any] = []

    def solve() -> None:
        found.append(
            solve_constrained_mapping(joint, codes, distortion_budget=0.5, max_posterior_odds=3.0)
        )

    seconds = _seconds(solve)
    gap = found[0].gap
    return (
        f"odds at most 3, {len(codes)} profiles",
        seconds,
        "s",
        "gap by its target",
        gap,
        gap / 1e-4,
    )


def run(small: bool = False) -> list[Row]:
    """All rows."""
    return [
        bound_the_law("random", 5_000 if small else 200_000),
        bound_the_law("issue: 288 profiles", 5_000 if small else 200_000),
        bound_the_law("ordered, absolute, three", 2_000),
        bound_the_law("ordered, absolute, three", 2_000, held_out=0.0),
        limit_odds((4, 3) if small else (6, 5, 4)),
    ]
