"""A bucket in memory: objects, put-if-absent, and a store that lies, is late, or does not care.

A crash there is what was put before it. The clock of the store and of whoever asks it is one, and
can be set on: a lease of the dead runs out without waiting.
"""

from __future__ import annotations

import errno
import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

__all__ = [
    "SCHEME",
    "AnsweredError",
    "Bucket",
    "Objects",
    "Put",
    "recording_bucket",
    "using_bucket",
]

SCHEME = "simulated"


class AnsweredError(OSError):
    """What a store answers where it does not do as it is asked.

    Parameters
    ----------
    status
        Of HTTP.
    is_done
        Whether it did it all the same.
    """

    def __init__(self, status: int, *, is_done: bool) -> None:
        super().__init__(errno.EIO, f"HTTP {status}")
        self.status, self.is_done = status, is_done


@dataclass(frozen=True)
class Put:
    """One change: an object is put, or deleted where there is no content."""

    path: str
    content: bytes | None = field(repr=False)
    absent: bool = False


class Objects:
    """What is stored at one moment, by path."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents = dict(contents or {})

    def after(self, changes: Sequence[Put]) -> Objects:
        """Another one, with the changes done."""
        other = Objects(self.contents)
        for change in changes:
            if change.content is None:
                other.contents.pop(change.path, None)
            elif not (change.absent and change.path in other.contents):
                other.contents[change.path] = change.content
        return other

    @property
    def digest(self) -> str:
        """SHA-256 over paths and contents."""
        sha = hashlib.sha256()
        for path, content in sorted(self.contents.items()):
            sha.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
        return sha.hexdigest()

    def store(self, root: Path) -> None:
        """Put it in the bucket, whatever was there; what no bucket holds is not there either."""
        assert not (root / "account").exists(), "the account is beside the bucket"
        Bucket.store.clear()
        Bucket.pseudo_dirs[:] = [""]
        hear, Bucket.hear = Bucket.hear, None
        system = fsspec.filesystem(SCHEME)
        for path, content in self.contents.items():
            system.pipe_file(f"/world/{path}", content)
        Bucket.hear = hear

    def read(self) -> dict[str, bytes]:
        """Every object by its path."""
        return dict(self.contents)

    @staticmethod
    def stored() -> Objects:
        """What the bucket holds now."""
        return Objects(
            {
                path.removeprefix("/world/"): file.getvalue()
                for path, file in Bucket.store.items()
                if path.startswith("/world/")
            }
        )


class _Written(io.BytesIO):
    def __init__(self, system: Bucket, path: str, autocommit: bool) -> None:
        super().__init__()
        self._system, self._path, self._autocommit = system, path, autocommit
        self._content = b""

    def close(self) -> None:
        content = None if self.closed else self.getvalue()
        super().close()  # whatever comes of it, as fsspec's own files do
        if content is not None:
            self._content = content
            if self._autocommit:
                self.commit()

    def commit(self) -> None:
        """Put it."""
        self._system.pipe_file(self._path, self._content)

    def discard(self) -> None:
        """Nothing was put."""


class Bucket(MemoryFileSystem):
    """The client of the bucket."""

    protocol = SCHEME
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    hear: ClassVar[Callable[[Put], None] | None] = None
    ahead: ClassVar[float] = 0.0
    is_careless: ClassVar[bool] = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return MemoryFileSystem._strip_protocol(str(path).replace(f"{SCHEME}://", "memory://", 1))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        """Put an object; with `mode` "create" only where there is none."""
        key = self._strip_protocol(path)
        change = Put(key.removeprefix("/world/"), bytes(value), mode == "create")
        if Bucket.is_careless:
            mode = "overwrite"
        answer = None
        try:
            if Bucket.hear is not None:
                Bucket.hear(change)
        except AnsweredError as error:
            if not error.is_done:
                raise
            answer = error
        super().pipe_file(key, value, mode=mode, **more)
        self.store[key].modified = datetime.fromtimestamp(Bucket.now(), UTC)
        if answer is not None:
            raise answer

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        """A file that is put when it is closed."""
        if mode == "wb" and "data" not in more:
            return _Written(self, path, more.get("autocommit", True))
        return super()._open(path, mode, **more)

    def cp_file(self, path1: str, path2: str, **more: Any) -> None:
        """Put what another object holds."""
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        key = self._strip_protocol(path)
        if key not in self.store:
            raise FileNotFoundError(path)
        if Bucket.hear is not None:
            Bucket.hear(Put(key.removeprefix("/world/"), None))
        del self.store[key]

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete objects."""
        assert not recursive, "nothing deletes by folders"
        for one in [path] if isinstance(path, str) else path:
            self.rm_file(one)

    @classmethod
    def now(cls) -> float:
        """The time of all."""
        return time.time() + cls.ahead


fsspec.register_implementation(SCHEME, Bucket, clobber=True)


class BucketRecorder:
    """The changes of the bucket.

    Parameters
    ----------
    inject
        Called with the number of each change and the change, before it.
    keys
        A folder; `keyless` counts the changes before it was there.
    """

    def __init__(
        self, inject: Callable[[int], None] | None = None, keys: Path | None = None
    ) -> None:
        self.inject, self.keys, self.calls, self.keyless = inject, keys, 0, 0
        self.changes: list[Put] = []
        self.current: Put | None = None
        self.before = Objects.stored()
        self._lock, self._busy = threading.RLock(), False

    def hear(self, change: Put) -> None:
        if self._busy and self.inject is not None:  # a rival's
            return
        with self._lock:
            self._busy = True
            try:
                number, self.calls = self.calls, self.calls + 1
                self.current = change
                if self.inject is not None:
                    self.inject(number)
                self.changes.append(change)
                self.keyless += self.keys is not None and not self.keys.exists()
            finally:
                self._busy = False


@contextmanager
def recording_bucket(
    inject: Callable[[int], None] | None = None, keys: Path | None = None
) -> Iterator[BucketRecorder]:
    """Record what changes in the bucket; one thing at a time."""
    recorder, before = BucketRecorder(inject, keys), Bucket.hear
    Bucket.hear = recorder.hear
    try:
        with zarr.config.set({"async.concurrency": 1}):
            yield recorder
    finally:
        Bucket.hear = before


@contextmanager
def using_bucket() -> Iterator[None]:
    """One clock, and nobody waits."""
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(time=Bucket.now)
        patch.setattr("privpipe.store.access.lease.time", clock)
        patch.setattr("privpipe.store.access.location.CONFLICT_PAUSES", (0.0, 0.0, 0.0))
        yield
