"""How the processes of a cluster begin: forked here, started by another system, or on their own.

Local workers are forked from one process that has imported all they need. A worker that starts from
nothing spends seconds of processor time on imports, as every other does. On Linux multiprocessing's
fork server imports them once (`preloaded`). Elsewhere libraries do not survive a fork, and Python
3.11.0 lets every user of the machine reach the fork server (CVE-2022-42919). In both cases each
worker starts from nothing, as Dask has it.

A batch queue, Kubernetes, Dask Gateway or Coiled start clusters by a library of their own. That
library reads all else (queue, image, project) from its section of Dask's configuration.

Scheduler and workers that run on their own are as local ones are, and closed. `write_configuration`
writes what `deploy/dask.yaml` shows. `deploy/preload.py` calls `dashboard.prepare_server` before a
scheduler or worker begins.
"""

import os
import resource
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import dask
import yaml
from dask.utils import key_split
from distributed.spans import SpansSchedulerExtension
from distributed.utils import get_mp_context

from privpipe.errors import ClusterError
from privpipe.store.access.location import join, local_path
from privpipe.store.access.objects import delete_tree, open_store, read_bytes, write_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT

_OF_WORKERS = yaml.safe_load(Path(__file__).with_name("workers.yaml").read_text("utf-8"))

WORKER_ENVIRONMENT: dict[str, str] = _OF_WORKERS["environment"]
"""Of every worker, before Python starts."""

