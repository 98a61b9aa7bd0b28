"""A mapping to begin a search from, made a feasible plan and a dual point of this problem.

Whatever a caller hands over, of another joint, budget or distortion, may cost time and nothing
else: masses are scaled to this joint and drawn into the budget, potentials normalised for it.
"""

from __future__ import annotations

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.mapping.problem.programme import (
    Duals,
    Pairs,
    Plan,
    make_feasible,
    normalise_potentials,
)
from privpipe.protocols import BoolArray, FloatArray, IntArray
from privpipe.sanitizers.mapping.alphabet import Alphabet
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

_FAR = 60.0
"""Nats below 0 at which a potential is as good as none, and from which a search can still move."""


def read_start(alphabet: Alphabet, start: SparseMapping) -> tuple[Plan, Duals]:
    """Read a mapping as a beginning.

    Parameters
    ----------
    alphabet
        What is to be solved.
    start
        A mapping of the same codes in the same order and of as many private values.

    Returns
    -------
    plan
        Feasible here.
    duals
        Normalised here; in the units of the problem.

    Raises
    ------
    OptionError
        If it is of another alphabet, or no mapping: what is negative, not finite or out of
        range is named.
    """
    _check_alphabet(alphabet, start)
    columns = _check_columns(start)
    problem = alphabet.problem
    place = np.empty(len(alphabet.order), np.int64)
    place[alphabet.order] = np.arange(len(place))
    column = np.full(len(place), -1)
    column[problem.stay] = np.arange(problem.n_columns)
    here = column[place[columns]]
    used = (here >= 0) & (start.probabilities > 0)
    pairs, weights = _add_up(alphabet, place[start.released[used]], here[used], start, used)
    return make_feasible(problem, pairs, weights), _read_duals(alphabet, start)


def _read_duals(alphabet: Alphabet, start: SparseMapping) -> Duals:
    """Potentials of this prior; a multiplier with which a bound above 0 is possible at all."""
    problem = alphabet.problem
    potentials = np.clip(start.potentials[alphabet.order][:, alphabet.private], -1e3, 1e3)
    potentials = np.maximum(normalise_potentials(potentials, problem.prior), -_FAR)
    most = np.log(problem.n_private) / max(problem.budget, 1e-300)
    multiplier = min(float(start.multiplier) * alphabet.unit, most)
    return Duals(np.ascontiguousarray(normalise_potentials(potentials, problem.prior)), multiplier)


def _add_up(
    alphabet: Alphabet, symbols: IntArray, columns: IntArray, start: SparseMapping, used: BoolArray
) -> tuple[Pairs, FloatArray]:
    """Pairs in order, each once, with joint masses; every column may stay at itself."""
    problem = alphabet.problem
    own = np.arange(problem.n_columns)
    pairs = Pairs.of(
        problem, np.concatenate([symbols, problem.stay]), np.concatenate([columns, own])
    )
    keys = pairs.columns * problem.n_symbols + pairs.symbols
    place = np.searchsorted(keys, columns * problem.n_symbols + symbols)
    masses = start.probabilities[used] * problem.mass[columns]
    return pairs, np.asarray(np.bincount(place, masses, len(pairs)), dtype=np.float64)


def _check_alphabet(alphabet: Alphabet, start: SparseMapping) -> None:
    if start.codes.shape != alphabet.codes.shape or (start.codes != alphabet.codes).any():
        raise OptionError(
            "start is a mapping of another alphabet.",
            remedy="Start from a mapping of the same codes in the same order.",
        )
    expected = (len(alphabet.codes), alphabet.n_private)
    if start.potentials.shape != expected:
        raise OptionError(
            f"start has potentials of shape {start.potentials.shape}, and the joint needs "
            f"{expected}: one per symbol and private value.",
            remedy="Start from a mapping of as many private values, or leave start out.",
        )


def _check_columns(start: SparseMapping) -> IntArray:
    """Refuse what is no mapping; the original symbol of each pair."""
    n, pointers, released = start.n_symbols, start.pointers, start.released
    fits = pointers.shape == (n + 1,) and pointers[0] == 0 and pointers[-1] == len(released)
    fits = fits and bool((np.diff(pointers) >= 0).all())
    fits = fits and released.shape == start.probabilities.shape
    if not fits or (len(released) and not 0 <= released.min() <= released.max() < n):
        raise OptionError(
            f"start names pairs that are not among its {n} symbols.",
            remedy="Start from a mapping as a solve returned it.",
        )
    numbers = (start.probabilities, start.potentials, np.array([start.multiplier]))
    finite = all(np.isfinite(part).all() for part in numbers)
    if not finite or (start.probabilities < 0).any() or start.multiplier < 0:
        raise OptionError(
            "start holds negative or non-finite probabilities, potentials or multiplier.",
            remedy="Start from a mapping as a solve returned it.",
        )
    return np.repeat(np.arange(n), np.diff(pointers))
