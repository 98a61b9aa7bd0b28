"""Sums of all that came so far, again and again: which runs of partitions get noise once.

Andersson and Pagh 2023, A Smooth Binary Mechanism for Efficient Private Continual Observation. It
is the binary tree of Dwork, Naor, Pitassi and Rothblum (2010), with partitions only at leaves whose
numbers have equally many ones. So a sum of any length has the same number of runs, and the same
error.
"""

from functools import cache
from math import comb

MOST_PARTITIONS = 2**20


@cache
def plan_runs(most: int) -> tuple[int, int]:
    """Most runs of a sum, and most runs in which a partition is, for so many partitions.

    Their product is the least: the variance of a sum in units of that of a single release.

    >>> plan_runs(1), plan_runs(30), plan_runs(365)
    ((1, 1), (4, 3), (6, 5))
    """
    codes = [(n, n - k, k) for n in range(2, 64) for k in range(1, n) if comb(n, k) > most]
    _, held, used = min(codes, key=lambda code: (code[1] * code[2], code))
    return used, held


def find_runs(n: int, most: int) -> list[tuple[int, int]]:
    """Runs that add up to the first n of at most `most` partitions, each ``(first, behind)``.

    >>> find_runs(5, 6), find_runs(6, 6)
    ([(0, 4), (4, 5)], [(0, 4), (4, 5), (5, 6)])
    """
    ones, zeros = plan_runs(most)
    runs, first = list[tuple[int, int]](), 0
    for place in reversed(range(ones + zeros)):
        # Leaves with a zero here: those below n are a run, and have all of it.
        behind = first + comb(place, ones)
        if behind <= n and ones:
            runs += [(first, behind)] * (behind > first)
            first, ones = behind, ones - 1
    return runs
