"""Operations: generations, increments, clusters that are deployed, and clients of object stores.

Ratios within one run. Small runs, as in every test run, start no process: they show generations and
increments alone. obstore is compared where it is installed; privpipe does not need it.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from unittest.mock import patch

import fsspec
import numpy as np
from distributed import Client
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, ObjectStore

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Event
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.progress import ShowProgress
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.console import PlainConsole
from privpipe.store.access.generation_log import publish_generation, read_newest
from privpipe.store.access.objects import open_store, write_bytes
from privpipe.store.releases.incremental_release import IncrementalState, Part
from privpipe.store.releases.lazy_release import open_release
from tests.bench.cluster_jobs import JobBench, Spent
from tests.bench.deployed_cluster import deployed_cluster, s3_server
from tests.bench.long_runs import measure_scheduler, measure_tasks, measure_workers
from tests.bench.run_starts import measure_run_starts
from tests.operations.increments import append, configure, release

Row = tuple[str, float, str, str, float, float]


def measure(work: Callable[[], object], times: int = 7) -> float:
    """Least processor time of a few calls, seconds."""
    spent = []
    for _ in range(times):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def make_release(folder: Path, n_parts: int) -> str:
    """A generation that names so many parts; opening asks for none of them."""
    url = str(folder / f"release{n_parts}.zarr")
    parts = tuple(Part(f"{n:032x}", f"{n:032x}", 500, 0, "0" * 64) for n in range(n_parts))
    features = {"name": "features", "dtype": "float64", "columns": 64, "attributes": {}}
    label = {"name": "digit", "dtype": "int8", "columns": 0, "attributes": {}}
    state = IncrementalState("0" * 64, {"method": "null_space"}, (features, label), 500, parts)
    publish_generation(url, "release", state.encode(), None)
    return url


def run(small: bool = False) -> list[Row]:
    """Opening (at most 3), the switch (constant), an increment (.02); clusters, stores."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows += measure_generations(folder, 50 if small else 500)
        rows += measure_increment(folder, 2 if small else 100)
        if not small:
            rows += measure_clusters(folder, 256)
            rows += measure_run_starts(folder / "starts")
            rows += measure_stores(folder, 200)
            rows += measure_workers(folder / "workers", 20 * 2**30)
            rows += measure_scheduler(folder / "scheduler", 10_000)
            rows += measure_tasks(folder / "tasks", 100_000)
    return rows


def measure_generations(folder: Path, n_switches: int) -> list[Row]:
    """Opening a release of many parts, and making one more generation after many."""
    few, many = (make_release(folder, n) for n in (10, 1000))
    open_release(few)
    ten = measure(lambda: open_release(few))
    thousand = measure(lambda: open_release(many))
    url = str(folder / "line")

    def switch() -> None:
        publish_generation(url, "release", {"parts": []}, read_newest(url, "release"))

    early = measure(switch, 20)
    for _ in range(n_switches):
        switch()
    late = measure(switch, 20)
    return [
        ("open 1,000 parts", thousand, "s", "10 parts", ten, thousand / ten),
        ("switch after many", late, "s", "the first", early, late / early),
    ]


def measure_increment(folder: Path, n_parts: int) -> list[Row]:
    """One more partition of as many, without what a run takes that finds nothing new."""
    options = configure(folder)
    rng = np.random.default_rng(1)

    def add(number: int) -> None:
        append(folder, f"part-{number}", rng.normal(size=(400, 3)), 0)

    def spend() -> float:
        begun = time.process_time()
        release(options)
        return time.process_time() - begun

    for number in range(n_parts):
        add(number)
    whole, nothing = spend(), spend()
    add(n_parts)
    one = spend()
    part = max(one - nothing, 0.0)
    return [
        (f"1 partition after {n_parts}", part, "s of CPU", "all of them", whole, part / whole),
        ("increment, all of it", one, "s of CPU", "nothing new", nothing, one / nothing),
    ]


