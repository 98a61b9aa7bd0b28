"""Reproducible choices that depend on the record itself, so that no sharding changes them.

A 64-bit mix (Steele, Lea and Flood's SplitMix64 finaliser) of the bits of the features. It
splits *training* records; it is no cryptographic hash and draws no privacy noise.
"""

import hashlib

import numpy as np

from privpipe.protocols import BoolArray, FloatArray, IntArray, WordArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
DIGESTED = 64
"""About how many features, evenly spread, distinguish records; more would only cost time."""
IN_CACHE = 1024
"""Records that are hashed together: a table of few columns then stays near the processor."""
SECOND = np.uint64(0x94D049BB133111EB)


def choose_share(x: FloatArray, share: float, *, seed: int = 0) -> BoolArray:
    """Choose about `share` of the records; equal records are chosen together.

    Parameters
    ----------
    x : (n_records, n_features), float64
    share
        Between 0 and 1.

    Returns
    -------
    chosen : (n_records,)

    Examples
    --------
    >>> x = np.arange(20_000.0).reshape(-1, 2)
    >>> abs(float(choose_share(x, 0.2).mean()) - 0.2) < 0.02
    True
    """
    return np.asarray(_mix(digest_records(x) + np.uint64(2 * seed + 1)) < share_of_words(share))


def cut_in_parts(x: FloatArray, n_parts: int) -> IntArray:
    """Part of each record, 0 .. n_parts - 1, drawn by what it holds; equal ones are together.

    >>> x = np.arange(20_000.0).reshape(-1, 2)
    >>> bool(np.bincount(cut_in_parts(x, 4)).min() > 2300)
    True
    """
    mixed = _mix(digest_records(np.asarray(x, np.float64) + 0.0) + np.uint64(1))
    return np.asarray((mixed >> np.uint64(33)) % np.uint64(n_parts), np.int64)


def rank_records(x: FloatArray, *, seed: int = 0) -> WordArray:
    """A word per record to sort by: an order at random, but for equal records the same place.

    >>> x = np.arange(6.0)[:, None]
    >>> bool((np.argsort(rank_records(x)) == np.argsort(rank_records(x, seed=1))).all())
    False
    """
    return _mix(digest_records(x) + np.uint64(2 * seed + 1))


def digest_records(x: FloatArray) -> WordArray:
    """One word per record, of some of its features. -0.0 and 0.0 get the same word."""
    x = x[:, :: max(1, x.shape[1] // DIGESTED)]
    bits = np.ascontiguousarray(x + 0.0, np.float64).view(np.uint64)
    columns = (np.arange(x.shape[1], dtype=np.uint64) + np.uint64(1)) * GOLDEN
    return np.asarray(np.bitwise_xor.reduce(_mix(bits + columns), axis=1), np.uint64)


def identify_records(x: FloatArray) -> WordArray:
    """One word per record, of all its values: equal records have the same, others hardly ever.

    A sum of products of the values' bits with odd constants modulo 2^64 (Dietzfelbinger 1996): a
    multiplication a value, where mixing takes a dozen operations. The upper bits are folded into
    the lower ones before, where values that differ by a power of two would else agree.

    Parameters
    ----------
    x : (n_records, n_columns)

    Returns
    -------
    words : (n_records,)

    Examples
    --------
    >>> words = identify_records(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0]]))
    >>> bool(words[0] == words[2]), bool(words[0] == words[1])
    (True, False)
    """
    factors = _mix((np.arange(x.shape[1], dtype=np.uint64) + np.uint64(1)) * GOLDEN) | np.uint64(1)
    words = np.empty(len(x), np.uint64)
    for first in range(0, len(x), IN_CACHE):
        some = slice(first, first + IN_CACHE)
        bits = np.add(x[some], 0.0, dtype=np.float64, order="C").view(np.uint64)  # one zero only
        bits ^= bits >> np.uint64(32)
        bits ^= bits >> np.uint64(16)
        words[some] = bits @ factors
    return _mix(words)


def key_words(words: WordArray, key: bytes) -> WordArray:
    """One word for each, that no one knows without the key; different for different ones.

    Each half of the key's digest is added before a mix, so that what is between is secret, too.

    >>> some = np.arange(4, dtype=np.uint64)
    >>> bool((key_words(some, b"one") == key_words(some, b"other")).any())
    False
    """
    for half in np.frombuffer(hashlib.blake2b(key, digest_size=24).digest(), "<u8"):
        words = _mix(words * GOLDEN + half)
    return words


def _mix(words: WordArray) -> WordArray:
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return np.asarray(words ^ (words >> np.uint64(31)), np.uint64)


def share_of_words(share: float) -> np.uint64:
    """The word below which this share of all 64-bit words lies."""
    # 2.0**64 itself does not fit, and share 1 must take every word.
    return np.uint64(min(int(share * 2.0**64), 2**64 - 1))
