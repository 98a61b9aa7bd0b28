"""The sample that adversaries see: held-out records, raw and released, read on a worker.

A few chunks spread over the collection are read, and a bounded number of their different
records is kept. Repeats of a measured record teach an adversary nothing and would flatter its
intervals, so each counts once: a collection and its whole repeats give the same evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.beside import Beside
from privpipe.attacks.adversaries.evidence import Evidence, prepare_evidence
from privpipe.cluster.passes.judging.cleaned_shards import release_shard
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.numerics.record_hash import identify_records
from privpipe.protocols import Column, FloatArray, Shard, WordArray
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.earlier_release import EarlierRelease

__all__ = [
    "Published",
    "draw_sample",
    "fill_missing",
    "read_groups",
    "sample_answers",
    "sample_evidence",
    "take_records",
]

MOST_CHUNKS = 16
"""Chunks that are read, evenly spread."""


@dataclass(frozen=True)
class Published:
    """What a release tells beside its features.

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
    """

    included: tuple[str, ...] = ()
    order: bool = False
    partitions: bool = False
    withholds: bool = False
    group: str | None = None
    earlier: tuple[EarlierRelease, ...] = ()
    compares_noise: bool = False


def sample_evidence(
    collection: Collection,
    options: AttackOptions,
    *,
    model_url: str = "",
    model_digest: str = "",
    published: Published | None = None,
    controls: bool = True,
) -> Evidence:
    """Worker side: draw the sample and prepare it for attacks.

    Parameters
    ----------
    collection
        Held-out records with their confidential variables, and with their released features
        unless a model is named.
    options
        How many records, and how rare classes are treated.
    model_url, model_digest
        A stored map that releases the features of each shard, when `collection` does not.
    published
        What the release tells beside the features.
    controls
        Whether the raw records are attacked as well.

    Raises
    ------
    InputError
        If the sample cannot be attacked, as when no variable has two classes.
    """
    published = published or Published()
    named = {"model_url": model_url, "model_digest": model_digest}
    sample = draw_sample(collection, options, published, **named)
    shard, n_confidential = sample.shard, len(collection.confidential)
    raw = fill_missing(shard.features)
    found = prepare_evidence(
        shard.released,
        shard.confidential[:, :n_confidential],
        raw=raw if controls else None,
        noise=_make_noise(shard, raw, collection) if published.compares_noise else None,
        columns=collection.schema.confidential,
        groups=read_groups(shard, published),
        places=None if published.group is None else shard.confidential[:, -1].astype(np.int64),
        beside=_beside(collection, shard, published),
        wanted=Beside(shard.desired, collection.schema.desired),
        options=options,
    )
    return replace(found, group_name=published.group or "")


def sample_answers(
    collection: Collection, options: AttackOptions, coefficients: FloatArray
) -> Evidence:
    """Worker side: held-out raw records by what models fitted to surrogates answer for them.

    Parameters
    ----------
    collection
        Held-out raw records with their desired and confidential variables.
    options
        How many records, and how rare classes are treated.
    coefficients : (n_features + 1, n_responses)
        Learned from the surrogates, the bias last: all that they tell of a record that is in none.

    Notes
    -----
    Answers are rounded to a thousandth of their spread: the last digits of a weighted sum would
    tell the raw features, which who asks the model has given it.
    """
    shard = draw_sample(collection, options, Published(), model_url="", model_digest="").shard
    raw = fill_missing(shard.features)
    answers = np.column_stack([raw, np.ones(len(raw))]).astype(np.float64) @ coefficients
    step = 1e-3 * np.maximum(answers.std(axis=0), 1e-300)
    return prepare_evidence(
        np.rint(answers / step) * step,
        shard.confidential,
        raw=raw,
        columns=collection.schema.confidential,
        wanted=Beside(shard.desired, collection.schema.desired),
        options=options,
    )


def draw_sample(
    collection: Collection,
    options: AttackOptions,
    published: Published,
    *,
    model_url: str,
    model_digest: str,
) -> _Drawn:
    """Worker side: the different records that are attacked, raw and released."""
    release = None
    if model_url:
        release = partial(
            _release,
            collection,
            model_url=model_url,
            model_digest=model_digest,
            published=published,
        )
    n_chunks = collection.plan.n_chunks
    chosen = np.unique(np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks)).astype(int))
    sample = _Drawn.none()
    for chunk in chosen:
        shard = _read(collection, int(chunk), published)
        hashes = _identify(shard, int(chunk), collection)
        drawn = _draw(shard, hashes, options.max_records, published)
        if release is not None:
            drawn = replace(drawn, shard=replace(drawn.shard, released=release(drawn.shard)))
        joined = drawn if sample.hashes.size == 0 else _join(sample, drawn)
        sample = _draw(joined.shard, joined.hashes, options.max_records, published)
    return sample


def _read(collection: Collection, chunk: int, published: Published) -> Shard:
    """A shard whose confidential columns are followed by what is published, subject and place."""
    group = () if published.group is None else (published.group,)
    names = (*collection.confidential, *published.included, *group)
    shard = replace(collection, confidential=names).shard(chunk)
    n_told = len(names) - len(group)
    parts = [shard.confidential[:, :n_told]]
    if published.order:
        parts.append(collection.rows(chunk)[:, None].astype(np.float64))
    if collection.released_basis is not None:  # its coordinates are what is stored
        parts.append(replace(collection, released_basis=None).shard(chunk).released)
    if published.earlier and published.order:
        start, stop = collection.plan.rows(chunk)
        rows = collection.rows(chunk) - start
        parts += [one.read(start, stop)[rows] for one in published.earlier]
    parts.append(shard.confidential[:, n_told:])
    if group:  # neighbours in time stay on one side of an adversary who is to name the group
        parts.append(collection.rows(chunk)[:, None].astype(np.float64))
    return replace(shard, confidential=np.hstack(parts))


def _release(
    collection: Collection, shard: Shard, *, model_url: str, model_digest: str, published: Published
) -> npt.NDArray[Any]:
    """What a stored map makes of a shard; records that the release withholds are rows of NaN."""
    attributes = collection.schema.attributes
    held = find_finite_rows(shard.features)
    if held.all() or not published.withholds or len(shard.attributes):
        return release_shard(shard, model_url, model_digest, attributes)
    some = take_records(shard, np.flatnonzero(held))
    made = release_shard(some, model_url, model_digest, attributes)
    released = np.full((len(held), made.shape[1]), np.nan, made.dtype)
    released[held] = made
    return released


def _beside(collection: Collection, shard: Shard, published: Published) -> Beside:
    """What a release tells of the records of the sample beside their features."""
    first, n = len(collection.confidential), len(published.included)
    more = shard.confidential[:, first:]
    schema = collection.schema_of_records
    columns = [
        Column(name, len(categories) if (categories := schema.variable(name).categories) else None)
        for name in published.included
    ]
    position = more[:, n].astype(np.int64) if published.order else None
    if published.group is not None:
        more = more[:, :-2]
    coordinates = more[:, n + (1 if published.order else 0) :]
    n_earlier = sum(one.n_columns for one in published.earlier) if published.order else 0
    coordinates, tables = np.split(coordinates, [coordinates.shape[1] - n_earlier], axis=1)
    included = np.hstack([more[:, :n], coordinates])
    # A withheld row holds nothing; the place it leaves is published.
    included[find_empty_rows(shard.released)] = np.nan
    partition = None
    if published.partitions and position is not None and schema.partitions:
        ends = np.cumsum([one.n_records for one in schema.partitions])
        partition = np.searchsorted(ends, position, side="right")
    columns += [Column(f"coordinate {j}") for j in range(coordinates.shape[1])]
    return Beside(
        included if columns else None,
        tuple(columns),
        position,
        partition,
        n_variables=n,
        earlier=_name_earlier(tables, published),
    )


def _name_earlier(tables: FloatArray, published: Published) -> dict[str, FloatArray]:
    """The columns of each earlier release, by what reports call it."""
    found, first = {}, 0
    for one in published.earlier if published.order else ():
        found[one.name] = tables[:, first : first + one.n_columns]
        first += one.n_columns
    return found


def _make_noise(shard: Shard, raw: npt.NDArray[Any], collection: Collection) -> FloatArray | None:
    """The records with noise of the release's utility; None where no utility is asked for."""
    held = ~find_empty_rows(shard.released)
    columns = [] if collection.indicators else collection.schema.desired
    from privpipe.attacks.kinds.noise import make_equal_noise  # slow to import

    return make_equal_noise(raw, shard.released, shard.desired, columns, rows=held)


