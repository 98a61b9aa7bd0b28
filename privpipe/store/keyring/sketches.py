"""Sketches of records beside the account: who was released or charged before, whatever the file.

A partition's sketch is 32 bytes a record and frame, in the order of the records. It holds words
that no one reads without the key, which is in the same place (`numerics.random.record_grids`). Each
partition is compared with all that were there when it came, and what was found is noted; objects
are only ever added. A sketch that is missing or damaged is an error: what was charged or released
of these records is then not known.
"""

import hashlib
import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar, cast

import google_crc32c
import numpy as np
from pydantic import TypeAdapter, ValidationError

from privpipe.errors import FormatError
from privpipe.numerics.random import record_overlap
from privpipe.numerics.random.record_grids import N_GRIDS, GridFrame
from privpipe.numerics.random.record_overlap import Overlap, is_among
from privpipe.protocols import WordArray
from privpipe.store.access.lease import check_enforced
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.objects import PIECE, drop_unfinished, keep_bytes
from privpipe.store.keyring import account_chain as chain

FOLDER = ".records"
"""Of the account; its partitions have names of digits."""
NEAR = 0.9
"""Share of both from which on two partitions are versions of one another."""
NOTHING = Overlap(0.0, 0.0)
SUBJECTS = GridFrame(("subject",), kind="subject").id
"""Words of subjects, who may have many records."""
PIECE_ROWS = 1 << 20
"""Records in an object of words, 32 MB; larger partitions have several. Part of the format."""
T = TypeVar("T")


