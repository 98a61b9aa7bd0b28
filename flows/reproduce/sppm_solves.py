"""Solves of a reproduction as steps: a mapping found is stored, and found again after a stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np

from flows.reproduce.steps import step
from privpipe.protocols import FloatArray, Guarantee, IntArray
from privpipe.sanitizers.mapping.alphabet import Distortion
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

_WHOLE = ("codes", "pointers", "released")
_REAL = ("probabilities", "potentials", "history")


def solve_in_step(
    name: str,
    joint: FloatArray,
    codes: IntArray,
    distortion: Distortion,
    *,
    start: SparseMapping | None = None,
    **options: Any,
) -> SparseMapping:
    """`solve_privacy_mapping` as a step; from what was stored comes the same mapping, bit for bit.

    Parameters
    ----------
    name
        Of the step.
    joint : (n_private, n_symbols)
    codes : (n_symbols, n_attributes)
    distortion, start, **options
        As of `solve_privacy_mapping`.
    """
    given: dict[str, Any] = {"start": start, **options}
    return _read(
        step(name, lambda: _write(solve_privacy_mapping(joint, codes, distortion, **given)))
    )


def solve_curve(
    name: str,
    joint: FloatArray,
    codes: IntArray,
    distortion: Distortion,
    *,
    shares: Sequence[float],
    gap: float,
) -> dict[float, SparseMapping]:
    """Mappings by share of the attributes that may change, each begun from its neighbour.

    A step each, named after `name` and the share.
    """
    found: dict[float, SparseMapping] = {}
    start: SparseMapping | None = None
    solve = partial(solve_in_step, joint=joint, codes=codes, distortion=distortion, gap=gap)
    for share in sorted(shares):
        budget = share * codes.shape[1]
        start = solve(f"{name} at {share:g}", start=start, distortion_budget=budget)
        found[share] = start
    return {share: found[share] for share in shares}


def _write(mapping: SparseMapping) -> dict[str, Any]:
    """As JSON has it; numbers are written so that they come back the same."""
    plain: dict[str, Any] = {field.name: getattr(mapping, field.name) for field in fields(mapping)}
    return {
        **plain,
        **{name: plain[name].tolist() for name in (*_WHOLE, *_REAL)},
        "guarantee": asdict(mapping.guarantee),
    }


def _read(stored: dict[str, Any]) -> SparseMapping:
    arrays = {name: np.array(stored[name], np.int64) for name in _WHOLE}
    reals = {name: np.array(stored[name], np.float64) for name in _REAL}
    reals["history"] = reals["history"].reshape(-1, 4)
    guarantee = Guarantee(**stored["guarantee"])
    return SparseMapping(**{**stored, **arrays, **reals, "guarantee": guarantee})
