"""Files of the key folder: what they say, private modes, no links followed, whole, one writer.

A file is JSON with a digest over all of it, so that damage cannot pass for another key. It holds
binding, times, and in key files the secret. Every operation goes through a descriptor of the
folder, so that the folder that was checked is the one that is used. POSIX only.
"""

import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path

from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.numerics.random.streams import KEY_BYTES

_FORMAT = "privpipe-key"
_VERSION = 2
"""Version 1 did not note the runs; it is read as having none."""
_DIGEST = re.compile(r"[0-9a-f]{32,128}")


@dataclass(frozen=True)
class KeyBinding:
    """What a key serves: one content, one model, one set of options, by their digests.

    Parameters
    ----------
    source
        Digest of the content of the source partition.
    model
        Digest of the map.
    options
        Digest of what else decides the map's input or its draws.

    Raises
    ------
    OptionError
        If a digest is not of that form.
    """

    source: str
    model: str
    options: str

    def __post_init__(self) -> None:
        for part in fields(self):
            if not _DIGEST.fullmatch(getattr(self, part.name)):
                problem = f"The {part.name} digest of a key is not 32 to 128 lower-case hex digits."
                raise OptionError(problem, remedy="Use the hexdigest of sha256.")


@dataclass(frozen=True)
class KeyEntry:
    """What the ledger knows of a key; nothing of its bytes.

    Parameters
    ----------
    key_id
        Name of the key.
    binding
        What it serves.
    created, forgotten
        UTC times in ISO 8601; `forgotten` is None while the key exists.
    runs
        Identifiers of the runs that drew from it.
    """

    key_id: str
    binding: KeyBinding
    created: str
    forgotten: str | None = None
    runs: tuple[str, ...] = ()


def encode_key(entry: KeyEntry, secret: bytes = b"") -> bytes:
    """Content of a ledger entry, or with a secret that of a key file."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "id": entry.key_id,
        **{part.name: getattr(entry.binding, part.name) for part in fields(KeyBinding)},
        "created": entry.created,
        "forgotten": entry.forgotten,
        "runs": list(entry.runs),
        "secret": secret.hex(),
    }
    return json.dumps({**content, "check": _check_sum(content)}, indent=1).encode() + b"\n"


def decode_key(content: bytes, path: Path) -> tuple[KeyEntry, bytes]:
    """Entry and secret of a file, or FormatError without a word of what is in it."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        table = json.loads(content)
        check = table.pop("check")
        binding = KeyBinding(table["source"], table["model"], table["options"])
        runs = tuple(table["runs"]) if table["version"] > 1 else ()
        entry = KeyEntry(table["id"], binding, table["created"], table["forgotten"], runs)
        secret = bytes.fromhex(table["secret"])
        n_bytes = KEY_BYTES if path.suffix == ".key" else 0
        found = (check, table["format"], entry.key_id, len(secret))
        sound = found == (_check_sum(table), _FORMAT, path.stem, n_bytes)
        if sound and table["version"] in (1, _VERSION):
            return entry, secret
    remedy = "Restore it, or destroy the key with `privpipe forget-key` and release anew."
    raise FormatError(f"{path} is damaged or not a file of a release key.", remedy=remedy)


def _check_sum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


Suffix = Literal["key", "json"]
# No link is followed, and no worker that is started inherits an open key.
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


def key_folder(folder: str | Path | None = None) -> Path:
    """Key folder: the one given, else ``PRIVPIPE_KEYS``, else in the user's data folder."""
    chosen = folder or os.environ.get("PRIVPIPE_KEYS")
    return Path(chosen).absolute() if chosen else user_data_path("privpipe") / "keys"


def check_keys_apart(release: str | Path, folder: str | Path | None = None) -> None:
    """Refuse a key folder inside a release, or a release inside the key folder.

    Raises
    ------
    OptionError
        If one holds the other once symbolic links are followed: who is handed the release must
        not be handed the key.
    """
    place, keys = Path(release).resolve(), key_folder(folder).resolve()
    if place == keys or place in keys.parents or keys in place.parents:
        problem = f"The release {place} and the key folder {keys} hold one another."
        remedy = "Set PRIVPIPE_KEYS to a folder elsewhere."
        raise OptionError(problem, remedy=remedy, code="key_apart")


