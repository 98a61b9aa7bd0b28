"""``python -m tests.simulation``: many histories, or one told.

Ends with 1 where anything did not hold; each problem is printed with its number, which repeats it.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.commands import COMMANDS, open_world
from tests.simulation.histories import Judged, Simulator, draw_history

PROCESSES = 2
N_HISTORIES = 10_000
"""What a change must pass."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=N_HISTORIES)
    parser.add_argument("--seed", type=int, default=0, help="number of the first history")
    parser.add_argument("--history", type=int, default=None, help="tell this one")
    parser.add_argument("--commands", default="", help="of these alone, by comma")
    given = parser.parse_args()
    names = tuple(given.commands.split(",")) if given.commands else tuple(COMMANDS)
    if given.history is not None:
        return tell(given.history, names)
    begun = time.perf_counter()
    shares = share_out(names)
    with get_context("spawn").Pool(PROCESSES) as pool:
        jobs = [(given.seed, given.histories, names, share) for share in shares]
        found = merge(pool.imap_unordered(judge_share, jobs))
    for number, problem in sorted(found.problems.items()):
        print(f"{number} {draw_history(number, names).command}: {problem}")
    print(f"{found.describe()}; {time.perf_counter() - begun:.0f} s")
    print(", ".join(f"{fault} {n:,}" for fault, n in sorted(found.faults.items())))
    return 1 if found.problems else 0


def tell(number: int, names: Sequence[str]) -> int:
    """One history, change by change."""
    with open_simulator() as simulator:
        story = simulator.tell(draw_history(number, names))
    print("\n".join(story))
    return 0 if story[-1] == "all holds" else 1


@contextmanager
def open_simulator() -> Iterator[Simulator]:
    """In a folder of its own, in memory where there is such a place."""
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="privpipe-sim-", dir=memory if memory.is_dir() else None))
    try:
        with open_world(base) as world, redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield Simulator(world)
    finally:
        shutil.rmtree(base)


def share_out(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Commands for one process after the other: each command is known by one alone."""
    return [(name,) for name in sorted(names, key=lambda name: COMMANDS[name].weight)]


def judge_share(job: tuple[int, int, tuple[str, ...], tuple[str, ...]]) -> Judged:
    """Of the histories of some numbers those of some commands."""
    first, n_histories, names, mine = job
    drawn = (draw_history(number, names) for number in range(first, first + n_histories))
    with open_simulator() as simulator:
        return simulator.judge_all(one for one in drawn if one.command in mine)


def merge(found: Iterator[Judged]) -> Judged:
    """All of them."""
    whole = Judged(faults=Counter())
    for one in found:
        whole.n_histories += one.n_histories
        whole.states |= one.states
        whole.faults += one.faults
        whole.problems |= one.problems
    return whole


if __name__ == "__main__":
    sys.exit(main())
