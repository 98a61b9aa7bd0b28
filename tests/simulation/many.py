"""Many histories: judged by one process, or by several whose findings come together."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from tests.simulation.commands import COMMANDS, open_world
from tests.simulation.histories import Judged, Simulator, draw_history

__all__ = ["N_HISTORIES", "judge_share", "merge", "open_simulator"]

N_HISTORIES = int(os.environ.get("PRIVPIPE_HISTORIES", "10000"))
"""What a change must pass; a mutant dies of fewer."""


@contextmanager
def open_simulator(*, in_bucket: bool = False) -> Iterator[Simulator]:
    """In a folder of its own, in memory where there is such a place."""
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="privpipe-sim-", dir=memory if memory.is_dir() else None))
    try:
        with (
            open_world(base, in_bucket=in_bucket) as world,
            redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield Simulator(world)
    finally:
        shutil.rmtree(base)


def judge_share(job: tuple[int, int, tuple[str, ...], str]) -> Judged:
    """Of the histories of some numbers, among some commands, those of one."""
    first, n_histories, names, mine = job
    drawn = (draw_history(number, names) for number in range(first, first + n_histories))
    with open_simulator(in_bucket=COMMANDS[mine].in_bucket) as simulator:
        return simulator.judge_all(one for one in drawn if one.command == mine)


def merge(found: Iterable[Judged]) -> Judged:
    """All of them."""
    whole = Judged(faults=Counter())
    for one in found:
        whole.n_histories += one.n_histories
        whole.states |= one.states
        whole.faults += one.faults
        whole.problems |= one.problems
    return whole
