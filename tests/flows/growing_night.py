"""A night of a growth as a command of its own: ``python -m tests.flows.growing_night run FILE``.

The noise is drawn by a key of zeros, so that two runs can be compared; with ``KILLS`` in the
environment a worker is killed while it has sums of products to make.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Future, wait

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.command import main
from privpipe.pipeline.stages.audit import audit_surrogates
from privpipe.sanitizers.masking import private_masking

KILLS = "TEST_KILLS_A_WORKER"


@contextmanager
def drawing_by_zeros(drawn: list[int]) -> Iterator[None]:
    """Fits whose noise is repeated, of which `drawn` gets a number each; no canaries."""

    def draw(n_bytes: int) -> bytes:
        drawn.append(n_bytes)
        return bytes(n_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_masking, "secrets", SimpleNamespace(token_bytes=draw))
        # Canaries take most of the time, and have keys of their own.
        patch.setattr(audit_surrogates, "audit_canaries", lambda _: None)
        yield


@contextmanager
def killing_a_worker(drawn: list[int]) -> Iterator[None]:
    """SIGKILL of one of two workers that has the first sums of a fit to make.

    Both are held (SIGSTOP) until the scheduler has sent it there, so that it cannot be done yet.
    """
    submit, killed = DaskExecutor.submit, list[int]()

    def send(self: DaskExecutor, *given: Any, **named: Any) -> Any:
        if killed or not drawn or not named["key"].startswith("sum_"):
            return submit(self, *given, **named)
        wait([one for one in given if isinstance(one, Future)])
        workers = self.client.run(os.getpid)
        assert len(workers) == 2
        for pid in workers.values():
            os.kill(pid, signal.SIGSTOP)
        future, busy = submit(self, *given, **named), list[str]()
        while not busy:
            held = self.client.processing().items()
            busy = [worker for worker, keys in held if named["key"] in map(str, keys)]
        killed.append(workers.pop(busy[0]))
        os.kill(killed[0], signal.SIGKILL)
        for pid in workers.values():
            os.kill(pid, signal.SIGCONT)
        print(f"killed {killed[0]}", file=sys.stderr, flush=True)
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DaskExecutor, "submit", send)
        yield


if __name__ == "__main__":
    made: list[int] = []
    with drawing_by_zeros(made), killing_a_worker(made) if KILLS in os.environ else nullcontext():
        main()
