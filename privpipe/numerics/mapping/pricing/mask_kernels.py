"""Kernels of the search by masks: lower envelopes of lines per group, and what lies farther."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit

_RUN = 64
"""Symbols of like slope that are passed over together."""


@njit(cache=True, nogil=True)
def sort_into_groups(order: Any, group: Any, n_groups: Any) -> Any:
    """Members of every group in the order given, and where each group begins."""
    starts = np.zeros(n_groups + 1, np.int64)
    for k in range(order.shape[0]):
        starts[group[order[k]] + 1] += 1
    for g in range(n_groups):
        starts[g + 1] += starts[g]
    free, members = starts[:-1].copy(), np.empty(order.shape[0], np.int64)
    for k in range(order.shape[0]):
        g = group[order[k]]
        members[free[g]] = order[k]
        free[g] += 1
    return members, starts


@njit(cache=True, nogil=True)
def build_envelopes(members: Any, starts: Any, slope: Any, height: Any) -> Any:
    """Lines of the lower envelope of each group, slopes falling; how many, from its start on."""
    hull, size = np.empty(members.shape[0], np.int64), np.zeros(starts.shape[0] - 1, np.int64)
    for g in range(starts.shape[0] - 1):
        first, m = starts[g], 0
        for k in range(starts[g], starts[g + 1]):
            new = members[k]
            if m and slope[hull[first + m - 1]] == slope[new]:
                if height[hull[first + m - 1]] <= height[new]:
                    continue
                m -= 1
            while m >= 2:
                a, b = hull[first + m - 2], hull[first + m - 1]
                # b is nowhere below both: a meets new no later than it meets b.
                left = (height[new] - height[a]) * (slope[a] - slope[b])
                right = (height[b] - height[a]) * (slope[a] - slope[new])
                if left > right:
                    break
                m -= 1
            hull[first + m] = new
            m += 1
        size[g] = m
    return hull, size


@njit(cache=True, nogil=True)
def search_envelopes(
    hull: Any, starts: Any, size: Any, slope: Any, height: Any, group: Any, at: Any, found: Any
) -> Any:
    """The lowest line of its group for every query; -1 where the group has none."""
    for q in range(at.shape[0]):
        g = group[q]
        if g < 0 or size[g] == 0:
            found[q] = -1
            continue
        x, low, high = at[q], starts[g], starts[g] + size[g] - 1
        while low < high:
            middle = (low + high) // 2
            a, b = hull[middle], hull[middle + 1]
            if height[b] + slope[b] * x < height[a] + slope[a] * x:
                low = middle + 1
            else:
                high = middle
        found[q] = hull[low]


@njit(cache=True, nogil=True)
def search_far(
    height: Any,
    slope: Any,
    lines: Any,
    queries: Any,
    at: Any,
    lam: Any,
    near: Any,
    low: Any,
    found: Any,
) -> Any:
    """A line below `low` at each query among those of other codes, the lowest; else -1.

    A line costs `lam` for each attribute in which its codes, (n_lines, n_attributes), differ from
    the query's; those that differ in fewer than `near` are known already. Slopes ascend, so that
    runs of lines are alike: one is looked at only where it leaves room for that many differences.
    """
    n = len(slope)
    lows = np.full((n + _RUN - 1) // _RUN, np.inf)
    for i in range(n):
        lows[i // _RUN] = min(lows[i // _RUN], height[i])
    for q in range(len(at)):
        least, who, x = low[q], -1, at[q]
        for r in range(len(lows)):
            first, last = r * _RUN, min(n, (r + 1) * _RUN)
            steepest = min(slope[first] * x, slope[last - 1] * x)
            if lows[r] + steepest + near * lam >= least:
                continue
            for i in range(first, last):
                cost = height[i] + slope[i] * x
                if cost + near * lam >= least:
                    continue
                for k in range(lines.shape[1]):
                    if lines[i, k] != queries[q, k]:
                        cost += lam
                if cost < least:
                    least, who = cost, i
        found[q] = who
