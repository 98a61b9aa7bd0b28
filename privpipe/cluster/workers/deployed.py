"""The configuration of scheduler and workers that run on their own: as local ones are, and closed.

`write_configuration` writes what `deploy/dask.yaml` shows; `deploy/preload.py` calls
`prepare_server` before a scheduler or worker begins.
"""

import os
import resource
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import dask
import yaml
from distributed import Worker

from privpipe.cluster.workers.dashboard import close_pages, guard_pages
from privpipe.cluster.workers.forking import SETTINGS, WORKER_ENVIRONMENT
from privpipe.errors import ClusterError, PrivpipeError
from privpipe.store.access.location import join, local_path
from privpipe.store.access.objects import delete_tree, open_store, read_bytes, write_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT


def describe_configuration(folder: str) -> dict[str, Any]:
    """Dask's configuration with the certificates of a folder."""
    text = Path(__file__).with_name("dask.yaml").read_text("utf-8")
    found = _name_folder(yaml.safe_load(text), folder)
    found["distributed"] |= {
        "nanny": {"pre-spawn-environ": dict(WORKER_ENVIRONMENT)},
        "admin": {
            "tick": {"interval": SETTINGS["distributed.admin.tick.interval"]},
            "low-level-log-length": SETTINGS["distributed.admin.low-level-log-length"],
        },
    }
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


def prepare_server(server: Any) -> None:
    """Prepare the process of a scheduler or worker that is about to serve, or end it.

    Dask only logs what a preload raises, and continues: a server that is refused must not serve.
    """
    is_worker = isinstance(server, Worker)
    try:
        prepare_process(is_worker=is_worker)
        if is_worker:
            close_pages(server)
        else:
            guard_pages(server)
    except PrivpipeError as error:
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        sys.stderr.flush()
        # sys.exit would be an exception that Dask logs before it serves all the same.
        os._exit(error.exit_code)


def prepare_process(*, is_worker: bool) -> None:
    """Make files private, leave no memory on disk, and refuse a worker that was started openly.

    Raises
    ------
    ClusterError
        If a worker's allocator or libraries have settings of their own, which are read before
        Python starts: the nanny hands them over from ``pre-spawn-environ``.
    """
    os.umask(0o077)
    # A core dump would be a file of records, where no one looks for them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    missing = [name for name, value in WORKER_ENVIRONMENT.items() if os.environ.get(name) != value]
    if is_worker and missing:
        raise ClusterError(
            f"The worker was started without {', '.join(missing)}.",
            remedy="Start it with a nanny, and DASK_CONFIG naming `privpipe certs`'s dask.yaml.",
            code="worker-environment",
        )


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
