"""Plans as values."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privpipe.errors import MemoryBudgetError
from privpipe.records.schema import (
    TARGET_CHUNK_BYTES,
    ChunkPlan,
    check_memory,
    plan_chunk_rows,
    predict_chunk_memory,
)


@given(st.integers(1, 5000), st.integers(1, 600))
def test_tasks__hold_every_record_once(n_records: int, chunk_rows: int) -> None:
    plan = ChunkPlan(n_records, chunk_rows)
    tasks = plan.tasks()
    assert tasks[0].start == 0
    assert tasks[-1].stop == plan.n_chunks
    assert all(a.stop == b.start for a, b in pairwise(tasks))
    assert max(map(len, tasks)) <= 8
    assert len(tasks) >= min(plan.n_chunks, 16)
    assert plan.rows(0)[0] == 0
    assert plan.rows(plan.n_chunks - 1)[1] == n_records


@given(st.integers(1, 10**7), st.sampled_from([4, 8]))
def test_plan_chunk_rows__stays_within_the_target(n_features: int, itemsize: int) -> None:
    rows = plan_chunk_rows(n_features, itemsize)
    assert rows >= 1
    assert rows == 1 or rows * n_features * itemsize <= TARGET_CHUNK_BYTES


def test_check_memory__refuses_what_does_not_fit() -> None:
    needed = predict_chunk_memory(100_000, 1000, 1000, 8)
    check_memory(needed, 2 * needed, 1)
    check_memory(needed, 0, 8)  # a worker without a limit
    with pytest.raises(MemoryBudgetError, match=r"MiB at once in a worker of 4096 MiB") as caught:
        check_memory(needed, 2**32, 2)
    assert "smaller --chunk-mib" in str(caught.value)
    assert caught.value.exit_code == 5
