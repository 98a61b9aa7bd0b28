"""A local Dask cluster that only the process that started it can speak to.

Loopback is not private: every user of the machine reaches it, and whoever reaches a scheduler
runs code as its owner. So scheduler, workers and client show each other a certificate that is
made for this cluster and lives in memory; workers and nannies serve no pages; those of the
scheduler, which have no login, lie behind a path that cannot be guessed.
"""

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security, SpecCluster, Worker
from tornado.routing import Matcher, Rule, RuleRouter

from privpipe.cluster.workers.dashboard import OFF, check_dashboard, guard_pages, place_of
from privpipe.cluster.workers.forking import prepare_forking
from privpipe.errors import ClusterError

_HOST = "127.0.0.1"


class _BelowPath(Matcher):
    """Lets requests through whose path begins with a secret; to all others nothing is there."""

    def __init__(self, prefix: str) -> None:
        self._begin = f"{prefix}/".encode()

    def match(self, request: Any) -> dict[str, Any] | None:
        path = str(request.path).encode(errors="replace")
        # In constant time: a comparison that stops early would reveal the path byte by
        # byte.
        return {} if hmac.compare_digest(path[: len(self._begin)], self._begin) else None


class GuardedScheduler(Scheduler):
    """A scheduler whose pages answer below a secret path only, lists of pages included."""

    def __init__(self, *, http_prefix: str, **options: Any) -> None:
        if len(http_prefix) < 20:
            raise ValueError("the path must not be guessed")
        self._guarded_prefix = http_prefix
        super().__init__(http_prefix=http_prefix, **options)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Serve, with the guard before everything that Dask and Bokeh add to the server."""
        super().start_http_server(*args, **kwargs)  # type: ignore[no-untyped-call]
        guard_pages(self)
        # No request is handled before this returns: it runs on the thread of the event loop.
        rule = Rule(_BelowPath(self._guarded_prefix), self.http_application)
        self.http_server.request_callback = RuleRouter([rule])


class PagelessScheduler(Scheduler):
    """A scheduler that serves no pages."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Listen to no one."""


class PagelessWorker(Worker):
    """A worker that serves no pages: its owner finds the same on the scheduler's."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Listen to no one."""


@contextmanager
def start_cluster(
    *, workers: int, memory_limit: str, dashboard: str, scratch: str
) -> Iterator[SpecCluster]:
    """Start scheduler and workers on this machine, closed to everybody else.

    Parameters
    ----------
    workers
        Number of worker processes, of one thread each.
    memory_limit
        Of each, as Dask writes it.
    dashboard
        ``host:port`` on this machine, ``https://host:port`` or "off", see `check_dashboard`;
        another port when it is taken.
    scratch
        Folder for spilled records.
    """
    check_dashboard(dashboard)
    # 192 bits, new for each cluster; Dask's own prefix hides nothing: / redirects to it.
    prefix = f"/{secrets.token_urlsafe(24)}"
    # In memory; its file exists, in a 0700 folder, while OpenSSL loads it.
    security = Security.temporary()
    common = {"host": _HOST, "protocol": "tls://", "security": security}
    nanny = {
        **common,
        "nthreads": 1,
        "memory_limit": memory_limit,
        "local_directory": scratch,
        "silence_logs": "CRITICAL",
        "worker_class": PagelessWorker,
        # The process that workers are forked from may have begun in another environment.
        "env": {**os.environ, **dask.config.get("distributed.nanny.pre-spawn-environ", {})},
    }
    shown = dashboard != OFF
    pages = {"dashboard_address": place_of(dashboard), "http_prefix": prefix} if shown else {}
    scheduler = {
        "cls": GuardedScheduler if shown else PagelessScheduler,
        "options": {**common, "port": 0, "dashboard": shown, **pages},
    }
    link = {"distributed.dashboard.link": f"{{scheme}}://{{host}}:{{port}}{prefix}/status"}
    with (
        dask.config.set(link | prepare_forking()),
        SpecCluster(
            scheduler=scheduler,
            workers={number: {"cls": Nanny, "options": nanny} for number in range(workers)},
            security=security,
            silence_logs="CRITICAL",
        ) as cluster,
    ):
        # After the start, on what was started: a later Dask may do it another way.
        _check_closed(cluster.scheduler)
        yield cluster


def _check_closed(scheduler: Any) -> None:
    """A later Dask may start its pages in another way: then nothing is started at all."""
    pages = getattr(scheduler, "http_server", None)
    guarded = pages is None or isinstance(pages.request_callback, RuleRouter)
    if guarded and scheduler.address.startswith("tls://"):
        return
    raise ClusterError(
        "The local cluster could not be closed to other users of this machine.",
        remedy="Install the versions of constraints.txt.",
        code="open-cluster",
    )
