"""Connect to a Dask cluster: a local one by default, or a running one by its address.

Loopback is not private: every user of the machine reaches it, and whoever reaches a scheduler
runs code as its owner. So scheduler, workers and client of a local cluster show each other a
certificate that is made for this cluster and lives in memory.
"""

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Client, Nanny, Security, SpecCluster, TimeoutError, WorkerPlugin

from privpipe.cluster.workers import certificates, processes, progress
from privpipe.cluster.workers import dashboard as dashboards
from privpipe.cluster.workers.processes import SETTINGS, prepare_forking, start_managed, trim_names
from privpipe.errors import ClusterError, OptionError

# Those that change bits or formats; others may differ between driver and workers.
SHAPING = ("privpipe", "numpy", "scipy", "zarr", "dask", "distributed", "scikit-learn", "numba")


def list_shaping_versions() -> dict[str, str]:
    """Versions of this process: Python to the minor number, and the libraries that compute."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, **{name: version(name) for name in SHAPING}}


def describe_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What differs, as text; empty where nothing does.

    >>> describe_difference({"numpy": "2.4", "zarr": "3.1"}, {"numpy": "2.5", "zarr": "3.1"})
    'numpy 2.5 instead of 2.4'
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} instead of {required}"
        for name, required in ours.items()
        if theirs.get(name) != required
    )


def check_versions(client: Client) -> None:
    """Compare every worker with this process; later ones are compared as they join.

    Raises
    ------
    ClusterError
        With the worker and what differs.
    """
    ours = list_shaping_versions()
    for address, theirs in client.run(list_shaping_versions).items():
        if differs := describe_difference(ours, theirs):
            problem = f"The worker {address} has {differs}."
            remedy = "Install constraints.txt there, as on the driver, and start it again."
            raise ClusterError(problem, remedy=remedy, code="versions")
    client.register_plugin(ComparedVersions(ours))


class ComparedVersions(WorkerPlugin):
    """Sends a worker of other versions away when it joins."""

    name = "privpipe-versions"
    idempotent = False

    def __init__(self, required: Mapping[str, str]) -> None:
        self.required = dict(required)

    def setup(self, worker: Any) -> None:
        """Run once on each worker, as it joins."""
        if describe_difference(self.required, list_shaping_versions()):
            # With its nanny: it would come back as it is.
            # From the worker's loop: a plugin that raises is logged, and the worker
            # stays.
            worker.loop.add_callback(worker.close, timeout=5, nanny=True, reason="versions")


LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")
"""Bytes: a socket's path has 107 at most (unix(7)), and this is what Python adds."""


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster to use.

    Parameters
    ----------
    kind
        Who starts it: "local", or a name in `MANAGERS`.
    address
        ``tcp://`` or ``tls://`` address of a running scheduler; None starts a cluster.
    workers
        Worker processes; of a local cluster by default one per core.
    memory_limit
        Memory of each local worker, as Dask writes it ("4GiB"); by default an equal share.
    dashboard
        ``host:port`` of a local cluster's dashboard on this machine, ``https://host:port`` with
        certificates of Dask's configuration, or "off". Its pages lie below a path that is new for
        each run and shown at its start.
    wait_seconds
        How long to wait for the first worker.
    scratch
        Folder for a local cluster's spilled records, emptied at start and at end; a new private
        one by default.
    """

    kind: str = "local"
    address: str | None = None
    workers: int | None = None
    memory_limit: str = "auto"
    dashboard: str = "127.0.0.1:8787"
    wait_seconds: float = 60.0
    scratch: str | None = None


class PrepareWorker(WorkerPlugin):
    """Private files, and one thread for each library below Dask's own."""

    name = "privpipe-prepare"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Run once on each worker."""
        from privpipe.store.access.objects import use_one_thread

        os.umask(0o077)
        use_one_thread()

    def transition(self, *args: Any, **kwargs: Any) -> None:
        """Called for each change of a task."""
        trim_names()


@contextmanager
def connect(options: ClusterOptions) -> Iterator[Client]:
    """Connect to the cluster, starting a local one when no address is given.

    Raises
    ------
    OptionError
        If the address is neither ``tls://`` nor ``tcp://`` on this machine: an open scheduler lets
        anyone who reaches it run code. If another user listens there. If the dashboard would listen
        to other machines.
    ClusterError
        If it cannot be reached, shows itself to everybody, no worker joins in time, one has other
        versions, or our own certificate has expired.
    """
    if options.address is not None:
        check_address(options.address)
        # Before the first byte: a stranger at the port would get a pickled task, and send
        # one back.
        certificates.guard_address(options.address)
        if options.address.startswith("tls://"):
            certificates.check_client_certificate()
        with _join(options.address, options.wait_seconds) as client:
            yield client
        return
    dashboards.add_page()  # Dask takes pages from its table when a scheduler begins to serve
    dashboards.check_dashboard(options.dashboard)
    if options.kind != "local":
        with _start_elsewhere(options) as client:
            yield client
        return
    # Before workers start: the error of multiprocessing names neither folder nor limit.
    _check_temporary_folder()
    with (
        _scratch_folder(options.scratch) as scratch,
        dask.config.set(SETTINGS),
        _start_cluster(options, scratch) as cluster,
        Client(cluster) as client,
    ):
        _prepare(client, options.wait_seconds)
        yield client


@contextmanager
def _start_cluster(options: ClusterOptions, scratch: str) -> Iterator[SpecCluster]:
    """Start scheduler and workers of one thread each on this machine, closed to everybody else."""
    # In memory; its file exists, in a 0700 folder, while OpenSSL loads it.
    security = Security.temporary()
    common = {"host": "127.0.0.1", "protocol": "tls://", "security": security}
    nanny = {
        **common,
        "nthreads": 1,
        "memory_limit": options.memory_limit,
        "local_directory": scratch,
        "silence_logs": "CRITICAL",
        "worker_class": dashboards.PagelessWorker,
        # The process that workers are forked from may have begun in another environment.
        "env": {**os.environ, **dask.config.get("distributed.nanny.pre-spawn-environ", {})},
    }
    n_workers = options.workers or os.cpu_count() or 1
    scheduler, link = _plan_scheduler(options.dashboard, {**common, "port": 0})
    # `silence_logs` is about a handler of Dask's own (2026.8), which is not made where Prefect has
    # set up the root's before: everything would be on the user's terminal.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        processes.restoring_environment(),
        dask.config.set(link | prepare_forking()),
        SpecCluster(
            scheduler=scheduler,
            workers={number: {"cls": Nanny, "options": nanny} for number in range(n_workers)},
            security=security,
        ) as cluster,
    ):
        # After the start, on what was started: a later Dask may do it another way.
        dashboards.check_closed(cluster.scheduler)
        yield cluster


def _plan_scheduler(dashboard: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Class and options of a scheduler in this process, and the setting that shows its pages."""
    place = _free_address(dashboard)
    # 192 bits, new for each cluster; Dask's own prefix hides nothing: / redirects to it.
    prefix = f"/{secrets.token_urlsafe(24)}"
    shown = place != dashboards.OFF
    pages = {"dashboard_address": place.removeprefix(dashboards.SECURE), "http_prefix": prefix}
    scheduler = {
        "cls": dashboards.GuardedScheduler if shown else dashboards.PagelessScheduler,
        "options": {**given, "dashboard": shown, **(pages if shown else {})},
    }
    link = f"{{scheme}}://{{host}}:{{port}}{prefix}/status"
    return scheduler, {"distributed.dashboard.link": link}


