"""The commands around a run: ingest, inspect, init, schema, export; values are withheld."""

from __future__ import annotations

import json

import pytest

from privpipe.command import main
from tests.store.releases.test_export import make_release
from tests.store.tables import make_frame


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command with arguments; returns exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["privpipe", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return ended.value.code or 0, found.out, found.err

    return run


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "t.csv"
    make_frame(40).to_csv(path, index=False)
    return path


def test_ingest__shows_schema_and_counts_and_no_value(tmp_path, command, source):
    arguments = ("ingest", source, tmp_path / "c.zarr", "--labels", "smoker,score")
    more = ("--categorical", "town", "--drop", "id", "--min-category-count", "12")
    code, out, err = command(*arguments, *more)
    assert (code, err) == (0, "")
    assert "40 records, 3 features (float64)" in out
    assert "1 cells of the features in 1 records" in out
    code, inspected, _ = command("inspect", tmp_path / "c.zarr")
    assert "features: height, weight, steps" in out
    table = out[out.index(" variable ") :]
    assert table in inspected
    code, text, _ = command("inspect", tmp_path / "c.zarr", "--json")
    content = json.loads(text)
    town = next(v for v in content["variables"] if v["name"] == "town")
    assert town["n_missing"] == 1
    assert town["n_categories"] >= 1
    for told in (out, inspected, text):
        assert not [value for value in ("Ulm", "Köln", "a, b", "(other)") if value in told]


def test_ingest__errors_have_the_code_of_their_class(tmp_path, command, source):
    code, out, err = command("ingest", source, tmp_path / "c.zarr", "--labels", "smokr")
    assert code == 2
    assert "did you mean 'smoker'" in err
    code, out, err = command("ingest", source, tmp_path / "c.zarr")
    assert code == 3
    assert "holds text in town" in err
    code, out, err = command("ingest", tmp_path / "gone.csv", tmp_path / "c.zarr")
    assert (code, out) == (4, "")


def test_ingest__json_is_for_machines(tmp_path, command, source):
    _, out, _ = command("ingest", source, tmp_path / "c.zarr", "--drop", "id,town", "--json")
    assert json.loads(out)["n_records"] == 40


def test_init__writes_once(tmp_path, command, source):
    command("ingest", source, tmp_path / "c.zarr", "--drop", "id,town", "--labels", "smoker")
    out = tmp_path / "p.toml"
    code, said, _ = command("init", tmp_path / "c.zarr", out, "--desired", "smoker")
    assert code == 0
    assert f"privpipe run {out}" in said.replace("\n", "")
    text = out.read_text()
    assert 'desired = ["smoker"]' in text
    assert f'path = "{tmp_path}/c.release.zarr"' in text
    code, _, err = command("init", tmp_path / "c.zarr", out)
    assert code == 4
    assert "exists" in err
    assert out.read_text() == text
    assert command("init", tmp_path / "c.zarr", "-", "--desired", "smoker")[1] == text


def test_schema__is_a_json_schema(command):
    code, out, _ = command("schema")
    assert code == 0
    assert json.loads(out)["properties"].keys() >= {"collection", "method", "release"}


def test_export__writes_the_release(tmp_path, command):
    url, _ = make_release(tmp_path / "r.zarr")
    code, out, _ = command("export", url, tmp_path / "r.parquet", "--verify")
    assert code == 0
    assert "23 released records" in out
    assert (tmp_path / "r.parquet").exists()
    code, _, err = command("export", url, tmp_path / "r.parquet")
    assert code == 4
    assert "exists" in err
