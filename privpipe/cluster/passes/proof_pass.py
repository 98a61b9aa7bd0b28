"""Every stored byte is read: of collections without receipts, of releases in a workspace."""

from collections.abc import Iterator, Sequence

from privpipe.cluster.executors.executor import Event, Executor
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.proving import Measured, find_proof, measure_chunks, prove_by_digest
from privpipe.store.releases.release_writing import ReleasePlan, find_damaged

# Several a task: verifying one chunk takes milliseconds, as a task of its own does.
RECEIPTS_PER_TASK = 32


def prove_collection(executor: Executor, collection: Collection, url: str) -> Collection:
    """The collection with a proof; nothing is read where it has one.

    Parameters
    ----------
    executor
        Who reads.
    collection
        As it was opened.
    url
        Place for its receipts, within the private workspace of the run. What an interrupted run
        stored there is not made again.

    Raises
    ------
    StoreError
        If it is not what was ingested.
    """
    if collection.sealed.proof is not None:
        return collection
    known = find_proof(collection, url)
    return known or prove_by_digest(collection, _measure(executor, collection), url)


def _measure(executor: Executor, collection: Collection) -> Iterator[Measured]:
    """What is stored, in the order of the chunks; tasks that finish early wait for their turn."""
    chunks = collection.plan.tasks()
    tasks = ((f"{number:06d}", (some,)) for number, some in enumerate(chunks))
    # Small: only lengths and digests wait for their turn, no record.
    waiting: dict[int, list[Measured]] = {}
    turn = 0
    prefix = f"prove_chunk-{collection.digest[:8]}"
    notify = executor.listener
    notify(Event("prove_chunk", "begins", collection.plan.n_chunks, "chunks"))
    shared = (collection.sealed,)
    for name, found in executor.run_tasks(measure_chunks, tasks, shared=shared, prefix=prefix):
        waiting[int(name)] = found
        notify(Event("prove_chunk", "advances", len(chunks[int(name)]), "chunks"))
        while turn in waiting:
            yield from waiting.pop(turn)
            turn += 1
    notify(Event("prove_chunk", "ends", unit="chunks"))


def find_damaged_chunks(
    executor: Executor, plan: ReleasePlan, receipts: Sequence[Receipt], attempt: str
) -> set[int]:
    """Numbers of the chunks whose stored bytes are not what their receipts say.

    Parameters
    ----------
    executor
        Who reads.
    plan
        The release being written.
    receipts
        What should be stored.
    attempt
        Makes the keys of this reading unique within the run.
    """
    tasks = (
        (f"{attempt}-{start:06d}", (list(receipts[start : start + RECEIPTS_PER_TASK]),))
        for start in range(0, len(receipts), RECEIPTS_PER_TASK)
    )
    found = executor.run_tasks(find_damaged, tasks, shared=(plan,), prefix="verify_chunk")
    return {chunk for _, damaged in found for chunk in damaged}