def measure_clusters(folder: Path, n_chunks: int, rounds: int = 6) -> list[Row]:
    """Deployed processes behind TLS against local workers; start; what showing progress costs."""
    (folder / "jobs").mkdir()
    bench = JobBench(folder / "jobs", 2_000)
    collection = bench.collection(n_chunks)
    found: dict[str, list[Spent]] = {"local": [], "deployed": []}
    local = ClusterOptions(workers=2, dashboard="127.0.0.1:0")
    with deployed_cluster(folder, 2) as remote, connect(local) as here, connect(remote) as there:
        there.wait_for_workers(2, timeout=120)
        clients = {"local": here, "deployed": there}
        for client in clients.values():
            bench.clean(client, bench.collection(2))
        for turn in range(rounds):  # in another order each: the machine changes meanwhile
            for kind in sorted(clients, reverse=bool(turn % 2)):
                found[kind].append(bench.clean(clients[kind], collection))
        shown, cleaned = _share_of_showing(bench, here, n_chunks)
        warm = _first_answer(remote)
    cold = _first_answer(local)
    usual, deployed = (median(one.wall for one in found[kind]) for kind in ("local", "deployed"))
    least = [min(one.processor for one in found[kind]) for kind in ("local", "deployed")]
    return [
        ("clean on deployed TLS", deployed, "s", "local workers", usual, deployed / usual),
        ("the same", least[1], "s of CPU", "local workers", least[0], least[1] / least[0]),
        ("start, warm cluster", warm, "s", "a local one", cold, warm / cold),
        ("showing progress", shown, "s of CPU", "cleaning", cleaned, shown / cleaned),
    ]


def _first_answer(options: ClusterOptions) -> float:
    """Seconds from connecting to the first task's answer."""
    begun = time.perf_counter()
    with connect(options) as client:
        client.submit(sum, [1, 2], pure=False).result()
        return time.perf_counter() - begun


def _share_of_showing(bench: JobBench, client: Client, n_chunks: int) -> tuple[float, float]:
    """Processor time of all that counts, shows and exports, and of cleaning in all processes.

    The driver's listener with its bar, messages and gauges in a file; on the scheduler, which is in
    this process, what hears messages and each change of a task.
    """
    spent = [0.0]

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            begun = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                spent[0] += time.thread_time() - begun

        return call

    with ExitStack() as stack:
        for where, name in (
            (Watch, "hear"),
            (ShowProgress, "log_event"),
            (ShowProgress, "transition"),
        ):
            stack.enter_context(patch.object(where, name, timed(getattr(where, name))))
        metrics = str(bench.folder / "driver.prom")
        stack.enter_context(patch.dict(os.environ, {"PRIVPIPE_METRICS_FILE": metrics}))
        watch = Watch(PlainConsole(file=io.StringIO()))
        watch.executor = DaskExecutor(client)
        collection = bench.collection(n_chunks)
        n_records = collection.schema_of_records.n_records
        watch.hear(Event("clean_chunk", "begins", n_records, numbers=(("chunks", n_chunks),)))
        found = bench.clean(client, collection, watch.hear)
        watch.hear(Event("clean_chunk", "ends"))
        if watch.now.chunks_done != n_chunks:
            raise RuntimeError("the listener has not heard of all chunks")
    return spent[0], found.processor + found.driver


def measure_stores(folder: Path, n_objects: int) -> list[Row]:
    """Two clients of one S3 server, and files: writing and reading objects of 64 KiB."""
    value, buffer = b"v" * 2**16, default_buffer_prototype().buffer
    with s3_server() as endpoint:
        fsspec.filesystem("s3").mkdir("bench")
        stores: dict[str, Store] = {
            "s3fs": FsspecStore.from_url("s3://bench/s3fs"),
            "files": open_store(str(folder / "files")),
        }
        if find_spec("obstore"):
            stores["obstore"] = _open_obstore(endpoint)
        spent = dict.fromkeys(stores, 0.0)
        mine = dict.fromkeys(stores, 0.0)
        for number in range(n_objects):
            for name, store in stores.items():
                begun, processor = time.perf_counter(), time.process_time()
                write_bytes(store, f"{number}", value)
                read = sync(store.get(f"{number}", default_buffer_prototype()))
                spent[name] += time.perf_counter() - begun
                mine[name] += time.process_time() - processor
                if read is None or read.to_bytes() != buffer.from_bytes(value).to_bytes():
                    raise RuntimeError(f"{name} read something else")
    return [
        row
        for other in stores
        if other != "s3fs"
        for row in (
            ("S3 by s3fs", spent["s3fs"], "s", other, spent[other], spent["s3fs"] / spent[other]),
            (
                "S3 by s3fs",
                mine["s3fs"],
                "s of CPU",
                other,
                mine[other],
                mine["s3fs"] / mine[other],
            ),
        )
    ]


def _open_obstore(endpoint: str) -> Store:
    store = import_module("obstore.store").S3Store
    return ObjectStore(
        store(
            "bench",
            prefix="obstore",
            endpoint=endpoint,
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )
    )