@dataclass(frozen=True)
class KeyFolder:
    """The files of one key in a key folder that is private to this user.

    Parameters
    ----------
    path
        The folder.
    key_id
        First part of the names of the files.
    """

    path: Path
    key_id: str

    @classmethod
    def create(cls, key_id: str, folder: str | Path | None) -> "KeyFolder":
        """Make the folder and its parents if need be, mode 0700 under any umask."""
        path = key_folder(folder)
        with _refusing(path):
            for missing in [each for each in (*reversed(path.parents), path) if not each.exists()]:
                with suppress(FileExistsError):
                    # Each parent by itself: os.makedirs gives intermediate folders the mode of the
                    # umask.
                    missing.mkdir(0o700)
                    missing.chmod(0o700)  # whatever the umask took away
        return cls(path, key_id)

    @classmethod
    def existing(cls, key_id: str, folder: str | Path | None) -> "KeyFolder | None":
        path = key_folder(folder)
        return cls(path, key_id) if os.path.isdir(path) else None

    @classmethod
    def every(cls, folder: str | Path | None) -> "Iterator[KeyFolder]":
        """The keys with an entry or a secret in the folder, by id."""
        if (found := cls.existing("", folder)) is None:
            return
        with found.opened() as handle:
            names = [Path(name) for name in os.listdir(handle) if not name.startswith(".")]
        for key_id in sorted({name.stem for name in names if name.suffix in (".json", ".key")}):
            yield cls(found.path, key_id)

    def file(self, suffix: Suffix) -> Path:
        """Path of a file, for messages."""
        return self.path / self._name(suffix)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Descriptor of the folder, once it is this user's alone."""
        with _refusing(self.path):
            # Its modes are checked by the descriptor: a path may lead elsewhere a moment later.
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        try:
            _check_private(self.path, os.fstat(handle), "700")
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers of the folder; the lock dies with its process."""
        place = self.path / ".lock"
        with self.opened() as handle, _refusing(place):
            lock = os.open(place.name, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=handle)
        try:
            with _refusing(place):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def has(self, suffix: Suffix) -> bool:
        """Whether the file is there, whatever it is."""
        with self._using(suffix) as handle, suppress(FileNotFoundError):
            os.stat(self._name(suffix), dir_fd=handle, follow_symlinks=False)
            return True
        return False

    def read(self, suffix: Suffix) -> bytes:
        """Content of the file, once it is a plain file of this user's alone."""
        with self._using(suffix) as handle:
            # Without waiting: a named pipe would never open.
            def take(name: str, flags: int) -> int:
                return os.open(name, flags | os.O_NONBLOCK | _OPEN, dir_fd=handle)

            with open(self._name(suffix), "rb", opener=take) as stream:
                _check_private(self.file(suffix), os.fstat(stream.fileno()), "600")
                return stream.read()

    def write(self, suffix: Suffix, content: bytes, *, replacing: bool) -> None:
        """Write a file whole, on disk, in place of the one that may be there, or never over one.

        The link that gives a new file its name fails if the name is taken, also on a file system
        that does not lock. For its sake leftovers are swept by `destroy` alone: there they could
        be another process's.
        """
        name = self._name(suffix)
        with self._using(suffix) as handle:
            temporary = _write(handle, f".{self.key_id}.{secrets.token_hex(8)}.new", content)
            # A ledger entry is replaced whole: half of one would be a key that no one may make
            # again.
            if replacing:
                os.rename(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
            else:
                try:
                    # Of two processes that make the key where nothing locks one is refused here.
                    os.link(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
                finally:
                    os.unlink(temporary, dir_fd=handle)
            os.fsync(handle)

    def destroy(self, suffix: Suffix) -> None:
        """Overwrite a file with zeros, best effort, and remove it with all leftovers."""
        with self._using(suffix) as handle:
            _destroy(handle, self._name(suffix))
            # What processes killed while they wrote left of this key: it may hold the secret.
            leftover = re.compile(rf"\.{re.escape(self.key_id)}\.[0-9a-f]{{16}}\.new")
            for name in filter(leftover.fullmatch, os.listdir(handle)):
                _destroy(handle, name)
            os.fsync(handle)

    @contextmanager
    def _using(self, suffix: Suffix) -> Iterator[int]:
        """Descriptor of the folder, for work on a file."""
        with self.opened() as handle, _refusing(self.file(suffix)):
            yield handle

    def _name(self, suffix: Suffix) -> str:
        return f"{self.key_id}.{suffix}"


def _write(handle: int, name: str, content: bytes) -> str:
    """New file of mode 0600 under any umask, its content on disk."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=handle)
    with os.fdopen(file, "wb") as stream:
        # The mode given to open is less what the umask takes away.
        os.fchmod(file, 0o600)
        stream.write(content)
        stream.flush()
        os.fsync(file)
    return name


def _destroy(handle: int, name: str) -> None:
    """Overwrite and remove; a leftover that shares its bytes with a key is only removed."""
    try:
        file = os.open(name, os.O_WRONLY | _OPEN, dir_fd=handle)
    except OSError:
        file = -1  # not there, a link, or not ours to write: removing is what is left
    if file >= 0:
        with os.fdopen(file, "wb") as stream:
            found = os.fstat(file)
            # A writer killed between link and unlink left two names of one file: zeros would
            # overwrite the key.
            if not (name.endswith(".new") and found.st_nlink > 1):
                stream.write(bytes(found.st_size))
                stream.flush()
                os.fsync(file)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=handle)


def _check_private(path: Path, found: os.stat_result, mode: str) -> None:
    # A pipe or a device can be anybody's, whatever its mode.
    plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    if not plain or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreError(
            f"{path} is not private: owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}.",
            remedy=f"Make it a plain one of your own: chmod {mode} {path}",
            code="key_private",
        )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What the file system refuses, as StoreError."""
    try:
        yield
    except OSError as error:
        problem = f"The key folder cannot be used: {path}: {error.strerror}."
        remedy = "Set PRIVPIPE_KEYS to a folder of yours on a file system with links and modes."
        raise StoreError(problem, remedy=remedy, code="key_folder") from None
