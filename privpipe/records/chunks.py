"""Plans as values: rows per chunk, chunks per task, bytes in a worker at once."""

from dataclasses import dataclass

from privpipe.errors import MemoryBudgetError

TARGET_CHUNK_BYTES = 8 * 2**20
"""Bytes of features per chunk: measured best between 4 and 16 MiB with lz4 and bitshuffle."""

CHUNKS_PER_TASK = 8
"""Most chunks a worker handles per task, one after the other; halves the overhead per chunk."""

FEWEST_TASKS = 16
"""Of a collection of as many chunks: a small one is cut finer, so that all workers have some."""


@dataclass(frozen=True)
class ChunkPlan:
    """How the records of a collection are cut into chunks, and chunks into tasks.

    Examples
    --------
    >>> plan = ChunkPlan(n_records=10, chunk_rows=4)
    >>> plan.n_chunks, plan.rows(2), plan.tasks()
    (3, (8, 10), [range(0, 1), range(1, 2), range(2, 3)])
    >>> ChunkPlan(n_records=1000, chunk_rows=1).tasks()[-1]
    range(992, 1000)
    """

    n_records: int
    chunk_rows: int

    @property
    def n_chunks(self) -> int:
        return -(-self.n_records // self.chunk_rows)

    def rows(self, chunk: int) -> tuple[int, int]:
        """First record of a chunk, and the one after its last."""
        start = chunk * self.chunk_rows
        return start, min(start + self.chunk_rows, self.n_records)

    def tasks(self) -> list[range]:
        """Chunks of each task, in order; how many depends on the number of chunks alone."""
        step = min(CHUNKS_PER_TASK, max(1, self.n_chunks // FEWEST_TASKS))
        return [range(i, min(i + step, self.n_chunks)) for i in range(0, self.n_chunks, step)]


def plan_chunk_rows(
    n_features: int, itemsize: int, *, target_bytes: int = TARGET_CHUNK_BYTES
) -> int:
    """Records per chunk so that a chunk's features take about `target_bytes`.

    >>> plan_chunk_rows(64, 4)
    32768
    """
    return max(1, target_bytes // max(1, n_features * itemsize))


def predict_chunk_memory(chunk_rows: int, n_in: int, n_out: int, itemsize: int) -> int:
    """Most bytes that one chunk in work occupies in a worker.

    Stored and decoded bytes of the source, a float64 copy to compute in, float64 result,
    released dtype, and its encoded bytes.
    """
    return chunk_rows * (n_in * (2 * itemsize + 8 + 8) + n_out * (8 + 2 * itemsize))


def check_memory(needed: int, available: int, threads: int) -> None:
    """Refuse a plan whose chunks do not fit a worker.

    Parameters
    ----------
    needed
        Bytes per chunk in work; `threads` chunks are in work at once.
    available
        Memory limit of the smallest worker, bytes; 0 when it has none.
    threads
        Threads of that worker.

    Raises
    ------
    MemoryBudgetError
        If more than half of the memory would be needed: the rest is for the interpreter,
        libraries and what Dask keeps.
    """
    if available and needed * threads > available // 2:
        raise MemoryBudgetError(
            f"Chunks of this collection need {needed * threads / 2**20:.0f} MiB at once in a "
            f"worker of {available / 2**20:.0f} MiB.",
            remedy="Give the workers more memory or fewer threads, or ingest the collection "
            "again with a smaller --chunk-mib.",
        )
