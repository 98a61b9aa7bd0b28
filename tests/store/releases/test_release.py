"""What proves a release: receipts that tell chunks apart, and nothing that was not planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import IncompleteReleaseError, PrivpipeError, StoreError
from privpipe.store.arrays.blocks import Receipt, check_receipts, digest_receipts, write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan, chunk_key
from privpipe.store.releases.published import check_release
from privpipe.store.releases.release_writing import (
    ReleasePlan,
    check_foreign,
    drop_receipts,
    find_damaged,
    prepare_release,
    publish_release,
    read_ledger,
    record_receipts,
)

RUN, N_RECORDS, CHUNK_ROWS = "0a1b2c3d", 20, 5
ARRAYS = (
    ArrayPlan(FEATURES, (N_RECORDS, 3), CHUNK_ROWS, "float64"),
    ArrayPlan("place", (N_RECORDS,), CHUNK_ROWS, "int8"),
)


def write(plan: ReleasePlan, chunk: int) -> Receipt:
    """Records that do not compress: every chunk has as many bytes as the others."""
    rng = np.random.default_rng(chunk)
    block = {
        FEATURES: rng.normal(size=(CHUNK_ROWS, 3)),
        "place": rng.integers(0, 100, CHUNK_ROWS).astype(np.int8),
    }
    return write_block(plan.data_url, plan.arrays, chunk, block, plan.run)


@pytest.fixture
def plan(tmp_path: Path) -> ReleasePlan:
    plan = ReleasePlan(RUN, str(tmp_path / "release.zarr"), ARRAYS)
    prepare_release(plan)
    return plan


@pytest.fixture
def receipts(plan: ReleasePlan) -> list[Receipt]:
    return [write(plan, chunk) for chunk in range(4)]


def exchange(one: Path, other: Path) -> None:
    mine, theirs = one.read_bytes(), other.read_bytes()
    assert len(mine) == len(theirs)
    one.write_bytes(theirs)
    other.write_bytes(mine)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.name)
def test_find_damaged__sees_chunks_that_changed_places(
    plan: ReleasePlan, receipts: list[Receipt], array: ArrayPlan
) -> None:
    assert find_damaged(plan, receipts) == []
    data = Path(plan.data_url)
    exchange(data / chunk_key(array, 1), data / chunk_key(array, 3))
    assert find_damaged(plan, receipts) == [1, 3]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.name)
def test_find_damaged__sees_a_missing_object_of_any_array(
    plan: ReleasePlan, receipts: list[Receipt], array: ArrayPlan
) -> None:
    (Path(plan.data_url) / chunk_key(array, 2)).unlink()
    assert find_damaged(plan, receipts) == [2]


@pytest.mark.parametrize("verify", [True, False])
def test_check_release__of_what_is_damaged_has_a_remedy_for_readers(
    plan: ReleasePlan, receipts: list[Receipt], verify: bool
) -> None:
    """A reader cannot run the job again, nor restore what only its owner has."""
    publish_release(plan, dict(enumerate(receipts)), {})
    checked = 0
    for file in sorted(path for path in Path(plan.url).rglob("*") if path.is_file()):
        content = file.read_bytes()
        file.write_bytes(content[:-9] + b"x" + content[-8:])
        is_root = file.parent == Path(plan.url)
        if is_root or verify or "c" not in file.parts:
            with pytest.raises(PrivpipeError) as caught:
                check_release(plan.url, verify=verify)
            assert "Get another copy from whoever released it" in caught.value.remedy or is_root
            checked += 1
        file.unlink()
        if not is_root:
            with pytest.raises(PrivpipeError, match="Get another copy from whoever released it"):
                check_release(plan.url, verify=verify)
        file.write_bytes(content)
    assert checked > 5


def test_check_release__sees_chunks_that_changed_places_after_publishing(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    publish_release(plan, dict(enumerate(receipts[::-1])), {})  # in any order
    check_release(plan.url, verify=True)
    release = Path(plan.url)
    exchange(release / chunk_key(ARRAYS[0], 0), release / chunk_key(ARRAYS[0], 2))
    with pytest.raises(IncompleteReleaseError, match="2 stored chunks"):
        check_release(plan.url, verify=True)


def test_publish_release__seals_its_own_words_over_those_of_the_header(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    proven = check_receipts(receipts, ARRAYS, RUN)
    publish_release(plan, proven, {"arrays": ["income"], "n_records": 1, "method": "leace"})
    told: list[tuple[int, int]] = []
    header = check_release(plan.url, verify=True, listen=lambda *said: told.append(said))
    assert told == [(1, 8)] * 8  # each stored object, of each array
    assert header["arrays"] == [FEATURES, "place"]
    assert (header["n_records"], header["method"], header["run"]) == (N_RECORDS, "leace", RUN)
    with pytest.raises(StoreError, match="nothing is ever overwritten"):
        publish_release(plan, proven, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, chunk=9),
        lambda r: replace(r, rows=4),
        lambda r: replace(r, objects=(replace(r.objects[0], array="other"), r.objects[1])),
        lambda r: replace(r, objects=(replace(r.objects[0], length=7), r.objects[1])),
        lambda r: replace(r, objects=(r.objects[0], replace(r.objects[1], crc32c=7))),
        lambda r: replace(r, objects=r.objects[:1]),
    ],
    ids=["chunk", "rows", "array", "length", "crc32c", "objects"],
)
def test_digest_receipts__covers_all_that_proves_a_chunk(
    receipts: list[Receipt], change: Callable[[Receipt], Receipt]
) -> None:
    whole = digest_receipts(receipts)
    assert digest_receipts(receipts[::-1]) == whole
    assert digest_receipts([replace(receipts[0], seconds=9.0), *receipts[1:]]) == whole
    assert digest_receipts([*receipts[:3], change(receipts[3])]) != whole


def test_ledger__keeps_receipts_of_overlapping_tasks(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    record_receipts(plan, receipts[:3])
    record_receipts(plan, [receipts[0], receipts[3]])
    assert {receipt.chunk for receipt in read_ledger(plan)} == {0, 1, 2, 3}
    drop_receipts(plan, {0, 2})
    assert sorted(receipt.chunk for receipt in read_ledger(plan)) == [1, 3]


def test_ledger__forgets_what_does_not_match_its_seal(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    record_receipts(plan, receipts)
    [ledger] = (Path(plan.work_url) / "ledger").iterdir()
    content = ledger.read_text()
    ledger.write_text(content.replace('"rows": 5', '"rows": 4', 1))
    assert read_ledger(plan) == []
    ledger.write_text(content)
    assert read_ledger(plan) == receipts


@pytest.mark.parametrize(
    "key", ["income/zarr.json", "income/c/0", f"{FEATURES}/c/99/0", f"{FEATURES}/raw", "notes.txt"]
)
def test_check_foreign__lets_nothing_in_that_was_not_planned(
    plan: ReleasePlan, receipts: list[Receipt], key: str
) -> None:
    check_foreign(plan)
    path = Path(plan.data_url) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"of a confidential variable")
    with pytest.raises(IncompleteReleaseError, match="holds 1 objects that the plan"):
        check_foreign(plan)


def test_check_foreign__wants_every_object_and_every_description_as_planned(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    data = Path(plan.data_url)
    content = (data / "place" / "zarr.json").read_bytes()
    (data / "place" / "zarr.json").write_bytes(content.replace(b"int8", b"int9"))
    with pytest.raises(IncompleteReleaseError, match=r"description place/zarr\.json"):
        check_foreign(plan)
    (data / "place" / "zarr.json").write_bytes(content)
    # One for another: their number is right.
    (data / chunk_key(ARRAYS[1], 3)).rename(data / "place" / "c" / "99")
    with pytest.raises(IncompleteReleaseError, match="holds 1 objects that the plan"):
        check_foreign(plan)
    (data / "place" / "c" / "99").unlink()
    with pytest.raises(IncompleteReleaseError, match="of its 8 chunks 1 are missing"):
        check_foreign(plan)


def test_check_foreign__knows_what_a_killed_publishing_left(
    plan: ReleasePlan, receipts: list[Receipt]
) -> None:
    (Path(plan.data_url) / "receipts").mkdir()
    (Path(plan.data_url) / "receipts" / "zarr.json").write_bytes(b"{}")
    (Path(plan.data_url) / "zarr.json").write_bytes(b"{}")
    check_foreign(plan)
    publish_release(plan, check_receipts(receipts, ARRAYS, RUN), {})
    check_release(plan.url, verify=True)
