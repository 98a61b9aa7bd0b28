"""Runs the command in scenarios with injected failures and keeps all that can be seen of them.

A process of its own, started by the canary test: ``python -m tests.flows.canary_run FOLDER``.
Before each cluster ends, its logs, every page its processes serve and its folders are copied.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

import cloudpickle

from privpipe.pipeline.operations.prefect_server import prepare_prefect

CONTROL = "CONTROLcanary5550123"
"""Told on purpose by a task without a boundary, to show that pages and logs are really read."""

MAX_PAGES = 150

DRAWN = "/individual-"
"""Begin of the pages with a single figure of the others; all the same but for their tokens."""


def tell_control(*_: Any) -> NoReturn:
    raise ValueError(CONTROL)


def make_map_tell() -> None:
    """On a worker: the map fails, and its message holds a record."""
    from privpipe.sanitizers.null_space.linear_cleaner import LinearCleaner

    def apply_measured(self: Any, x: Any, stream: Any = None, **_: Any) -> Any:
        raise ValueError(f"cannot map {x[3].tolist()} of {x!r}")

    LinearCleaner.apply_measured = apply_measured  # type: ignore[method-assign]


def make_statistics_tell() -> None:
    """On a worker: reading fails in the middle, and the message holds what was read."""
    from privpipe.store.collections import collection

    read = collection.read_sealed

    def tell(sealed: Any, name: str, start: int, stop: int) -> Any:
        values = read(sealed, name, start, stop)
        raise RuntimeError(f"{name}: {values.tolist()}")

    collection.read_sealed = tell


ON_WORKERS = {"map": make_map_tell, "statistics": make_statistics_tell}


def watch_clusters(scenario: str, folder: Path) -> None:
    """Wrap the pipeline's `connect`: inject on entering, collect before leaving."""
    from privpipe.cluster.executors import dask_executor as opening
    from privpipe.cluster.workers.connection import connect

    @contextmanager
    def connect_and_collect(options: Any) -> Iterator[Any]:
        with connect(options) as client:
            if scenario in ON_WORKERS:
                client.run(ON_WORKERS[scenario])
            try:
                yield client
            finally:
                if scenario == "map":
                    client.submit(tell_control, key="tell_control", pure=False).exception()
                _collect(client, options.scratch, folder / scenario)

    opening.connect = connect_and_collect  # type: ignore[attr-defined]


def _collect(client: Any, scratch: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copytree(scratch, folder / "dask")
    logs = [client.get_worker_logs(), client.get_worker_logs(nanny=True)]
    (folder / "logs.txt").write_text(repr([*logs, client.get_scheduler_logs()]))
    starts = [client.dashboard_link]  # workers serve no pages
    modes = client.run(lambda: os.umask(0o077))
    gc.freeze()  # Bokeh looks for garbage in everything there is, once for each page it forgets
    pages = _crawl(starts, folder, "" if folder.name == "good" else DRAWN)
    (folder / "workers.json").write_text(
        json.dumps({"pages": pages, "umasks": list(modes.values())})
    )


def _crawl(starts: list[str], folder: Path, but: str) -> int:
    """Every page that can be reached `but` those of a kind, text only; how many were read."""
    waiting = [
        urljoin(start, page)
        for start in starts
        for page in (
            "info/main/workers.html", "info/main/logs.html", "info/logs.html",
            "metrics", "json/index.html", "statistics", "info/main/exceptions.html",
        )
    ]  # fmt: skip
    seen: set[str] = set()
    read = 0
    while waiting and read < MAX_PAGES:
        url = waiting.pop(0)
        if url in seen or "static" in url or (but and but in url):
            continue
        seen.add(url)
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                page = response.read(2**22)
        except OSError:
            continue
        (folder / f"page-{read:03d}.html").write_bytes(url.encode() + b"\n" + page)
        read += 1
        links = (
            urljoin(url, link.decode())
            for link in re.findall(rb"""(?:href|src)=["']([^"'#]+)""", page)
        )
        waiting += [link for link in links if urlsplit(link).hostname == "127.0.0.1"]
    return read


def main(folder: Path) -> None:
    """Run every scenario that the folder has a configuration for."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.umask(0o077)
    prepare_prefect()  # before Prefect is imported, as the command does
    from privpipe.command.inspect_command import inspect_command
    from privpipe.command.output import as_ours, show_failure
    from privpipe.command.run_command import run_command

    codes = {}
    for config in sorted(folder.glob("*.toml")):
        watch_clusters(config.stem, folder / "seen")
        print(f"== {config.stem}", flush=True)
        try:
            run_command(str(config))
            codes[config.stem] = 0
        except Exception as error:
            ours = as_ours(error)
            show_failure(ours)
            print(json.dumps(ours.describe()))
            codes[config.stem] = ours.exit_code
    for name in ("input/records.zarr", "good/release.zarr", "good/release.model.zarr"):
        print(json.dumps(inspect_command(str(folder / name), verify=True)))
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
