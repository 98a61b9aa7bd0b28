"""Release keys: made by the operating system, bound to what they serve, stored apart, destroyable.

A key folder holds two files for each key; see `privpipe.store.keyring.keyfiles`. ``<id>.key`` is
the secret and its binding. ``<id>.json`` is the ledger entry: it holds no secret, and stays when
the key is destroyed. A run has one key per partition of the source, named by what it is bound to.
"""

import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NoReturn

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privpipe.errors import OptionError, StoreError
from privpipe.numerics.random.streams import KEY_BYTES, JoinedStream, KeyedStream
from privpipe.protocols import RecordStream
from privpipe.records.schema import Partition, cut_by_partition
from privpipe.store.keyring.keyfiles import KeyBinding, KeyEntry, KeyFolder, decode_key, encode_key

SUFFIXES: tuple[Literal["json"], Literal["key"]] = ("json", "key")
"""Of the files of a key: its ledger entry, and the secret."""

# Ids are names of files: no separator, and no dot in front.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ReleaseKey:
    """A secret and what it serves. Neither shown, nor pickled, nor copied.

    Made by `make_key` and `read_key`; use `stream` for draws and `ticket` to name the key in a
    task. The key of the streams is derived from the secret *and* the binding. Should a check ever
    be passed by mistake, another source, model or set of options still gets other noise.
    """

    __slots__ = ("_folder", "_secret", "entry")

    def __init__(self, entry: KeyEntry, secret: bytes, folder: str) -> None:
        self.entry, self._secret, self._folder = entry, secret, folder

    def __repr__(self) -> str:
        return f"ReleaseKey({self.entry.key_id!r}, secret not shown)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        problem = f"Release key {self.entry.key_id!r} is not pickled or copied."
        remedy = "Send key.ticket() in tasks: workers read the key folder."
        raise OptionError(problem, remedy=remedy, code="key_pickle")

    @property
    def fingerprint(self) -> str:
        """Distinguishes these draws from all others, and reveals nothing of the secret.

        Two releases of one partition with the same fingerprint hold the same draws of the same
        values.
        """
        # Derived from the secret, so that no one who has the binding alone can make it.
        return self._derive(20, b"privpipe/account/1").hex()

    def stream(self, partition: str, first_record: int, n_records: int) -> KeyedStream:
        """Random words for a run of records of a partition; see `KeyedStream`."""
        key = self._derive(KEY_BYTES, b"")
        return KeyedStream(key, partition=partition, first_record=first_record, n_records=n_records)

    def _derive(self, length: int, purpose: bytes) -> bytes:
        # The binding is in what is derived, not only compared when the key is opened.
        info = purpose + _info(self.entry.binding)
        return HKDF(hashes.SHA256(), length, salt=None, info=info).derive(self._secret)

    def ticket(self) -> "KeyTicket":
        """Name of this key for a task's arguments: no secret in it."""
        return KeyTicket(self.entry.key_id, self.entry.binding, self._folder)


@dataclass(frozen=True)
class KeyTicket:
    """Names a key: what tasks carry instead of it.

    Parameters
    ----------
    key_id, binding
        Which key, and what it must serve.
    folder
        Key folder to read it from.
    """

    key_id: str
    binding: KeyBinding
    folder: str

    def open(self) -> ReleaseKey:
        """The key, from the folder.

        Raises
        ------
        StoreError, OptionError
            As `read_key`.
        """
        return read_key(self.key_id, self.binding, folder=self.folder)


def make_key(
    key_id: str, binding: KeyBinding, *, folder: str | Path | None = None, run: str = ""
) -> ReleaseKey:
    """Make the key of a release, or return the one made before for the same binding.

    Of several processes that request it at once one makes it and all get the same.

    Parameters
    ----------
    key_id
        Name of the key, usually the release's: letters, digits, ``. _ -``, at most 100.
    binding
        What the key serves.
    folder
        Key folder; the environment's ``PRIVPIPE_KEYS`` or else ``privpipe/keys`` in the user's
        data folder when not given. Created with mode 0700.
    run
        Identifier of the run that draws from it, noted in the ledger entry.

    Raises
    ------
    OptionError
        If the id is not of that form, or the key serves another binding.
    StoreError
        If the key was destroyed or is missing although the ledger has it. A new one would give the
        same records other noise, and two draws can be averaged. Also if the folder or a file is not
        private to this user.
    FormatError
        If a file of the key is damaged.
    """
    place = KeyFolder.create(_check_id(key_id), folder)
    with place.locked():
        entry = _read_entry(place)
        if place.has("key") and (entry is None or entry.forgotten is None):
            return _reopen(place, entry, binding, run)
        if entry is not None:
            raise _gone(entry, place)
        entry = KeyEntry(key_id, binding, _now(), runs=(run,) if run else ())
        secret = secrets.token_bytes(KEY_BYTES)
        # The key first: an entry without a key means that it was lost, and stops every run.
        place.write("key", encode_key(entry, secret), replacing=False)
        place.write("json", encode_key(entry), replacing=True)
    return ReleaseKey(entry, secret, str(place.path))


