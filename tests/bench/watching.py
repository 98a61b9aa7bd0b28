"""What benchmarks run on workers: the plain copy, clocks, memory; imports what workers import."""

from __future__ import annotations

import ctypes
import re
import resource
import time
from pathlib import Path

import psutil

from privpipe.cluster.passes.cleaning_pass import CleaningJob
from privpipe.cluster.workers.processes import WORKER_ENVIRONMENT
from privpipe.store.arrays import blocks
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.layout import FEATURES

_RECEIPTS: list[float] = []
"""Seconds of each receipt since `watch_receipts`, in this process."""


def copy_chunks(job: CleaningJob, chunks: list[int]) -> list[Receipt]:
    """The floor of cleaning, in the place of `clean_chunks`: read, write, receipt."""
    receipts = []
    for chunk in chunks:
        start, stop = job.plan.chunks.rows(chunk)
        block = {FEATURES: job.collection.read(FEATURES, start, stop)}
        receipts.append(
            blocks.write_block(job.plan.data_url, job.plan.arrays, chunk, block, job.plan.run)
        )
    return receipts


def watch_receipts() -> None:
    """From now on count the seconds that this process takes for the checksums of what it writes."""
    measure = blocks.measure_content

    def timed(*arguments: object) -> object:
        begun = time.perf_counter()
        try:
            return measure(*arguments)
        finally:
            _RECEIPTS.append(time.perf_counter() - begun)

    blocks.measure_content = timed


def take_receipt_seconds() -> float:
    """Seconds counted so far; the count begins anew."""
    seconds = sum(_RECEIPTS)
    _RECEIPTS.clear()
    return seconds


def processor_seconds() -> tuple[float, float]:
    """Processor time of this process so far: all of it, and that outside of the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_utime


def keep_memory_as_workers() -> None:
    """Let this process keep freed memory for itself as our workers do."""
    parameters = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}  # of mallopt(3)
    for name, parameter in parameters.items():
        assert ctypes.CDLL(None).mallopt(parameter, int(WORKER_ENVIRONMENT[name])), name


def give_back_memory() -> None:
    """Give free memory back to the system, so that what is taken later is seen."""
    ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """Let Linux count the largest resident memory of this process from now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Largest resident memory of this process since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024 if found else 0


def resident_bytes() -> int:
    """Resident memory of this process, pages shared with others included, as the peak."""
    return int(psutil.Process().memory_info().rss)


def own_bytes() -> int:
    """Memory that this process shares with no other."""
    return int(psutil.Process().memory_full_info().uss)