@contextmanager
def _start_elsewhere(options: ClusterOptions) -> Iterator[Client]:
    """A cluster that another system starts, held to what is required of one by its address."""
    scheduler, link = _plan_scheduler(options.dashboard, {})
    with dask.config.set(link), start_managed(options.kind, options.workers, scheduler) as cluster:
        check_address(cluster.scheduler_address)
        with Client(cluster) as client:
            dashboards.check_pages(client)
            _prepare(client, options.wait_seconds)
            check_versions(client)
            yield client


def check_address(address: str) -> None:
    """Refuse a scheduler that is neither on this machine nor behind TLS."""
    parts = urlsplit(address)
    # That of Dask Gateway is TLS through its proxy.
    is_here = parts.scheme == "tcp" and certificates.is_loopback(parts.hostname or "")
    if is_here or parts.scheme in ("tls", "gateway"):
        return
    raise OptionError(
        f"The scheduler's address has the scheme {parts.scheme or 'none'!r}: without TLS anyone "
        "who reaches it can run code and read records.",
        remedy="Use tls://host:port with certificates, or tcp:// of this machine.",
        code="insecure-cluster",
    )


@contextmanager
def _join(address: str, wait_seconds: float) -> Iterator[Client]:
    try:
        client = Client(address, timeout=wait_seconds)
    except Exception as error:  # distributed raises many kinds
        problem = f"The scheduler at {address} cannot be reached ({type(error).__name__})."
        remedy = "Check that it runs, and that certificates match."
        raise ClusterError(problem, remedy=remedy, code="unreachable") from None
    with client:
        # Before anything is sent: tasks of an open scheduler are read by everybody.
        dashboards.check_pages(client)
        _prepare(client, wait_seconds)
        check_versions(client)
        yield client


