"""``privpipe apply``: the next file is cleaned by the stored model as its run would clean it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import privpipe.flows.release_flow
from privpipe.command import run_command
from privpipe.errors import GateError, GuessWarning, InputError, OptionError
from privpipe.flows import apply_flow
from privpipe.flows.apply_flow import check_application
from privpipe.pipeline.runs.earlier import find_earlier
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.audit.audit_attacks import describe_published
from privpipe.report.console import PlainConsole
from privpipe.store.arrays.layout import read_header
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import FileForm, TableSchema
from privpipe.store.models import open_model, write_model
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.column_guess import ColumnPlan
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.serial_run import run_serially, serial_flows

pytestmark = pytest.mark.slow
NAMES = list("abcde")
TOWNS = ("alpha", "beta", "gamma=1")


def make_people(n: int, seed: int, *, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 5)).round(3) + shift, columns=NAMES)
    frame["late"] = np.where(frame["a"] > frame["b"], "ja", "nein")
    frame["party"] = np.where(frame["c"] + rng.normal(size=n) / 3 > shift, "x", "y")
    return frame


def write_european(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False, sep=";", decimal=",")
    return path


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A released model of a European table; flows run in this process, without Prefect."""
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    plans = {name: ColumnPlan("number", "feature") for name in NAMES}
    plans |= {name: ColumnPlan("text", "variable") for name in ("late", "party")}
    schema = TableSchema(FileForm(delimiter=";", decimal=","), plans)
    path = write_european(make_people(900, 1), tmp_path / "people.csv")
    ingest(path, tmp_path / "people.zarr", IngestOptions(schema=schema))
    options = RunOptions(
        collection={
            "path": str(tmp_path / "people.zarr"),
            "desired": ["late"],
            "confidential": ["party"],
        },
        method={"name": "null_space", "utility_budget": 0.05, "ridge": 0.01},
        release={"path": str(tmp_path / "people.release.zarr")},
        audit={"holdout": 0.4, "adversaries": []},
        gate={"enforce": False},
        cluster={"workers": 0},
    )

    def run_flow(ready: tuple[RunOptions, Watch, Any], *rest: Any) -> dict[str, Any]:
        options, _, checked = ready
        watch = Watch(PlainConsole(file=io.StringIO()))
        privpipe.flows.release_flow.release_collection(options, watch, checked=checked)
        return {}

    monkeypatch.setattr(run_command, "run_flow", run_flow)
    monkeypatch.setattr(run_command, "prepare_prefect", lambda: None)
    with serial_flows():
        run_serially(options)
        yield str(tmp_path / "people.release.model.zarr")


def test_apply__releases_what_the_run_released_of_the_same_records(model, tmp_path) -> None:
    source = str(tmp_path / "people.csv")
    found = run_command.apply_command(model, source, str(tmp_path / "again.parquet"))
    first = open_release(str(tmp_path / "people.release.zarr"))["features"].to_numpy()
    again = open_release(str(tmp_path / "again.zarr"))["features"].to_numpy()
    assert first.tobytes() == again.tobytes()
    assert found["exported"] == pq.read_metadata(tmp_path / "again.parquet").num_rows == 900
    # Once more nothing is to be done; where the file is gone it is written again.
    made = (tmp_path / "again.parquet").stat().st_mtime_ns
    assert (
        run_command.apply_command(model, source, str(tmp_path / "again.parquet"))["exported"]
        is None
    )
    assert (tmp_path / "again.parquet").stat().st_mtime_ns == made
    (tmp_path / "again.parquet").unlink()
    again = run_command.apply_command(model, source, str(tmp_path / "again.parquet"))
    assert again["exported"] == 900


def test_apply__of_new_records_without_labels_in_another_order(model, tmp_path, capsys) -> None:
    new = make_people(300, 2)[["e", "c", "a", "b", "d"]]
    source = str(write_european(new, tmp_path / "next.csv"))
    run_command.apply_command(model, source, str(tmp_path / "next.zarr"))
    released = open_release(str(tmp_path / "next.zarr"))["features"].to_numpy()
    np.testing.assert_allclose(released, open_model(model).apply(new[NAMES].to_numpy()), rtol=1e-12)
    said = capsys.readouterr().out
    assert "promise" in said
    assert "drift" in said
    # Once more it changes nothing; another file of the same name is another release.
    run_command.apply_command(model, source, str(tmp_path / "next.zarr"))
    write_european(make_people(301, 3)[NAMES], tmp_path / "next.csv")
    with pytest.raises(Exception, match="exists and is of another configuration"):
        run_command.apply_command(model, source, str(tmp_path / "next.zarr"))


def test_apply__vouches_for_nothing_that_is_not_shown(model: str, tmp_path: Path) -> None:
    """A misspelled name was passed over. One of a stored model still is: no one can correct it."""
    source = str(write_european(make_people(300, 2)[NAMES], tmp_path / "next.csv"))
    with pytest.raises(OptionError, match="vouched has no 'ordre'"):
        run_command.apply_command(model, source, str(tmp_path / "next.zarr"), ("ordre",))
    assert not [*tmp_path.glob("next.*.zarr")]  # before the file was read
    header = read_header(model, "model")
    header["run"]["audit"]["vouched"] = ["nope", "order"]
    with pytest.MonkeyPatch.context() as patch:
        changed = {"model": header}
        patch.setattr(
            apply_flow, "read_header", lambda url, kind: changed.get(kind) or read_header(url, kind)
        )
        options, _ = check_application(model, source, str(tmp_path / "next.zarr"), ("withheld",))
    assert options.audit.vouched == ("order", "withheld")