def read_key(key_id: str, binding: KeyBinding, *, folder: str | Path | None = None) -> ReleaseKey:
    """Read a key that must exist, for resuming a release and on workers.

    Parameters and errors are those of `make_key`; a key that was never made is a StoreError.
    """
    place = KeyFolder.existing(_check_id(key_id), folder)
    if place is not None:
        entry, found = _read_entry(place), place.has("key")
        # Destroyed or lost, never replaced: a second draw for the same records can be averaged.
        if entry is not None and (entry.forgotten is not None or not found):
            raise _gone(entry, place)
        if found:
            return _open(place, binding)
    raise _unknown(key_id)


def forget_key(key_id: str, *, folder: str | Path | None = None) -> KeyEntry:
    """Destroy a key: overwrite its file, remove it, and write the time into its ledger entry.

    Afterwards no chunk of its release can be written again and the noise cannot be subtracted
    by whoever finds the folder. Forgetting twice is harmless. Overwriting is best effort:
    journals, snapshots, backups and solid-state disks may keep old blocks.

    Raises
    ------
    OptionError
        If the id is not of the form of `make_key`.
    StoreError
        If there is no such key, or the folder is not private to this user.
    FormatError
        If the ledger entry is damaged; the key is destroyed before this is raised.
    """
    place = KeyFolder.existing(_check_id(key_id), folder)
    if place is None:
        raise _unknown(key_id)
    with place.locked():
        suffix = next((one for one in SUFFIXES if place.has(one)), None)
        if suffix is None:
            raise _unknown(key_id)
        content = place.read(suffix)
        # Destroyed before its entry is decoded: a damaged entry must not save the key.
        place.destroy("key")
        entry, _ = decode_key(content, place.file(suffix))
        if entry.forgotten is None:
            entry = replace(entry, forgotten=_now())
            place.write("json", encode_key(entry), replacing=True)
    return entry


def list_keys(*, folder: str | Path | None = None) -> tuple[KeyEntry, ...]:
    """Ledger entries of all keys ever made in a folder, by id: bindings and times, no secrets.

    Files that are damaged or were never a key's are left out; see `list_unreadable`.

    Raises
    ------
    StoreError
        If the folder is not private to this user.
    """
    found = (_read_either(place) for place in KeyFolder.every(folder))
    return tuple(entry for entry in found if entry is not None)


def list_unreadable() -> tuple[str, ...]:
    """Ids of files in the key folder that look like those of a key and cannot be read as such.

    Such as a damaged key, a file of another program, one that is not private to this user. Whoever
    lists keys has to know that there is more, and loses none of the others for it.

    Raises
    ------
    StoreError
        If the folder is not private to this user.
    """
    return tuple(place.key_id for place in KeyFolder.every(None) if _read_either(place) is None)


def _read_either(place: KeyFolder) -> KeyEntry | None:
    """The entry of a key, from the ledger or from the key; None if neither can be read."""
    # A process killed between writing the key and its entry left the entry in the key alone.
    for suffix in SUFFIXES:
        with suppress(StoreError):  # FormatError is one
            if place.has(suffix):
                return decode_key(place.read(suffix), place.file(suffix))[0]
    return None


def _reopen(place: KeyFolder, entry: KeyEntry | None, binding: KeyBinding, run: str) -> ReleaseKey:
    key = _open(place, binding)
    noted = entry or key.entry  # there is no entry if a process was killed between key and entry
    if run and run not in noted.runs:
        noted = replace(noted, runs=(*noted.runs, run))
    if noted != entry:
        place.write("json", encode_key(noted), replacing=True)
    return key


def _open(place: KeyFolder, binding: KeyBinding) -> ReleaseKey:
    entry, secret = decode_key(place.read("key"), place.file("key"))
    names = [part.name for part in fields(binding)]
    different = [one for one in names if getattr(entry.binding, one) != getattr(binding, one)]
    if different:
        raise OptionError(
            f"Release key {entry.key_id!r} was made for another {' and another '.join(different)}.",
            remedy="Give this release a new name: one key never serves two inputs, or the "
            "difference of the releases would be that of the records.",
            code="key_binding",
        )
    return ReleaseKey(entry, secret, str(place.path))


def _read_entry(place: KeyFolder) -> KeyEntry | None:
    return decode_key(place.read("json"), place.file("json"))[0] if place.has("json") else None


