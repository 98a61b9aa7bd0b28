"""Ingest and export by URL: the same collection from memory, a bucket and over http as locally."""

from __future__ import annotations

import functools
import gzip
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

from privpipe.errors import StoreError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import make_frame, read_collection

TABLE = SourceLayout(labels=("smoker", "town"), drop=("id", "score"))
LABELS = '<labels xmlns="http://mulan.sourceforge.net/labels"><label name="smoker"/></labels>'
SOURCES = ("t.csv", "t.csv.gz", "t.parquet", "folder", "hive", "t.arff", "t.npz", "t.zarr")


def write_sources(folder: Path) -> None:
    """One frame in every format."""
    frame = make_frame(40)
    frame.to_csv(folder / "t.csv", index=False)
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    frame.to_parquet(folder / "t.parquet", index=False)
    (folder / "folder").mkdir()
    for number in range(3):
        frame[10 * number :].to_parquet(folder / "folder" / f"{number}.parquet", index=False)
    frame.to_parquet(folder / "hive", partition_cols=["town"])
    numbers = frame[["height", "weight", "smoker"]]
    head = "".join(f"@attribute {name} numeric\n" for name in ("height", "weight"))
    body = numbers.to_csv(index=False, header=False, na_rep="?")
    (folder / "t.arff").write_text(f"@relation r\n{head}@attribute smoker {{0,1}}\n@data\n{body}")
    (folder / "t.xml").write_text(LABELS)
    arrays = {"X": numbers.to_numpy(), "smoker": frame["smoker"].to_numpy()}
    np.savez_compressed(folder / "t.npz", **arrays)
    group = zarr.open_group(str(folder / "t.zarr"), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(7, *values.shape[1:]))


def choose_layout(name: str) -> SourceLayout:
    return TABLE if name in ("t.csv", "t.csv.gz", "t.parquet", "folder", "hive") else SourceLayout()


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_ingest__from_and_into_a_remote_place_is_as_local(
    tmp_path: Path, place: str, name: str
) -> None:
    write_sources(tmp_path)
    options = IngestOptions(layout=choose_layout(name), chunk_bytes=300)
    local = ingest(str(tmp_path / name), str(tmp_path / "c.zarr"), options)
    system, root = fsspec.core.url_to_fs(place)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and "c.zarr" not in path.parts:
            system.pipe_file(f"{root}/{path.relative_to(tmp_path)}", path.read_bytes())
    remote = ingest(f"{place}/{name}", f"{place}/c.zarr", options)
    assert remote == local
    assert (
        open_collection(f"{place}/c.zarr").digest
        == open_collection(str(tmp_path / "c.zarr")).digest
    )
    found, wanted = read_collection(f"{place}/c.zarr"), read_collection(tmp_path / "c.zarr")
    for key, values in wanted.items():
        np.testing.assert_array_equal(found[key], values)
    ingest(str(tmp_path / name), f"{place}/up.zarr", options)
    ingest(f"{place}/{name}", str(tmp_path / "down.zarr"), options)
    with pytest.raises(StoreError, match=r"c\.zarr exists"):
        ingest(str(tmp_path / name), f"{place}/c.zarr", options)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The sources served over http on the loopback."""
    pytest.importorskip("aiohttp")
    write_sources(tmp_path)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.arff"])
def test_ingest__from_the_web_is_as_local(tmp_path: Path, site: str, name: str) -> None:
    options = IngestOptions(layout=choose_layout(name), chunk_bytes=300)
    local = ingest(str(tmp_path / name), str(tmp_path / "c.zarr"), options)
    assert ingest(f"{site}/{name}", str(tmp_path / "d.zarr"), options) == local


def test_ingest__what_the_web_does_not_have_is_told(tmp_path: Path, site: str) -> None:
    with pytest.raises(StoreError, match="There is nothing at http"):
        ingest(f"{site}/gone.csv", str(tmp_path / "c.zarr"))
    # An archive is read from its end, which this server does not give.
    with pytest.raises(StoreError, match="download it first"):
        ingest(f"{site}/t.npz", str(tmp_path / "c.zarr"))


@pytest.mark.parametrize(
    ("url", "package"),
    [("gs://bucket/t.csv", "gcsfs"), ("abfs://c/t.parquet", "adlfs"), ("gs://b/t.zarr", "gcsfs")],
)
def test_ingest__a_missing_package_is_named(tmp_path: Path, url: str, package: str) -> None:
    with pytest.raises(StoreError, match=f"(?i)install {package}"):
        ingest(url, str(tmp_path / "c.zarr"))
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(StoreError, match=f"(?i)install {package}"):
        ingest(str(tmp_path / "t.csv"), url)


def test_ingest__an_unknown_scheme_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"s4://bucket/t\.csv .*scheme 's4'"):
        ingest("s4://bucket/t.csv", str(tmp_path / "c.zarr"))
