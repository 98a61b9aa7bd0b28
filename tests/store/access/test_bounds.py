"""Chunks that decode to far more than declared, and shapes that nothing stands behind."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from privpipe.errors import PrivpipeError, StoreError
from privpipe.store.access.bounds import check_decoded_size
from privpipe.store.arrays.layout import SEAL, digest_documents, root_document
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import ingest
from tests.standard import write_standard

BOMB = bytes(2**28)
"""A quarter of a gigabyte of nothing, for a chunk of 160 bytes."""
ALLOWED = 64 * 2**20
"""Bytes that reading a bomb may take: far less than it decodes to."""


def stream_zstd(content: bytes) -> bytes:
    """A frame that does not tell its size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


BOMBS: dict[str, tuple[Any, Callable[[bytes], bytes]]] = {
    "zstd": (ZstdCodec(), numcodecs.Zstd().encode),
    "zstd of unknown size": (ZstdCodec(), stream_zstd),
    "gzip": (GzipCodec(), lambda content: gzip.compress(content, 1)),
    "blosc": (BloscCodec(), lambda content: bytes(numcodecs.Blosc().encode(content))),
}


def write_foreign(path: Path, **options: Any) -> Path:
    group = zarr.create_group(str(path), zarr_format=options.pop("zarr_format", 3))
    x = group.create_array("features", shape=(40, 4), dtype="f4", chunks=(10, 4), **options)
    x[:] = np.arange(160, dtype="f4").reshape(40, 4)
    return path


@pytest.fixture(scope="module", autouse=True)
def traced() -> Iterator[None]:
    """Memory is traced from the first test to the last, a synchronous one.

    Where it stops while a thread of Zarr still decodes the other chunks, Python 3.11 may crash
    (python/cpython 128679).
    """
    tracemalloc.start()
    yield
    tracemalloc.stop()


@contextmanager
def taking_little() -> Iterator[None]:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    assert tracemalloc.get_traced_memory()[1] - before < ALLOWED


def assert_refused(source: Path, target: Path, code: str) -> None:
    with taking_little(), pytest.raises(PrivpipeError) as caught:
        ingest(source, target)
    assert caught.value.code == code
    assert not target.exists()


@pytest.mark.parametrize("name", BOMBS)
def test_ingest__refuses_a_chunk_that_decodes_to_too_much(tmp_path: Path, name: str) -> None:
    codec, encode = BOMBS[name]
    source = write_foreign(tmp_path / "x.zarr", compressors=[codec])
    ingest(source, tmp_path / "sound.zarr")
    (source / "features" / "c" / "2" / "0").write_bytes(encode(BOMB))
    assert_refused(source, tmp_path / "records.zarr", "decoded-size")


@pytest.mark.parametrize("name", ["zstd", "gzip", "blosc", "zlib", "lz4", "bz2"])
def test_ingest__refuses_it_in_zarr_2(tmp_path: Path, name: str) -> None:
    codec = numcodecs.get_codec({"id": name})
    source = write_foreign(tmp_path / "x.zarr", compressors=codec, zarr_format=2)
    ingest(source, tmp_path / "sound.zarr")
    (source / "features" / "2.0").write_bytes(bytes(codec.encode(BOMB)))
    assert_refused(source, tmp_path / "records.zarr", "decoded-size")


def test_ingest__refuses_it_inside_a_shard(tmp_path: Path) -> None:
    source = write_foreign(tmp_path / "x.zarr", compressors=[ZstdCodec()], shards=(20, 4))
    ingest(source, tmp_path / "sound.zarr")
    frame, chunk = numcodecs.Zstd().encode(BOMB), source / "features" / "c" / "1" / "0"
    index = np.array([0, len(frame), 0, len(frame)], "<u8").tobytes()
    chunk.write_bytes(frame + bytes(numcodecs.CRC32C(location="end").encode(index)))
    assert_refused(source, tmp_path / "records.zarr", "decoded-size")


@pytest.mark.parametrize(("codec", "code"), [("pickle", "store"), ("lzma", "unbounded")])
def test_ingest__runs_no_pickle_and_reads_no_codec_without_bounds(
    tmp_path: Path, codec: str, code: str
) -> None:
    source = write_foreign(tmp_path / "x.zarr", compressors=None, zarr_format=2)
    place = source / "features" / ".zarray"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"compressor": {"id": codec}}))
    mark = tmp_path / "ran"
    (source / "features" / "0.0").write_bytes(f"cos\nsystem\n(S'touch {mark}'\ntR.".encode())
    assert_refused(source, tmp_path / "records.zarr", code)
    assert not mark.exists()