def _prepare(client: Client, wait_seconds: float) -> None:
    try:
        client.wait_for_workers(1, timeout=wait_seconds)
    except TimeoutError:
        problem = f"No worker joined within {wait_seconds:.0f} s."
        remedy = "Start workers, or raise the limit."
        raise ClusterError(problem, remedy=remedy, code="no-workers") from None
    # After the first worker is there; those that join later get it as they join.
    client.register_plugin(PrepareWorker())
    client.register_plugin(progress.ShowProgress())


def _check_temporary_folder() -> None:
    """Raise ClusterError where the sockets of worker processes would have no place."""
    length = len(os.fsencode(tempfile.gettempdir()))
    if length > LONGEST_FOLDER:
        raise ClusterError(
            f"The path of the temporary folder has {length} bytes; worker processes talk to one "
            f"another by sockets in it, whose place allows {LONGEST_FOLDER}.",
            remedy="Set TMPDIR to a shorter path, such as /tmp, or [cluster] workers = 0.",
            code="temporary-folder",
        )


@contextmanager
def _scratch_folder(path: str | None) -> Iterator[str]:
    """A private folder; what a killed run left there, plain records among it, goes first."""
    if path is None:
        with tempfile.TemporaryDirectory(prefix="privpipe-dask-") as folder:
            yield folder
        return
    _empty(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _empty(path: str) -> None:
    """Make a private folder empty; workers of a killed run may need a moment to be gone."""
    # Five seconds in all: workers of a killed run end when they miss their nanny.
    for _ in range(50):
        shutil.rmtree(path, ignore_errors=True)
        try:
            os.mkdir(path, mode=0o700)
            return
        except FileExistsError:
            time.sleep(0.1)
    problem = f"The scratch folder {path} cannot be emptied."
    remedy = "Something else uses it: end it, or remove the folder by hand."
    raise ClusterError(problem, remedy=remedy, code="scratch")


def _free_address(address: str) -> str:
    """The address, or any free port of its host when it is taken."""
    if address == dashboards.OFF:
        return address
    host, _, port = address.removeprefix(dashboards.SECURE).rpartition(":")
    with socket.socket() as probe:
        # A port that a run has just left (TIME_WAIT) is free for the next.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return f"{address.rpartition(':')[0]}:0"
    return address
