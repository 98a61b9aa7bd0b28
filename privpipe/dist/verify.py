"""Reading back what stands in a workspace, on the workers: every byte against its receipt."""

from __future__ import annotations

from collections.abc import Sequence

from distributed import Client, as_completed

from privpipe.dist.boundary import run_sealed
from privpipe.dist.cluster import measure_workers
from privpipe.dist.parcel import send
from privpipe.store.blocks import Receipt
from privpipe.store.release import ReleasePlan, find_damaged

__all__ = ["find_damaged_chunks"]

RECEIPTS_PER_TASK = 32


def find_damaged_chunks(
    client: Client, plan: ReleasePlan, receipts: Sequence[Receipt], attempt: str
) -> set[int]:
    """Numbers of the chunks whose stored bytes are not what their receipts say.

    Parameters
    ----------
    client
        The cluster.
    plan
        The release being written.
    receipts
        What should stand there.
    attempt
        Makes the keys of this reading unique within the run.
    """
    shared = send(client, plan)
    tasks = [
        (start, list(receipts[start : start + RECEIPTS_PER_TASK]))
        for start in range(0, len(receipts), RECEIPTS_PER_TASK)
    ]
    queue = iter(tasks)

    def submit(task: tuple[int, list[Receipt]]) -> object:
        start, some = task
        key = f"verify_chunk-{plan.run}-{attempt}-{start:06d}"
        return client.submit(run_sealed, find_damaged, shared, some, key=key, pure=False, retries=2)

    first = measure_workers(client).n_threads * 2 or 1
    running = as_completed([submit(task) for _, task in zip(range(first), queue, strict=False)])
    damaged: set[int] = set()
    for future in running:
        damaged.update(future.result())
        future.release()
        if (task := next(queue, None)) is not None:
            running.add(submit(task))
    return damaged
