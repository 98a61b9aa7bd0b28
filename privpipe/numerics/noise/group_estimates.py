"""Estimates by categories: differences of means between groups, and shares of values.

Shares of what a mapping released are those of the raw values, by the mapping's inverse.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.noise import estimates
from privpipe.numerics.noise.estimates import Blocks, Estimate
from privpipe.protocols import FloatArray

LEAST = 10
"""Records of a group whose mean is compared: of fewer, an error says little."""

_EXACT, _SINGULAR = 1e-7, 1e-12
"""Largest bias of a share by what is not determined; least singular value, of the largest."""

_LEAST_POSITIVE = float(np.finfo(np.float64).tiny)
_SKEWED, _HEAVY = 0.5, 3.0
"""Largest distance to a normal law, where a record counts for more than so many."""


def estimate_differences(
    blocks: Blocks, names: Sequence[str], groups: Sequence[str]
) -> list[Estimate]:
    """Differences of the means of all columns but the last, between all pairs of groups.

    Parameters
    ----------
    blocks
        The last column is the number of the record's group, below 0 where it has none.
    names, groups
        Of the other columns, whose noise has mean 0, and of the groups.

    Returns
    -------
    differences
        Of the later group less the earlier. Welch's error and freedom (1947, Biometrika 34): the
        spread of the noise is in that of the records of each group.

    Raises
    ------
    InputError
        If fewer than two groups have ten records.

    Warns
    -----
    LeftOutWarning
        Of groups with fewer records; they are named.
    """
    count = np.zeros(len(groups))
    total, squares = (np.zeros((len(groups), len(names))) for _ in range(2))
    anchor: FloatArray | float | None = None
    for block in blocks():
        belongs = np.equal.outer(np.arange(len(groups)), block[:, -1]).astype(np.float64)
        anchor = block[:, :-1].mean(axis=0) if anchor is None else anchor
        moved = block[:, :-1] - anchor
        count += belongs.sum(axis=1)
        total += belongs @ moved
        squares += belongs @ moved**2
    enough = np.flatnonzero(count >= LEAST)
    if len(enough) < 2:
        raise estimates.report_few(int(count.sum()))
    estimates.say_left_out(np.array(groups)[count < LEAST].tolist())
    n = np.maximum(count, LEAST)[:, None]
    mean = total / n
    errors = np.maximum(squares / n - mean**2, 0.0) / (n - 1)
    found = []
    for i, j in combinations(enough.tolist(), 2):
        variances = errors[i] + errors[j]
        parts = errors[i] ** 2 / (n[i] - 1) + errors[j] ** 2 / (n[j] - 1)
        # Never below that of the smaller group; of means without any error both are 0.
        freedom = np.maximum(variances**2 / np.maximum(parts, _LEAST_POSITIVE), LEAST - 1)
        pairs = [f"{name}: {groups[j]} - {groups[i]}" for name in names]
        found += estimates.list_estimates(pairs, mean[j] - mean[i], variances, freedom=freedom)
    return found


def estimate_shares(
    counts: FloatArray, names: Sequence[str], weights: FloatArray | None = None
) -> list[Estimate]:
    """Shares of values among the records of a population, of how often each symbol was released.

    Parameters
    ----------
    counts : (n_symbols,)
    names
        Of the values.
    weights : (n_values, n_symbols), optional
        The sum of these times the shares of the symbols is that of each value; the identity when
        not given. Limits are then Wilson's (1927, J. Am. Stat. Assoc. 22).

    Raises
    ------
    InputError
        If there are no two records.
    """
    weights = np.eye(len(counts)) if weights is None else weights
    if (n := float(counts.sum())) < 2:
        raise estimates.report_few(int(n))
    values = weights @ counts / n
    variances = (weights**2 @ counts / n - values**2) / n
    # How the error changes with the truth also counts for symbols that were never released.
    near = (counts + 0.5) / (counts + 0.5).sum()
    apart = weights - (weights @ near)[:, None]
    change = weights**2 - 2 * values[:, None] * weights
    change -= (change @ near)[:, None]
    spread = np.maximum(apart**2 @ near, _LEAST_POSITIVE)
    lean = (apart * change) @ near / spread / (2 * n)
    spill = np.maximum(change**2 @ near / spread / (4 * n**2) - lean**2, 0.0)
    return estimates.list_estimates(names, values, variances, lean, 0 * lean - 1 / n, spill)


def estimate_raw_shares(
    counts: FloatArray, mapping: FloatArray, values: FloatArray, names: Sequence[str]
) -> list[Estimate]:
    """Shares of raw values, of how often each symbol was released by a known mapping.

    Parameters
    ----------
    counts : (n_symbols,)
        Of released symbols.
    mapping : (n_symbols, n_raw)
        Probability of each released symbol given the raw one.
    values : (n_values, n_raw)
        1 where a raw symbol has the value, else 0.
    names
        Of the values.

    Returns
    -------
    shares
        Of values that the mapping determines: weighted sums of released shares, right on average
        whatever the law of the records. Of several such sums that of least variance where all raw
        symbols are as frequent.

    Raises
    ------
    InputError
        If no value is determined: the mapping releases different raw symbols alike.

    Warns
    -----
    LeftOutWarning
        Of values that are not determined; they are named.
    """
    ever = mapping.any(axis=1)
    counts, mapping = counts[ever], mapping[ever]
    # Weights of the counts themselves would move with them, and be biased.
    scale = np.sqrt(mapping.mean(axis=1))
    system = (mapping / scale[:, None]).T
    solved, _, _, _ = np.linalg.lstsq(system, values.T, rcond=_SINGULAR)
    sure = np.abs(system @ solved - values.T).max(axis=0) < _EXACT
    weights = (solved / scale[:, None]).T
    # What rests on a few records of large weight has no normal law (Berry and Esseen's quotient).
    near = (counts + 0.5) / (counts + 0.5).sum()
    apart = np.abs(weights - (weights @ near)[:, None])
    skew = apart**3 @ near / np.maximum(apart**2 @ near, _LEAST_POSITIVE) ** 1.5
    sure &= (skew < _SKEWED * math.sqrt(counts.sum())) | (np.abs(weights).max(axis=1) < _HEAVY)
    if not sure.any():
        raise InputError(
            "The mapping releases different values by laws that are alike, or records are few: no "
            "share is determined.",
            remedy="Use more records, or a mapping with a smaller distortion budget.",
            code="not-determined",
        )
    estimates.say_left_out(np.array(names)[~sure].tolist())
    singular = np.linalg.svd(mapping, compute_uv=False)
    condition = float(singular[0] / singular[singular > _SINGULAR * singular[0]][-1])
    found = estimate_shares(counts, np.array(names)[sure].tolist(), weights[sure])
    return [replace(one, condition=condition) for one in found]
