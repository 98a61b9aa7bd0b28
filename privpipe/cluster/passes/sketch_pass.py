"""One pass over records that have no sketch yet: workers make words, the driver keeps them.

What travels is 32 bytes a record that no one reads without the account's key. A partition is
read once: its sketch stays beside the account, under the digest of its content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privpipe.cluster.executors.executor import Executor
from privpipe.numerics.random import record_grids
from privpipe.numerics.random.record_overlap import MOST_AT_ONCE, make_words
from privpipe.protocols import FloatArray, WordArray
from privpipe.records.schema import Partition, PartitionRun, cut_by_partition
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.sketches import Sketches, SketchKey

SAMPLED_CHUNKS = 8
SAMPLED_ROWS = 4_096
SAMPLED_VALUES = 1 << 20
"""Of each: what the units of records are found from that fit no known ones."""


@dataclass(frozen=True)
class SketchInput:
    """What records are known by; small and picklable.

    Parameters
    ----------
    collection
        The records.
    key
        The secret of their sketches.
    names
        Of the features; their places where they have none.
    variables
        By which records without features are known.
    subject
        Variable of the subjects, where one is named.
    """

    collection: Collection
    key: SketchKey
    names: tuple[str, ...]
    variables: tuple[str, ...]
    subject: str | None


def sketch_collection(
    executor: Executor, collection: Collection, sketches: Sketches, *, subject: str | None = None
) -> None:
    """Make the sketches that a collection's partitions do not have.

    Parameters
    ----------
    executor
        Who reads.
    collection
        The records. Those without features are known by its attributes, or by all variables.
    sketches
        Where sketches are stored.
    subject
        Variable that names the subject of a record.

    Raises
    ------
    StoreError, FormatError
        If the place cannot be reached, or what is there is damaged.
    """
    schema = collection.schema_of_records
    named = schema.feature_names or tuple(f"#{j}" for j in range(schema.n_features))
    everything = tuple(variable.name for variable in schema.variables)
    chosen = () if named else collection.attributes or everything
    parts = {one.digest: one for one in schema.partitions if one.n_records and one.digest}
    if not parts or not (named or chosen):
        return
    by, known = SketchInput(collection, sketches.key(), named, chosen, subject), sketches.known()
    whose = [record_grids.GridFrame(("subject",), kind="subject")] if subject is not None else []
    if not parts.keys() <= known.keys():
        whose += _choose_frames(executor, sketches, by)
    made: dict[str, dict[str, WordArray]] = {}
    for digest, part in parts.items():
        due = [one for one in whose if one.id not in known.get(digest, ())]
        if digest in known:  # who came later was cut in its units, but its subjects may be unknown
            due = [one for one in due if one.kind == "subject"]
        if not due:
            continue
        # Those that are compared at once are in memory: a large partition is compared alone.
        if made and sum(parts[one].n_records for one in [*made, digest]) > MOST_AT_ONCE:
            sketches.write(made)
            made = {}
        made[digest] = _sketch_partition(executor, part, by, due)
    if made:
        sketches.write(made)


def _choose_frames(
    executor: Executor, sketches: Sketches, by: SketchInput
) -> list[record_grids.GridFrame]:
    """Units of earlier records, in which these are met again, and their own if they differ."""
    kind = "features" if by.names else "values"
    there = by.names or [one.name for one in by.collection.schema_of_records.variables]
    earlier = [one for one in sketches.frames() if one.kind == kind and one.reads(there)]
    frame = record_grids.GridFrame(tuple(sorted(by.variables)), kind=kind)
    if by.names:
        [(_, frame)] = executor.run_tasks(fit_units, [("units", (by,))], prefix="sketch")
    if any(one == frame or (by.names and one.fits(frame)) for one in earlier):
        return earlier
    sketches.add_frame(frame)
    return [*earlier, frame]


def fit_units(by: SketchInput) -> record_grids.GridFrame:
    """Worker side: units of a collection's records, from heads of some chunks."""
    plan = by.collection.plan
    chosen = np.unique(np.linspace(0, plan.n_chunks - 1, SAMPLED_CHUNKS).astype(int))
    rows = [plan.rows(int(chunk)) for chunk in chosen]
    most = max(2, min(SAMPLED_ROWS, SAMPLED_VALUES // max(1, len(by.names))))
    sample = [_read(by.collection, start, min(stop, start + most)) for start, stop in rows]
    head = np.concatenate(sample)
    return record_grids.fit_frame(head, by.names, by.collection.n_records, by.key.secret)


def _sketch_partition(
    executor: Executor, part: Partition, by: SketchInput, frames: Sequence[record_grids.GridFrame]
) -> dict[str, WordArray]:
    """Words of a partition's records in each frame, in their order."""
    words = {one.id: make_words(part.n_records) for one in frames}
    runs = _cut(by.collection, part)
    tasks = [(f"{part.digest[:12]}-{run.first_record:012d}", (run,)) for run in runs]
    shared = (by, tuple(frames))
    for _, (first, table) in executor.run_tasks(sketch_rows, tasks, shared=shared, prefix="sketch"):
        for one, rows in table.items():
            words[one][first : first + len(rows)] = rows
    return words


def _cut(collection: Collection, part: Partition) -> list[PartitionRun]:
    """A partition in pieces, each within the chunks of a task."""
    found: list[PartitionRun] = []
    end = part.first_record + part.n_records
    for chunks in collection.plan.tasks():
        start, stop = collection.plan.rows(chunks[0])[0], collection.plan.rows(chunks[-1])[1]
        start, stop = max(start, part.first_record), min(stop, end)
        if start < stop:
            found += cut_by_partition((part,), start, stop)
    return found


def sketch_rows(
    by: SketchInput, frames: Sequence[record_grids.GridFrame], run: PartitionRun
) -> tuple[int, Mapping[str, WordArray]]:
    """Worker side: words of some records, chunk by chunk."""
    at = run.partition.first_record + run.first_record
    last = at + run.n_records
    pieces: dict[str, list[WordArray]] = {frame.id: [] for frame in frames}
    rows = by.collection.schema_of_records.chunk_rows
    while at < last:
        end = min((at // rows + 1) * rows, last)
        features = _read(by.collection, at, end)
        for frame in frames:
            pieces[frame.id].append(_word(by, frame, features, at, end))
        at = end
    return run.first_record, {frame: np.concatenate(some) for frame, some in pieces.items()}


def _word(
    by: SketchInput, frame: record_grids.GridFrame, features: FloatArray, start: int, stop: int
) -> WordArray:
    if frame.kind == "features":
        return record_grids.word_features(features, by.names, frame, by.key.secret)
    schema = by.collection.schema_of_records
    there = {variable.name for variable in schema.variables}
    variables = {name: name for name in frame.names if name in there}
    if frame.kind == "subject":
        variables = {"subject": str(by.subject)}
    columns = {
        name: (by.collection.read(stored, start, stop), schema.variable(stored).categories)
        for name, stored in variables.items()
    }
    return record_grids.word_values(columns, frame, by.key.secret)


def _read(collection: Collection, start: int, stop: int) -> Any:
    return replace(collection, indicators=False).read(FEATURES, start, stop)
