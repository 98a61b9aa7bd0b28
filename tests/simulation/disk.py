"""A file system as a value: folders, files, and the changes that lead from one to the next.

What a crash leaves is made of the changes alone, so that a command is run once and dies as often
as one likes. Names belong to folders, contents to files, as on a disk: a power cut may lose either.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

__all__ = ["ROOT", "Change", "Tree", "cut_power", "list_volatile", "tear"]

ROOT = 0
"""Number of the folder that all is in."""

Kind = Literal["make", "name", "move", "drop", "write", "mode", "sync"]


@dataclass(frozen=True)
class Change:
    """One change of the storage.

    Parameters
    ----------
    kind
        A file or folder is made, gets another name, moves, loses a name, gets content or mode,
        or is flushed.
    node
        Which file or folder.
    folder, name
        Where its name is made or lost; of a move the new one.
    source
        Folder and name that a move takes away.
    content
        Of the whole file after the write.
    mode
        Permission bits.
    is_folder
    time
        Of the write, in nanoseconds.
    """

    kind: Kind
    node: int
    folder: int = ROOT
    name: str = ""
    source: tuple[int, str] = (ROOT, "")
    content: bytes = field(default=b"", repr=False)
    mode: int = 0o600
    is_folder: bool = False
    time: int = 0

    @property
    def folders(self) -> set[int]:
        """Folders of which it changes a name."""
        named = {"make", "name", "move", "drop"}
        return {self.folder, *([self.source[0]] if self.kind == "move" else [])} & (
            {self.folder, self.source[0]} if self.kind in named else set()
        )


class Tree:
    """What is stored at one moment.

    Parameters
    ----------
    names
        Of each folder its names and whose they are.
    contents
        Of each file; None for a folder.
    modes
    """

    def __init__(self) -> None:
        self.names: dict[int, dict[str, int]] = {ROOT: {}}
        self.contents: dict[int, bytes | None] = {ROOT: None}
        self.modes: dict[int, int] = {ROOT: 0o700}
        self.times: dict[int, int] = {}

    def copy(self) -> Tree:
        """Another one, to be changed."""
        other = Tree()
        other.names = {folder: dict(names) for folder, names in self.names.items()}
        other.contents, other.modes = dict(self.contents), dict(self.modes)
        other.times = dict(self.times)
        return other

    def apply(self, change: Change) -> None:
        """Change it; what has no place, since something before it was lost, is lost too."""
        names = self.names.get(change.folder)
        if change.kind == "make" and names is not None:
            names[change.name] = change.node
            self.contents[change.node] = None if change.is_folder else b""
            self.modes[change.node] = change.mode
            if change.is_folder:
                self.names[change.node] = {}
        elif change.kind == "name" and names is not None and change.node in self.contents:
            names[change.name] = change.node
        elif change.kind == "move" and names is not None:
            folder, name = change.source
            if self.names.get(folder, {}).get(name) == change.node:
                del self.names[folder][name]
                names[change.name] = change.node
        elif change.kind == "drop" and names is not None:
            if names.get(change.name) == change.node:
                del names[change.name]
        elif change.kind == "write" and change.node in self.contents:
            self.contents[change.node] = change.content
            self.times[change.node] = change.time
        elif change.kind == "mode":
            self.modes[change.node] = change.mode

    def after(self, changes: Iterable[Change]) -> Tree:
        """Another one, with the changes done."""
        other = self.copy()
        for change in changes:
            other.apply(change)
        return other

    def walk(self, folder: int = ROOT, path: str = "") -> Iterator[tuple[str, int]]:
        """All paths in order, and whose they are."""
        for name, node in sorted(self.names[folder].items()):
            place = f"{path}{name}"
            yield place, node
            if self.contents[node] is None:
                yield from self.walk(node, f"{place}/")

    @property
    def digest(self) -> str:
        """SHA-256 over paths, contents and modes: equal where nobody can see a difference."""
        sha = hashlib.sha256()
        for path, node in self.walk():
            content = self.contents[node]
            about = b"folder" if content is None else _digest(content)
            sha.update(f"{path}\0{self.modes[node]:o}\0".encode() + about + b"\n")
        return sha.hexdigest()

    def store(self, root: Path) -> None:
        """Put it in a folder, whatever was there."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700)
        first: dict[int, str] = {}
        for path, node in self.walk():
            place, content = f"{root}/{path}", self.contents[node]
            if node in first:
                os.link(first[node], place)
                continue
            first[node] = place
            if content is None:
                os.mkdir(place, 0o700)
            else:
                with open(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    file.write(content)
        for node, place in first.items():
            if self.modes[node] != (0o700 if self.contents[node] is None else 0o600):
                os.chmod(place, self.modes[node])
            if node in self.times:
                os.utime(place, ns=(self.times[node], self.times[node]))

    def read(self) -> dict[str, bytes]:
        """Every file by its path."""
        contents = ((path, self.contents[node]) for path, node in self.walk())
        return {path: content for path, content in contents if content is not None}


@lru_cache(maxsize=200_000)
def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def tear(change: Change) -> Change | None:
    """What a kill in the middle of a change leaves of it; None where it is done or not done."""
    if change.kind != "write" or len(change.content) < 2:
        return None
    content = change.content[: len(change.content) // 2]
    return Change("write", change.node, content=content, time=change.time)


def list_volatile(changes: Sequence[Change]) -> list[int]:
    """Places of the changes that a power cut after them may lose.

    A content is safe once its file is flushed after it; a name once its folder is. With a folder
    those that it is in are there, and with a moved file that it was made: a journal is written in
    order.
    """
    writes: dict[int, list[int]] = {}
    names: dict[int, list[int]] = {}
    home: dict[int, tuple[int, int]] = {}
    safe: set[int] = set()

    def keep(folder: int, last: int) -> None:
        """What changed names of a folder up to a change, and what that rests on."""
        for place in names.get(folder, ()):
            if place <= last and place not in safe:
                safe.add(place)
                if changes[place].node in home:
                    keep(*home[changes[place].node])
        if folder in home and home[folder][1] not in safe:
            keep(*home[folder])

    for place, change in enumerate(changes):
        if change.kind == "write":
            writes.setdefault(change.node, []).append(place)
        for folder in change.folders:
            names.setdefault(folder, []).append(place)
        if change.kind == "make":
            home[change.node] = change.folder, place
        if change.kind == "sync":
            safe |= set(writes.pop(change.node, ()))
            keep(change.node, place)
    named = {n for places in names.values() for n in places}
    return sorted(({n for places in writes.values() for n in places} | named) - safe)


def cut_power(tree: Tree, changes: Sequence[Change], chance: random.Random | None) -> Tree:
    """What the disk may hold when the power goes after some changes.

    Names of a folder are lost from the end (a folder's journal is written in order), contents of
    a file wholly, in half or not at all, each independently of the others. Without chance all is
    lost that may be.
    """
    volatile = list_volatile(changes)
    if chance is None:
        lost_all = set(volatile)
        return tree.after(one for place, one in enumerate(changes) if place not in lost_all)
    lost: set[int] = set()
    halves: set[int] = set()
    of_folder: dict[int, list[int]] = {}
    for place in volatile:
        change = changes[place]
        if change.kind == "write":
            if (fate := chance.randrange(4)) == 0:
                lost.add(place)
            elif fate == 1:
                halves.add(place)
        else:
            of_folder.setdefault(change.folder, []).append(place)
    for places in of_folder.values():
        if chance.random() < 0.5:
            lost |= set(places[chance.randrange(len(places)) :])
    kept = []
    for place, change in enumerate(changes):
        if place in halves:
            change = tear(change) or change
        if place not in lost:
            kept.append(change)
    return tree.after(kept)
