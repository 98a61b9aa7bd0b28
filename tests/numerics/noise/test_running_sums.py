"""Runs of partitions that get noise once: what a sum is made of, and where a partition is in."""

from __future__ import annotations

from math import comb, log2, sqrt

import pytest

from privpipe.numerics.noise.running_sums import MOST_PARTITIONS, find_runs, plan_runs


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 8, 30, 63, 64, 365])
def test_find_runs__add_up_and_hold_no_partition_more_often_than_planned(most: int) -> None:
    """All sums of all lengths that a growth can release, and all of their partitions."""
    used, held = plan_runs(most)
    released: set[tuple[int, int]] = set()
    for n in range(1, most + 1):
        runs = find_runs(n, most)
        assert [first for first, _ in runs] == [0, *(behind for _, behind in runs[:-1])]
        assert runs[-1][1] == n
        assert len(runs) <= used
        # A night of one partition adds one run, which ends with it: no other sees noise anew.
        assert set(runs) - released == {runs[-1]}
        released |= set(runs)
    often = [sum(first <= one < behind for first, behind in released) for one in range(most)]
    assert max(often) == held


def test_plan_runs__has_an_error_that_grows_with_the_logarithm() -> None:
    """Beside noise anew for each sum, or one per partition: both grow with the root."""
    for k in range(1, 21):
        used, held = plan_runs(2**k)
        assert comb(used + held, held) > 2**k
        assert sqrt(used * held) <= min(sqrt(2**k), 1 + k / 2 + log2(k + 1) / 4)
    assert sqrt(30) == sqrt(used_times_held(365)) < sqrt(365) / 3
    assert used_times_held(1) == 1
    assert plan_runs(MOST_PARTITIONS) == (13, 10)


def used_times_held(most: int) -> int:
    used, held = plan_runs(most)
    return used * held
