"""The joint distribution that a mapping is fitted on: frequent profiles, smoothed."""

from __future__ import annotations

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts, make_joint
from privpipe.sanitizers.mapping.smoothing import (
    PSEUDO_RECORDS,
    SmoothingKind,
    choose_smoothing,
    smooth_table,
)

_BLOCK_PAIRS = 2**22
SMOOTHINGS: tuple[SmoothingKind, ...] = ("none", "dirichlet", "hierarchical")
"""What "best" chooses among."""


def prepare_joint(
    counts: ProfileCounts, options: PrivacyMappingOptions, private: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Joint distribution and codes from counts: most frequent profiles, smoothing.

    Parameters
    ----------
    counts
    options
    private : (n_private, n_private_variables), optional
        The private values, in sorted order; those that occur when not given.

    Returns
    -------
    joint : (n_private, n_symbols)
        Sums to 1.
    codes : (n_symbols, n_attributes)

    Raises
    ------
    InputError
        If no record has a known private value.
    """
    if counts.n_records == 0:
        raise InputError(
            "no record has a known private value.",
            remedy="Name private variables that are known for some records.",
        )
    table, codes, _ = make_joint(counts, private)
    if options.most_frequent is not None and options.most_frequent < len(codes):
        table, codes = _keep_frequent(table, codes, options)
    if options.robust == "ball":
        return table / table.sum(), codes
    kinds = SMOOTHINGS if options.smoothing == "best" else (options.smoothing,)
    sizes = PSEUDO_RECORDS if options.pseudo_records is None else (options.pseudo_records,)
    table = smooth_table(table, codes, choose_smoothing(table, codes, kinds, sizes))
    return table / table.sum(), codes


def _keep_frequent(
    table: FloatArray, codes: IntArray, options: PrivacyMappingOptions
) -> tuple[FloatArray, IntArray]:
    """The most frequent profiles, of equals the first; the rest joins the nearest, or goes."""
    ranked = np.argsort(-table.sum(axis=0), kind="stable")
    kept, rest = np.sort(ranked[: options.most_frequent]), ranked[options.most_frequent :]
    few = table[:, kept]
    if options.unseen == "nearest":
        distance = CodeDistance(
            options.distortion, codes[kept].astype(np.float64), codes[rest].astype(np.float64)
        )
        step = max(1, _BLOCK_PAIRS // len(kept))
        for a in range(0, len(rest), step):
            b = min(a + step, len(rest))
            nearest = distance.block(a, b).argmin(axis=1)
            for value, row in enumerate(table[:, rest[a:b]]):
                few[value] += np.bincount(nearest, row, len(kept))
    return few, codes[kept]
