"""``python -m tests.simulation``: many histories, or one told.

Ends with 1 where anything did not hold; each problem is printed with its number, which repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context

from tests.simulation.commands import COMMANDS
from tests.simulation.histories import draw_history
from tests.simulation.many import N_HISTORIES, judge_share, merge, open_simulator

PROCESSES = 2


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
    jobs = [(given.seed, given.histories, names, name) for name in reversed(names)]
    with get_context("spawn").Pool(PROCESSES) as pool:
        found = merge(pool.imap_unordered(judge_share, jobs))
    for number, problem in sorted(found.problems.items()):
        print(f"{number} {draw_history(number, names).command}: {problem}")
    print(f"{found.describe()}; {time.perf_counter() - begun:.0f} s")
    print(", ".join(f"{fault} {n:,}" for fault, n in sorted(found.faults.items())))
    return 1 if found.problems else 0


def tell(number: int, names: Sequence[str]) -> int:
    """One history, change by change."""
    history = draw_history(number, names)
    with open_simulator(in_bucket=COMMANDS[history.command].in_bucket) as simulator:
        story = simulator.tell(history)
    print("\n".join(story))
    return 0 if story[-1] == "all holds" else 1


if __name__ == "__main__":
    sys.exit(main())
