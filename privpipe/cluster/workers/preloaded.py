"""What every worker of a local cluster needs, imported once: workers are forked from here.

Only multiprocessing's fork server imports this module, before it forks the first worker. Workers
then share the code of NumPy, Zarr, scikit-learn and the compiler, and one that replaces a killed
one is there at once. Nothing below may open what must not be shared, or start a thread, whose locks
would stay locked in a fork. The thread of pyarrow's allocator, jemalloc, may start: it is made for
forks.
"""

import gc
import os
import signal
from contextlib import suppress
from importlib import import_module

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, with which this ends

import numpy as np  # noqa: E402 - takes a while

from privpipe.cluster.workers.processes import MODULES  # noqa: E402 - likewise

gc.disable()  # next to nothing of what imports make is garbage
for name in MODULES:
    with suppress(Exception):  # a worker that needs it says why it cannot be had
        import_module(name)
# Python draws anew after a fork by itself; NumPy's legacy generator would draw alike everywhere.
os.register_at_fork(after_in_child=np.random.seed)
# What is here to stay is looked through no more, and its pages stay shared.
gc.freeze()
gc.enable()
signal.signal(signal.SIGINT, signal.default_int_handler)  # workers are given it back
