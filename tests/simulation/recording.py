"""What a command changes on the disk, written down while it runs; and faults put between changes.

The interpreter tells of every call that may change a name or open a file to write, whoever makes
it. At each of them the folder is compared with what it was at the last: so nothing escapes, bytes
that a library wrote by itself included.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zarr

from tests.simulation.disk import ROOT, Change, Tree

__all__ = ["Recorder", "recording"]

NAMED = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SETTLED = 50_000_000
"""Nanoseconds after which another write has another time."""


class Recorder:
    """The changes of one folder.

    Parameters
    ----------
    root
        The folder.
    inject
        Called with the number of each call that changes something, before it: may raise, or do what
        another process would do.
    """

    def __init__(self, root: Path, inject: Callable[[int], None] | None = None) -> None:
        self.root, self.inject = str(root), inject
        self.calls = 0
        self.changes: list[Change] = []
        self._lock, self._busy = threading.RLock(), False
        self._ids: dict[int, int] = {os.stat(root).st_ino: ROOT}
        self._fresh = 1
        self._seen: dict[int, tuple[int, int]] = {}
        self.tree = Tree()
        self._observe(strict=False)
        self.before, self.changes = self.tree.copy(), []

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event of the interpreter."""
        if event == "open":
            if not isinstance(args[2], int) or not args[2] & WRITES:
                return
        elif event not in NAMED:
            return
        if self._concerns(event, args):
            self.step()

    def _concerns(self, event: str, args: tuple[Any, ...]) -> bool:
        if isinstance(args[0], int) or event in ("os.remove", "os.mkdir", "os.rmdir"):
            return True  # perhaps below an open folder
        places = args[:2] if event in ("os.rename", "os.link") else args[:1]
        texts = [os.fsdecode(one) for one in places if isinstance(one, str | bytes | os.PathLike)]
        return any(one.startswith(self.root) or not one.startswith("/") for one in texts)

    def step(self) -> None:
        """Note what changed since the last call; then let the fault have its moment.

        What a rival does meanwhile, in whichever of its threads, is nobody's to note.
        """
        if self._busy:
            return
        with self._lock:
            self._busy = True
            try:
                if self.inject is None:
                    self._observe()
                number, self.calls = self.calls, self.calls + 1
                if self.inject is not None:
                    self.inject(number)
            finally:
                self._busy = False

    def flushed(self, descriptor: int) -> None:
        """A file or folder was flushed."""
        if self._busy:
            return
        self.step()
        with self._lock:
            node = self._ids.get(os.fstat(descriptor).st_ino)
            if node is not None:
                self.changes.append(Change("sync", node))

    def end(self) -> None:
        """Note what the last call changed; after faults nobody asks."""
        with self._lock:
            if self.inject is None:
                self._observe()

    def _observe(self, *, strict: bool = True) -> None:
        """Compare the folder with the tree, and make the tree what it is."""
        found: dict[int, dict[str, os.stat_result]] = {}
        places: dict[int, str] = {}
        _scan(self.root, found, places)
        alive = {stat.st_ino for names in found.values() for stat in names.values()}
        alive.add(next(inode for inode, node in self._ids.items() if node == ROOT))
        named = self._note_names(found, alive)
        assert not strict or named <= 1, f"{named} names changed by one call"
        for names in found.values():
            for one in names.values():
                node = self._ids[one.st_ino]
                if self.tree.modes[node] != one.st_mode & 0o7777:
                    self._note(Change("mode", node, mode=one.st_mode & 0o7777))
        self._note_contents(found, places)

    def _note_names(self, found: dict[int, dict[str, os.stat_result]], alive: set[int]) -> int:
        old = {
            (folder, name): node
            for folder, names in self.tree.names.items()
            for name, node in names.items()
        }
        gone_nodes = {node for inode, node in self._ids.items() if inode not in alive}
        self._ids = {inode: node for inode, node in self._ids.items() if inode in alive}
        new: dict[tuple[int, str], int] = {}
        fresh: dict[int, os.stat_result] = {}
        folders = list(found)  # outer folders first
        for inode in folders:
            for name, one in found[inode].items():
                node = self._ids.get(one.st_ino)
                if node is None:
                    node = self._ids[one.st_ino] = self._fresh
                    self._fresh += 1
                    fresh[node] = one
                new[self._ids[inode], name] = node
        lost = {place: node for place, node in old.items() if new.get(place) != node}
        came = {place: node for place, node in new.items() if old.get(place) != node}
        count = 0
        for place, node in came.items():
            source = next((p for p, n in lost.items() if n == node), None)
            folder, name = place
            if source is not None:
                self._note(Change("move", node, folder, name, source=source))
                lost.pop(source)
                lost.pop(place, None)  # replaced by it
            elif node in fresh and node not in self.tree.contents:
                is_folder = os.path.stat.S_ISDIR(fresh[node].st_mode)
                mode = fresh[node].st_mode & 0o7777
                change = Change("make", node, folder, name, mode=mode, is_folder=is_folder)
                self._note(change)
                lost.pop(place, None)
            else:
                self._note(Change("name", node, folder, name))
                lost.pop(place, None)
            count += 1
        for (folder, name), node in lost.items():
            self._note(Change("drop", node, folder, name))
            count += 1
        for node in gone_nodes:
            self._seen.pop(node, None)
            self.tree.names.pop(node, None)
        return count

    def _note_contents(
        self, found: dict[int, dict[str, os.stat_result]], places: dict[int, str]
    ) -> None:
        now = time.time_ns()
        for inode, names in found.items():
            for name, one in names.items():
                node = self._ids[one.st_ino]
                if self.tree.contents[node] is None:
                    continue
                mark = one.st_mtime_ns, one.st_size
                if self._seen.get(node) == mark and now - one.st_mtime_ns > SETTLED:
                    continue
                self._seen[node] = mark
                with open(f"{places[inode]}/{name}", "rb", buffering=0) as file:
                    content = file.readall()
                if (content, mark[0]) != (self.tree.contents[node], self.tree.times.get(node)):
                    self._note(Change("write", node, content=content, time=mark[0]))

    def _note(self, change: Change) -> None:
        self.tree.apply(change)
        self.changes.append(change)


def _scan(path: str, found: dict[int, dict[str, os.stat_result]], places: dict[int, str]) -> None:
    inode = os.stat(path).st_ino
    places[inode] = path
    names = found[inode] = {}
    inner = []
    with os.scandir(path) as entries:
        for entry in entries:
            names[entry.name] = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
    for one in inner:
        _scan(one, found, places)


_listening: list[Recorder] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _listening:
        _listening[-1].hear(event, args)


_hooked = False


@contextmanager
def recording(root: Path, inject: Callable[[int], None] | None = None) -> Iterator[Recorder]:
    """Record what changes below a folder; one thing at a time, so that it has an order."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    recorder = Recorder(root, inject)
    fsync = os.fsync

    def flush(descriptor: int) -> None:
        recorder.flushed(descriptor)
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch, zarr.config.set({"async.concurrency": 1}):
        patch.setattr(os, "fsync", flush)
        patch.setattr(
            "privpipe.store.access.objects.ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1)
        )
        _listening.append(recorder)
        try:
            yield recorder
        finally:
            _listening.remove(recorder)
    recorder.end()
