"""The first page of the RUNBOOK, followed literally in an empty folder, ends with a release.

Starts nine processes: minutes on a small machine. Runs where PRIVPIPE_TEST_RUNBOOK is set.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def read_blocks() -> list[str]:
    text = (ROOT / "deploy" / "RUNBOOK.md").read_text().split("\n## 2.")[0]
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_first_page__is_a_script_without_mistakes() -> None:
    done = subprocess.run(
        ["bash", "-n"], input="\n".join(read_blocks()), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif("PRIVPIPE_TEST_RUNBOOK" not in os.environ, reason="PRIVPIPE_TEST_RUNBOOK")
def test_first_page__ends_with_a_scheduled_release(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DASK"))}
    environment |= {
        "PRIVPIPE": str(ROOT),
        "PREFECT_PORT": free_port(),
        "SCHEDULER_PORT": free_port(),
    }
    script = "set -euo pipefail\n" + "\n".join(read_blocks())
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=560)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-3000:]
    assert "privpipe is ready" in said
    assert re.search(r"promised \d+: .*[1-9]\d* made", said)
    assert "Every stored byte matches its receipt." in said
