"""What the header of a collection says that must be there: its arrays, sealed, and their chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privpipe.errors import FormatError, StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.bounds import MOST_CHUNK_BYTES
from privpipe.store.access.location import list_keys, open_store, shown
from privpipe.store.arrays.headers import check_documents
from privpipe.store.arrays.layout import FEATURES, ArrayPlan, chunk_key
from privpipe.store.collections.trust.proof import Proof
from privpipe.store.collections.trust.reading import SealedArrays


def collection_arrays(schema: CollectionSchema) -> tuple[ArrayPlan, ...]:
    """The arrays of a collection, features first; there is none for no features."""
    n, rows = schema.n_records, schema.chunk_rows
    features = ArrayPlan(FEATURES, (n, schema.n_features), rows, schema.dtype)
    return (
        *((features,) if schema.n_features else ()),
        *(ArrayPlan(v.name, (n,), rows, v.dtype) for v in schema.variables),
    )


def seal_collection(url: str, schema: CollectionSchema, header: Mapping[str, Any]) -> SealedArrays:
    """What the header says that descriptions and chunks must be."""
    arrays = collection_arrays(schema)
    proof = Proof.restore(url, header.get("receipts"))
    expected = tuple(plan.name for plan in arrays)
    if "receipts" in header and (proof is None or proof.arrays != expected):
        raise FormatError(
            f"The header of {shown(url)} is damaged.", remedy="Ingest the collection again."
        )
    return SealedArrays(url, arrays, str(header.get("documents_sha256")), proof)


def check_chunks(sealed: SealedArrays) -> None:
    """A missing chunk would read as fill values without an error."""
    store = open_store(sealed.url, read_only=True)
    check_documents(sealed.url, sealed.documents, sealed.documents_sha256)
    for plan in sealed.plans:
        if plan.chunk_bytes > MOST_CHUNK_BYTES:
            raise FormatError(
                f"The array {plan.name!r} of {shown(sealed.url)} declares chunks of "
                f"{plan.chunk_bytes} bytes; at most {MOST_CHUNK_BYTES} are read.",
                remedy="Ingest the collection again.",
                code="unbounded",
            )
        found = list_keys(store, f"{plan.name}/c/")
        # Whatever is declared, the work is that of what is there.
        n_sound = sum(_is_chunk(key, plan) for key in found)
        if (n_sound, len(found)) != (plan.n_chunks, plan.n_chunks):
            raise StoreError(
                f"{shown(sealed.url)} has {n_sound} of {plan.n_chunks} chunks of "
                f"{plan.name!r}, and {len(found) - n_sound} objects that are none.",
                remedy="Restore the missing chunks, or ingest the collection again.",
                code="missing-chunks",
            )


def _is_chunk(key: str, plan: ArrayPlan) -> bool:
    number = key.removeprefix(f"{plan.name}/c/").partition("/")[0]
    if not number.isdecimal() or int(number) >= plan.n_chunks:
        return False
    return key == chunk_key(plan, int(number))
