"""The commands under test, each in a small world of its own: what stood before, what is called.

Every command runs in this process, one thing after the other. Sources lie outside the world: what
is raw in it was brought by a command.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr.core.sync
from matplotlib.figure import Figure

import privpipe.flows.release_flow
from flows.reproduce.__main__ import reproduce_figure
from flows.reproduce.registry import FIGURES, PaperFigure
from flows.reproduce.result import Reproduction, compare_cell
from flows.reproduce.steps import expect_steps, step
from privpipe.cluster.passes import loaded_map
from privpipe.command.demo_command import N_ORIGINALS, load_scans, prepare_demo
from privpipe.command.inspect_command import export_command
from privpipe.command.key_commands import account_command, forget_key_command
from privpipe.command.run_command import approve_command, purge_command
from privpipe.pipeline.operations.erase import ErasureOptions, erase_records
from privpipe.pipeline.operations.record_removal import ChosenRecords
from privpipe.pipeline.runs.approval import write_case
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.increment_check import TimeSpan
from privpipe.report.console import PlainConsole
from privpipe.store.access import mounts
from privpipe.store.arrays import blocks
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring import keys
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.keyfiles import KeyBinding
from privpipe.store.releases.incremental_release import withdraw_partition
from privpipe.store.sources.reading.source import SourceLayout
from tests.simulation.bucket import SCHEME, BucketRecorder, Objects, recording_bucket, using_bucket
from tests.simulation.disk import Tree
from tests.simulation.recording import Recorder, recording
from tests.store.serial_run import serial_flows

__all__ = ["COMMANDS", "Command", "World", "open_world"]

N_COLUMNS = 3
SERIAL = 4_815_162_342
WANTED = ChosenRecords("serial", (str(SERIAL),))
INGEST = IngestOptions(
    layout=SourceLayout(features=("x",), labels=("sign", "serial")),
    categorical=("sign",),
    numeric=("serial",),
    chunk_bytes=16 * N_COLUMNS * 8,
)
CONFIGURATION = """
[collection]
path = "{collection}"
desired = ["sign"]
{training}
[method]
{method}
[release]
path = "{release}"
incremental = {incremental}
[privacy]
account = "{account}"
limit = 2.0
[cluster]
workers = 0
[audit]
holdout = 0.5
adversaries = []
[gate]
enforce = false
drift_max = 1e6
"""
NULL_SPACE = 'name = "null_space"\nutility_budget = 0.05\nridge = 0.01'
NOISY = """name = "noisy"
epsilon = 1.5
noise = "discrete"
[method.filter]
name = "pca"
n_filtered = 2"""

Kind = Literal["collection", "growing", "release", "parts", "table", "figure", "keys", "account"]


@dataclass
class World:
    """Where a command works.

    Parameters
    ----------
    base
        Its folder: sources in one below it, what is recorded in another, or in a bucket.
    url
        Of the latter.
    raw
        Values of records that sources hold.
    """

    base: Path
    url: str
    raw: list[np.ndarray] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The folder that is recorded."""
        return self.base / "world"

    def at(self, name: str) -> str:
        """A place in it."""
        return f"{self.url}/{name}"

    @property
    def in_bucket(self) -> bool:
        """Whether what is recorded are objects of the bucket."""
        return "://" in self.url

    def record(
        self, inject: Callable[[int], None] | None = None
    ) -> AbstractContextManager[Recorder | BucketRecorder]:
        """Record what changes."""
        if self.in_bucket:
            return recording_bucket(inject, self.root / "keys")
        return recording(self.root, inject)

    def read(self) -> dict[str, bytes]:
        """Every file by its path."""
        if self.in_bucket:
            return Objects.stored().read()
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}

    def clear(self) -> None:
        """Nothing is stored."""
        (Objects() if self.in_bucket else Tree()).store(self.root)
        shutil.rmtree(self.root / "keys", ignore_errors=True)  # which are never in a bucket
        shutil.rmtree(self.base / "sources", ignore_errors=True)

    def keep_keys(self, when: str) -> None:
        """Copy the keys, which are no objects of the bucket."""
        self._copy_keys(self.root / "keys", self.base / f"keys-{when}")

    def put_keys(self, when: str) -> None:
        """Put back what was copied."""
        self._copy_keys(self.base / f"keys-{when}", self.root / "keys")

    def _copy_keys(self, source: Path, target: Path) -> None:
        if self.in_bucket:
            shutil.rmtree(target, ignore_errors=True)
            if source.exists():
                shutil.copytree(source, target)

    def source(self, name: str, seed: int, n: int, *, wanted: bool = False) -> str:
        """A file of records that are made once; with her whom an erasure looks for."""
        path = self.base / "sources" / f"{name}.npz"
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, N_COLUMNS)) + 6000.0
        serial = rng.integers(10**6, 10**9, n)
        if wanted:
            serial[n // 2] = SERIAL
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            np.savez(path, x=x, sign=(x[:, 0] > 6000).astype("int8"), serial=serial)
        self.raw.append(x)
        return str(path)

    def configure(self, collection: str, release: str, **more: str) -> RunOptions:
        """A configuration file beside the sources."""
        given = {"training": "", "method": NULL_SPACE, "incremental": "false"} | more
        places = {"collection": self.at(collection), "release": self.at(release)}
        path = self.base / "sources" / f"{release}.toml"
        path.parent.mkdir(exist_ok=True)
        account = self.at("account")
        path.write_text(CONFIGURATION.format(account=account, **places, **given))
        return read_options(str(path))


@dataclass(frozen=True)
class Command:
    """A command that writes.

    Parameters
    ----------
    prepare
        Makes what stands before it.
    call
        The command itself.
    places
        What it may change, and of which kind that is.
    done
        Codes by which it refuses to be repeated once it is done.
    weight
        How often it is drawn.
    opaque
        Parts of paths whose contents are random.
    free
        Parts of paths of which there may be more: what a register was told of runs that died.
    in_bucket
        Whether all is in a bucket.
    exchanged
        Places that readers find empty for a moment, between two renames.
    stride
        Of the places that are swept: each of a command that is cheap.
    is_dated
        Whether another day leaves less of what it was told to keep for a while.
    """

    prepare: Callable[[World], Any]
    call: Callable[[World], Any]
    places: dict[str, Kind]
    done: tuple[str, ...] = ()
    weight: int = 10
    opaque: tuple[str, ...] = ("keys/", "account/", "run_results.json")
    free: tuple[str, ...] = ()
    in_bucket: bool = False
    exchanged: tuple[str, ...] = ()
    stride: int = 1
    is_dated: bool = False


EVERYTHING = TimeSpan()


def forget_process() -> None:
    """What a process remembers goes with it."""
    blocks.open_array.cache_clear()
    loaded_map.load_map.cache_clear()


def run_alone(options: RunOptions, scope: TimeSpan = EVERYTHING, until: str = "publish") -> str:
    """A run in this process, as one that begins."""
    forget_process()
    with serial_flows():
        return privpipe.flows.release_flow.release_collection(
            options, Watch(PlainConsole(file=io.StringIO())), until, scope
        )


def _nothing(world: World) -> None:
    del world


def _ingest(world: World) -> None:
    ingest(world.source("a", 1, 24), world.at("c.zarr"), INGEST)


def _append(world: World, name: str, seed: int, *, replacing: bool = False) -> None:
    source = world.source(f"{name}{seed}", seed, 20 + seed, wanted=True)
    day = f"2026-11-{seed:02d}T00:00:00+00:00"
    append_partition(source, world.at("g.zarr"), name, day, INGEST, replacing=replacing)


def _append_two(world: World) -> None:
    _append(world, "monday", 1)
    _append(world, "tuesday", 2)


def _append_replaced(world: World) -> None:
    _append_two(world)
    _append(world, "monday", 3, replacing=True)


def _hold_whole(world: World) -> None:
    ingest(world.source("w", 4, 44, wanted=True), world.at("c.zarr"), INGEST)


def _release_whole(world: World) -> None:
    run_alone(world.configure("c.zarr", "r.zarr"))


def _hold_released(world: World) -> None:
    _hold_whole(world)
    _release_whole(world)


def _hold_traces(world: World) -> None:
    """A collection, its release, a table of that, and a run that was stopped."""
    _hold_released(world)
    _export(world)
    run_alone(world.configure("c.zarr", "kept.zarr"), until="clean")


def _export(world: World, name: str = "out.parquet") -> None:
    export_command(world.at("r.zarr"), world.at(name), verify=False)


def _configure_parts(world: World) -> RunOptions:
    training = f'[training]\npath = "{world.at("t.zarr")}"'
    return world.configure("g.zarr", "p.zarr", training=training, incremental="true")


def _hold_growing(world: World) -> None:
    ingest(world.source("t", 9, 60), world.at("t.zarr"), INGEST)
    _append_two(world)


def _release_parts(world: World) -> None:
    run_alone(_configure_parts(world))


def _hold_parts(world: World) -> None:
    _hold_growing(world)
    _release_parts(world)


def _hold_more(world: World) -> None:
    _hold_parts(world)
    _append(world, "wednesday", 4)
    _append(world, "monday", 3, replacing=True)


def _backfill(world: World) -> None:
    days = [datetime.fromisoformat(f"2026-11-{day:02d}T00:00:00+00:00") for day in (2, 4)]
    run_alone(_configure_parts(world), TimeSpan(*days))


def _withdraw(world: World, hours: float) -> None:
    grace = timedelta(hours=hours)
    withdraw_partition(world.at("p.zarr"), "monday", grace, find_account(), (), ())


def _erase(world: World, name: str) -> None:
    options = ErasureOptions(world.at("account"), name="Ada")
    erase_records(world.at(name), WANTED, options)


def _stop_refused(world: World) -> None:
    _hold_whole(world)
    run_alone(world.configure("c.zarr", "r.zarr"), until="clean")
    write_case(world.at("r.zarr"), "0" * 64, "It was refused.")


def _approve(world: World) -> None:
    approve_command(world.at("r.zarr"), "Ada", "Seen.")


def _hold_public(world: World) -> None:
    _hold_whole(world)
    ingest(world.source("t", 9, 60), world.at("t.zarr"), INGEST)


def _release_noisy(world: World) -> None:
    training = f'[training]\npath = "{world.at("t.zarr")}"\npublic = true'
    run_alone(world.configure("c.zarr", "n.zarr", training=training, method=NOISY))


def _hold_noisy(world: World) -> None:
    _hold_public(world)
    _release_noisy(world)


def _forget(world: World) -> None:
    forget_key_command(world.at("n.zarr"))


def _make_key(world: World) -> None:
    del world
    keys.make_key("monday", KeyBinding("a" * 64, "b" * 64, "c" * 64), run="0" * 8)


def _sketch(world: World) -> None:
    account_command(world.at("account"), sketch=world.at("c.zarr"))


def _purge(world: World) -> None:
    purge_command(world.at("g.zarr"))


def _purge_run(world: World) -> None:
    purge_command(world.at("r.zarr"))


def _demo(world: World) -> None:
    """Without the flow, which is that of `run`."""
    world.raw.append(load_scans()[0][:, :0])
    prepare_demo(world.at("demo"), N_ORIGINALS, 0)


def make_figure(folder: Path, runs: int) -> Reproduction:
    """A figure of a paper that nobody wrote."""
    del folder
    expect_steps(runs)
    values = [step(f"run {number}", partial(float, number)) for number in range(runs)]
    cells = (compare_cell("mean", values, paper=1.0, tolerance=0.1),)
    return Reproduction(cells, picture=lambda _: Figure(figsize=(1, 1)))


def _reproduce(world: World) -> None:
    made = PaperFigure("A mean", "nobody", f"{__name__}:make_figure", (), 3, "", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVPIPE_CACHE", world.at("cache"))
        patch.setitem(FIGURES, "mean", made)
        reproduce_figure("mean", data="", runs=0, out=world.at("figure"), as_json=False)


COMMANDS: dict[str, Command] = {
    "ingest": Command(_nothing, _ingest, {"c.zarr": "collection"}, ("exists",), 20),
    "append": Command(_nothing, partial(_append, name="monday", seed=1), {"g.zarr": "growing"}),
    "append-second": Command(
        partial(_append, name="monday", seed=1),
        partial(_append, name="tuesday", seed=2),
        {"g.zarr": "growing"},
    ),
    "append-replace": Command(
        _append_two, partial(_append, name="monday", seed=3, replacing=True), {"g.zarr": "growing"}
    ),
    "purge": Command(_append_replaced, _purge, {"g.zarr": "growing"}),
    "purge-run": Command(
        _stop_refused, _purge_run, {"c.zarr": "collection", "r.zarr": "release"}, ("not-found",)
    ),
    "export": Command(_hold_released, _export, {"r.zarr": "release", "out.parquet": "table"}),
    "export-folder": Command(
        _hold_released, partial(_export, name="out"), {"r.zarr": "release", "out": "table"}
    ),
    "approve": Command(_stop_refused, _approve, {"c.zarr": "collection", "r.zarr": "release"}),
    "withdraw": Command(
        _hold_parts, partial(_withdraw, hours=0.0), {"g.zarr": "growing", "p.zarr": "parts"}
    ),
    "withdraw-later": Command(
        _hold_parts,
        partial(_withdraw, hours=24.0),
        {"g.zarr": "growing", "p.zarr": "parts"},
        is_dated=True,
    ),
    "make-key": Command(_nothing, _make_key, {"keys": "keys"}),
    "forget-key": Command(
        _hold_noisy, _forget, {"n.zarr": "release", "keys": "keys", "account": "account"}
    ),
    "account": Command(
        _hold_whole, _sketch, {"c.zarr": "collection", "account": "account"}, weight=10
    ),
    "erase": Command(
        _hold_traces,
        partial(_erase, name="c.zarr"),
        {"c.zarr": "collection", "r.zarr": "release", "out.parquet": "table"},
        weight=4,
        exchanged=("c.zarr",),
    ),
    "erase-growing": Command(
        _hold_parts,
        partial(_erase, name="g.zarr"),
        {"g.zarr": "growing", "p.zarr": "parts"},
        weight=4,
    ),
    "run": Command(
        _hold_whole,
        _release_whole,
        {"c.zarr": "collection", "r.zarr": "release"},
        weight=3,
        free=("account/",),
    ),
    "run-noisy": Command(
        _hold_public,
        _release_noisy,
        {"c.zarr": "collection", "n.zarr": "release", "account": "account", "keys": "keys"},
        weight=2,
        free=("account/",),
    ),
    "run-parts": Command(
        _hold_growing,
        _release_parts,
        {"g.zarr": "growing", "p.zarr": "parts"},
        weight=1,
        # A part that is judged, killed and made again was judged twice, and both are noted.
        free=("account/", "/attempt-"),
    ),
    "run-more": Command(
        _hold_more,
        _release_parts,
        {"g.zarr": "growing", "p.zarr": "parts"},
        weight=1,
        free=("account/",),
    ),
    "backfill": Command(
        _hold_more,
        _backfill,
        {"g.zarr": "growing", "p.zarr": "parts"},
        weight=1,
        free=("account/",),
    ),
    "demo": Command(_nothing, _demo, {"demo/digits.zarr": "collection"}, weight=1),
    "reproduce": Command(_nothing, _reproduce, {"figure": "figure"}, weight=1),
}


IN_BUCKET = {
    "ingest": 4,
    "append": 4,
    "append-second": 4,
    "append-replace": 4,
    "purge": 2,
    "purge-run": 2,
    "export": 2,
    "export-folder": 2,
    "approve": 2,
    "withdraw": 2,
    "account": 2,
    "erase-growing": 1,
    "run": 1,
    "run-noisy": 1,
    "run-parts": 1,
}
STRIDES = {
    "append-replace": 3,
    "withdraw": 2,
    "withdraw-later": 2,
    "erase": 11,
    "erase-growing": 41,
    "run": 17,
    "run-noisy": 41,
    "run-parts": 83,
    "run-more": 61,
    "backfill": 83,
    "demo": 7,
    "reproduce": 2,
    "append-second-in-bucket": 3,
    "append-replace-in-bucket": 3,
    "withdraw-in-bucket": 3,
    "erase-growing-in-bucket": 41,
    "run-in-bucket": 29,
    "run-noisy-in-bucket": 41,
    "run-parts-in-bucket": 61,
}
"""Of commands whose histories take long; what is drawn strikes between."""
COMMANDS |= {
    f"{name}-in-bucket": replace(COMMANDS[name], weight=weight, in_bucket=True)
    for name, weight in IN_BUCKET.items()
}
COMMANDS |= {name: replace(COMMANDS[name], stride=stride) for name, stride in STRIDES.items()}


def _draw(n: int = 32, _random: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """Keys are the same in every history, so that draws are; names of passing things are not."""
    return bytes(range(n)) if n == keys.KEY_BYTES else _random(n)


@contextmanager
def open_world(base: Path, *, in_bucket: bool = False) -> Iterator[World]:
    """A world for one process: its own account, keys, and little sums that are kept."""
    base.mkdir(parents=True, exist_ok=True)
    world = World(base, f"{SCHEME}://world" if in_bucket else str(base / "world"))
    world.root.mkdir(mode=0o700, exist_ok=True)
    # A rival steps in where a thread of Zarr writes, and asks Zarr in turn: with one thread, as an
    # earlier test of this process may have left it, both would wait for ever.
    threads = zarr.config.set({"threading.max_workers": 8})
    with pytest.MonkeyPatch.context() as patch, using_bucket(), threads:
        patch.setattr(zarr.core.sync, "_executor", None)
        patch.setenv("PRIVPIPE_ACCOUNT", world.at("account"))
        patch.setenv("PRIVPIPE_KEYS", str(world.root / "keys"))
        patch.setattr(mounts, "TABLE", os.devnull)  # worlds lie in memory, and that is no matter
        patch.setattr("privpipe.cluster.pass_checkpoints.FEWEST_CHECKPOINTED", 1)
        patch.setattr("privpipe.cluster.pass_checkpoints.CHECKPOINTED_SHARE", 0.3)
        patch.setattr(secrets, "token_bytes", _draw)
        umask = os.umask(0o022)
        try:
            yield world
        finally:
            os.umask(umask)
