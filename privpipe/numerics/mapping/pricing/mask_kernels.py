"""Kernels of the search by masks: lower envelopes of lines per group of equal codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit

__all__ = ["build_envelopes", "search_envelopes", "sort_into_groups"]


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
