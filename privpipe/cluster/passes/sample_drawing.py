"""Which records an audit attacks: drawn over every chunk with equal chances, by a secret key.

A word per record, or per group, decides: a hash of its number in the collection with a key that
stays in the private workspace. The records of smallest word are the sample. So no chunk is left out
by its place, and any chunking, any worker and any repetition draws the same records. The pass that
reads a chunk anyway stores what it draws of it; what is missing is drawn later.
"""

import hashlib
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from privpipe.attacks.adversaries.auxiliary import describe_surroundings
from privpipe.attacks.adversaries.preparation import join_included
from privpipe.cluster.pass_checkpoints import Checkpoints, recall
from privpipe.errors import FormatError
from privpipe.numerics.finite import find_empty_rows
from privpipe.numerics.random.record_hash import identify_records, key_words, share_of_words
from privpipe.protocols import FloatArray, IntArray, Shard, WordArray
from privpipe.records.sampling import DrawnSample, take_records
from privpipe.store.access.objects import open_store, read_bytes, write_bytes
from privpipe.store.arrays.blocks import reading_once
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.published import EarlierRelease

# No interval rests on one person: a group has at most one in 64 of the records.
FEWEST_GROUPS = 64
"""Groups that a sample has room for: a larger share of it is no group's."""

GROUP_SLACK = 8
"""Times more records than are needed are read where groups, or repeats, may be of any size."""

KEY = "key"
KEY_BYTES = 32


@dataclass(frozen=True)
class Published:
    """What a release reveals beside its features.

    Parameters
    ----------
    included
        Variables released by name, which the collection has as well.
    order
        Whether the order of the records is released: the collection is what was released.
    partitions
        Whether the lengths of its partitions are published.
    withholds
        Whether records that are not finite are withheld (where a model releases the records).
    group
        Variable whose equal values are of one subject: no subject trains and judges, and
        intervals are over subjects. It is not released for that.
    earlier
        Releases of the same records that others hold: read where the collection is what was
        released, else made anew by their models.
    compares_noise
        Whether the records with noise of equal utility are attacked as well.
    only
        Variable and code of the records that are drawn; None of all.
    """

    included: tuple[str, ...] = ()
    order: bool = False
    partitions: bool = False
    withholds: bool = False
    group: str | None = None
    earlier: tuple[EarlierRelease, ...] = ()
    compares_noise: bool = False
    only: tuple[str, int] | None = None


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a collection, and where that is stored; small and picklable.

    Parameters
    ----------
    collection
        The records to draw from: of its part of a split those with a confidential label.
    published
        What is read with each record.
    most
        Records drawn; all, where there are no more.
    url, key_sha256
        Folder of a private workspace with the key, and with what was drawn of each chunk; what
        the key's digest is. Empty where nothing is stored: the collection's digest is the key.
    widened
        By how much more than was planned is read of every chunk, where that was too little.
    """

    collection: Collection
    published: Published = field(default_factory=Published)
    most: int = 30_000
    url: str = ""
    key_sha256: str = ""
    widened: float = 1.0

    @property
    def share(self) -> float:
        """Of the words, those that may be among the smallest of all; 1 where all may be."""
        # Six deviations of a binomial count: too few are hardly ever drawn, and then
        # `widen` draws again.
        if self.published.only is not None:  # of how many is not known
            return 1.0
        n_needed = self.most + 6 * math.sqrt(self.most) + 16
        if self.published.group is not None:
            n_needed *= GROUP_SLACK
        return min(1.0, self.widened * n_needed / max(self._n_expected, 1.0))

    @property
    def _n_expected(self) -> float:
        split = self.collection.split
        held = 1.0 if split is None else split.share
        parts = {"held_out": held, "fit": 1 - held, "attack": held / 2, "test": held / 2}
        return self.collection.n_records * parts.get(self.collection.part, 1.0)

    def widen(self, n_drawn: int) -> "Drawing | None":
        """What to draw where so few were found; None where there are enough, or no more."""
        if n_drawn >= self.most or self.share == 1.0:
            return None
        return replace(self, widened=self.widened * max(8.0, 2 * self.most / max(n_drawn, 1)))


def make_sample_key(url: str) -> str:
    """Digest of the secret key of a workspace's samples, which is made where there is none."""
    # Secret until the run ends: who knew it could choose records that no audit meets.
    key = read_bytes(open_store(url), KEY)
    if key is None or len(key) != KEY_BYTES:
        key = _draw_key()
        write_bytes(open_store(url), KEY, key)
    return hashlib.sha256(key).hexdigest()


