"""Fixtures for all tests: threads pinned, Prefect's home of its own, the standard records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("DO_NOT_TRACK", "1")


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace: dict[str, Any]) -> None:
    import numpy as np

    doctest_namespace["np"] = np


@pytest.fixture(scope="session")
def paper_data() -> Path:
    """The folder of the papers' data sets, or a skip where the variable names none."""
    folder = os.environ.get("PRIVPIPE_PAPER_DATA")
    if not folder:
        pytest.skip("PRIVPIPE_PAPER_DATA is not set")
    return Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count in one line what was skipped for want of the papers' data sets."""
    skipped = terminalreporter.stats.get("skipped", [])
    missing = sum("PRIVPIPE_PAPER_DATA" in str(report.longrepr) for report in skipped)
    if missing:
        terminalreporter.write_line(
            f"{missing} tests were skipped: they need the papers' data sets, in the folder that "
            "PRIVPIPE_PAPER_DATA names."
        )