def name_binding(binding: KeyBinding) -> str:
    """Name of the key that serves a binding: equal bindings have one key."""
    return f"draws-{hashlib.sha256(_info(binding)).hexdigest()[:40]}"


def _info(binding: KeyBinding) -> bytes:
    # With their lengths: two bindings never make the same bytes by moving a border.
    parts = (b"privpipe/key/1", *(getattr(binding, f.name).encode() for f in fields(binding)))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _check_id(key_id: str) -> str:
    if not _ID.fullmatch(key_id):
        remedy = "Use at most 100 letters, digits, dots, dashes, underscores; no mark first."
        raise OptionError(f"The key id {key_id!r} is not usable.", remedy=remedy)
    return key_id


def _gone(entry: KeyEntry, place: KeyFolder) -> StoreError:
    why = f"was destroyed on {entry.forgotten}" if entry.forgotten else "is missing"
    return StoreError(
        f"Release key {entry.key_id!r} {why} (key folder {place.path}).",
        remedy="Restore its file if it was lost, or give the release a new name. New noise on the "
        "same records adds to what they have given away.",
        code="key_gone",
    )


def _unknown(key_id: str) -> StoreError:
    remedy = "`privpipe forget-key` lists those of the folder, which PRIVPIPE_KEYS names."
    return StoreError(f"There is no release key {key_id!r}.", remedy=remedy, code="key-unknown")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class PartitionKeys:
    """Names the keys of a run, for the arguments of tasks; no secret in it.

    Parameters
    ----------
    partitions
        Of the source, in order, with the digests of their content.
    model, options
        What the keys are bound to beside the content; see `KeyBinding`.
    folder
        Key folder.
    whole
        The one key of a run that began before keys were bound to partitions: it draws as it
        did, and is never bound anew.
    """

    partitions: tuple[Partition, ...]
    model: str
    options: str
    folder: str
    whole: KeyTicket | None = None

    def stream(self, start: int, stop: int) -> RecordStream:
        """Random words of the records from `start` to `stop` of the collection.

        Raises
        ------
        StoreError, OptionError
            If a key is not there, or not private; see `read_key`.
        """
        streams = []
        for run in cut_by_partition(self.partitions, start, stop):
            content = run.partition.digest
            key = self._ticket(content).open()
            streams.append(key.stream(content, run.first_record, run.n_records))
        return JoinedStream(streams)

    def list_fingerprints(self) -> dict[str, str]:
        """Fingerprint of the draws of every partition with records, by its digest."""
        contents = dict.fromkeys(part.digest for part in self.partitions if part.n_records)
        return {content: self._ticket(content).open().fingerprint for content in contents}

    def _ticket(self, content: str) -> KeyTicket:
        if self.whole is not None:
            return self.whole
        binding = KeyBinding(content, self.model, self.options)
        return KeyTicket(name_binding(binding), binding, self.folder)


def make_partition_keys(
    partitions: Sequence[Partition], model: str, options: str, *, run: str, source: str = ""
) -> PartitionKeys:
    """Make the keys of a run, or find those made before for the same content, model and options.

    Parameters
    ----------
    partitions
        Of the source, with digests.
    model, options
        Digests; see `KeyBinding`.
    run
        Identifier of the run, noted in the ledger entries.
    source
        Digest of the collection, which the single key of an older run is bound to.

    Raises
    ------
    StoreError
        If a key was destroyed or lost: other words for the same records are never drawn in
        silence. See `make_key` for the rest.
    """
    older = f"release-{run}"
    # Of a run that an earlier privpipe began: its chunks were drawn with the single key.
    for known in (entry for entry in list_keys() if entry.key_id == older):
        binding = replace(known.binding, source=source, model=model)
        whole = read_key(older, binding).ticket()
        return PartitionKeys(tuple(partitions), model, options, whole.folder, whole)
    place = ""
    # Equal partitions have one key: equal noise on equal records reveals nothing more.
    for content in dict.fromkeys(part.digest for part in partitions if part.n_records):
        binding = KeyBinding(content, model, options)
        place = make_key(name_binding(binding), binding, run=run).ticket().folder
    return PartitionKeys(tuple(partitions), model, options, place)


def find_keys(run: str) -> tuple[KeyEntry, ...]:
    """Ledger entries of the keys that a run drew from."""
    return tuple(one for one in list_keys() if run in one.runs or one.key_id == f"release-{run}")


def forget_keys(run: str) -> tuple[KeyEntry, ...]:
    """Destroy every key that a run drew from; see `forget_key`.

    Other releases that drew from them cannot be made again either; their identifiers are in
    the entries.
    """
    return tuple(forget_key(entry.key_id) for entry in find_keys(run))
