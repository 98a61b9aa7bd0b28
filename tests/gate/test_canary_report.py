"""No value of a record is in report, JSON, event, artifact or page, whatever the audit measured."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import GateError
from privpipe.flows.comparison import compare_collection
from privpipe.pipeline import stage_tasks
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.console import PlainConsole
from tests.flows.canaries import Canaries
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

pytestmark = pytest.mark.usefixtures("serially")


@pytest.mark.slow
def test_canary__nothing_that_is_written_or_told_holds_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_records(2400)
    write_records(str(tmp_path / "records.zarr"), records | {"copy": records["secret"]})
    told: list[Any] = []
    monkeypatch.setattr(stage_tasks, "_in_flow", lambda: True)
    monkeypatch.setattr(
        stage_tasks, "notify_prefect", lambda _, *given, **named: told.extend([given, named])
    )
    given: dict[str, Any] = {
        "release": {"include": ["copy"]},
        "audit": {"holdout": 0.7},
        "method": {"name": "leace"},
    }
    options = make_leaky_options(tmp_path, **given)
    with pytest.raises(GateError) as caught:
        run_serially(options)
    told.append(str(caught.value))
    ungated = given | {"gate": {"enforce": False}}
    run_serially(make_leaky_options(tmp_path, **ungated))
    entries = [{"method": {"name": "leace"}}, {"method": {"name": "pca", "n_filtered": 2}}]
    compared = make_leaky_options(tmp_path, **ungated).model_dump() | {"compare": entries}
    compare_collection(
        type(options)(**compared | {"cluster": {"workers": 0}}),
        Watch(PlainConsole(file=io.StringIO())),
    )
    canaries = Canaries(
        {"features": records["features"]},
        {name: tuple(f"{name}-{k}" for k in range(2)) for name in ("secret", "wanted")},
    )
    written = [*(tmp_path / "release.report").iterdir(), *(tmp_path / "release.compare").iterdir()]
    assert {path.suffix for path in written} >= {".json", ".html", ".md"}
    for path in written:
        assert not canaries.find(path.read_bytes()), path.name
    content = json.dumps(told)
    assert "privpipe.gate" in content
    assert "'secret' leaks" in content
    assert not canaries.find(content.encode())
    assert canaries.find(f"{records['features'][5, 1]:.17g} secret-1".encode())  # it can fail
