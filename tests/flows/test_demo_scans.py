"""The demo's scans are scikit-learn's, read without its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


QUIET = """
from privpipe.pipeline.operations.prefect_server import prepare_prefect
prepare_prefect()
import prefect.logging.configuration
prefect.logging.configuration.setup_logging()
from privpipe.cluster.executors.dask_executor import open_executor
from privpipe.cluster.workers.connection import ClusterOptions
if __name__ == "__main__":
    with open_executor(ClusterOptions(workers=1), "quiet") as executor:
        executor.describe()
"""


@pytest.mark.slow
def test_cluster__writes_nothing_to_the_terminal_where_prefect_logs(tmp_path: Path) -> None:
    """Dask has no handler of its own to silence where the root has one before it is imported."""
    script = tmp_path / "quiet.py"
    script.write_text(QUIET)
    found = subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    assert found.stderr == b""