@dataclass(frozen=True)
class SketchKey:
    """The secret of all sketches of an account; never shown."""

    secret: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Names it in every sketch."""
        return hashlib.sha256(b"privpipe sketch" + self.secret).hexdigest()[:16]


@dataclass(frozen=True)
class _Note:
    """What is noted of a partition: frames of its words, and what it has in common with others."""

    frames: tuple[str, ...] = ()
    found: Mapping[str, Overlap] = field(default_factory=dict)


_FRAME, _NOTE = TypeAdapter(GridFrame), TypeAdapter(_Note)


@dataclass(frozen=True)
class Ties:
    """Which partitions have records in common, by digest.

    Parameters
    ----------
    found
        Of each partition with a sketch: the others, and how much of both is in common.
    """

    found: Mapping[str, Mapping[str, Overlap]] = field(default_factory=dict)

    def meet(self, one: str, other: str) -> bool:
        """Whether two partitions have a record in common."""
        overlap = self.between(one, other)
        return max(overlap.mine, overlap.other) > 0

    def between(self, one: str, other: str) -> Overlap:
        """How much two partitions have in common; of what is not known nothing."""
        return Overlap(1.0, 1.0) if one == other else self.found.get(one, {}).get(other, NOTHING)

    def relatives(self, partition: str) -> dict[str, Overlap]:
        """Partitions that hold records of this one, also as a version of a version of it."""
        # A version of a version may share no word with the first any more, and holds the same
        # people.
        reached, versions = dict(self.found.get(partition, {})), [partition]
        seen = {partition}
        while versions:
            for other, overlap in self.found.get(versions.pop(), {}).items():
                if other not in seen:
                    reached.setdefault(other, overlap)
                    if min(overlap.mine, overlap.other) >= NEAR:
                        seen.add(other)
                        versions.append(other)
        reached.pop(partition, None)
        return reached


@dataclass(frozen=True)
class Sketches:
    """The sketches of an account.

    Parameters
    ----------
    account
        Its place.
    """

    account: str

    @property
    def url(self) -> str:
        return join(self.account, FOLDER)

    def key(self) -> SketchKey:
        """The key; made for the first sketch.

        Raises
        ------
        FormatError
            If it is lost, and there are sketches that were made with it.
        StoreError
            If the account cannot be reached.
        """
        # Other words under another key would meet nothing: a lost key is damage, not a new
        # beginning.
        if not self._get("key"):
            if chain.list_account(self.url, "links/"):
                raise self._damaged("key")
            secret = secrets.token_bytes(32)
            if chain.create_entry(self.url, "key", secret) and local_path(self.url) is None:
                # Of two keys the sketches under the first would be forgotten: a store that does
                # not enforce the condition is refused before anything is sketched.
                with chain.reaching(self.url):
                    check_enforced(join(self.url, "key"), secret[::-1] + b"?")
        # Read back, as a rival's key may have come first.
        if not (found := self._get("key")):
            raise self._damaged("key")
        return SketchKey(found)

    def frames(self) -> tuple[GridFrame, ...]:
        """All units in which records were ever cut."""
        found = self._read_all(_FRAME, "frames")
        if any(name != frame.id for name, frame in found.items()):
            raise self._damaged("frames")
        return tuple(found.values())

    def add_frame(self, frame: GridFrame) -> None:
        """Store the units of records that fit no known ones."""
        self._put(f"frames/{frame.id}.json", json.dumps(asdict(frame)).encode())

    def known(self) -> dict[str, tuple[str, ...]]:
        """Frames of every partition with a sketch."""
        return {digest: note.frames for digest, note in self._notes().items()}

    def write(self, words: Mapping[str, Mapping[str, WordArray]]) -> None:
        """Store the words of new partitions by frame, then compare them with all that are there.

        Words are there before the comparison begins: of two writers, one at least sees the other.
        """
        for partition, tables in words.items():
            for frame, table in tables.items():
                n = -(-len(table) // PIECE_ROWS)
                for k in range(max(n, 1)):
                    # Names say how many there are: a piece that is lost is missed.
                    name = f"{frame}.{k:06d}-{n:06d}" if n > 1 else frame
                    piece = table[k * PIECE_ROWS : (k + 1) * PIECE_ROWS]
                    self._put(f"words/{partition}/{name}", self._seal(piece))
        # Words were put first: a writer who dies here leaves a sketch without a note, which `check`
        # finds.
        there, notes = self.known_words(), self._notes()
        before = {one: notes.get(one, _Note()) for one in words}
        found = {one: dict(note.found) for one, note in before.items()}
        for frame in sorted({frame for tables in words.values() for frame in tables}):
            mine = {one: tables[frame] for one, tables in words.items() if frame in tables}
            sizes = {one: len(table) for one, table in mine.items()}
            others = {one for one, frames in there.items() if frame in frames}
            # Joined once for all partitions: each table that is compared costs four searches.
            is_small = sum(sizes.values()) <= record_overlap.MOST_AT_ONCE
            grids = range(N_GRIDS if others and is_small else 0)
            index = [np.concatenate([table[:, g] for table in mine.values()]) for g in grids]
            for other in sorted(others):
                table = mine[other] if other in mine else self._join(there[other][frame])
                owners = _find_owners(index, table, sizes) if is_small else set(mine)
                for one in owners - {other}:
                    overlap = record_overlap.measure_overlap(mine[one], table)
                    if frame == SUBJECTS:  # whose words repeat, and are no one else's
                        overlap = replace(overlap, by_profile=False)
                    # Of several frames the one that finds most counts, by profiles the last.
                    found[one][other] = max(found[one].get(other, NOTHING), overlap, key=_rank)
        for one, tables in words.items():
            note = _Note(tuple(sorted({*before[one].frames, *tables})), found[one])
            self._put(f"links/{one}.json", json.dumps(asdict(note), sort_keys=True).encode())

    def known_words(self, partition: str = "") -> dict[str, dict[str, list[str]]]:
        """Objects of every frame of a partition whose words are all there, noted or not."""
        found: dict[str, dict[tuple[str, int], list[str]]] = {}
        for name in chain.list_account(self.url, f"words/{partition}/" if partition else "words/"):
            _, digest, last = name.split("/")
            at = last.partition(".")[0], int(last.partition("-")[2] or 1)
            found.setdefault(digest, {}).setdefault(at, []).append(name)
        # A version without pieces may have died behind its one object: the pieces count.
        return {
            digest: {
                frame: names for (frame, n), names in sorted(all_parts.items()) if len(names) == n
            }
            for digest, all_parts in found.items()
        }

    def read(self, partition: str, frame: str) -> WordArray:
        """Words of a partition, (n_records, N_GRIDS).

        Raises
        ------
        FormatError
            If they are missing, damaged, or made with another key.
        """
        return self._join(self.known_words(partition).get(partition, {}).get(frame, []))

    def _join(self, names: Sequence[str]) -> WordArray:
        """Words of all objects of a frame, in their order."""
        if not names:
            raise self._damaged("words")
        last = self._open(names[-1])
        first = (len(names) - 1) * PIECE_ROWS
        words = record_overlap.make_words(first + len(last))
        words[first:] = last
        for k, name in enumerate(names[:-1]):
            words[k * PIECE_ROWS : (k + 1) * PIECE_ROWS] = self._open(name)
        return words

    def _open(self, name: str) -> WordArray:
        content = self._get(name)
        # 16 characters of the fingerprint, 4 bytes of the checksum.
        body = memoryview(content)[20:]
        head = self.key().fingerprint.encode() + _checksum(body)
        if content[:20] != head or len(body) % (8 * N_GRIDS):
            raise self._damaged(name)
        return cast(WordArray, np.frombuffer(body, "<u8").reshape(-1, N_GRIDS).astype(np.uint64))

    def blank(self, partition: str, rows: Sequence[int]) -> None:
        """Forget the words of some records of a partition: no one meets them again.

        Raises
        ------
        FormatError
            As `read`.
        """
        # They are listed nowhere, and hold the words of all.
        drop_unfinished(join(self.url, "words", partition))
        for name in chain.list_account(self.url, f"words/{partition}/"):
            piece = name.partition(".")[2].partition("-")[0]
            first = int(piece or 0) * PIECE_ROWS
            mine = [row - first for row in rows if not piece or 0 <= row - first < PIECE_ROWS]
            table = self._open(name) if mine else record_overlap.make_words(0)
            # Words of zero meet nothing; and a second erasure writes nothing.
            if table[mine].any():
                table[mine] = 0
                self._put(name, self._seal(table))

    def ties(self) -> Ties:
        """Which partitions have records in common.

        Raises
        ------
        FormatError
            If a note is damaged.
        """
        found, notes = dict[str, dict[str, Overlap]](), self._notes()
        named = {one for one, note in notes.items() if SUBJECTS in note.frames}
        for partition, note in notes.items():
            mine = found.setdefault(partition, {})
            for other, overlap in note.found.items():
                # Of people who have names by now, equal profiles say nothing.
                by_name = overlap.by_profile and {partition, other} <= named
                if max(overlap.mine, overlap.other) > 0 and not by_name:
                    mine[other] = overlap
                    turned = Overlap(overlap.other, overlap.mine, overlap.by_profile)
                    # Only the partition that came later has noted what both have in common.
                    found.setdefault(other, {}).setdefault(partition, turned)
        return Ties(found)

    def find_missing(self, partitions: Iterable[str]) -> list[str]:
        """Partitions of which not every word that was noted is there."""
        known, there = self.known(), self.known_words()
        return [
            one
            for one in dict.fromkeys(partitions)
            if one not in known or not set(known[one]) <= set(there.get(one, ()))
        ]

    def check(self, partitions: Collection[str]) -> None:
        """Refuse to continue where records that were charged or released cannot be known again.

        Raises
        ------
        FormatError
            With the partitions.
        """
        if missing := self.find_missing(partitions):
            raise FormatError(
                f"The sketch of {len(missing)} partitions ({missing[0][:12]}, ...) is not beside "
                f"the account at {shown(self.account)}: overlaps are not known.",
                remedy="Restore it, or make it anew: `privpipe account --sketch COLLECTION`.",
                code="sketch-missing",
            )

    def _notes(self) -> dict[str, _Note]:
        return self._read_all(_NOTE, "links")

    def _read_all(self, kind: TypeAdapter[T], folder: str) -> dict[str, T]:
        """The documents of a folder by their names."""
        found = {}
        for key, content in chain.read_objects(self.url, folder).items():
            name = key.removeprefix(f"{folder}/").removesuffix(".json")
            try:
                found[name] = kind.validate_json(content)
            except ValidationError:
                raise self._damaged(folder) from None
        return found

    def _seal(self, table: WordArray) -> bytes:
        body = np.ascontiguousarray(table, "<u8").reshape(-1).view(np.uint8).data
        return b"".join([self.key().fingerprint.encode(), _checksum(body), body])

    def _damaged(self, name: str) -> FormatError:
        return FormatError(
            f"The sketch of records beside the account at {shown(self.account)} is damaged or "
            f"incomplete ({name.partition('/')[0]}): who was charged or released is not known.",
            remedy="Restore the account from a backup; nothing is released without it.",
            code="sketch-damaged",
        )

    def _get(self, name: str) -> bytes:
        return chain.read_named(self.url, [name])[name]

    def _put(self, name: str, content: bytes) -> None:
        with chain.reaching(self.url):
            keep_bytes(self.url, name, content)


def _checksum(content: memoryview) -> bytes:
    crc = 0
    for start in range(0, len(content), PIECE):  # a copy of a piece alone
        crc = google_crc32c.extend(crc, bytes(content[start : start + PIECE]))
    return int(crc).to_bytes(4, "little")


def _rank(overlap: Overlap) -> tuple[bool, float]:
    return overlap.mine > 0 and not overlap.by_profile, overlap.mine


def _find_owners(index: list[WordArray], table: WordArray, sizes: Mapping[str, int]) -> set[str]:
    """Partitions, joined in an index of each grid, that share a word with a table."""
    names, ends = list(sizes), np.cumsum(list(sizes.values()))
    found: set[int] = set()
    for g, words in enumerate(index):
        for at in range(0, len(table), record_overlap.MOST_AT_ONCE):
            if len(found) < len(names):
                some = table[at : at + record_overlap.MOST_AT_ONCE, g]
                rows = np.flatnonzero(is_among(words, some))
                found.update(np.searchsorted(ends, rows, "right").tolist())
    return {names[one] for one in found}
