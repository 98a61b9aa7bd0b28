"""Reading back what is stored in a workspace: every byte against its receipt."""

from __future__ import annotations

from collections.abc import Sequence

from privpipe.cluster.executors.executor import Executor
from privpipe.errors import PrivpipeError
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.releases.release_writing import ReleasePlan, find_damaged

RECEIPTS_PER_TASK = 32


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
    damaged: set[int] = set()
    for _, found in executor.map_tasks(find_damaged, tasks, shared=(plan,), prefix="verify_chunk"):
        if isinstance(found, PrivpipeError):
            raise found
        damaged.update(found)
    return damaged
