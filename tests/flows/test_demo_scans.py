"""The demo's scans are scikit-learn's, read without its import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from privpipe.command.demo_command import load_scans


def test_load_scans__are_those_of_scikit_learn() -> None:
    features, digits = load_scans()
    expected, classes = load_digits(return_X_y=True)
    assert features.dtype == np.float32
    assert (features == expected).all()
    assert (digits == classes).all()


@pytest.mark.slow
def test_command__imports_neither_adversaries_nor_prefect_s_server() -> None:
    """Each costs the driver seconds of processor time; what they are for is done elsewhere."""
    rooms = ("command.demo_command", "flows.release_flow")
    program = f"import sys, {', '.join(f'privpipe.{room}' for room in rooms)}\n"
    program += "print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    modules = set(loaded.stdout.decode().split())
    assert "prefect" in modules
    assert not modules & {"sklearn", "scipy.stats", "prefect.server", "matplotlib", "bokeh"}
