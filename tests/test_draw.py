"""CI's share of the long tests: every process draws the same, and in time all are drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import draw_files

FILES = [Path("tests", f"test_{k}.py") for k in range(21)]
SLOW = (
    "test_estimates__of_noisy_moments_cover[1000]",
    "test_draw__has_the_same_bytes_without_a_compiler",
)
"""One of each of two files, which have quick tests as well."""

ROOT = Path(__file__).parents[1]


def test_draw_files__a_word_draws_a_share_whatever_the_order() -> None:
    drawn = draw_files(FILES, 0.5, "a")
    assert len(drawn) == 11
    assert drawn == draw_files(reversed(FILES), 0.5, "a")
    assert drawn != draw_files(FILES, 0.5, "b")
    assert draw_files(FILES, 1.0, "a") == set(FILES)


def test_draw_files__none_is_left_out_for_ever() -> None:
    seen: set[Path] = set()
    for commit in range(20):
        seen |= draw_files(FILES, 0.5, str(commit))
    assert seen == set(FILES)


def test_share__leaves_out_the_slow_tests_of_a_file_and_no_quick_one() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only"]
    command += ["tests/numerics/noise", "-m", "", "--share", "0.5", "--draw", "a"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    slow = [name for name in SLOW if f"::{name}" in found]
    assert len(slow) == 1
    assert "test_estimates.py::" in found
    assert "test_knorm.py::" in found
