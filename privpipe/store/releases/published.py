"""Check a published release against its manifest and its receipts."""

from collections.abc import Callable, Mapping
from typing import Any

import zarr

from privpipe.errors import IncompleteReleaseError
from privpipe.store.access.location import guard_read, shown
from privpipe.store.access.objects import MOST_TO_ONE, list_keys, open_store, read_whole
from privpipe.store.arrays import layout
from privpipe.store.arrays.blocks import Receipt, Stored, digest_receipts, measure_object
from privpipe.store.arrays.factored_basis import BASIS


def check_release(
    url: str, *, verify: bool = False, listen: Callable[[int, int], None] | None = None
) -> Mapping[str, Any]:
    """Check a release against its manifest and return its header.

    The receipts must match the digest that the header seals, and every chunk must be there;
    with `verify` every stored object is read and its length and checksum compared, and `listen`
    is called with how many objects were just read, and how many there are.
    """
    header = layout.read_header(url, "release")
    with layout.using_header(url, "release"):
        if "guarantee" in header:  # one that promises nothing lies about nothing
            layout.read_promise(header)
        _check_whole(url, header, verify=verify, listen=listen or (lambda _, __: None))
    return header


def _check_whole(
    url: str, header: Mapping[str, Any], *, verify: bool, listen: Callable[[int, int], None]
) -> None:
    receipts = read_receipts(url, header)
    # The header seals the digest, the digest the receipts, and each receipt a chunk.
    if digest_receipts(receipts) != header["receipts_sha256"]:
        raise IncompleteReleaseError(
            f"The receipts of {shown(url)} differ from the digest in its header.",
            remedy="The release was changed after it was published: get it again.",
            code="manifest",
        )
    store = open_store(url, read_only=True)
    documents = [f"{name}/{layout.ROOT_DOCUMENT}" for name in header["arrays"]]
    documents += list_keys(store, f"{layout.RECEIPTS}/")
    documents += list_keys(store, f"{BASIS}/")
    layout.check_documents(url, tuple(documents), str(header.get("documents_sha256")))
    damaged = 0
    for number, name in enumerate(header["arrays"]):
        array = zarr.open_array(store, path=name, mode="r")
        _check_counts(url, header, array.shape[0], len(receipts))
        plan = layout.ArrayPlan(name, array.shape, int(header["chunk_rows"]), str(array.dtype))
        present = set(list_keys(store, f"{name}/c/"))
        keys = [layout.chunk_key(plan, receipt.chunk) for receipt in receipts]
        # Zarr reads the fill value where a chunk is missing, without an error.
        damaged += sum(key not in present for key in keys)
        if verify and not damaged:
            for receipt in receipts:
                damaged += measure_object(store, plan, receipt.chunk) != receipt.objects[number]
                listen(1, len(receipts) * len(header["arrays"]))
    if damaged:
        raise IncompleteReleaseError(
            f"{damaged} stored chunks of {shown(url)} are missing or differ from their receipts.",
            remedy="The release was damaged after it was published: get it again.",
            code="damaged",
        )


def _check_counts(url: str, header: Mapping[str, Any], n_stored: int, n_receipts: int) -> None:
    """What a header says of its records is what is there: a reader makes room for it."""
    n_records = int(header["n_records"])
    parts = [int(n) for n in header.get("partitions") or (n_records,)]
    # A forged header of zero rows per chunk must not end in a division.
    n_chunks = -(-n_records // max(int(header["chunk_rows"]), 1))
    counts = (n_records, sum(parts), n_chunks)
    if counts != (n_stored, n_records, n_receipts) or min(parts) < 0:
        raise IncompleteReleaseError(
            f"The header of {shown(url)} speaks of {n_records:,} records in {len(parts):,} parts, "
            f"and {n_stored:,} are stored.",
            remedy="The release was changed after it was published: get it again.",
            code="manifest",
        )


def read_receipts(url: str, header: Mapping[str, Any]) -> list[Receipt]:
    """The receipts that a release is published with; IncompleteReleaseError without them."""
    names, run = header["arrays"], str(header["run"])

    def read() -> list[Receipt]:
        store = open_store(url, read_only=True)
        # Against a header that claims more chunks than are there, for which we should make room.
        most = MOST_TO_ONE * len(names) * (1 + len(list_keys(store, f"{names[0]}/c/")))
        tables = (
            read_whole(store, f"{layout.RECEIPTS}/{name}", most=most).tolist()
            for name in ("rows", "length", "crc32c")
        )
        return [
            Receipt(run, chunk, rows[0], tuple(map(Stored, names, lengths, checksums)), 0.0)
            for chunk, (rows, lengths, checksums) in enumerate(zip(*tables, strict=True))
        ]

    return guard_read(
        read,
        IncompleteReleaseError,
        f"The receipts of {shown(url)} cannot be read",
        remedy="The release was damaged after it was published: get it again.",
        code="manifest",
    )
