"""Keyed words that know a record again after small changes: shifted coarse grids of projections.

Features in their own scale are projected by random signs and cut into cells (p-stable hashing:
Datar, Immorlica, Indyk and Mirrokni 2004). The cells of a grid become one word by a universal hash
and AES. One grid reads all features, two a half each, so that whatever becomes of one column, one
of these does not see it. The cells of the last are so fine that others are met never, and one
person among thousands of others is found. Without the key a word reveals nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privpipe.protocols import AnyArray, FloatArray, WordArray

N_GRIDS = 4
"""Words of a record, 8 bytes each; a record is known again by any one of them."""
N_PROJECTIONS = 12
"""Of a grid: independent records share all cells of one about once in 10^13 pairs."""
STEP = 0.25
"""Width of a cell of the coarsest grids, in standard deviations of independent features."""
HALVED = 16
"""Features from which on two grids read half of them."""
MOST_SHRINKS = 32
"""Halvings of the step: few features are crowded, and need finer cells."""
FINE = 16
"""Further halvings of the step of the last grid."""
CHANCE = 0.02
"""Largest share of records that may share a word with another one by chance."""


@dataclass(frozen=True)
class GridFrame:
    """In which units the cells of some records are cut: those of the first that were charged.

    Parameters
    ----------
    names
        Of the features; their places where they have none.
    exponents
        Power of two nearest to the spread of each, so no value of a record.
    shrink
        Halvings of `STEP`.
    kind
        "features"; "values" of records without any, who are known by their variables; "subject".
    """

    names: tuple[str, ...]
    exponents: tuple[int, ...] = ()
    shrink: int = 0
    kind: str = "features"

    @property
    def id(self) -> str:
        """Names it in the sketch."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def reads(self, names: Sequence[str]) -> bool:
        """Whether some grid can be made of records with these features."""
        return any(set(grid) <= set(names) for grid in _cut(self.names))

    def fits(self, other: "GridFrame") -> bool:
        """Whether it serves the records of another frame, whose spreads are about the same."""
        if (self.names, self.kind, self.shrink) != (other.names, other.kind, other.shrink):
            return False
        far = [abs(a - b) > 1 for a, b in zip(self.exponents, other.exponents, strict=True)]
        return sum(far) <= len(far) // 10


def word_features(x: FloatArray, names: Sequence[str], frame: GridFrame, key: bytes) -> WordArray:
    """Words of records by their features.

    Parameters
    ----------
    x : (n_records, n_features)
        Missing values count as 0.
    names
        Of its columns, in any order; columns that the frame does not know are not read.
    frame, key
        Units, and the secret of 32 bytes.

    Returns
    -------
    words : (n_records, N_GRIDS)
        0 where a column that the grid reads is missing.
    """
    place = {name: j for j, name in enumerate(names)}
    words = np.zeros((len(x), N_GRIDS), np.uint64)
    for g, grid in enumerate(_cut(frame.names)):
        if not set(grid) <= place.keys():
            continue
        signs, shifts, factors = _project(frame, g, key)
        some = np.asarray(x[:, [place[name] for name in grid]], np.float64)
        some = np.nan_to_num(some, posinf=0.0, neginf=0.0)
        cells = np.clip(np.floor(some @ signs + shifts), -(2.0**62), 2.0**62).astype(np.int64)
        words[:, g] = _encrypt(cells.view(np.uint64) @ factors, key, g)
    return words


def word_values(
    columns: Mapping[str, tuple[AnyArray, Sequence[str] | None]], frame: GridFrame, key: bytes
) -> WordArray:
    """Words of records by the values of variables, which are equal or not.

    Parameters
    ----------
    columns
        Values or codes of each, (n_records,), with the categories of codes: the name of a category
        counts, not its number.
    """
    found: dict[str, WordArray] = {}
    for name, (values, categories) in columns.items():
        if categories is None:
            found[name] = _encrypt((values.astype(np.float64) + 0.0).view(np.uint64), key, name)
        else:
            table = [_digest(key, name, category) for category in ("", *categories)]
            found[name] = np.array(table, np.uint64)[values.astype(np.int64) + 1]
    words = np.zeros((len(next(iter(found.values()))), N_GRIDS), np.uint64)
    for g, grid in enumerate(_cut(frame.names)):
        if set(grid) <= found.keys():
            total = np.stack([found[name] for name in grid]).sum(axis=0, dtype=np.uint64)
            words[:, g] = _encrypt(np.asarray(total, np.uint64), key, g)
    return words


