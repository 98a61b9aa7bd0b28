"""The whole demo, stage by stage, in processor seconds of all processes, against another commit.

``PRIVPIPE_BASE`` names a checkout whose ``.venv`` is ready; its demo and this one run in turn, in
an order that is drawn, on as many records. Without it each stage is held against the whole demo.
``PRIVPIPE_REPEATS`` says how many times the originals are repeated.
A stage ends when the command tells of it; "start" is all before the training, "end" all after the
publication. Processor time is that of the command and of all that descends from it, orphans
included, which this process takes in (Linux).
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from privpipe.command.demo_command import N_ORIGINALS

Row = tuple[str, float, str, str, float, float]

TOLD = ("check", "train", "clean", "audit", "publish")
STAGES = ("start", *TOLD[1:], "end", "all")
REPEATS = 100
"""Of the originals; the demo's own default is 4,668."""

SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""

HERE = Path(sys.executable).with_name("privpipe")


def run(small: bool) -> list[Row]:
    """Seconds of each stage, here and of the base; and the audit against train and clean."""
    n_records = N_ORIGINALS * (10 if small else int(os.environ.get("PRIVPIPE_REPEATS", REPEATS)))
    base = os.environ.get("PRIVPIPE_BASE")
    commands = {"here": HERE} | ({"base": Path(base, ".venv/bin/privpipe")} if base else {})
    found = measure_demos(commands, n_records, workers=0 if small else 2, rounds=1 if small else 3)
    mine = found["here"]
    reference = "the same of the base" if base else "the whole demo"
    rows = [
        _row(f"{stage}, {n_records:,} records", mine[stage], reference, against)
        for stage in STAGES
        if (against := found["base"][stage] if base else mine["all"]) > 0
    ]
    both = mine["train"] + mine["clean"]
    hours = both / n_records * 1e9 / 3600
    return [
        *rows,
        _row("audit", mine["audit"], "train and clean together", both),
        ("train and clean, 10^9 records", hours, "h CPU", "as README says", 2.4, hours / 2.4),
    ]


def _row(name: str, value: float, reference: str, against: float) -> Row:
    return name, value, "s CPU", reference, against, value / against


def measure_demos(
    commands: Mapping[str, Path], n_records: int, *, workers: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Median processor seconds of each stage of each command."""
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in commands}
    for _ in range(rounds):
        for name in random.sample(list(commands), len(commands)):
            for stage, seconds in measure_demo(commands[name], n_records, workers).items():
                times[name][stage].append(seconds)
    return {
        name: {stage: median(found.get(stage, [0.0])) for stage in STAGES}
        for name, found in times.items()
    }


def measure_demo(command: Path, n_records: int, workers: int) -> dict[str, float]:
    """Processor seconds of each stage of one demo."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    others = {child.pid for child in psutil.Process().children()}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime
    with tempfile.TemporaryDirectory(prefix="bench-demo-") as folder:
        options = ["--records", str(n_records), "--out", f"{folder}/demo", "--workers"]
        process = subprocess.Popen(
            [str(command), "demo", *options, str(workers)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        found: dict[str, float] = {}
        before = 0.0
        for line in process.stderr:
            name = line.partition(" ")[0]
            if name in TOLD:
                now = _measure_family(process.pid)
                found["start" if name == "check" else name] = now - before
                before = now
        process.stderr.close()
        if process.wait():
            raise RuntimeError(f"The demo ended with {process.returncode} after {list(found)}.")
        while orphans := {child.pid for child in psutil.Process().children()} - others:
            os.waitpid(orphans.pop(), 0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole = used.ru_utime + used.ru_stime - spent
        return found | {"end": max(whole - before, 0.0), "all": whole}


def _measure_family(pid: int) -> float:
    """Processor seconds of a process and its descendants, those that have ended included."""
    root, total = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            total += sum(process.cpu_times()[:4])
    return total
