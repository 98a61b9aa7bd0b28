"""A run whose reader died, as when a worker of Prefect is killed: it goes on, and says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from privpipe.report.console import PlainConsole
from privpipe.pipeline.operations.prefect_server import outlive_reader
if sys.argv[1] == "outlives":
    outlive_reader()
console = PlainConsole(stderr=True)
console.print("begun")
sys.stdin.readline()
for _ in range(3):
    console.print("a line that nobody reads")
Path("done").touch()
"""


@pytest.mark.parametrize("way", ["usual", "outlives"])
def test_run__goes_on_when_nobody_reads_what_it_says(tmp_path: Path, way: str) -> None:
    """Without it Rich ends the process, which is what the first case shows."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way], cwd=tmp_path, stdin=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    assert os.read(reader, 100) == b"begun\n"
    os.close(reader)
    process.communicate(b"\n", timeout=60)
    assert (process.returncode == 0, (tmp_path / "done").exists()) == ((way == "outlives",) * 2)


def test_log__of_lines_that_nobody_reads_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from privpipe.cluster.workers.progress import Progress
    from privpipe.pipeline.runs.watch import log_progress

    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv("PRIVPIPE_LOG", "json")
    with os.fdopen(writer, "wb", buffering=0) as raw:

        class Unbuffered:
            def write(self, text: str) -> int:
                return raw.write(text.encode())

        monkeypatch.setattr(sys, "stderr", Unbuffered())
        with pytest.raises(BrokenPipeError):
            sys.stderr.write("x")
        log_progress("begins", Progress())