def test_apply__of_records_that_an_earlier_release_of_the_model_holds_too(
    model: str, tmp_path: Path
) -> None:
    """A map that draws nothing gives them the same rows: which are in both is vouched for."""
    both = pd.concat([make_people(900, 1)[:40], make_people(260, 2)])[NAMES]
    source, dest = str(write_european(both, tmp_path / "next.csv")), str(tmp_path / "next.zarr")
    run_command.apply_command(model, source, dest)
    digest = read_header(model, "model")["digest"]

    def list_unread(*vouched: str, **changes: Any) -> set[str]:
        _, run = check_application(model, source, dest, vouched)
        found = find_earlier(run)
        # Those of before, not what was just made of these records.
        found = replace(found, releases=tuple(one for one in found.releases if "people" in one.url))
        assert len(found.releases) == 1
        trained: Any = SimpleNamespace(**{"model_digest": digest, "draws": False, **changes})
        return {one.target.partition(" ")[0] for one in describe_published(run, found, trained)[1]}

    assert list_unread() == {"order", "earlier"}
    assert list_unread("order", "earlier") == set()
    # Other draws are averaged, and another map's row is another reading of the record.
    assert list_unread("order", "earlier", draws=True) == {"null_space"}
    assert list_unread("order", "earlier", model_digest="other") == {"null_space"}


def test_apply__refuses_what_the_model_was_not_made_for(model, tmp_path) -> None:
    far = str(write_european(make_people(300, 4, shift=3.0)[NAMES], tmp_path / "far.csv"))
    with pytest.raises(GateError, match="drifted"):
        run_command.apply_command(model, far, str(tmp_path / "far.zarr"))
    assert not (tmp_path / "far.zarr").exists()
    less = str(write_european(make_people(50, 5)[["a", "b"]], tmp_path / "less.csv"))
    with pytest.raises(InputError, match="lacks c, d, e"):
        run_command.apply_command(model, less, str(tmp_path / "less.zarr"))
    bare = str(tmp_path / "bare.model.zarr")
    write_model(open_model(model), bare)
    assert "run" in read_header(model, "model")
    with pytest.raises(OptionError, match="does not know the run"):
        run_command.apply_command(bare, far, str(tmp_path / "b.zarr"))


def test_apply__reads_stdin_and_writes_stdout_for_pipes(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    """Twice: the second call finds the same file, and releases nothing anew."""
    text = write_european(make_people(400, 5), tmp_path / "next.csv").read_bytes()
    dest = str(tmp_path / "next.release.csv")
    for attempt in range(2):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        if attempt:
            (tmp_path / "next.release.csv").unlink()
            monkeypatch.setattr(run_command, "run_flow", lambda *_: {})
        run_command.apply_command(model, "-", dest, ("order",), stdout=True)
        written, said = capfdbinary.readouterr()
        assert written == Path(dest).read_bytes()
        assert b"drift" in said
        assert b"these are the raw records" in said
        assert pd.read_csv(io.BytesIO(written)).shape == (400, 5)
    [spooled] = tmp_path.glob("raw-next.release.????????????.csv")
    assert [path.name for path in tmp_path.glob("next.release*.csv")] == ["next.release.csv"]
    assert spooled.stat().st_mode & 0o077 == 0
    with pytest.raises(OptionError, match="--stdout needs a file"):
        run_command.apply_command(model, "-", str(tmp_path / "x.zarr"), stdout=True)
    with pytest.raises(OptionError, match="does not end in"):
        run_command.apply_command(model, "-", str(tmp_path / "x.xlsx"))


@pytest.mark.parametrize("by_schema", [True, False])
def test_apply__of_other_categories_of_a_column_that_became_indicators(
    by_schema: bool, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the model are all there; a cell of another is 0 in all, and counted."""
    people, coming = make_people(900, 1), make_people(40, 2)
    for frame in (people, coming):
        frame["town"] = np.array(TOWNS)[np.arange(len(frame)) % 3]
    mark = "," if by_schema else ";"
    people.to_csv(tmp_path / "towns.csv", index=False, sep=mark)
    layout = SourceLayout(labels=("late", "party"), one_hot=("town",), delimiter=mark)
    plans = {name: ColumnPlan("number", "feature") for name in NAMES}
    plans |= {name: ColumnPlan("text", "variable") for name in ("late", "party")}
    plans["town"] = ColumnPlan("text", "indicators")
    schema = TableSchema(FileForm(), plans)
    options = IngestOptions(schema=schema) if by_schema else IngestOptions(layout)
    ingest(tmp_path / "towns.csv", tmp_path / "towns.zarr", options)
    known = read_header(model, "model")["run"]
    sections = {name: known[name] for name in ("method", "audit", "gate", "cluster")}
    sections["gate"] |= {"drift_max": 3.0}
    collection = {**known["collection"], "path": str(tmp_path / "towns.zarr")}
    release = {"path": str(tmp_path / "towns.release.zarr")}
    run_serially(RunOptions(collection=collection, release=release, **sections))
    # None of one category; of another, some.
    coming["town"] = coming["town"].replace({"beta": "delta"})
    coming.to_csv(tmp_path / "coming.csv", index=False, sep=mark)
    with pytest.warns(GuessWarning, match="13 of 40 records have one of 1 categories"):
        run_command.apply_command(
            str(tmp_path / "towns.release.model.zarr"),
            str(tmp_path / "coming.csv"),
            str(tmp_path / "coming.zarr"),
        )
    raw = coming[NAMES].assign(
        **{f"town={one}": (coming["town"] == one).astype(float) for one in TOWNS}
    )
    released = open_release(str(tmp_path / "coming.zarr"))["features"].to_pandas()
    fitted = open_model(str(tmp_path / "towns.release.model.zarr"))
    np.testing.assert_allclose(released[raw.columns], fitted.apply(raw), atol=1e-5)
