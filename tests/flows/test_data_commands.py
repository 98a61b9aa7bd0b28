"""The commands around a run: ingest, inspect, init, schema, export; values are withheld."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privpipe.command import main
from privpipe.store.collections import proposal
from privpipe.store.sources.reading import roles
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
    code, out, err = command("ingest", source, tmp_path / "c.zarr", "--drop", "id")
    assert code == 3
    assert "holds text in town" in err
    code, out, err = command("ingest", tmp_path / "gone.csv", tmp_path / "c.zarr")
    assert (code, out) == (4, "")


def test_ingest__looks_first_and_takes_the_reviewed_schema(tmp_path, command, source):
    pytest.importorskip("clevercsv")
    dest, schema = tmp_path / "c.zarr", tmp_path / "c.schema.toml"
    code, out, err = command("ingest", source, dest)
    assert (code, err) == (0, "")
    assert "nothing is ingested yet" in out
    assert not dest.exists()
    written = schema.read_text()
    for told in (out, written):
        assert not [value for value in ("Ulm", "Köln", "7000000") if value in told]
    schema.write_text(written.replace('use = "variable"', 'use = "drop"'))
    code, out, _ = command("ingest", source, dest)
    assert code == 0
    assert "40 records" in out
    assert "town" not in out
    # What is wrong in it is said by key, and nothing is made.
    schema.write_text(written.replace('"variable"', '"variabel"').replace("[file]", "[fil]"))
    code, out, err = command("ingest", source, tmp_path / "d.zarr", "--schema", schema)
    assert (code, out) == (2, "")
    assert "town.use" in err
    named = ("--labels", "steps", "--numeric", "steps")
    code, out, _ = command("ingest", source, tmp_path / "e.zarr", "--yes", *named)
    assert code == 0
    assert "features: id, height, weight, smoker, score" in out


def test_ingest__arrays_by_name_need_no_review(tmp_path, command):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", features=rng.normal(size=(50, 4)), y=rng.integers(0, 2, 50))
    named = ("--features", "features", "--labels", "y", "--categorical", "y")
    code, out, _ = command("ingest", tmp_path / "a.npz", tmp_path / "a.zarr", *named, "--yes")
    assert (code, "50 records, 4 features" in out) == (0, True)
    code, _, err = command("ingest", tmp_path / "a.npz", tmp_path / "b.zarr", "--yes")
    assert (code, "is no table" in err) == (3, True)


@pytest.mark.parametrize("most", [500, pytest.param(roles.MOST_COLUMNS, marks=pytest.mark.slow)])
def test_ingest__too_many_columns_leave_no_schema_behind(tmp_path, command, monkeypatch, most):
    for module in (roles, proposal):
        monkeypatch.setattr(module, "MOST_COLUMNS", most)
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    columns = {f"c{j}": [0.5, 1.5] for j in range(most + 1)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "w.parquet")
    code, _, err = command("ingest", tmp_path / "w.parquet", tmp_path / "w.zarr", "--yes")
    assert (code, f"more than {most:,} columns" in err) == (3, True)
    assert [path.name for path in tmp_path.iterdir()] == ["w.parquet"]


def test_ingest__zeros_that_would_be_lost_are_refused_with_all_rows(tmp_path, command):
    path = tmp_path / "z.csv"
    path.write_text("a,zip\n" + "1.5,12345\n" * 3 + "0.5,00137\n2.5,01067\n")
    code, out, err = command("ingest", path, tmp_path / "c.zarr", "--labels", "a", "--json")
    found = json.loads(out)["error"]
    assert (code, found["code"]) == (3, "lost-zero")
    assert found["details"] == [{"column": "zip", "row": 5}, {"column": "zip", "row": 6}]
    assert "00137" not in out + err
    listed = (tmp_path / "c.errors.json").read_text()
    assert json.loads(listed) == found["details"]
    assert f"2 places: {tmp_path / 'c.errors.json'}" in found["remedy"]
    for more in ("--features", "--categorical"):
        dest = tmp_path / f"{more}.zarr"
        assert command("ingest", path, dest, "--labels", "a", more, "zip")[0] == 0


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


@pytest.mark.parametrize("role", ["--desired", "--confidential"])
def test_init__refuses_a_variable_of_one_category(tmp_path, command, role):
    """A confidential one ended in a division by zero, and a desired one was for `check` to find."""
    path, there = tmp_path / "one.csv", tmp_path / "c.zarr"
    make_frame(40).assign(kind="same").to_csv(path, index=False)
    command("ingest", path, there, "--drop", "id,town", "--labels", "smoker,kind")
    for method in ((), ("--method", "minimax")):
        code, _, err = command("init", there, tmp_path / "p.toml", role, "kind", *method)
        assert code == 3
        assert "[single_class]: 'kind' has one and the same value" in err
    assert not (tmp_path / "p.toml").exists()


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
    assert command("export", url, tmp_path / "r.parquet")[0] == 0  # it is what was to be written
    (tmp_path / "r.parquet").write_bytes(b"of somebody")
    code, _, err = command("export", url, tmp_path / "r.parquet")
    assert code == 4
    assert "exists" in err
