"""What is wrong is said of what is wrong: the right exit code, and never a value of a record."""

from __future__ import annotations

import errno
import sys

import pytest

from privpipe.cluster.executors.boundary import seal
from privpipe.errors import OptionError, StoreError
from privpipe.store.access.location import local_path

LONG = "x" * 300


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("alice,Ulm\nbob,Bonn\n", ""),
        ("alice,Ulm\nbob,Bonn\n", "town"),
        ("alice,3.5\nbob,4.5\n", "x"),
        ("alice,3.5,NA\nbob,4.5,7\n", "x"),
        ("Ulm,Ulm\nUlm,Bonn\n", ""),
        ("Ulm,?\nBonn,7\n", "x"),
        ("alice@x.org;Ulm\nbob@x.org;Bonn\n", "x"),
    ],
)
def test_csv_without_names__tells_nothing_of_its_first_record(tmp_path, command, text, labels):
    (tmp_path / "s.csv").write_text(text)
    code, out, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--labels", labels)
    told = (out + err).replace(str(tmp_path), "")
    assert code in (2, 3)
    for value in ("alice", "Ulm", "3.5", "bob"):
        assert value not in told


def test_csv_of_text_alone__has_names_where_its_cells_repeat(tmp_path, command):
    rows = [f"{'xy'[i % 2]},{'pqr'[i % 3]}" for i in range(40)]
    (tmp_path / "s.csv").write_text("\n".join(["town,club", *rows]) + "\n")
    assert "use" in command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")[1]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    code, out, err = command("ingest", tmp_path / "t.csv", tmp_path / "d.zarr")
    assert (code, out, "error[no-header]" in err) == (3, "", True)


@pytest.mark.parametrize(("n_texts", "is_said"), [(2, False), (3, True)])
def test_ingest__says_that_texts_are_no_features(tmp_path, command, n_texts, is_said):
    names = ",".join(f"t{j}" for j in range(n_texts))
    rows = [f"{i % 9},{','.join('xyz'[(i + j) % 3] for j in range(n_texts))}" for i in range(40)]
    (tmp_path / "s.csv").write_text("\n".join([f"age,{names}", *rows]) + "\n")
    code, out, _ = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")
    assert (code, 'use = "indicators" makes features' in out) == (0, is_said)


def test_csv_folder__tells_nothing_of_a_second_file_without_names(tmp_path, command):
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "a.csv").write_text("name,town\nx,y\n")
    (folder / "b.csv").write_text("alice,Ulm\nbob,Bonn\n")
    code, out, err = command(
        "ingest", folder, tmp_path / "c.zarr", "--labels", "name,town", "--features", "name"
    )
    code, out, err = command("ingest", folder, tmp_path / "c.zarr", "--labels", "name,town")
    assert code == 3
    assert "alice" not in out + err
    assert "Ulm" not in out + err


def test_csv__with_a_line_break_in_a_quoted_name_is_read(tmp_path, command):
    (tmp_path / "s.csv").write_text('"height\nin cm","to""wn"\n170,Ulm\n180,Bonn\n190,Ulm\n')
    code, out, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--labels", 'to"wn')
    assert (code, err) == (0, "")
    assert "3 records, 1 features" in out


@pytest.mark.parametrize("row", [2, 3, 40, 70_000])
def test_text_in_a_numeric_column__is_told_by_row(tmp_path, command, row):
    lines = [f"{i % 7},{i % 5}" for i in range(80_000)]
    lines[row - 2] = "secret,2"
    (tmp_path / "s.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    code, out, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")
    # Where the sample has it the first call, which only looks, tells of it; else it ingests.
    assert (code == 0 and "1 other texts in the sample" in out) or f"row {row}" in err
    code, _, err_again = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")
    assert code == 3
    assert f"row {row}" in err_again
    assert "secret" not in out + err + err_again


@pytest.mark.parametrize("mark", ["ab", "", "é", '"', "\n"])
def test_delimiter__must_be_one_character(tmp_path, command, mark):
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    code, _, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--delimiter", mark)
    assert code == 2
    assert "The delimiter is" in err


def test_ingest__says_what_to_install_where_nothing_can_look_at_a_table(
    tmp_path, command, monkeypatch
):
    for module in ("clevercsv", "clevercsv.detect"):  # wherever another test has loaded it
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "s.csv").write_text("a,town\n1,Ulm\n2,Bonn\n")
    code, _, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")
    assert (code, "error[text-feature]" in err) == (3, True)
    assert "pip install 'privpipe[cluster]'" in err
    assert "Ulm" not in err
    code, _, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--yes")
    assert code != 0
    assert "pip install 'privpipe[cluster]'" in err
    # What needs no look is ingested.
    (tmp_path / "s.csv").write_text("a,b\n1,2\n2,1\n")
    assert command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr")[0] == 0


@pytest.mark.parametrize("size", ["-3", "0", "nan", "inf", "1e300", "5000"])
def test_chunk_mib__must_be_a_size(tmp_path, command, size):
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    code, _, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--chunk-mib", size)
    assert code == 2
    assert len(err) < 200


def test_arff__with_a_brace_that_does_not_close(tmp_path, command):
    (tmp_path / "s.arff").write_text("@relation r\n@attribute a {secret,other\n@data\n1\n")
    code, _, err = command("ingest", tmp_path / "s.arff", tmp_path / "c.zarr")
    assert code == 3
    assert "line 2 declares an attribute" in err
    assert "secret" not in err


@pytest.mark.parametrize("place", [LONG, f"{LONG}.csv", f"{LONG}.npz", "C:\\x", "C:/x.zarr"])
def test_paths_that_cannot_be__are_options_that_are_wrong(tmp_path, command, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    commands = [("ingest", place, "c.zarr"), ("ingest", "s.csv", place), ("inspect", place)]
    commands += [("status", place), ("purge", place), ("export", place, "o.parquet")]
    for arguments in commands:
        code, _, err = command(*arguments)
        assert (code, "error[place]" in err) == (2, True), arguments
        assert LONG not in err


def test_names_of_variables__that_no_file_can_have(tmp_path, command):
    for name in (LONG, "zarr.json", "é" * 200):
        (tmp_path / "s.csv").write_text(f"a,{name}\n1,x\n2,y\n")
        code, _, err = command("ingest", tmp_path / "s.csv", tmp_path / "c.zarr", "--labels", name)
        assert (code, "error[reserved-name]" in err) == (3, True)


def test_local_path__knows_a_file_named_like_a_drive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="Windows"):
        local_path("C:\\x")
    (tmp_path / "C:\\x").touch()
    assert local_path("C:\\x") == f"{tmp_path}/C:\\x"
    with pytest.raises(OptionError, match="no URL"):
        local_path("s3://[x")
    with pytest.raises(OptionError, match="null"):
        local_path("a\0b")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR])
def test_seal__blames_the_file_system_for_what_it_refuses(number):
    sealed = seal(OSError(number, "text", "alice.csv"), "ingest")
    assert isinstance(sealed, StoreError)
    assert "alice" not in str(sealed)
