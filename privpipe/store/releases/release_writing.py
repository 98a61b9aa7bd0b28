"""Writing a release: prepare, write chunks, record receipts, finalise, publish in one step.

Everything is prepared in a private workspace beside the release; see DESIGN.md for the
protocol, its invariants and what was rejected.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import PurePosixPath

import google_crc32c
import numpy as np
import zarr
from pydantic import TypeAdapter
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from privpipe.errors import IncompleteReleaseError
from privpipe.records.schema import ChunkPlan
from privpipe.store.access import location, objects, workspace
from privpipe.store.access.location import join, local_path, measure_objects, shown
from privpipe.store.arrays import destination, layout
from privpipe.store.arrays.blocks import Basis, Receipt, digest_receipts, measure_object
from privpipe.store.arrays.layout import root_document

_RECEIPTS = TypeAdapter(list[Receipt])
_TABLES = {"rows": np.int64, "length": np.int64, "crc32c": np.uint32}
"""Tables of the receipts within a release, and the dtypes of their numbers."""


@dataclass(frozen=True)
class ReleasePlan:
    """Where a release goes and what it consists of; a value, made before any work.

    Parameters
    ----------
    run
        Identifier of the run, 8 hexadecimal digits; every receipt carries it.
    url
        Where the release will be.
    arrays
        Its arrays: the released features first, then variables included by name.
    basis
        Of a factored release, whose first array holds coordinates; None for a dense one.
    """

    run: str
    url: str
    arrays: tuple[layout.ArrayPlan, ...]
    basis: Basis | None = field(default=None, compare=False)

    @property
    def documents(self) -> dict[str, bytes]:
        """What is written before any chunk, by key."""
        basis = {} if self.basis is None else self.basis.documents()
        return {**layout.array_documents(self.arrays), **basis}

    @property
    def chunks(self) -> ChunkPlan:
        """Chunks and tasks; the same for every array."""
        return ChunkPlan(self.arrays[0].shape[0], self.arrays[0].chunk_rows)

    @property
    def work_url(self) -> str:
        """The private workspace."""
        return workspace.workspace_url(self.url)

    @property
    def data_url(self) -> str:
        """Where chunks are written: in the workspace."""
        return workspace.data_url(self.url)


def drop_refused(url: str) -> str:
    """Remove the records of a release that was refused from a bucket, where others may list them.

    Its arrays, and what the audit drew of raw and released records. The key of the drawing stays,
    so that the next run draws the same. On a file system the workspace is its owner's alone, and
    all stays.

    Returns
    -------
    left
        What could not be removed, in a sentence; else empty.
    """
    if local_path(url) is not None:
        return ""
    for place in (workspace.data_url(url), join(workspace.workspace_url(url), "sample")):
        try:
            # Another key would draw another sample of a refused release.
            objects.delete_tree(objects.open_store(place), keep="key")
        except Exception as error:  # many kinds, depending on the file system
            why = location.explain_unreachable(place, error).message
            return f"{shown(place)} could not be removed ({why}): remove it, it is refused."
    return ""


def prepare_release(plan: ReleasePlan) -> None:
    """Write the empty arrays; the root document comes last, when the release is published.

    What a killed run left of unfinished writes is removed first.
    """
    objects.drop_unfinished(plan.work_url)
    objects.write_all(objects.open_store(plan.data_url), plan.documents)


def record_receipts(plan: ReleasePlan, receipts: Sequence[Receipt]) -> None:
    """Add a task's receipts to the ledger, in one object.

    It is named after exactly these chunks: a later task for some of them must not replace the
    receipts of the others.
    """
    chunks = [receipt.chunk for receipt in receipts]
    name = hashlib.sha256(repr(chunks).encode()).hexdigest()[:16]
    key = f"ledger/{plan.run}-{chunks[0]:08d}-{name}.json"
    _write_receipts(objects.open_store(plan.work_url), key, receipts)


def read_ledger(plan: ReleasePlan) -> list[Receipt]:
    """All receipts recorded so far; a damaged object of the ledger counts as not recorded."""
    store = objects.open_store(plan.work_url, read_only=True)
    found = (_read_receipts(store, key) for key in objects.list_keys(store, "ledger/"))
    return list(chain.from_iterable(found))


def drop_receipts(plan: ReleasePlan, chunks: Collection[int]) -> None:
    """Forget the receipts of chunks that have to be written again."""
    store = objects.open_store(plan.work_url)
    for key in objects.list_keys(store, "ledger/"):
        known = _read_receipts(store, key)
        rest = [receipt for receipt in known if receipt.chunk not in chunks]
        if len(rest) < len(known):
            _write_receipts(store, key, rest)


def _write_receipts(store: Store, key: str, receipts: Iterable[Receipt]) -> None:
    content = json.dumps([asdict(receipt) for receipt in receipts])
    # Over the text as it is written: numbers that are read and written anew may change a digit.
    seal = google_crc32c.value(content.encode())
    objects.write_bytes(store, key, f'{{"crc32c": {seal}, "receipts": {content}}}'.encode())


def _read_receipts(store: Store, key: str) -> list[Receipt]:
    """Receipts of one object of the ledger; none if a single bit of it is not as written."""
    with suppress(ValueError, KeyError, TypeError):  # of pydantic's, too
        head, _, tail = (objects.read_bytes(store, key) or b"").decode().partition(', "receipts": ')
        listed = tail.removesuffix("}")
        # A flipped bit in a receipt would prove a damaged chunk: such an object counts as none, and
        # its chunks are written again, with the same bytes.
        if json.loads(f"{head}}}")["crc32c"] == google_crc32c.value(listed.encode()):
            return _RECEIPTS.validate_json(listed)
    return []


def find_damaged(plan: ReleasePlan, receipts: Iterable[Receipt]) -> list[int]:
    """Chunks whose stored objects are missing or differ from their receipt; reads every byte."""
    store = objects.open_store(plan.data_url, read_only=True)

    def is_there(receipt: Receipt) -> bool:
        with suppress(OSError):
            there = (measure_object(store, array, receipt.chunk) for array in plan.arrays)
            return tuple(there) == receipt.objects
        return False

    return [one.chunk for one in receipts if not is_there(one)]


def check_foreign(plan: ReleasePlan) -> None:
    """Raise IncompleteReleaseError if the workspace holds anything but what the plan knows.

    Root and receipts may be left of a publishing that was killed; they are written anew. Links
    are not what they lead to: nothing that they bring in is published, and no empty folder.
    """
    # A folder that is a link was once a door into what is published.
    objects.check_no_links(plan.data_url)
    store = objects.open_store(plan.data_url, read_only=True)
    for key, content in plan.documents.items():
        if objects.read_bytes(store, key) != content:
            problem = f"The description {key} in the workspace of {shown(plan.url)} was changed."
            remedy = "Nothing was published. `privpipe purge`, then run again."
            raise IncompleteReleaseError(problem, remedy=remedy, code="damaged")
    chunks = {layout.chunk_key(array, i) for array in plan.arrays for i in range(array.n_chunks)}
    known = chunks.union(plan.documents, [layout.ROOT_DOCUMENT], _receipt_documents(plan, []))
    known |= layout.name_documents(["any"]).keys()  # as the receipts, of a publishing that ended
    found = set(objects.list_keys(store))
    # The rename would publish empty folders, too, with their names.
    ours = {str(parent) for key in known for parent in PurePosixPath(key).parents}
    strange = sorted(found - known)
    strange += [name for name in objects.list_empty_folders(plan.data_url) if name not in ours]
    if strange or chunks - found:
        first = f" ({shown(strange[0])})" if strange else ""
        raise IncompleteReleaseError(
            f"The workspace of {shown(plan.url)} holds {len(strange)} objects that the plan "
            f"does not know{first}; of its {len(chunks)} chunks {len(chunks - found)} are missing.",
            remedy="Something else wrote there: `privpipe purge`, then run again.",
        )


def publish_release(
    plan: ReleasePlan,
    receipts: Mapping[int, Receipt],
    header: layout.Header,
    progress: objects.Progress = None,
) -> None:
    """Write receipts and header, then make the release visible in one step.

    On a file system that step is a rename of the finished tree. Elsewhere the store copies the
    objects to their place, and the step is the root document, written last and only if none is
    there.

    Parameters
    ----------
    plan
        The release.
    receipts
        Proven receipts by chunk number; see `check_receipts`.
    header
        Attributes of the release, without those that this function adds: format, version,
        run, arrays, chunks and the digest of the receipts.
    progress
        Called with the number of objects that have become durable since the last call.
    """
    layout.check_output_free(plan.url)
    check_foreign(plan)  # the audit took its time
    receipt_documents = _receipt_documents(plan, receipts.values())
    names = header.get("feature_names") or () if _is_named(plan, header) else ()
    written = receipt_documents | layout.name_documents(names)
    objects.write_all(objects.open_store(plan.data_url), written)
    documents = plan.documents | written
    cut = {name: getattr(plan.chunks, name) for name in ("n_records", "n_chunks", "chunk_rows")}
    document = root_document(
        {
            "format": "release",
            "format_version": layout.FORMAT_VERSIONS["release"][-1],
            "run": plan.run,
            # What follows is ours, whatever the header says of it.
            **header,
            "arrays": [array.name for array in plan.arrays],
            **cut,
            "receipts_sha256": digest_receipts(receipts.values()),
            "layout": "dense" if plan.basis is None else "factored",
            "documents_sha256": layout.digest_documents(documents),
        },
        layout.consolidate(documents),
    )
    layout.check_output_free(plan.url)
    objects.drop_unfinished(plan.data_url)
    if local_path(plan.url) is None:
        _copy_made(plan, progress)
    # The root last, and only if none is there: of two runs one publishes.
    destination.show_made(plan.url, plan.data_url, document, progress=progress)


def _copy_made(plan: ReleasePlan, progress: objects.Progress) -> None:
    """Have the store copy what passed the gate to its place, and hold lengths against each other.

    Raises
    ------
    IncompleteReleaseError
        If anything else is at the place, or not all of it is there afterwards.
    """
    made = measure_objects(plan.data_url)
    if strange := sorted(measure_objects(plan.url).keys() - made.keys()):
        problem = f"{shown(plan.url)} holds {len(strange)} strange objects ({shown(strange[0])})."
        remedy = "Nothing was published. Choose another place, or remove them, then run again."
        raise IncompleteReleaseError(problem, remedy=remedy)
    keys = sorted(made)
    for start in range(0, len(keys), objects.MOST_AT_ONCE):
        some = keys[start : start + objects.MOST_AT_ONCE]
        location.copy_objects(plan.data_url, plan.url, some)
        if progress is not None:
            progress(len(some))
    # Lengths alone: the bytes are the store's word, as it made the copy.
    if measure_objects(plan.url) != made:
        problem = f"What is at {shown(plan.url)} is not what was proved."
        remedy = "Nothing was published. Look who else writes there, then run again."
        raise IncompleteReleaseError(problem, remedy=remedy)


def _is_named(plan: ReleasePlan, header: layout.Header) -> bool:
    """Whether the names of a header are those of stored columns, and no array takes theirs."""
    shapes = {array.name: array.shape for array in plan.arrays}
    n_names = len(header.get("feature_names") or ())
    return layout.NAMES not in shapes and shapes.get(layout.FEATURES, ())[1:] == (n_names,)


def _receipt_documents(plan: ReleasePlan, receipts: Iterable[Receipt]) -> dict[str, bytes]:
    """The receipts as a small Zarr group inside the release: (chunk, array) tables.

    Their keys are the same whatever the receipts are, and without any.
    """
    memory = MemoryStore()
    group = zarr.create_group(memory, path=layout.RECEIPTS)
    ordered = sorted(receipts, key=lambda one: one.chunk)
    # Of a plan without receipts only the keys are needed: any numbers do.
    table = np.ones((plan.chunks.n_chunks, len(plan.arrays), 3), np.int64)
    if ordered:
        rows = [[(one.rows, part.length, part.crc32c) for part in one.objects] for one in ordered]
        table = np.array(rows, np.int64)
    for column, (name, dtype) in enumerate(_TABLES.items()):
        data = table[..., column].astype(dtype)
        group.create_array(name, data=data, dimension_names=["chunk", "array"])
    return objects.read_all(memory, f"{layout.RECEIPTS}/")
