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


FEWEST = 12
"""Histories of a command that are drawn, however many places it has."""


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
    """Of the histories of some numbers, among some commands, those of one; first all its places.

    What is swept takes the place of as many that would be drawn.
    """
    first, n_histories, names, mine = job
    numbers = range(first, first + n_histories)
    drawn = [one for one in (draw_history(n, names) for n in numbers) if one.command == mine]
    with open_simulator(in_bucket=COMMANDS[mine].in_bucket) as simulator:
        swept = list(simulator.sweep(mine))
        return simulator.judge_all([*swept, *drawn[: max(len(drawn) - len(swept), FEWEST)]])


def merge(found: Iterable[Judged]) -> Judged:
    """All of them."""
    whole = Judged(faults=Counter())
    for one in found:
        whole.n_histories += one.n_histories
        whole.states |= one.states
        whole.faults += one.faults
        whole.problems |= one.problems
    return whole