@pytest.mark.parametrize("chunks", [[10, 4], [10**12, 4]])
@pytest.mark.parametrize("empty", [True, False])
def test_ingest__refuses_a_shape_that_nothing_stands_behind(
    tmp_path: Path, chunks: list[int], empty: bool
) -> None:
    source = write_foreign(tmp_path / "x.zarr")
    place = source / "features" / "zarr.json"
    content = json.loads(place.read_text()) | {"shape": [10**12, 4]}
    content["chunk_grid"]["configuration"]["chunk_shape"] = chunks
    place.write_text(json.dumps(content))
    for chunk in (source / "features").rglob("c/*/0") if empty else ():
        chunk.unlink()
    assert_refused(source, tmp_path / "records.zarr", "unbounded")


def test_ingest__refuses_an_npz_that_declares_more_than_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.ones((40, 4)))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        content = archive.read("X.npy")
    wide = content.replace(b"(40, 4), }" + b" " * 11, b"(1000000000000, 4), }")
    assert len(wide) == len(content)
    assert wide != content
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", wide)
    assert_refused(tmp_path / "x.npz", tmp_path / "records.zarr", "store")


@pytest.mark.parametrize("chunk_rows", [10, 10**12])
@pytest.mark.parametrize("fitting", [True, False])
def test_open_collection__refuses_a_forged_shape(
    tmp_path: Path, chunk_rows: int, fitting: bool
) -> None:
    """Root and descriptions agree: whoever forges can seal."""
    url = tmp_path / "r.zarr"
    write_standard(str(url), 40, chunk_rows=10)
    header = json.loads((url / "zarr.json").read_text())["attributes"]["privpipe"]
    del header[SEAL]
    documents = {}
    for place in sorted(url.glob("[!_]*/zarr.json")):
        content = json.loads(place.read_text())
        content["shape"][0] = 10**12
        content["chunk_grid"]["configuration"]["chunk_shape"][0] = chunk_rows
        place.write_text(json.dumps(content))
        documents[f"{place.parent.name}/zarr.json"] = place.read_bytes()
        for chunk in "123" if fitting else "":  # as many are left as one of them would have
            next((place.parent / "c" / chunk).rglob("*"), place.parent / "c" / chunk).unlink()
    header["schema"] |= {"n_records": 10**12, "chunk_rows": chunk_rows}
    header["documents_sha256"] = digest_documents(documents)
    (url / "zarr.json").write_bytes(root_document(header))
    with taking_little(), pytest.raises(StoreError):
        open_collection(str(url))


def test_read__refuses_a_bomb_in_a_collection_without_receipts(tmp_path: Path) -> None:
    url = tmp_path / "r.zarr"
    write_standard(str(url), 40, chunk_rows=10)
    header = json.loads((url / "zarr.json").read_text())["attributes"]["privpipe"]
    del header[SEAL], header["receipts"]
    (url / "zarr.json").write_bytes(root_document(header))
    bomb = bytes(numcodecs.Blosc().encode(BOMB))
    (url / "height" / "c" / "1").write_bytes(bytes(numcodecs.CRC32C(location="end").encode(bomb)))
    with pytest.raises(StoreError, match="decodes to another size"):
        open_collection(str(url)).read("height", 0, 40)


def test_check_decoded_size__lets_through_what_fits() -> None:
    content = np.random.default_rng(0).bytes(100_000)
    for codec, encode in (
        ("zstd", numcodecs.Zstd().encode),
        ("zstd", stream_zstd),
        ("gzip", lambda c: gzip.compress(c[:9]) + gzip.compress(c[9:])),
        ("zlib", numcodecs.Zlib().encode),
        ("lz4", numcodecs.LZ4().encode),
        ("bz2", numcodecs.BZ2().encode),
        ("blosc", numcodecs.Blosc().encode),
    ):
        encoded = bytes(encode(content))
        check_decoded_size(codec, encoded, len(content))
        with pytest.raises(StoreError, match="decodes to more than"):
            check_decoded_size(codec, encoded, len(content) - 1)
