"""Spans and lineage of real runs: what is sent, and that no text of an error is."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs import tracing
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from tests.store.serial_run import make_options, serial_flows, write_small_collection

SECRET = "Mrs. Jones, 41"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where OpenLineage's own client writes them."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "events"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return tmp_path / "events"


def read(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events.read_text().splitlines()]


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    write_small_collection(str(tmp_path / "records.zarr"), n_records=110)
    return make_options(str(tmp_path / "records.zarr"), str(tmp_path / "release.zarr"))


def test_run__is_a_span_with_one_for_each_stage_and_a_job_with_its_datasets(
    options: RunOptions, tmp_path: Path, spans: InMemorySpanExporter, events: Path
) -> None:
    with serial_flows():
        release_collection(options, Watch())
    found = {one.name: one for one in spans.get_finished_spans()}
    assert {"run", "check", "train", "clean", "audit"} <= found.keys()
    run = found.pop("run")
    assert all(one.parent and one.parent.span_id == run.context.span_id for one in found.values())
    assert found["clean"].attributes == {
        "privpipe.run": found["audit"].attributes["privpipe.run"],
        "privpipe.release": "release.zarr",
    }
    begun, ended = read(events)
    assert (begun["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert begun["producer"] == "urn:privpipe"
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert [one["name"] for one in ended["inputs"]] == [str(tmp_path / "records.zarr")]
    made = [str(tmp_path / name) for name in ("release.zarr", "release.model.zarr")]
    assert [one["name"] for one in ended["outputs"]] == made


def test_run__that_fails_sends_a_code_and_no_text(
    options: RunOptions, spans: InMemorySpanExporter, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr("privpipe.pipeline.stage_tasks.check_task", fail)
    with pytest.raises(ValueError, match="Jones"), serial_flows():
        release_collection(options, Watch())
    sent = "".join(one.to_json() for one in spans.get_finished_spans()) + events.read_text()
    assert SECRET not in sent
    assert {one.status.description for one in spans.get_finished_spans()} == {"ValueError"}
    assert [one["eventType"] for one in read(events)] == ["START", "FAIL"]


@pytest.mark.parametrize(
    "name", [pytest.param("OPENLINEAGE_URL", marks=pytest.mark.slow), "OPENLINEAGE_CONFIG"]
)
def test_run__is_not_hindered_by_whoever_should_listen(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nobody is at that address, and no file is there; nor where the package is missing."""
    monkeypatch.setenv(name, "http://127.0.0.1:9/" if name.endswith("URL") else "/nowhere.yml")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY__TOTAL", "0")
    said: list[str] = []
    with tracing.reporting_lineage(options, "job", said.append):
        pass
    monkeypatch.setitem(__import__("sys").modules, "openlineage.client", None)
    with tracing.reporting_lineage(options, "job", said.append):
        pass
    assert "pip install 'privpipe[lineage]'" in said[-1]


def test_name_dataset__sends_no_password() -> None:
    assert tracing.name_dataset("s3://me:secret@host/a/b") == ("s3://host", "a/b")
