"""How the processes of local workers begin: forked from one that has imported all they need.

A worker that starts from nothing spends seconds of processor time on imports, as every other does.
On Linux multiprocessing's fork server imports them once (`preloaded`); elsewhere libraries do not
survive a fork, and Python 3.11.0 lets every user of the machine reach the fork server
(CVE-2022-42919): there each worker starts from nothing, as Dask has it.
"""

from __future__ import annotations

import sys
from typing import Any

import dask
from distributed.utils import get_mp_context

MODULES = (
    "distributed.nanny",
    "numba",
    "privpipe.cluster.passes.cleaning_pass",
    "privpipe.cluster.passes.judging.attack_tasks",
    "privpipe.cluster.passes.judging.evidence_sample",
    "privpipe.cluster.passes.judging.together",
    "privpipe.cluster.passes.verification",
    "privpipe.attacks.moments.audit_rounds",
    "privpipe.attacks.adversaries.bits",
    "privpipe.attacks.adversaries.boosted_trees",
    "privpipe.attacks.adversaries.kernel_ridge",
    "privpipe.attacks.adversaries.linear_adversaries",
    "privpipe.attacks.adversaries.ridges",
    "privpipe.attacks.adversaries.nearest_neighbours",
    "privpipe.attacks.adversaries.network_adversaries",
    "privpipe.attacks.adversaries.quadratic_adversaries",
)
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
