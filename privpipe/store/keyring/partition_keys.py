"""Keys of a run: one per partition of the source, named by what it is bound to.

A record is who it is by the content of its partition and its number within. A key is bound to
that content, to the model and to what else decides the draws, and is named by this binding: so the
same records draw the same words in any chunking, in any order of the partitions, in a collection
that was appended to, in a release at another place. Two draws for one record could be averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from privpipe.numerics.random.streams import JoinedStream
from privpipe.protocols import RecordStream
from privpipe.records.partitions import Partition, cut_by_partition
from privpipe.store.keyring.keyformat import KeyBinding, KeyEntry
from privpipe.store.keyring.keys import (
    KeyTicket,
    forget_key,
    list_keys,
    make_key,
    name_binding,
    read_key,
)


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
        runs = cut_by_partition(self.partitions, start, stop)
        return JoinedStream(
            [
                self._ticket(run.partition.digest)
                .open()
                .stream(run.partition.digest, run.first_record, run.n_records)
                for run in runs
            ]
        )

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
    partitions: Sequence[Partition],
    model: str,
    options: str,
    *,
    run: str,
    source: str = "",
    folder: str | Path | None = None,
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
    folder
        Key folder; see `make_key`.

    Raises
    ------
    StoreError
        If a key was destroyed or lost: other words for the same records are never drawn in
        silence. See `make_key` for the rest.
    """
    older = f"release-{run}"
    for known in (entry for entry in list_keys(folder=folder) if entry.key_id == older):
        binding = replace(known.binding, source=source, model=model)
        whole = read_key(older, binding, folder=folder).ticket()
        return PartitionKeys(tuple(partitions), model, options, whole.folder, whole)
    place = ""
    for content in dict.fromkeys(part.digest for part in partitions if part.n_records):
        binding = KeyBinding(content, model, options)
        place = make_key(name_binding(binding), binding, folder=folder, run=run).ticket().folder
    return PartitionKeys(tuple(partitions), model, options, place)


def find_keys(run: str, *, folder: str | Path | None = None) -> tuple[KeyEntry, ...]:
    """Ledger entries of the keys that a run drew from."""
    return tuple(
        entry
        for entry in list_keys(folder=folder)
        if run in entry.runs or entry.key_id == f"release-{run}"
    )


def forget_keys(run: str, *, folder: str | Path | None = None) -> tuple[KeyEntry, ...]:
    """Destroy every key that a run drew from; see `forget_key`.

    Other releases that drew from them cannot be made again either; their identifiers are in
    the entries.
    """
    return tuple(forget_key(entry.key_id, folder=folder) for entry in find_keys(run, folder=folder))
