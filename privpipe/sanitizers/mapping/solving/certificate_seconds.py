"""How long the certificate at the end of a solve will take, so that a time limit can hold it.

The certificate looks at all pairs of symbols by code of its own, hence takes a time of its own,
which a search that stops at the limit would add to it.
"""

from __future__ import annotations

import math
import time

import numpy as np
from scipy import sparse

from privpipe.numerics.mapping.certificate import certify_mapping
from privpipe.protocols import IntArray
from privpipe.sanitizers.mapping.alphabet import Alphabet

_PILOT = 2048
"""Symbols of the smaller of two pilots; alphabets of twice as many are certified as they are."""

_MARGIN = 1.2
_MOST = 0.5
"""Of the limit: a search without time has nothing to certify."""


def forecast_certificate(alphabet: Alphabet, max_seconds: float) -> float:
    """Seconds of a limit that are left to the certificate; none of an infinite one.

    Certifies the identity on some of the symbols, and twice as many, and goes on from there with
    the growth that shows: linear where symbols lie on a line, else quadratic.
    """
    if not math.isfinite(max_seconds):
        return 0.0
    n = len(alphabet.order)
    small, large = min(n, _PILOT), min(n, 2 * _PILOT)
    _measure(alphabet, min(n, 64))  # compiles, or loads what is compiled
    seconds = _measure(alphabet, large)
    if n > large:
        growth = math.log2(max(seconds / max(_measure(alphabet, small), 1e-9), 1.0))
        seconds *= (n / large) ** min(max(growth, 1.0), 2.0)
    return min(_MARGIN * seconds, _MOST * max_seconds)


def _measure(alphabet: Alphabet, n_symbols: int) -> float:
    """Seconds of certifying the identity on some symbols, evenly drawn."""
    rows: IntArray = np.linspace(0, len(alphabet.order) - 1, n_symbols).astype(np.int64)
    joint = alphabet.joint[:, rows] + np.finfo(np.float64).tiny
    distortion = alphabet.distortion
    if isinstance(distortion, np.ndarray):
        distortion = distortion[np.ix_(rows, rows)]
    began = time.perf_counter()
    certify_mapping(
        joint / joint.sum(),
        alphabet.codes[rows],
        sparse.eye_array(n_symbols, format="csc"),
        multiplier=1.0,
        potentials=np.zeros((n_symbols, len(joint))),
        distortion=distortion,
        distortion_budget=0.0,
    )
    return time.perf_counter() - began
