"""How the processes of local workers begin: forked from one that has imported all they need.

A worker that starts from nothing spends seconds of processor time on imports, as every other does.
On Linux multiprocessing's fork server imports them once (`preloaded`); elsewhere libraries do not
survive a fork, and Python 3.11.0 lets every user of the machine reach the fork server
(CVE-2022-42919): there each worker starts from nothing, as Dask has it.
"""

import sys
from pathlib import Path
from typing import Any

import dask
from distributed.utils import get_mp_context

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
WORKER_ENVIRONMENT = {
    **dict.fromkeys(_THREADS, "1"),
    # The nanny's own value hands memory back after every pass: 2.4 times the processor time.
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    # A file in the folder that a run is started from must not be imported in a library's place.
    "PYTHONSAFEPATH": "1",
}
SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    "distributed.comm.timeouts.connect": "60s",
    "distributed.worker.memory.spill-compression": None,
    # A nanny replaces a killed worker. After 15 s, the default, Dask would give the worker up:
    # a busy machine needs longer, and with the last one the run would wait for ever.
    "distributed.deploy.lost-worker-timeout": "1 hour",
    # Each of these processes looks 50 times a second whether its loop is late: a third of the
    # driver's processor time.
    "distributed.admin.tick.interval": "1s",
    # Of its newest thousand graphs a scheduler keeps each call, three times: it grew by 4 KiB
    # per task, many times what travels. Its own developers read them.
    "distributed.admin.low-level-log-length": 100,
}
"""Of scheduler and workers, local or deployed."""

MODULES = tuple(Path(__file__).with_name("preloaded.txt").read_text("utf-8").split())
"""What the work of a run imports on workers."""

PRELOADED = f"{__package__}.preloaded"

CLOSED_SINCE = (3, 11, 1)
"""Version of Python whose fork server listens in a private folder."""


def prepare_forking() -> dict[str, Any]:
    """Prepare the fork server where there may be one; the configuration of Dask that uses it."""
    if sys.platform != "linux" or sys.version_info < CLOSED_SINCE:
        return {}
    settings = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(settings):
        context = get_mp_context()  # the first call preloads a list of Dask's own
    context.set_forkserver_preload([PRELOADED])
    return settings