def _draw_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def keep_chunk(drawing: Drawing, chunk: int) -> DrawnSample:
    """Worker side: what is drawn of a chunk, as it was stored, or stored from now on."""
    return recall(_open_drawn(drawing), f"{chunk:08d}", lambda: draw_chunk(drawing, chunk))


def draw_chunk(drawing: Drawing, chunk: int) -> DrawnSample:
    """Worker side: the records of a chunk that may be of the sample.

    Labels decide who can be drawn, words who is; features and release are read after that.
    """
    source, published = drawing.collection, drawing.published
    collection = replace(source, groups=(), weights=None, only_finite=False)
    with reading_once():
        rows = collection.rows(chunk)
        labels = _read_labels(collection, chunk, collection.confidential)
        # Labels first: features are the larger part, and most records are not drawn.
        labelled = ~np.isnan(labels).all(axis=1) if labels.shape[1] else np.ones(len(rows), bool)
        if published.only is not None:
            name, code = published.only
            labelled &= _read_labels(collection, chunk, (name,))[:, 0] == code
        words = _draw_words(drawing, rows, chunk)
        chosen = np.flatnonzero(labelled & (words <= share_of_words(drawing.share)))
        if not len(chosen):
            return DrawnSample.none(int(labelled.sum()))
        shard = _read(collection, chunk, published, chosen)
        features, finite = source.complete(shard.features)
        shard = replace(shard, features=features)
        found = DrawnSample(shard, words[chosen], rows[chosen], np.ones(len(chosen), np.int64))
        found = found.take(np.flatnonzero(finite))
        found = replace(_truncate(drawing, found), n_eligible=int(labelled.sum()))
        # Last: most repeats of a record are gone, and counting what is around costs the most.
        return _add_around(found, collection, chunk, published)


def gather_sample(drawing: Drawing) -> DrawnSample:
    """Worker side: the sample of all chunks, in an order by content and then by place.

    So a sample of all records does not depend on the key. No more than twice the sample is held,
    and one chunk.
    """
    while True:
        chunks = range(drawing.collection.plan.n_chunks)
        drawn = _merge(drawing, (keep_chunk(drawing, chunk) for chunk in chunks))
        wider = drawing.widen(len(drawn.words))
        if wider is None:
            if not len(drawn.words):
                return drawn
            labels = drawn.shard.confidential[:, : len(drawing.collection.confidential)]
            # By content: an adversary that reads the order of the sample learns
            # nothing of places.
            content = identify_records(np.hstack([drawn.shard.features, labels]))
            return drawn.take(np.lexsort((drawn.rows, content)))
        drawing = wider


def _merge(drawing: Drawing, parts: Iterable[DrawnSample]) -> DrawnSample:
    waiting, n_waiting = list[DrawnSample](), 0
    for part in parts:
        waiting.append(part)
        n_waiting += len(part.words)
        # Cut back at twice the sample: memory does not grow with the collection.
        if n_waiting > 2 * drawing.most:
            waiting = [_truncate(drawing, DrawnSample.join(waiting))]
            n_waiting = len(waiting[0].words)
    return _truncate(drawing, DrawnSample.join(waiting))


