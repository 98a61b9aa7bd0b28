"""The list of mutants, read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "read_mutants"]


@dataclass(frozen=True)
class Mutant:
    """A fault: in `module` `old`, which stands there once, becomes `new`; `tests` must notice.

    Parameters
    ----------
    promise
        Area and promise, ``area: promise``.
    module, old, new
        What is replaced.
    tests
        Files or single tests of them, by blanks.
    """

    promise: str
    module: str
    old: str
    new: str
    tests: str


def read_mutants() -> list[Mutant]:
    """All of them."""
    with Path(__file__).with_name("mutants.toml").open("rb") as file:
        return [Mutant(**one) for one in tomllib.load(file)["mutant"]]
