"""The table of formats: one row and one module make a format, everywhere it is spoken of."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, StoreError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import ingest
from privpipe.store.sources import formats
from privpipe.store.sources.formats import FORMATS, SourceFormat, describe_formats, find_format
from privpipe.store.sources.reading.source import SourceLayout

TOY = "tests.store.sources.toy_format"
TEXT = "1.5 2 0.25\n3 4 0.5\n5 6 0.75\n"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch):
    def add(row: SourceFormat) -> None:
        monkeypatch.setattr(formats, "FORMATS", (*FORMATS, row))

    return add


def check_ingested(source: Path, dest: Path, n_times: int = 1) -> None:
    ingest(source, dest)
    collection = open_collection(dest)
    x = collection.read("features", 0, 3 * n_times)
    np.testing.assert_array_equal(x, [[1.5, 2], [3, 4], [5, 6]] * n_times)
    late = collection.read("late", 0, 3 * n_times)
    np.testing.assert_array_equal(late, [0.25, 0.5, 0.75] * n_times)


def test_toy__is_known_by_its_ending_by_what_it_is_and_in_folders(tmp_path: Path, register) -> None:
    (tmp_path / "a.toy").write_text(TEXT)
    (tmp_path / "A.TOY").write_text(TEXT)
    (tmp_path / "nameless").write_text("7" + TEXT[1:])
    with pytest.raises(InputError, match="not known by its name"):
        ingest(tmp_path / "a.toy", tmp_path / "c.zarr")
    register(SourceFormat("toy", (".toy",), f"{TOY}:open_toy", mark=f"{TOY}:begins_like_a_toy"))
    check_ingested(tmp_path / "a.toy", tmp_path / "1.zarr")
    check_ingested(tmp_path / "A.TOY", tmp_path / "2.zarr")
    ingest(tmp_path / "nameless", tmp_path / "3.zarr")
    assert open_collection(tmp_path / "3.zarr").read("features", 0, 1)[0, 0] == 7.5


def test_toy__of_files_is_found_in_folders_and_never_mixed(tmp_path: Path, register) -> None:
    register(SourceFormat("toy", (".toy",), f"{TOY}:open_toy_files", of_files=True))
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.toy").write_text(TEXT)
    check_ingested(folder, tmp_path / "1.zarr", n_times=2)
    check_ingested(folder / "a.toy", tmp_path / "2.zarr")
    (folder / "c.csv").write_text("x,late\n1,2\n")
    with pytest.raises(InputError, match="several formats: csv, toy"):
        ingest(folder, tmp_path / "3.zarr")


def test_toy__is_named_where_formats_are(tmp_path: Path, register) -> None:
    register(SourceFormat("toy", (".toy", ".toys"), f"{TOY}:open_toy"))
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(InputError) as caught:
        formats.open_source(str(tmp_path / "a.txt"), SourceLayout())
    assert describe_formats() in caught.value.remedy
    assert ".zarr, .toy or .toys, or a folder" in describe_formats()


def test_help__lists_every_format_and_loads_none_of_them() -> None:
    code = (
        "import sys\n"
        "from typer.main import get_command\n"
        "from privpipe.command.app import app\n"
        "found = get_command(app).commands['ingest'].params\n"
        "(source,) = [item for item in found if item.name == 'source']\n"
        "print(source.help)\n"
        "print([m for m in ('pyarrow', 'zarr', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, loaded = done.stdout.splitlines()
    assert said.startswith(describe_formats())
    assert all(ending in said for row in FORMATS for ending in row.endings)
    assert loaded == "[]"


def test_formats__endings_are_lower_case_and_stand_once() -> None:
    endings = [ending for row in FORMATS for ending in row.endings]
    assert len(set(endings)) == len(endings)
    assert endings == [ending.lower() for ending in endings]
    pairs = [(a, b) for a in endings for b in endings if a != b and a.endswith(b)]
    assert not pairs  # the order of the table decides nothing
    assert len({row.name for row in FORMATS}) == len(FORMATS)


OF_EXTRAS = {"xlsx": "python_calamine", "duckdb": "duckdb"}


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_formats__every_row_opens(row: SourceFormat, tmp_path: Path) -> None:
    """What it names is there: an empty file is refused by the format, not by the table."""
    path = tmp_path / f"a{row.endings[-1]}"
    path.write_bytes(gzip.compress(b"") if path.suffix == ".gz" else b"")
    assert find_format(str(path)) is row
    if row.name in OF_EXTRAS:
        pytest.importorskip(OF_EXTRAS[row.name])
    with pytest.raises((InputError, StoreError)) as caught:
        formats.open_source(str(path), SourceLayout())
    assert caught.value.code != "source-format"
