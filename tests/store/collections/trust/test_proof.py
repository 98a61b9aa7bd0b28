"""Proof of a collection: receipts that no chunk passes, digests of old ones, and what it costs."""

from __future__ import annotations

import gc
import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from privpipe.command.inspect_command import inspect_command
from privpipe.errors import StoreError
from privpipe.pipeline.stages.train import has_receipts
from privpipe.store.arrays import sealed_arrays as proofs
from privpipe.store.arrays.layout import SEAL, root_document
from privpipe.store.arrays.sealed_arrays import Proof, ReceiptBook, digest_collection
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.proving import (
    find_proof,
    measure_chunks,
    prove_by_digest,
    verify_collection,
)
from tests.standard import write_standard


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """Six chunks of 40 records."""
    write_standard(str(tmp_path / "r.zarr"), 240, chunk_rows=40)
    return tmp_path / "r.zarr"


def edit_header(url: Path, **changes: object) -> None:
    header = json.loads((url / "zarr.json").read_text())["attributes"]["privpipe"]
    del header[SEAL]
    header |= changes
    kept = {key: value for key, value in header.items() if value is not None}
    (url / "zarr.json").write_bytes(root_document(kept))


def make_old(url: Path) -> None:
    """As an earlier privpipe would have made it."""
    shutil.rmtree(url / "__receipts__")
    edit_header(url, receipts=None)


def prove(collection: Collection, place: Path) -> Collection:
    measured = measure_chunks(collection.sealed, range(collection.plan.n_chunks))
    return prove_by_digest(collection, measured, str(place))


def swap(url: Path, name: str = "features", end: str = "/0") -> None:
    one, other = url / f"{name}/c/1{end}", url / f"{name}/c/4{end}"
    mine, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs)
    other.write_bytes(mine)


def test_inspect__verifies_a_collection(url: Path) -> None:
    found = inspect_command(str(url), verify=True)
    assert (found["verified"], found["verified_by"]) == (
        True,
        "Every stored byte matches its receipt.",
    )
    swap(url)
    assert "verified" not in inspect_command(str(url), verify=False)
    with pytest.raises(StoreError, match="not what was ingested: 2 of its chunks differ"):
        inspect_command(str(url), verify=True)


def test_inspect__verifies_an_old_collection_by_its_digest(url: Path) -> None:
    make_old(url)
    found = inspect_command(str(url), verify=True)
    assert found["verified"] is True
    assert "digest of the collection; it has no receipts" in found["verified_by"]
    swap(url, "party", "")
    with pytest.raises(StoreError, match="differ from its digest"):
        inspect_command(str(url), verify=True)


def test_prove__makes_of_an_old_collection_one_that_is_checked(url: Path, tmp_path: Path) -> None:
    make_old(url)
    opened = open_collection(str(url))
    assert opened.sealed.proof is None
    assert find_proof(opened, str(tmp_path / "kept")) is None
    proved = prove(opened, tmp_path / "kept")
    assert proved.sealed.proof is not None
    assert proved.sealed.proof.origin == "digest"
    assert find_proof(opened, str(tmp_path / "kept")) == proved
    np.testing.assert_array_equal(proved.read("party", 0, 240), opened.read("party", 0, 240))
    swap(url, "party", "")
    with pytest.raises(StoreError, match=r"Chunk 1 of 'party' .* is not the one that was ingest"):
        proved.read("party", 40, 80)
    note = tmp_path / "kept" / "proof.json"
    note.write_text(note.read_text().replace("digest", "ingest", 1))
    assert find_proof(opened, str(tmp_path / "kept")) is None


def test_prove__says_what_the_first_collections_cannot_prove(url: Path, tmp_path: Path) -> None:
    """Their digests held one and the same checksum for every chunk."""
    sealed = open_collection(str(url))
    assert sealed.sealed.proof is not None
    lengths = digest_collection(sealed.schema_of_records, sealed.sealed.proof, 6, lengths_only=True)
    make_old(url)
    edit_header(url, digest=lengths)
    proved = prove(open_collection(str(url)), tmp_path / "kept")
    assert proved.sealed.proof is not None
    assert proved.sealed.proof.origin == "noted"
    found = inspect_command(str(url), verify=True)
    assert found["verified"] is False
    swap(url)  # what was noted holds from then on
    with pytest.raises(StoreError, match="is not the one that was ingested"):
        proved.read("features", 0, 240)


@pytest.mark.parametrize("part", ["blocks", "order", "cut", "gone"])
def test_receipts__that_were_changed_prove_nothing(url: Path, part: str) -> None:
    opened = open_collection(str(url))
    place = url / "__receipts__" / "c" / "0" / "0" / "0"
    content = bytearray(place.read_bytes())
    if part == "gone":
        place.unlink()
    elif part == "cut":
        place.write_bytes(content[:-16])
    elif part == "order":
        place.write_bytes(content[80:160] + content[:80] + content[160:])
    else:
        content[3] ^= 1
        place.write_bytes(content)
    proofs._held.clear()
    with pytest.raises(StoreError, match=r"receipts of .* are damaged"):
        opened.read("features", 0, 10)
    with pytest.raises(StoreError, match=r"receipts of .* are damaged"):
        verify_collection(opened)


def test_verify_collection__tells_how_far_it_is(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "c.zarr"), 240, chunk_rows=40)
    opened = open_collection(str(tmp_path / "c.zarr"))
    told: list[tuple[int, int]] = []
    verify_collection(opened, lambda *said: told.append(said))
    assert len(told) == opened.plan.n_chunks > 1
    assert sum(done for done, _ in told) == opened.n_records == told[0][1]


def test_receipt_book__cuts_many_chunks_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "BLOCK_BYTES", 16 * 2 * 3)
    book = ReceiptBook(str(tmp_path), ["a", "b"], 8)
    for chunk in range(8):
        book.add([(chunk, 2**32 - 1 - chunk), (100 + chunk, chunk)])
    found = book.close(str(tmp_path))
    assert (found.block_chunks, len(found.blocks)) == (3, 3)
    assert Proof.restore(str(tmp_path), json.loads(json.dumps(found.describe()))) == found
    rows = [row.tolist() for row in proofs.read_rows(found, 8)]
    assert rows == [[[c, 2**32 - 1 - c], [100 + c, c]] for c in range(8)]
    assert Proof.restore(str(tmp_path), {}) is None


@pytest.mark.slow
def test_receipt_book__holds_one_block_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the chunks take no more memory, but for the digests of the blocks."""
    monkeypatch.setattr(proofs, "BLOCK_BYTES", 2**14)
    peaks = []
    for n_chunks in (3_000, 12_000):
        book = ReceiptBook(str(tmp_path / str(n_chunks)), ["a"], n_chunks)
        tracemalloc.start()
        for chunk in range(n_chunks):
            book.add([(chunk, 2**32 - 1 - chunk)])
            if chunk % 1_024 == 0:
                gc.collect()  # what nobody holds is no memory of the book
        book.close("")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_has_receipts__tells_collections_that_need_no_proof(url: Path) -> None:
    class Run:
        collection = training = open_collection(str(url))

    assert has_receipts(Run())  # type: ignore[arg-type]
    make_old(url)
    Run.training = open_collection(str(url))
    assert not has_receipts(Run())  # type: ignore[arg-type]
