"""The report of a run: one private file, without source code."""

from __future__ import annotations

import re
import stat
import time
from pathlib import Path
from typing import Any

from distributed import Client

from privpipe.cluster.executors.dask_executor import report_performance


def list_lines(state: dict[str, Any]) -> set[str]:
    found = {str(state["description"].get("line", "")).strip()}
    return found.union(*(list_lines(inner) for inner in state["children"].values()))


def work(number: int) -> int:
    """Long enough to be seen by profiles, which are taken once a second."""
    time.sleep(1.3)
    return number


def test_report__holds_tasks_and_no_source(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "report.html"
    with report_performance(client, str(path)):
        client.gather(client.map(work, range(2), key=["clean_chunk-0", "clean_chunk-1"]))
    page = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "Task Stream" in page
    assert "clean_chunk" in page
    assert not re.search(r"<(?:script|link)[^>]*(?:src|href)=", page)  # loads nothing
    # What Dask's own profile shows of the same work is nowhere in the page.
    lines = {line for line in list_lines(client.profile()) if len(line) > 12}
    assert lines
    assert not [line for line in lines if line in page]
    assert str(Path(__file__).parent) not in page


def test_report__is_not_made_unless_asked_for(client: Client, tmp_path: Path) -> None:
    with report_performance(client, None):
        client.submit(sum, [1]).result()
    assert list(tmp_path.iterdir()) == []
