"""Small files for tests of operations; most need no process of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def batches(tmp_path: Path) -> list[Path]:
    """Four sources of 60 records with three features and one class each, of one law."""
    rng = np.random.default_rng(7)
    found = []
    for number in range(4):
        x = rng.normal(size=(60, 3)).round(3)
        found.append(tmp_path / f"batch{number}.npz")
        y = (x[:, 0] > 0).astype("int8")
        y[:2] = [0, 1]
        np.savez(found[-1], x=x, sign=y)
    return found


SEEN: list[tuple[str, str]] = []
"""Accident, and what was seen."""


@pytest.fixture
def record_seen():
    return lambda accident, seen: SEEN.append((accident, seen))


def pytest_terminal_summary(terminalreporter) -> None:
    """The accidents that were played, as a table."""
    for accident, seen in SEEN:
        terminalreporter.write_line(f"{accident:<24}{seen}")
