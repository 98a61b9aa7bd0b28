"""Estimates of shares of records, of values by these (quantiles), and of differences of groups.

Shares of what a mapping released are those of the raw values, by the mapping's inverse.

Quantiles: the characteristic function of Laplace noise of scale b is ``1 / (1 + (b s)^2)``. So
``f(z) - b^2 f''(z)``, of a noisy number z, has the mean f(x) over the noise. That holds for every
smooth f and every x (Stefanski 1989, Comm. Statist. Theory Methods 18). A step has no such
function. But a ramp that has fallen from 1 to 0 before t is nowhere above the step at t. One that
begins to fall at t is nowhere below it. Means of both are limits of the share of records up to t,
also of one that jumps there. DESIGN.md says how wide a ramp has to be, and why no other noise has
such limits.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
from scipy.special import ndtri

from privpipe.errors import InputError
from privpipe.numerics.noise import estimates
from privpipe.numerics.noise.estimates import LEVEL, Blocks, Estimate
from privpipe.numerics.noise.mechanism import Mechanism
from privpipe.protocols import FloatArray

LEAST = 10
"""Records of a group whose mean is compared: of fewer, an error says little."""

_EXACT, _SINGULAR = 1e-7, 1e-12
"""Largest bias of a share by what is not determined; least singular value, of the largest."""

_LEAST_POSITIVE = float(np.finfo(np.float64).tiny)
_SKEWED, _HEAVY = 0.5, 3.0
"""Largest distance to a normal law, where a record counts for more than so many."""


SHARES = (0.25, 0.5, 0.75)
"""Of which quantiles are estimated."""

LEAST_QUANTILE = 100
"""Records of which shares have a normal law; of a quarter of them, at least."""

STEPS, FINEST = 64, 1 / 500
"""Bins under a ramp; least width of one, of the largest number."""


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


def estimate_quantiles(
    blocks: Blocks, names: Sequence[str], used: Mechanism, factor: float, origin: FloatArray
) -> list[Estimate]:
    """Quartiles of all columns.

    Parameters
    ----------
    blocks
        What the mechanism released, times the factor, plus the origin of each column.
    names
        Of the columns.
    used
        The mechanism; all its coordinates have Laplace noise.
    factor, origin : (n_columns,)
        By which bounded records were shrunk, and what was subtracted from them.

    Returns
    -------
    quartiles
        Each the middle between the ramps. Limits hold it in at least as many releases as their
        level says. The error is that of a normal law with limits as far apart.

    Raises
    ------
    InputError
        If there are fewer than 100 records, or no quartile is within the records' range.

    Warns
    -----
    LeftOutWarning
        Of quartiles whose limits reach an end of the range, where bounds may bind; by name.
    """
    if (n := sum(map(len, blocks()))) < LEAST_QUANTILE:
        raise estimates.report_few(n)
    # All in steps of the grid, so that records and noise are whole numbers.
    unit, radius, scale = factor * used.grid, used.lattice.inner, used.spread / used.grid / 2**0.5
    # Half a ramp and twice the error of its mean, over a density of 1 / (2 radius), are least here.
    width = (12 * radius * math.sqrt(6 * scale**3 / n)) ** 0.4
    step = math.ceil(max(width, FINEST * radius) / STEPS)
    half = step * (math.ceil(radius / step) + 1 + STEPS)
    # Between whole numbers: all bins hold as many, and second differences are derivatives.
    edges = np.arange(-half, half + 1, step) - 0.5
    counts = np.zeros((len(names), len(edges)))
    for block in blocks():
        for each, column in zip(counts, ((block - origin) / unit).T, strict=True):
            each += np.histogram(column, [-math.inf, *edges])[0]
    at = (np.arange(STEPS) + 0.5) / STEPS
    ramp = 1 - 3 * at**2 + 2 * at**3 + 6 * (scale / (STEPS * step)) ** 2 * (1 - 2 * at)
    found, missing = list[Estimate](), list[str]()
    for name, zero, each in zip(names, origin, counts, strict=True):
        below, ends = np.cumsum(each)[:-STEPS], zero + unit * edges[STEPS:-STEPS]
        first, second = ((below + np.correlate(each[1:], one)) / n for one in (ramp, ramp**2))
        errors = np.sqrt(np.maximum(second - first**2, 0.0) / n)
        for share in SHARES:
            title, find = f"{name}, {share:g}", partial(_find_limits, share, ends, first, errors)
            low, high = find(LEVEL)
            if ends[0] < low and high < ends[-1]:
                error = (high - low) / 2 / float(ndtri(0.5 + LEVEL / 2))
                found.append(Estimate(title, sum(find(0.0)) / 2, error, find=find))
            else:
                missing.append(title)
    estimates.check_determined(bool(found), LEVEL)
    estimates.say_left_out(missing)
    return found


def _find_limits(
    share: float, ends: FloatArray, means: FloatArray, errors: FloatArray, level: float
) -> tuple[float, float]:
    """Outermost of the ends between which neither ramp rejects the share.

    Parameters
    ----------
    share
        Of the records, up to the quantile.
    ends : (n_ends,)
        Ascending, evenly.
    means, errors : (n_ends + STEPS,)
        Of ramps, the first of which ends at the first of `ends`: mean, and its standard error.
    level
    """
    off = ndtri(0.5 + level / 2) * errors
    # Of what lies between two ends the ramp above begins at the later one, and the ramp below ends
    # at the earlier one.
    low = np.argmax((means + off)[STEPS + 1 :] >= share)
    high = np.flatnonzero((means - off)[: -STEPS - 1] <= share)[-1]
    return float(ends[low]), float(ends[high + 1])