def _truncate(drawing: Drawing, drawn: DrawnSample) -> DrawnSample:
    """The records of smallest word; of groups whole ones, none with too many records."""
    if drawing.published.group is None or not len(drawn.words):
        return drawn.take(np.lexsort((drawn.rows, drawn.words))[: drawing.most])
    drawn, identity = _count_repeats(drawing, drawn)
    order = np.lexsort((identity, drawn.words))
    words = drawn.words[order]
    # (the complement differs from the first word: the first group begins at 0)
    starts = np.flatnonzero(np.diff(words, prepend=~words[:1]))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    # No group takes more: one subject with most of the records would be the whole sample.
    return drawn.take(order[rank < max(1, drawing.most // FEWEST_GROUPS)][: drawing.most])


def _count_repeats(drawing: Drawing, drawn: DrawnSample) -> tuple[DrawnSample, WordArray]:
    """Records of a group that are the same in all but their place, each once with their number.

    Of them one stays, chosen by its own number: its place is as good as any of the others'.
    """
    # Within a group: the same record of two people counts for both.
    identity = key_words(_identify(drawing, drawn) ^ drawn.words, _read_key(drawing))
    order = np.lexsort((key_words(drawn.rows.astype(np.uint64), _read_key(drawing)), identity))
    kinds, first, place = np.unique(identity[order], return_index=True, return_inverse=True)
    counts = np.zeros(len(kinds), np.int64)
    np.add.at(counts, place, drawn.counts[order])
    return replace(drawn.take(order[first]), counts=counts), kinds


def _identify(drawing: Drawing, drawn: DrawnSample) -> WordArray:
    """What a record holds, but for its place, hashed."""
    shard = drawn.shard
    n_confidential = len(drawing.collection.confidential) + len(drawing.published.included)
    labels = (shard.desired, shard.confidential[:, :n_confidential])
    parts = (shard.features, shard.attributes, *labels, shard.released)
    tables = [np.asarray(part, np.float64) for part in parts if len(part)]
    return identify_records(np.hstack(tables)) if tables else drawn.words


def _draw_words(drawing: Drawing, rows: IntArray, chunk: int) -> WordArray:
    """A word per record, by its number; where a group is named, by the group."""
    group = drawing.published.group
    if group is None:
        return key_words(rows.astype(np.uint64), _read_key(drawing))
    groups = _read_labels(drawing.collection, chunk, (group,))
    return key_words(identify_records(groups), _read_key(drawing))


def _read_labels(collection: Collection, chunk: int, names: tuple[str, ...]) -> FloatArray:
    """Some variables of a chunk's records, and nothing else of them."""
    return collection.labelled(names).shard(chunk).confidential


def _read(collection: Collection, chunk: int, published: Published, chosen: IntArray) -> Shard:
    """Chosen rows, whose confidential columns are followed by what is published, subject, place."""
    group = () if published.group is None else (published.group,)
    names = (*collection.confidential, *published.included, *group)
    shard = take_records(replace(collection, confidential=names).shard(chunk), chosen)
    rows, (start, stop) = collection.rows(chunk)[chosen], collection.plan.rows(chunk)
    n_labels = len(names) - len(group)
    parts = [shard.confidential[:, :n_labels]]
    if published.order:
        parts.append(rows[:, None].astype(np.float64))
    if collection.released_basis is not None:  # its coordinates are what is stored
        parts.append(replace(collection, released_basis=None).shard(chunk).released[chosen])
    if published.earlier and published.order:
        parts += [one.read(start, stop)[rows - start] for one in published.earlier]
    parts.append(shard.confidential[:, n_labels:])
    if group:  # neighbours in time stay on one side of an adversary who is to name the group
        parts.append(rows[:, None].astype(np.float64))
    return replace(shard, confidential=np.hstack(parts))


def _add_around(
    drawn: DrawnSample, collection: Collection, chunk: int, published: Published
) -> DrawnSample:
    """With what is around the records in their whole chunk of a release, before subject, place."""
    if collection.released_url is None:
        return drawn
    start, stop = collection.plan.rows(chunk)
    whole = replace(collection, split=None, desired=(), confidential=published.included)
    block = whole.shard(chunk)
    table = join_included(block.released, block.confidential, find_empty_rows(block.released))
    position = np.arange(start, stop) if published.order else None
    around = describe_surroundings(table, position, drawn.rows - start)
    n_last = 0 if published.group is None else 2
    confidential = drawn.shard.confidential
    first, last = np.hsplit(confidential, [confidential.shape[1] - n_last])
    shard = replace(drawn.shard, confidential=np.hstack([first, around, last]))
    return replace(drawn, shard=shard)


def _read_key(drawing: Drawing) -> bytes:
    if not drawing.url:
        # Nothing is released here: a known key only makes the sample repeatable.
        return drawing.collection.digest.encode()
    return _read_stored_key(drawing.url, drawing.key_sha256)


@lru_cache(maxsize=8)
def _read_stored_key(url: str, sha256: str) -> bytes:
    key = read_bytes(open_store(url, read_only=True), KEY)
    if key is None or hashlib.sha256(key).hexdigest() != sha256:
        problem = "The key of the audit's sample is not the one that the run began with."
        remedy = "Do not change a run's workspace while it works; run again."
        raise FormatError(problem, remedy=remedy)
    return key


@lru_cache(maxsize=16)
def _open_drawn(drawing: Drawing) -> Checkpoints | None:
    """Where the samples of a drawing's chunks are, named by all that they depend on."""
    return Checkpoints(drawing.url).about(replace(drawing, url="")) if drawing.url else None
