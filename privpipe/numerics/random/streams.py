"""Keyed streams: random words as a function of key, purpose, partition and record number.

AES-256 in counter mode (NIST SP 800-38A) under subkeys from HKDF-SHA256 (RFC 5869). So any word can
be had directly: runs of records by one counter-mode call, scattered ones block by block.
"""

from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privpipe.errors import OptionError
from privpipe.protocols import BoolArray, IntArray, RecordStream, WordArray

KEY_BYTES = 32
MAX_RECORDS = 2**63
"""Record numbers of a partition are below this; a signed 64-bit integer holds them."""
MAX_WORDS = 2**31
"""Words per record are at most this; the block numbers then stay below 2**93."""
TILE_WORDS = 2**15
"""Words made at once: 256 KiB, which stay in the second-level cache."""

SPARE_WORDS = 2
"""The cipher wants a block more room than it writes."""

_WORD = 8
_BLOCK = 16
_ZEROS = bytes(TILE_WORDS * _WORD)
_LAYOUT = b"privpipe/stream/1"


class KeyedStream:
    """Random words for a run of consecutive records of one partition.

    Word j of record r for a purpose is word ``r * words_per_record + j`` of the key stream of
    AES-256-CTR. Each (purpose, words_per_record, partition) has a subkey of its own. So no
    chunking, worker, retry or order of calls changes a word. Two purposes, two partitions or two
    numbers of words per record share none.

    Parameters
    ----------
    key
        32 secret bytes; see `privpipe.store.keyring.keys`. Neither shown nor pickled. Of one model
        and one content: two noisy filters under one key share their noise, and whoever has both
        releases subtracts it.
    partition
        Digest of the content of the source partition.
    first_record
        Number of the first record within its partition.
    n_records
        Number of records of the run.

    Raises
    ------
    OptionError
        If the key has another length, the partition is empty, or a record number is negative
        or not below 2**63.

    Notes
    -----
    Guarantee: words are indistinguishable from independent uniform ones to whoever does not hold
    the key. This assumes that AES-256 is a pseudorandom permutation and HKDF-SHA256 a pseudorandom
    function. A permutation never repeats a block, which gives an advantage below
    ``blocks**2 / 2**129``.

    One instance belongs to one thread, for the sake of the buffer that `tiles` keeps.

    Examples
    --------
    >>> whole = KeyedStream(bytes(32), partition="9f2c", first_record=0, n_records=5)
    >>> part = KeyedStream(bytes(32), partition="9f2c", first_record=3, n_records=2)
    >>> bool((whole.words("noise", 3)[3:] == part.words("noise", 3)).all())
    True
    >>> whole
    KeyedStream(partition='9f2c', first_record=0, n_records=5)
    """

    __slots__ = ("_buffer", "_first", "_key", "_n_records", "_partition")

    def __init__(self, key: bytes, *, partition: str, first_record: int, n_records: int) -> None:
        # The message never shows the key.
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            problem = f"A stream key has {KEY_BYTES} bytes; this one does not."
            raise OptionError(problem, remedy="Take it from privpipe.store.keyring.keys.make_key.")
        if not (isinstance(partition, str) and partition):
            raise OptionError("The partition digest is empty, or no text.", remedy="Give it.")
        if not all(isinstance(one, int | np.integer) for one in (first_record, n_records)):
            raise OptionError("first_record or n_records is no whole number.", remedy="Use ints.")
        first, count = int(first_record), int(n_records)
        if first < 0 or count < 0 or first + count > MAX_RECORDS:
            problem = f"Records {first} to {first + count} are not within 0 to 2**63."
            raise OptionError(problem, remedy="Number the records of a partition from 0.")
        self._key, self._partition = key, partition
        self._first, self._n_records = first, count
        self._buffer: WordArray | None = None

    @property
    def n_records(self) -> int:
        return self._n_records

    def __repr__(self) -> str:
        records = f"first_record={self._first}, n_records={self._n_records}"
        return f"KeyedStream(partition={self._partition!r}, {records})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        problem = "A keyed stream holds a key and is not pickled or copied."
        remedy = "Send a KeyTicket and open the stream where the records are."
        raise OptionError(problem, remedy=remedy, code="key_pickle")

    def part(self, start: int, stop: int) -> "KeyedStream":
        """Stream of records `start` to `stop` of this run, counted from its first record."""
        if not 0 <= start <= stop <= self._n_records:
            problem = f"Records {start} to {stop} are not within the run of {self._n_records}."
            raise OptionError(problem, remedy="Use 0 <= start <= stop <= n_records.")
        first, n = self._first + start, stop - start
        return KeyedStream(self._key, partition=self._partition, first_record=first, n_records=n)

    def words(self, purpose: str, words_per_record: int) -> WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record), in memory of their own.

        Raises
        ------
        OptionError
            If the purpose is empty or `words_per_record` is not within 1 to 2**31.
        """
        return JoinedStream([self]).words(purpose, words_per_record)

    def fill(self, purpose: str, words_per_record: int, out: WordArray) -> None:
        """Write the words to the beginning of `out`, little-endian as the key stream has them.

        Parameters
        ----------
        purpose, words_per_record
            As in `words`.
        out : (n,), uint64
            At least `SPARE_WORDS` longer than the words; what follows them is overwritten.
        """
        _fill(self._seek(purpose, words_per_record), out, self._n_records * words_per_record)

    def tiles(self, purpose: str, words_per_record: int) -> Iterator[tuple[slice, WordArray]]:
        """Yield the same words piecewise: which records of the run, and their words.

        A tile is valid until the next one is requested. All share one buffer of 256 KiB (of one
        record, where that is larger). That makes this several times faster than fresh memory. One
        iteration at a time per stream.
        """
        encryptor = self._seek(purpose, words_per_record)
        rows = max(1, TILE_WORDS // words_per_record)
        size = rows * words_per_record + SPARE_WORDS
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint64)
        for start in range(0, self._n_records, rows):
            stop = min(start + rows, self._n_records)
            count = (stop - start) * words_per_record
            _fill(encryptor, self._buffer, count)
            yield slice(start, stop), _native(self._buffer[:count]).reshape(stop - start, -1)

    def words_at(
        self, purpose: str, words_per_record: int, records: IntArray, places: IntArray | None = None
    ) -> WordArray:
        """Words of some records of the run, shape (len(records), words_per_record).

        Parameters
        ----------
        purpose, words_per_record
            As in `words`, whose words these are.
        records : (n,), integer
            Numbers within the run, 0 its first record, in any order.
        places : (n, n_places), integer, optional
            Which words of each record; all of them when not given.

        Raises
        ------
        OptionError
            As in `words`, and if a record is not within the run, or a place not within a record.
        """
        # Counter mode is the cipher of block numbers: one block at a time is the same words.
        cipher = Cipher(algorithms.AES(self._subkey(purpose, words_per_record)), modes.ECB())
        numbers = check_places(records, self._n_records).astype(np.uint64) + np.uint64(self._first)
        chosen = np.arange(words_per_record)[None, :] if places is None else places
        within = check_places(chosen, words_per_record).astype(np.uint64)
        high, low, odd = _block_numbers(numbers, words_per_record, within)
        # 128-bit big-endian counters, as CTR counts (NIST SP 800-38A).
        blocks = np.stack([high, low], axis=-1).astype(">u8")
        words = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), "<u8")
        picked = np.where(odd, words[1::2].reshape(odd.shape), words[0::2].reshape(odd.shape))
        return picked.astype(np.uint64)

    def _seek(self, purpose: str, words_per_record: int) -> CipherContext:
        """Encryptor of zeros whose next word is the first of the first record."""
        subkey = self._subkey(purpose, words_per_record)
        block, odd = divmod(self._first * words_per_record, 2)
        counter = modes.CTR(block.to_bytes(_BLOCK, "big"))
        encryptor = Cipher(algorithms.AES(subkey), counter).encryptor()
        # A record may begin in the middle of a block: its first half is another record's.
        encryptor.update(bytes(odd * _WORD))
        return encryptor

    def _subkey(self, purpose: str, words_per_record: int) -> bytes:
        if not (isinstance(purpose, str) and purpose):
            raise OptionError("The purpose of a draw is empty, or no text.", remedy="Name it.")
        _check_width(words_per_record)
        fields = (purpose.encode(), str(words_per_record).encode(), self._partition.encode())
        # Lengths before contents: no two lists of fields are written alike.
        info = b"".join(len(part).to_bytes(8, "big") + part for part in (_LAYOUT, *fields))
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(self._key)


def _check_width(words_per_record: int) -> None:
    # A whole number of NumPy's is 64 bits, which the place of a word is not.
    if type(words_per_record) is not int or not 1 <= words_per_record <= MAX_WORDS:
        raise OptionError(f"words_per_record is {words_per_record!r}.", remedy="Use 1 to 2**31.")


def check_places(records: IntArray, n_records: int) -> IntArray:
    """Numbers of records as an array, or OptionError if one is not within the run."""
    places = np.asarray(records)
    # Half a record was the one before it.
    whole = places.dtype.kind in "iu"
    if places.size and not (whole and 0 <= places.min() <= places.max() < n_records):
        problem = f"A record is not within the run of {n_records}, or no whole number."
        raise OptionError(problem, remedy="Number the records of a run from 0.")
    return places


def _fill(encryptor: CipherContext, words: WordArray, count: int) -> None:
    """Write the next `count` words to the start of `words`, by tiles."""
    for at in range(0, count, TILE_WORDS):
        zeros = memoryview(_ZEROS)[: (count - at) * _WORD]
        encryptor.update_into(zeros, words[at:].view(np.uint8).data)


def _native(words: WordArray) -> WordArray:
    """The words of a key stream in the byte order of this machine; no copy on most."""
    return words.view("<u8").astype(np.uint64, copy=False)


def _block_numbers(
    records: WordArray, words_per_record: int, places: WordArray
) -> tuple[WordArray, WordArray, BoolArray]:
    """High and low halves of the block numbers of all words, and which word of the block.

    The number of a word, ``record * words_per_record + j``, can have 95 bits, so it is put
    together from the halves of the record number.
    """
    width, mask = np.uint64(words_per_record), np.uint64(2**32 - 1)
    lower: WordArray = (records & mask)[:, None] * width + places
    upper: WordArray = (records >> np.uint64(32))[:, None] * width + (lower >> np.uint64(32))
    place = (upper << np.uint64(32)) | (lower & mask)  # the low 64 bits of the word's number
    over = upper >> np.uint64(32)
    one = np.uint64(1)
    return over >> one, (place >> one) | (over << np.uint64(63)), (place & one).astype(bool)


class JoinedStream:
    """The streams of consecutive runs of records, one after the other.

    Parameters
    ----------
    parts
        In the order of the records.

    Examples
    --------
    >>> first = KeyedStream(bytes(32), partition="9f2c", first_record=7, n_records=2)
    >>> second = KeyedStream(bytes(32), partition="03ab", first_record=0, n_records=3)
    >>> words = JoinedStream((first, second)).words_at("noise", 1, np.array([3, 0]))
    >>> bool(words[0] == second.words("noise", 1)[1] and words[1] == first.words("noise", 1)[0])
    True
    """

    def __init__(self, parts: Sequence[KeyedStream]) -> None:
        self._parts = tuple(parts)
        self._edges = np.cumsum([0, *(part.n_records for part in self._parts)])

    @property
    def n_records(self) -> int:
        return int(self._edges[-1])

    def words(self, purpose: str, words_per_record: int) -> WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record)."""
        _check_width(words_per_record)
        count = self.n_records * words_per_record
        held = np.empty(count + SPARE_WORDS, np.uint64)
        # In order: what one stream writes beyond its words, the next one overwrites.
        for part, edge in zip(self._parts, self._edges.tolist(), strict=False):
            part.fill(purpose, words_per_record, held[edge * words_per_record :])
        return _native(held[:count]).reshape(self.n_records, words_per_record)

    def tiles(self, purpose: str, words_per_record: int) -> Iterator[tuple[slice, WordArray]]:
        """Yield the same words piecewise; no tile holds records of two runs."""
        last: KeyedStream | None = None
        for part, edge in zip(self._parts, self._edges.tolist(), strict=False):
            if last is not None:
                part._buffer = last._buffer  # its tile is no longer valid
            for rows, words in part.tiles(purpose, words_per_record):
                yield slice(edge + rows.start, edge + rows.stop), words
            last = part

    def words_at(
        self, purpose: str, words_per_record: int, records: IntArray, places: IntArray | None = None
    ) -> WordArray:
        """Words of some records, shape (len(records), words_per_record); see `KeyedStream`."""
        rows = check_places(records, self.n_records)
        n_words = words_per_record if places is None else places.shape[1]
        found = np.empty((len(rows), n_words), np.uint64)
        owners = np.searchsorted(self._edges, rows, side="right") - 1
        for number in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == number)
            within = rows[mine] - self._edges[number]
            some = None if places is None else places[mine]
            found[mine] = self._parts[number].words_at(purpose, words_per_record, within, some)
        return found


class ScopedStream:
    """A stream under a name of its own: the same purpose under another name has other words.

    Two maps that draw for one record under one purpose would draw the same; the one that
    applies both gives each a prefix.

    Parameters
    ----------
    stream
        Where the words come from.
    prefix
        Put before every purpose.
    """

    def __init__(self, stream: RecordStream, prefix: str) -> None:
        self._stream, self._prefix = stream, f"{len(prefix)}:{prefix}/"

    @property
    def n_records(self) -> int:
        return self._stream.n_records

    def words(self, purpose: str, words_per_record: int) -> WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record)."""
        return self._stream.words(self._prefix + purpose, words_per_record)

    def tiles(self, purpose: str, words_per_record: int) -> Iterator[tuple[slice, WordArray]]:
        """Yield the same words piecewise."""
        return self._stream.tiles(self._prefix + purpose, words_per_record)

    def words_at(
        self, purpose: str, words_per_record: int, records: IntArray, places: IntArray | None = None
    ) -> WordArray:
        """Words of some records, shape (len(records), words_per_record), or those at places."""
        return self._stream.words_at(self._prefix + purpose, words_per_record, records, places)
