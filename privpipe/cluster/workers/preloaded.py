"""What every worker of a local cluster needs, imported once: workers are forked from here.

Only multiprocessing's fork server imports this module, before it forks the first worker. Workers
then share the code of NumPy, Zarr, scikit-learn and the compiler, and one that replaces a killed
one is there at once. Nothing below may open what must not be shared, or start a thread, whose locks
would stay locked in a fork (but that of pyarrow's allocator, jemalloc, which is made for forks).
"""

import gc
import os
from contextlib import suppress
from importlib import import_module

import numpy as np

from privpipe.cluster.workers.processes import MODULES

gc.disable()  # next to nothing of what imports make is garbage
for name in MODULES:
    with suppress(Exception):  # a worker that needs it says why it cannot be had
        import_module(name)
# Python draws anew after a fork by itself; NumPy's legacy generator would draw alike everywhere.
os.register_at_fork(after_in_child=np.random.seed)
# What is here to stay is looked through no more, and its pages stay shared.
gc.freeze()
gc.enable()