def read_groups(shard: Shard, published: Published) -> npt.NDArray[np.int64] | None:
    """Subject of each record, numbered; those without one are of one subject."""
    if published.group is None:
        return None
    return np.asarray(np.unique(shard.confidential[:, -2], return_inverse=True)[1], np.int64)


def fill_missing(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raw records for the control: what is not finite becomes the column's mean."""
    known = np.isfinite(features)
    if known.all():
        return features
    n = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, features, 0).sum(axis=0, dtype=np.float64) / n
    return np.where(known, features, mean.astype(features.dtype))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Records of a sample with the hashes that decided for them, (n_records,)."""

    shard: Shard
    hashes: WordArray

    @classmethod
    def none(cls) -> _Drawn:
        return cls(Shard(np.empty((0, 0))), np.empty(0, np.uint64))


def _identify(shard: Shard, chunk: int, collection: Collection) -> WordArray:
    """What makes a record different from others, hashed.

    Equal measured records are repeats of one. Categorical records are equal by nature, and what
    is drawn for them differs: there each record counts.
    """
    if collection.indicators:
        places = np.column_stack(np.broadcast_arrays(chunk, np.arange(shard.n_records)))
        return identify_records(places.astype(np.float64))
    confidential = shard.confidential[:, : len(collection.confidential)]
    return identify_records(np.hstack([shard.features, confidential]))


def _draw(shard: Shard, hashes: WordArray, most: int, published: Published) -> _Drawn:
    """Each record once, and of many those of smallest hash, in the order of their hashes.

    Who is drawn does not depend on chunks, their order or repeats. Groups are drawn whole, by the
    hash of the group: who knows several records of one is given them.
    """
    drawn, first = np.unique(hashes, return_index=True)
    if published.group is not None and len(drawn) > most:
        group = identify_records(shard.confidential[first, -2:-1])
        kept = np.sort(np.argsort(group, kind="stable")[:most])
        drawn, first = drawn[kept], first[kept]
    return _Drawn(take_records(shard, first[:most]), drawn[:most])


def take_records(shard: Shard, rows: npt.NDArray[np.intp]) -> Shard:
    """Some rows of what adversaries are given."""
    released = shard.released[rows] if len(shard.released) else shard.released
    return Shard(
        features=shard.features[rows],
        desired=shard.desired[rows],
        confidential=shard.confidential[rows],
        attributes=shard.attributes[rows],
        released=released,
        first_record=-1,
    )


def _join(left: _Drawn, right: _Drawn) -> _Drawn:
    one, other = left.shard, right.shard
    shard = Shard(
        features=np.concatenate([one.features, other.features]),
        desired=np.concatenate([one.desired, other.desired]),
        confidential=np.concatenate([one.confidential, other.confidential]),
        attributes=np.concatenate([one.attributes, other.attributes]),
        released=np.concatenate([one.released, other.released]),
        first_record=-1,
    )
    return _Drawn(shard, np.concatenate([left.hashes, right.hashes]))
