"""Gauges and lines of a driver: nothing that matters is missed between two exports."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from privpipe.cluster.executors.executor import Event
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.console import PlainConsole
from tests.cluster.workers.test_monitoring import read_gauges


def advance(n_records: int, **numbers: float) -> Event:
    return Event("clean_chunk", "advances", n_records, numbers=tuple(numbers.items()))


def test_driver__exports_the_end_of_a_stage_and_the_verdict_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "driver.prom"
    monkeypatch.setenv("PRIVPIPE_METRICS_FILE", str(path))
    monkeypatch.setenv("PRIVPIPE_LOG", "json")
    watch = Watch(PlainConsole(file=io.StringIO()))

    def read(name: str, label: str = "") -> float:
        return read_gauges(path.read_text())[name, label]

    watch.run_id = "0badcafe"
    with watch.stage("clean", "SECRETpath of a user"):
        assert read("privpipe_run_stage", "clean") == 1
        watch.hear(Event("clean_chunk", "begins", 300, numbers=(("chunks", 3.0),)))
        for number in (1, 2, 3):  # all within one export's time
            watch.hear(advance(100, chunks=1, withheld=2, clipped=number, bytes=10))
        watch.hear(advance(0, privacy_loss=1.5))
    assert (read("privpipe_work_done"), read("privpipe_chunks_done")) == (300, 3)
    assert (read("privpipe_withheld_records"), read("privpipe_clipped_records")) == (6, 6)
    assert (read("privpipe_written_bytes"), read("privpipe_privacy_loss")) == (30, 1.5)
    watch.judge("failed")
    assert read("privpipe_run_gate", "failed") == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["begins", "ends", "gate"]
    assert lines[-1]["gate"] == "failed"
    assert "SECRET" not in json.dumps(lines) + path.read_text()
