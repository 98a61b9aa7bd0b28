"""Benchmarks run small in every test run, so that they cannot rot."""

from __future__ import annotations

import math

import pytest

from tests.bench.__main__ import COLUMNS, find_benchmarks, run_benchmarks


@pytest.mark.slow
@pytest.mark.parametrize("name", find_benchmarks())
def test_benchmark__runs_small(name: str) -> None:
    rows = run_benchmarks([name], small=True)
    assert rows
    for row in rows:
        assert len(row) == len(COLUMNS)
        assert math.isfinite(row[-1])