SETTINGS = _OF_WORKERS["settings"] | {"distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT}
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


def begin_forking() -> None:
    """Start the fork server ahead of its cluster: it imports while other things start.

    It ends when this process does, in whatever way.
    """
    if prepare_forking():
        from multiprocessing import forkserver  # not everywhere

        # Where it cannot be, the cluster's own start says why.
        with restoring_environment(), suppress(OSError):
            os.environ |= WORKER_ENVIRONMENT | {"PYTHONHASHSEED": "6640"}  # as a nanny has it
            forkserver.ensure_running()


@contextmanager
def restoring_environment() -> Iterator[None]:
    """Take back what a nanny sets in its own process, which is this one, for its worker's."""
    names = *WORKER_ENVIRONMENT, "PYTHONHASHSEED"
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def describe_configuration(folder: str) -> dict[str, Any]:
    """Dask's configuration with the certificates of a folder."""
    text = Path(__file__).with_name("dask.yaml").read_text("utf-8")
    found = _name_folder(yaml.safe_load(text), folder)
    found["distributed"]["nanny"] = {"pre-spawn-environ": dict(WORKER_ENVIRONMENT)}
    admin = {name: value for name, value in SETTINGS.items() if ".admin." in name}
    dask.config.set(admin, config=found)  # at once, and for good outside of a `with`
    return dict(found)


def _name_folder(content: Any, folder: str) -> Any:
    if isinstance(content, dict):
        return {name: _name_folder(one, folder) for name, one in content.items()}
    return content.replace("FOLDER", folder) if isinstance(content, str) else content


def write_configuration(folder: str | Path) -> Path:
    """Write ``dask.yaml`` beside the certificates that it names; its path for ``DASK_CONFIG``."""
    place = Path(folder).absolute()
    path = place / "dask.yaml"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(describe_configuration(str(place)), file, sort_keys=False)
    return path


MOST_NAMES = 1_000
"""Tasks whose names a process has split at once."""


def trim_names() -> None:
    """Empty Dask's cache of the names of tasks: it takes 100,000, and each is new to it."""
    if key_split.cache_info().currsize >= MOST_NAMES:
        key_split.cache_clear()


class NoSpans(SpansSchedulerExtension):
    """Notes nothing of tasks that are gone, in the place of Dask's own.

    That one keeps a line for each submission for as long as the scheduler lives. It also keeps a
    span of each time that all tasks were done. It cannot be left out: heartbeats of workers name
    it. A scheduler gets this one before a client knows it.
    """

    def observe_tasks(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Called for each submission."""
        trim_names()
        return {}

    def heartbeat(self, *args: Any) -> None:
        """Called with what a worker measured of spans; the scheduler has the sums as well."""


def prepare_process(*, is_worker: bool) -> None:
    """Make files private, leave no memory on disk, and refuse a worker that was started openly.

    Raises
    ------
    ClusterError
        If a worker's allocator or libraries have settings of their own. Settings are read before
        Python starts: the nanny hands them over from ``pre-spawn-environ``.
    """
    os.umask(0o077)
    # A core dump would be a file of records, where no one looks for them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    missing = [name for name, value in WORKER_ENVIRONMENT.items() if os.environ.get(name) != value]
    if is_worker and missing:
        problem = f"The worker was started without {', '.join(missing)}."
        remedy = "Start it with a nanny, and DASK_CONFIG naming `privpipe certs`'s dask.yaml."
        raise ClusterError(problem, remedy=remedy, code="worker-environment")


def look_around(collection: str, release: str) -> dict[str, Any]:
    """Worker side: clock, modes, disk, and a round trip through the storage; no record."""
    # It can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    probe = join(os.path.dirname(release.rstrip("/")) or ".", f".privpipe-{secrets.token_hex(8)}")
    # Bytes of this round trip alone: an older probe must not answer for it.
    store, mark = open_store(probe), secrets.token_bytes(16)
    write_bytes(store, "probe", mark)
    written = read_bytes(store, "probe") == mark
    delete_tree(store)
    if (path := local_path(probe)) is not None:
        shutil.rmtree(path, ignore_errors=True)
    return {
        "time": time.time(),
        "umask": mask,
        # A core dump of a worker holds records.
        "cores": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "free": shutil.disk_usage(dask.config.get("temporary-directory", None) or ".").free,
        "reads": read_bytes(open_store(collection, read_only=True), ROOT_DOCUMENT) is not None,
        "writes": written,
    }


class Manager(NamedTuple):
    """How a library starts a cluster."""

    package: str
    module: str
    name: str
    runs_scheduler: bool = False
    """In this process: it gets the certificate and the closed pages of a local one."""


MANAGERS = {name: Manager(**one) for name, one in _OF_WORKERS["managers"].items()}


@contextmanager
def start_managed(kind: str, n_workers: int | None, scheduler: Mapping[str, Any]) -> Iterator[Any]:
    """Have a cluster started, and so many workers; it ends with the context.

    Parameters
    ----------
    kind
        One of `MANAGERS`.
    n_workers
        None for as many as the library's own configuration starts.
    scheduler
        Class and options of a scheduler in this process.

    Raises
    ------
    ClusterError
        If the library is missing, or says why there is no cluster.
    """
    manager = MANAGERS[kind]
    try:
        make = getattr(import_module(manager.module), manager.name)
        here = {"security": True, "scheduler_cls": scheduler["cls"]}
        # Options that are given replace all of the configuration's, its host and port among them.
        theirs = dask.config.get(f"jobqueue.{kind}.scheduler-options", {})
        here["scheduler_options"] = {**theirs, **scheduler["options"]}
        cluster = make(**here if manager.runs_scheduler else {})
    except ModuleNotFoundError:
        problem = f'[cluster] kind = "{kind}" needs {manager.package}, which is not installed.'
        remedy = f"Install it with: pip install {manager.package}"
        raise ClusterError(problem, remedy=remedy, code="no-manager") from None
    except Exception as error:  # each library raises its own; no record was read yet
        problem = f'[cluster] kind = "{kind}": {manager.name} says: {error}'
        remedy = "Complete Dask's configuration of that library, as docs/howto/cluster.md shows."
        raise ClusterError(problem, remedy=remedy, code="no-manager") from None
    with cluster:
        if n_workers is not None:
            cluster.scale(n_workers)
        yield cluster
