"""Blocks and receipts: what stands in the store is what the receipt says, and all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.store.arrays.blocks import Receipt, Stored, check_receipts, read_block, write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan, chunk_key
from privpipe.store.releases.release_writing import ReleasePlan, find_damaged, prepare_release
from tests.standard import write_standard

RUN, N_RECORDS, CHUNK_ROWS = "0a1b2c3d", 23, 5
ARRAYS = (
    ArrayPlan(FEATURES, (N_RECORDS, 3), CHUNK_ROWS, "float64"),
    ArrayPlan("place", (N_RECORDS,), CHUNK_ROWS, "int8"),
)


@pytest.fixture
def plan(tmp_path: Path) -> ReleasePlan:
    plan = ReleasePlan(RUN, str(tmp_path / "release.zarr"), ARRAYS)
    prepare_release(plan)
    return plan


def write(plan: ReleasePlan, chunk: int, value: float = 1.5) -> Receipt:
    rows = min(CHUNK_ROWS, N_RECORDS - chunk * CHUNK_ROWS)
    block = {FEATURES: np.full((rows, 3), value), "place": np.full(rows, -1, np.int8)}
    return write_block(plan.data_url, plan.arrays, chunk, block, plan.run)


def spoil_writes(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Let the store answer that an object is there as it was sent, with one bit turned."""
    write = LocalStore.set

    async def turn(store: LocalStore, name: str, value: Buffer) -> None:
        if name == key:
            content = value.to_bytes()
            value = value.from_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
        await write(store, name, value)

    monkeypatch.setattr(LocalStore, "set", turn)


def test_write_block__receipts_say_what_stands_there(plan: ReleasePlan) -> None:
    for chunk in range(5):
        receipt = write(plan, chunk, value=np.nan)  # nothing but fill values: stored nevertheless
        assert receipt.rows == (5 if chunk < 4 else 3)
        for array, stored in zip(plan.arrays, receipt.objects, strict=True):
            content = (Path(plan.data_url) / chunk_key(array, chunk)).read_bytes()
            turned = content[-4:] + content[:-4]  # see `measure_bytes`
            assert stored == Stored(array.name, len(content), google_crc32c.value(turned))


@pytest.mark.parametrize("key", ["features/c/1/0", "place/c/1"])
def test_write_block__a_chunk_that_the_store_spoils_is_not_what_its_receipt_says(
    monkeypatch: pytest.MonkeyPatch, plan: ReleasePlan, key: str
) -> None:
    # Read back by its writer a spoilt chunk had a receipt that agreed with it, and was published.
    spoil_writes(monkeypatch, key)
    receipts = [write(plan, chunk) for chunk in range(5)]
    assert find_damaged(plan, receipts) == [1]


def test_write_collection__a_chunk_that_the_store_spoils_is_not_ingested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil_writes(monkeypatch, "features/c/1/0")
    with pytest.raises(StoreError, match=r"Chunk 1 of .*is not stored as it was written"):
        write_standard(str(tmp_path / "records.zarr"), 200)
    assert not list(tmp_path.glob("records.zarr*"))


@pytest.mark.parametrize(
    ("chunk", "rows", "dtype", "match"),
    [
        (0, 4, "float64", "one whole chunk"),
        (4, 5, "float64", "one whole chunk"),
        (0, 5, "float32", "dtype of its array"),
    ],
)
def test_write_block__takes_whole_chunks_of_the_planned_dtype(
    plan: ReleasePlan, chunk: int, rows: int, dtype: str, match: str
) -> None:
    block = {FEATURES: np.ones((rows, 3), dtype), "place": np.zeros(rows, np.int8)}
    with pytest.raises(AssertionError, match=match):
        write_block(plan.data_url, plan.arrays, chunk, block, plan.run)


def test_read_block__takes_no_old_array_for_a_new_one_at_its_place(tmp_path: Path) -> None:
    url = str(tmp_path / "here.zarr")
    for run, rows in (("00000001", 3), ("00000002", 7)):
        array = ArrayPlan("place", (rows,), rows, "int8")
        plan = ReleasePlan(run, url, (array,))
        prepare_release(plan)
        block = {"place": np.full(rows, rows, np.int8)}
        write_block(plan.data_url, plan.arrays, 0, block, run)
        np.testing.assert_array_equal(
            read_block(plan.data_url, "place", 0, rows, run), block["place"]
        )


def test_check_receipts__are_returned_in_the_order_of_chunks(plan: ReleasePlan) -> None:
    receipts = [write(plan, chunk) for chunk in (3, 0, 4, 1, 2)]
    found = check_receipts([*receipts, receipts[1]], ARRAYS, RUN)  # the same one twice is no harm
    assert list(found) == [0, 1, 2, 3, 4]
    assert [receipt.chunk for receipt in found.values()] == list(found)


@pytest.mark.parametrize("chunk", [0, 2, 4])
def test_check_receipts__miss_no_chunk(plan: ReleasePlan, chunk: int) -> None:
    receipts = [write(plan, other) for other in range(5) if other != chunk]
    with pytest.raises(IncompleteReleaseError, match="Of 5 chunks 1 are missing, 0 have two"):
        check_receipts(receipts, ARRAYS, RUN)


def test_check_receipts__refuse_two_different_ones_of_a_chunk(plan: ReleasePlan) -> None:
    receipts = [write(plan, chunk) for chunk in range(5)]
    with pytest.raises(IncompleteReleaseError, match="0 are missing, 1 have two different"):
        check_receipts([*receipts, write(plan, 2, value=2.5)], ARRAYS, RUN)


@pytest.mark.parametrize(
    "change",
    [
        lambda receipt: replace(receipt, run="ffffffff"),
        lambda receipt: replace(receipt, rows=receipt.rows + 1),
        lambda receipt: replace(receipt, objects=receipt.objects[:1]),
        lambda receipt: replace(receipt, objects=receipt.objects[::-1]),
    ],
    ids=["another run", "rows", "an array missing", "other arrays"],
)
def test_check_receipts__refuse_what_is_not_of_the_plan(plan: ReleasePlan, change) -> None:
    for place in (0, 4):
        receipts = [write(plan, chunk) for chunk in range(5)]
        receipts[place] = change(receipts[place])
        with pytest.raises(IncompleteReleaseError, match="1 receipts do not belong to this run"):
            check_receipts(receipts, ARRAYS, RUN)


@pytest.mark.parametrize("chunk", [-1, 5])
def test_check_receipts__refuse_chunks_that_the_plan_does_not_have(
    plan: ReleasePlan, chunk: int
) -> None:
    receipts = [write(plan, chunk) for chunk in range(5)]
    rows = min(CHUNK_ROWS, N_RECORDS - chunk * CHUNK_ROWS)
    foreign = replace(receipts[0], chunk=chunk, rows=rows)
    # One for another: their number is right.
    with pytest.raises(IncompleteReleaseError, match="1 receipts do not belong"):
        check_receipts([*receipts[1:], foreign], ARRAYS, RUN)
