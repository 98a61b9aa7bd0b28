"""Cleaning on the workers: store, worker, store; only receipts travel.

One task owns whole chunks. A bounded number of tasks is in flight, futures are released as they
complete, and each task's receipts are recorded before the next is submitted.

Surrogates are drawn: a tile of them is one pass over all records, each summed with random signs
of its own. The sums are merged in a tree, and the driver makes records of the last one. They are
exact, so that chunks, workers, retries and resumed runs give the same bytes. Neither signs nor
keys leave a task.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from privpipe.capabilities import BoundCounts, MakesRecords, Measures, MixesRecords, UtilitySummary
from privpipe.cluster.executors.executor import Event, Executor, merge_all
from privpipe.cluster.passes import loaded_map, sample_drawing
from privpipe.cluster.passes.place_pass import PlaceNotes, PlacePlan
from privpipe.errors import FormatError, InputError
from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import NamedCodes, check_numbered_alike
from privpipe.numerics.finite import fill_gaps, find_empty_rows, find_finite_rows, keep_rows
from privpipe.protocols import AnyArray, BoolArray, RecordMap, RecordStream
from privpipe.records.schema import MISSING
from privpipe.store.access.objects import open_store, read_bytes
from privpipe.store.arrays.blocks import Receipt, reading_once, write_block
from privpipe.store.arrays.layout import FEATURES, RELEASED
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.keys import PartitionKeys
from privpipe.store.releases.release_writing import ReleasePlan

Nonfinite = Literal["fail", "withhold", "impute"]
Block = dict[str, AnyArray]

Recorder = Callable[[Sequence[Receipt]], None]
"""What a run does with the receipts of a task, before the next task is waited for."""


@dataclass(frozen=True)
class CleaningJob:
    """All that a worker must know to clean chunks; no values of records.

    Parameters
    ----------
    collection
        Source of the records.
    plan
        The release being written.
    model_url, model_digest
        The fitted map, and what it must be.
    include
        Variables released by name.
    nonfinite
        What happens to records with values that are not finite. With "fail" the run fails. With
        "withhold" the row stays and holds nothing. With "impute" such values become those of
        `fill`.
    fill : (n_features,), optional
        Mean training record, for "impute".
    keys
        Name the keys of the draws, when the map draws at random.
    withheld
        Place of a bit per record, by chunk, that is set where the record is withheld whatever it
        holds; None where none is.
    samples
        What the audit's samples are drawn of; each chunk's part is stored before its receipt.
    places
        What is summed up of each chunk and partition for the audit; None where nothing is.
    """

    collection: Collection
    plan: ReleasePlan
    model_url: str
    model_digest: str
    include: tuple[str, ...] = ()
    nonfinite: Nonfinite = "fail"
    fill: tuple[float, ...] | None = None
    keys: PartitionKeys | None = None
    withheld: str | None = None
    samples: tuple[sample_drawing.Drawing, ...] = ()
    places: PlacePlan | None = None


def clean_collection(
    executor: Executor, job: CleaningJob, record: Recorder, *, done: frozenset[int] = frozenset()
) -> None:
    """Clean every chunk that is not done yet.

    Parameters
    ----------
    executor
        Who works; its listener receives records done and stalls.
    job
        What to clean and where to.
    record
        Called with the receipts of each finished task, in the order of finishing.
    done
        Chunks that already have a receipt.

    Raises
    ------
    PrivpipeError
        What a worker reported; other tasks are cancelled.
    ClusterError
        If all workers are gone and none comes back.
    """
    left = ([chunk for chunk in task if chunk not in done] for task in job.plan.chunks.tasks())
    tasks = ((f"{chunks[0]:06d}", (chunks,)) for chunks in left if chunks)
    # The first failure ends the pass: its other tasks are cancelled, what has a receipt stays.
    for _, receipts in executor.run_tasks(clean_chunks, tasks, shared=(job,), prefix="clean_chunk"):
        # Recorded before the next task is submitted: a killed driver loses what is in flight alone.
        record(receipts)
        n_records = sum(receipt.rows for receipt in receipts)
        numbers = (("chunks", float(len(receipts))), *count_receipts(receipts))
        executor.listener(Event("clean_chunk", "advances", n_records, numbers=numbers))


def count_receipts(receipts: Iterable[Receipt]) -> tuple[tuple[str, float], ...]:
    """Records withheld and clipped, and bytes written, as an event reports them."""
    found = list(receipts)
    return (
        ("withheld", float(sum(receipt.withheld for receipt in found))),
        ("clipped", float(sum(r.bounded.n_clipped for r in found if r.bounded is not None))),
        ("bytes", float(sum(stored.length for r in found for stored in r.objects))),
    )


def clean_chunks(job: CleaningJob, chunks: list[int]) -> list[Receipt]:
    """Worker side: read, map and write whole chunks, one after the other."""
    fitted = loaded_map.load_map(job.model_url, job.model_digest)
    if (schema := schema_of(fitted)) is not None:
        # A category's number is the order of first meeting: another table would map other
        # values.
        check_numbered_alike(schema, job.collection.schema)
    notes = None if job.places is None else PlaceNotes(job.places, chunks)
    receipts = [_clean(job, fitted, chunk, notes) for chunk in chunks]
    if notes is not None:
        notes.store()
    return receipts


def _clean(job: CleaningJob, fitted: RecordMap, chunk: int, notes: PlaceNotes | None) -> Receipt:
    # The sample's chunk is the one that was just read, and is in memory.
    with reading_once() if job.samples else nullcontext():
        receipt = _write(job, fitted, chunk, notes)
        for drawing in job.samples:
            sample_drawing.keep_chunk(drawing, chunk)
    return receipt


def _write(job: CleaningJob, fitted: RecordMap, chunk: int, notes: PlaceNotes | None) -> Receipt:
    begun = time.perf_counter()
    start, stop = job.plan.chunks.rows(chunk)
    make = _map_codes if fitted.reads == "attributes" else _map_features
    block, retained, measured = make(job, fitted, chunk)
    for name in job.include:
        values = job.collection.read(name, start, stop)
        block[name] = values if retained.all() else _spread(values[retained], retained)
    if any(array.name == RELEASED for array in job.plan.arrays):
        block[RELEASED] = retained.astype(np.int8)
    receipt = write_block(job.plan.data_url, job.plan.arrays, chunk, block, job.plan.run)
    if notes is not None:
        notes.add(chunk, block, retained)
    seconds = time.perf_counter() - begun
    withheld = len(retained) - int(retained.sum())
    return replace(receipt, seconds=seconds, withheld=withheld, **measured)


_Mapped = tuple[Block, BoolArray, dict[str, Any]]
"""What is made of a chunk: the arrays, what is released, and fields of its receipt."""

MEASURED = {UtilitySummary: "utility", BoundCounts: "bounded", int: "unseen"}
"""Field of a receipt, by what a map measures."""


def _apply(
    fitted: RecordMap, x: Any, stream: RecordStream | None, **how: bool
) -> tuple[AnyArray, dict[str, Any]]:
    """Released records, and what the map says of them for the receipt."""
    if not isinstance(fitted, Measures):
        return fitted.apply(x, stream), {}
    released, found = fitted.apply_measured(x, stream, **how)
    return released, {MEASURED[type(found)]: found}


def _map_features(job: CleaningJob, fitted: RecordMap, chunk: int) -> _Mapped:
    """Released features of a chunk."""
    start, stop = job.plan.chunks.rows(chunk)
    x, retained = treat_nonfinite(job, job.collection.read(FEATURES, start, stop), chunk)
    if isinstance(fitted, Measures) and not fitted.draws:
        # Withheld records must not count as cleaned.
        ready = keep_rows(x, retained)
        released, measured = _apply(fitted, ready, None, overwrite_x=ready.flags.writeable)
        # NaN in the rows left out: what is withheld has no value that could be read.
        released = _spread(released, retained)
    else:
        # Withheld records keep their place, so that what is drawn for a record never shifts.
        ready = x if retained.all() else np.where(retained[:, None], x, x.dtype.type(0))
        # The stream is keyed by record, so that a retry repeats the same noise.
        released, measured = _apply(fitted, ready, _stream(job, start, stop))
        if not retained.all():
            released[~retained] = np.nan
    retained &= ~find_empty_rows(released)  # a map may withhold records of its own
    return {FEATURES: released.astype(job.plan.arrays[0].dtype, copy=False)}, retained, measured


def _map_codes(job: CleaningJob, fitted: RecordMap, chunk: int) -> _Mapped:
    """Released attributes of a chunk, one array per variable."""
    start, stop = job.plan.chunks.rows(chunk)
    x = NamedCodes(job.collection.codes(start, stop), job.collection.schema.attributes)
    codes, measured = _apply(fitted, x, _stream(job, start, stop))
    dtypes = {array.name: array.dtype for array in job.plan.arrays}
    made = {key: codes[:, j].astype(dtypes[key]) for j, key in enumerate(job.collection.attributes)}
    return made, np.ones(len(codes), bool), measured


def _stream(job: CleaningJob, start: int, stop: int) -> RecordStream | None:
    """Random words of these records; None when nothing is drawn."""
    return None if job.keys is None else job.keys.stream(start, stop)


def treat_nonfinite(job: CleaningJob, x: AnyArray, chunk: int) -> tuple[AnyArray, BoolArray]:
    """Records ready for the map, and which of them may be released.

    Raises
    ------
    InputError
        Under "fail", with how many records of which chunk are concerned.
    """
    retained, allowed = find_finite_rows(x), np.ones(len(x), bool)
    if job.withheld is not None:
        allowed = _find_allowed(job.withheld, chunk, len(x))
    if retained.all() or job.nonfinite == "withhold":
        return x, retained & allowed
    if job.nonfinite == "impute" and job.fill is not None:
        return fill_gaps(x, job.fill), allowed
    problem = f"{len(x) - int(retained.sum())} of {len(x)} records of chunk {chunk} are not finite."
    remedy = 'Fix the source, or set [release] nonfinite = "withhold" or "impute".'
    raise InputError(problem, remedy=remedy, code="nonfinite")


def _find_allowed(withheld: str, chunk: int, n_records: int) -> BoolArray:
    """Records of a chunk that may be released, whatever they hold."""
    content = read_bytes(open_store(withheld, read_only=True), f"{chunk:08d}")
    # A missing or short list would release what a budget withholds: nothing is cleaned then.
    if content is None or len(content) != -(-n_records // 8):
        problem = f"Which records of chunk {chunk} are withheld is not known."
        remedy = "Do not change a run's workspace while it works; run again."
        raise FormatError(problem, remedy=remedy)
    return np.asarray(np.unpackbits(np.frombuffer(content, np.uint8), count=n_records) == 0)


def _spread(values: AnyArray, retained: BoolArray) -> AnyArray:
    """Put rows back to their places; rows left out hold NaN, or the missing code."""
    if retained.all():
        return values
    # Integers have no NaN; the missing code is no category of any table.
    fill = np.nan if np.issubdtype(values.dtype, np.floating) else MISSING
    spread = np.full((len(retained), *values.shape[1:]), fill, values.dtype)
    spread[retained] = values
    return spread


def draw_surrogates(
    executor: Executor, job: CleaningJob, record: Recorder, *, done: frozenset[int] = frozenset()
) -> None:
    """Draw and write every tile that is not done yet.

    Parameters
    ----------
    executor
        Who works.
    job
        What surrogates are made of, with the part to take, and where they go: a chunk of the
        release is a tile. Its keys are those of the signs.
    record
        Called with the receipt of each tile.
    done
        Tiles that have a receipt.

    Raises
    ------
    PrivpipeError
        What a worker reported, as of a record that is not finite or too revealing.
    """
    tasks = job.collection.plan.tasks()
    for tile in range(job.plan.chunks.n_chunks):
        if tile in done:
            continue
        begun = time.perf_counter()
        fitted: Any = loaded_map.load_map(job.model_url, job.model_digest)
        assert isinstance(fitted, MakesRecords), "the stage has looked"
        made_of: Any = tile
        if isinstance(fitted, MixesRecords):
            made_of = executor.reduce(sum_chunks, (job, tile), tasks, label="surrogates")
        features, responses = fitted.finish_records(made_of)
        block = {FEATURES: features, **dict(zip(fitted.response_names, responses.T, strict=True))}
        receipt = write_block(job.plan.data_url, job.plan.arrays, tile, block, job.plan.run)
        record([replace(receipt, seconds=time.perf_counter() - begun)])
        executor.listener(Event("clean_chunk", "advances", len(features)))


def sum_chunks(job: CleaningJob, tile: int, chunks: Sequence[int]) -> Any:
    """Worker side: sum up chunks one after the other; memory is that of one and of a tile."""
    fitted = loaded_map.load_map(job.model_url, job.model_digest)
    assert isinstance(fitted, MixesRecords), "the stage has looked"
    assert job.keys is not None, "signs are drawn"
    collection, schema, keys = job.collection, job.collection.schema, job.keys

    def sum_one(chunk: int) -> Any:
        start, stop = collection.plan.rows(chunk)
        places = collection.rows(chunk) - start
        stream = keys.stream(start, stop)
        return fitted.sum_records(collection.shard(chunk), schema, stream, places, tile)

    return merge_all(map(sum_one, chunks))
