"""Small files for tests of operations; most need no process of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tabulate import tabulate

PLAYED = ("test_whole.py", "test_outages.py", "test_alerts_played.py")


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


def pytest_terminal_summary(terminalreporter) -> None:
    """What was played on a whole installation, as a table of accident, expected and seen."""
    rows = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            place, _, name = report.nodeid.partition("::test_")
            if report.when != "call" or not place.endswith(PLAYED):
                continue
            accident, _, expected = name.partition("__")
            expected, _, which = expected.rstrip("]").partition("[")
            seen = dict(report.user_properties).get("seen", "")
            if report.failed:
                seen = f"{seen} {report.longrepr.reprcrash.message.splitlines()[0]}"
            rows.append([f"{accident} {which}", expected.replace("_", " "), outcome, seen])
    if rows:
        headers = ["accident", "expected", "test", "seen"]
        terminalreporter.write_line(tabulate(rows, headers, maxcolwidths=[24, 30, None, 60]))