def fit_frame(x: FloatArray, names: Sequence[str], n_records: int, key: bytes) -> GridFrame:
    """The frame of records that fit no known one, from a sample of them.

    Parameters
    ----------
    x : (n_sample, n_features)
    names
        Of its columns.
    n_records
        Of how many records this is a sample.
    key
        The secret.

    Returns
    -------
    frame
        Of the coarsest cells in which other records are met hardly ever. Where that cannot be,
        since the records have few profiles, it is of the coarsest of all.
    """
    x = np.nan_to_num(np.asarray(x, np.float64), posinf=0.0, neginf=0.0)
    x = np.unique(x, axis=0)
    spread = 1.4826 * np.median(np.abs(x - np.median(x, axis=0)), axis=0) if len(x) else x.sum(0)
    with np.errstate(over="ignore", invalid="ignore"):  # then it is no unit, and not usable
        spread = np.where(spread > 0, spread, x.std(axis=0) if len(x) else 1.0)
    usable = np.isfinite(spread) & (spread > 0)
    exponents = np.round(np.log2(np.where(usable, spread, 1.0))).astype(int)
    coarsest = GridFrame(tuple(names), tuple(map(int, exponents)))
    for shrink in range(MOST_SHRINKS):
        frame = GridFrame(coarsest.names, coarsest.exponents, shrink)
        met = _measure_chance(word_features(x, names, frame, key))[0]
        if met * n_records <= CHANCE * max(len(x), 1):
            return frame
    return coarsest


def _measure_chance(distinct: WordArray) -> FloatArray:
    """Share of different records that share a word with another one, (N_GRIDS,); 1 of none."""
    shares = []
    for g in range(N_GRIDS):
        words = distinct[distinct[:, g] != 0, g]
        counts = np.unique(words, return_counts=True)[1]
        shares.append(float(counts[counts > 1].sum()) / len(words) if len(words) else 1.0)
    return np.array(shares)


def _cut(names: Sequence[str]) -> list[list[str]]:
    """Features that each grid reads: all, all, and two halves; of few always all."""
    everything = sorted(names)
    if len(names) < HALVED:
        return [everything] * N_GRIDS
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    middle = len(order) // 2
    return [everything, everything, sorted(order[:middle]), sorted(order[middle:])]


@lru_cache(maxsize=16)
def _project(frame: GridFrame, g: int, key: bytes) -> tuple[FloatArray, FloatArray, WordArray]:
    """Projections of a grid in cells, where the cells begin, and factors of their sum."""
    grid = _cut(frame.names)[g]
    scale = dict(zip(frame.names, frame.exponents, strict=True))
    width = STEP * 2.0 ** -(frame.shrink + (FINE if g == N_GRIDS - 1 else 0)) * np.sqrt(len(grid))
    signs = np.stack([_draw(key, name, g).choice([-1.0, 1.0], N_PROJECTIONS) for name in grid])
    signs *= np.exp2(-np.array([scale[name] for name in grid], float))[:, None] / width
    rng = _draw(key, frame.id, g)
    factors = (rng.integers(1, 2**63, N_PROJECTIONS) * 2 + 1).astype(np.uint64)
    return signs, rng.random(N_PROJECTIONS), factors


def _draw(key: bytes, *about: object) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(_digest(key, *about)))


def _digest(key: bytes, *about: object) -> int:
    content = json.dumps([str(one) for one in about]).encode()
    return int.from_bytes(hashlib.blake2b(content, key=key, digest_size=8).digest(), "little")


def _encrypt(words: WordArray, key: bytes, about: object) -> WordArray:
    """Words no longer to be guessed without the key; never 0."""
    blocks = np.empty((len(words), 2), np.uint64)
    blocks[:, 0], blocks[:, 1] = words, _digest(key, "block", about)
    # One block each: equal words are to be equal, which is what no other mode keeps.
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    found = np.frombuffer(cipher.update(blocks.tobytes()), np.uint64)[::2].copy()
    found[found == 0] = 1
    return found
