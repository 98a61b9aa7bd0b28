"""The sample that adversaries see: held-out records, raw and released, read on a worker.

Who is drawn is said in `sample_drawing`: every record of every chunk has the same chance, and each
counts as often as it is released. Records that are equal stay on one side of every split.

A theorem may say that released rows are a function of the target prediction and the model. Then
every record that is attacked is compared with that function, bit by bit. The prediction is attacked
in place of the features: whoever has the model makes the one of the other.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary, count_surroundings
from privpipe.attacks.adversaries.evidence import Coverage, Evidence
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.two_samples import MOST_COMPARED
from privpipe.attacks.utility import CompleteRecords
from privpipe.capabilities import FollowsTarget
from privpipe.cluster.passes.loaded_map import StoredMap, load_map, release_shard
from privpipe.cluster.passes.sample_drawing import Drawing, Published, gather_sample
from privpipe.errors import GuaranteeError, InputError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import AnyArray, Column, FloatArray, IntArray, Shard
from privpipe.records.sampling import DrawnSample, take_records
from privpipe.store.collections.collection import Collection


@dataclass(frozen=True)
class AuditSources:
    """Where the records of an audit are.

    Parameters
    ----------
    judged
        Held-out records with their release, or to be released by the model.
    model
        The stored map, which releases records that are not read from the release.
    published
        What the release reveals beside the features.
    learned
        Records that the model was fitted to, in the same way; None where none are held out.
    fresh
        Records of the training collection that the fit never saw, in the same way: what members
        are distinguished from. None where the judged records are these.
    release
        The release itself, where the judged records are not of it; None else.
    place
        Where samples are stored, and the digest of their key; see `Drawing`.
    """

    judged: Collection
    model: StoredMap
    published: Published = field(default_factory=Published)
    learned: Collection | None = None
    fresh: Collection | None = None
    release: Collection | None = None
    place: tuple[str, str] = ("", "")

    def list_drawings(self, options: AttackOptions) -> list[Drawing]:
        """All that attacks draw, each once."""
        parts = [self.judged, self.learned, self.fresh, self.release]
        return [self.plan(part, options) for part in parts if part is not None]

    def plan(self, collection: Collection, options: AttackOptions) -> Drawing:
        """What is drawn of one of the collections: few of those that judge no one."""
        if collection is self.judged:
            return plan_drawing(collection, options, self.published, self.place)
        few = replace(options, max_records=min(options.max_records, MOST_COMPARED))
        published = self.published
        if collection is self.release:
            published = Published(withholds=published.withholds)
        elif not is_released(collection):
            published = replace(published, included=(), order=False, partitions=False, earlier=())
        return plan_drawing(collection, few, published, self.place)

    def draw(self, collection: Collection, options: AttackOptions) -> DrawnSample:
        """Worker side: records of one of the collections, raw and released, in their order.

        Of equal records of a group, which were counted, as many are given as keep their weights.

        Raises
        ------
        InputError
            If there is no one to draw.
        """
        drawing = self.plan(collection, options)
        drawn = draw_sample(drawing)
        if is_released(collection):
            return drawn
        released = _release(collection, drawn.shard, self.model, drawing.published)
        return replace(drawn, shard=replace(drawn.shard, released=released))


def is_released(collection: Collection) -> bool:
    """Whether what is released of it is read from the release."""
    return collection.released_url is not None


def sample_evidence(
    sources: AuditSources, options: AttackOptions, *, controls: bool = True, by_target: bool = False
) -> Evidence:
    """Worker side: gather the sample of the judged records and prepare it for attacks.

    Parameters
    ----------
    sources
        With the judged records and their confidential variables.
    options
        How many records, and how rare classes are treated.
    controls
        Whether the raw records are attacked as well.
    by_target
        Whether every released row is proved to be a function of its target prediction, which is
        then attacked in the place of the features.

    Raises
    ------
    InputError
        If the sample cannot be attacked, as when no variable has two classes.
    GuaranteeError
        If a released row is not made of its target prediction where that is claimed.
    """
    collection, published = sources.judged, sources.published
    sample = sources.draw(collection, options)
    shard, n_confidential = sample.shard, len(collection.confidential)
    raw = fill_missing(shard.features)
    found = prepare_evidence(
        read_targets(shard, sources.model) if by_target else shard.released,
        shard.confidential[:, :n_confidential],
        raw=raw if controls else None,
        noise=_make_noise(shard, raw, collection) if published.compares_noise else None,
        columns=collection.schema.confidential,
        groups=read_groups(shard, published),
        # Behind the confidential columns are those of `sample_drawing`: subject, then place.
        places=None if published.group is None else shard.confidential[:, -1].astype(np.int64),
        auxiliary=_auxiliary(collection, shard, published),
        desired=Auxiliary(shard.desired, collection.schema.desired),
        ties=not collection.indicators,
        options=options,
    )
    covered = measure_coverage(sample, collection)
    return replace(found, group_name=published.group or "", coverage=covered)


def sample_predictions(
    drawing: Drawing, options: AttackOptions, coefficients: FloatArray, complete: CompleteRecords
) -> Evidence:
    """Worker side: held-out raw records by what models fitted to surrogates predict for them.

    Parameters
    ----------
    drawing
        Of held-out raw records with their desired and confidential variables.
    options
        How rare classes are treated.
    coefficients : (n_features + 1, n_responses)
        Learned from the surrogates, the bias last: all that they reveal of a record that is in
        none.
    complete
        Features with the bias, of records as the method completes them.
    """
    collection, sample = drawing.collection, draw_sample(drawing)
    shard = sample.shard
    predicted = complete(shard)[0] @ coefficients
    # Rounded to a thousandth of their spread: the last digits of a weighted sum would reveal the
    # raw features, which who queries the model has given it.
    step = 1e-3 * np.maximum(predicted.std(axis=0), 1e-300)
    found = prepare_evidence(
        np.rint(predicted / step) * step,
        shard.confidential,
        raw=fill_missing(shard.features),
        columns=collection.schema.confidential,
        desired=Auxiliary(shard.desired, collection.schema.desired),
        options=options,
    )
    return replace(found, coverage=measure_coverage(sample, collection))


def plan_drawing(
    collection: Collection, options: AttackOptions, published: Published, place: tuple[str, str]
) -> Drawing:
    """What an audit with these options draws of a collection."""
    most = options.plan_sample(collection.n_records, collection.schema.n_features)
    return Drawing(collection, published, most, *place)


def draw_sample(drawing: Drawing) -> DrawnSample:
    """Worker side: the records of a drawing in their order; see `AuditSources.draw`."""
    drawn = _repeat(gather_sample(drawing), drawing.most)
    if not len(drawn.words):
        problem = f"None of the {drawing.collection.n_records} records is held out and labelled."
        remedy = "Hold out more, or give labels to some records that the fit does not see."
        raise InputError(problem, remedy=remedy, code="too_few_records")
    return drawn


def _repeat(drawn: DrawnSample, most: int) -> DrawnSample:
    """Records by their counts, in proportion: of whole repeats each once, never too many."""
    counts = drawn.counts
    if not len(counts) or counts.max() == counts.min():
        return drawn
    # In proportion: the rarest counts once, unless the sample would grow beyond its bound.
    step = max(float(counts.min()), float(counts.sum()) / most)
    # The fractions are settled by the words, so that no repetition draws others.
    luck = (drawn.words ^ drawn.rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) * 2.0**-64
    return drawn.take(np.repeat(np.arange(len(counts)), (counts / step + luck).astype(int)))


def measure_coverage(drawn: DrawnSample, collection: Collection) -> Coverage:
    """How many records, chunks and partitions the sample is of."""
    plan, partitions = collection.plan, collection.schema_of_records.partitions
    # Records are numbered through all partitions, in their order.
    ends = np.cumsum([one.n_records for one in partitions])
    rows = np.unique(drawn.rows)
    return Coverage(
        n_records=len(drawn.rows),
        of_records=drawn.n_eligible,
        n_chunks=len(np.unique(rows // plan.chunk_rows)),
        of_chunks=plan.n_chunks,
        n_partitions=len(np.unique(np.searchsorted(ends, rows, side="right"))),
        of_partitions=max(1, len(partitions)),
    )


def _release(source: Collection, shard: Shard, model: StoredMap, published: Published) -> AnyArray:
    """What a stored map makes of a shard; records that the release withholds are rows of NaN."""
    held = find_finite_rows(shard.features)
    if held.all() or not published.withholds or len(shard.attributes):
        return release_shard(shard, model, source.schema)
    # A map may refuse records that are not finite, and the release has withheld them.
    made = release_shard(take_records(shard, np.flatnonzero(held)), model, source.schema)
    released = np.full((len(held), made.shape[1]), np.nan, made.dtype)
    released[held] = made
    return released


def _auxiliary(collection: Collection, shard: Shard, published: Published) -> Auxiliary:
    """What a release reveals of the records of the sample beside their features."""
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
    around = None
    if collection.released_url is not None:
        width = count_surroundings(shard.released.shape[1] + n, published.order)
        more, around = np.split(more, [more.shape[1] - width], axis=1)
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
    return Auxiliary(
        included if columns else None,
        tuple(columns),
        position,
        partition,
        n_variables=n,
        earlier=_name_earlier(tables, published),
        surroundings=None if around is None else around.astype(np.float32),
    )


def _name_earlier(tables: FloatArray, published: Published) -> dict[str, FloatArray]:
    """The columns of each earlier release, by what reports call it."""
    found, first = {}, 0
    for one in published.earlier if published.order else ():
        found[one.name] = tables[:, first : first + one.n_columns]
        first += one.n_columns
    return found


def _make_noise(shard: Shard, raw: AnyArray, collection: Collection) -> FloatArray | None:
    """The records with noise of the release's utility; None where no variable is desired."""
    held = ~find_empty_rows(shard.released)
    columns = [] if collection.indicators else collection.schema.desired
    from privpipe.attacks.equal_noise import make_equal_noise  # slow to import

    return make_equal_noise(raw, shard.released, shard.desired, columns, rows=held)


def read_groups(shard: Shard, published: Published) -> IntArray | None:
    """Subject of each record, numbered; those without one are of one subject."""
    if published.group is None:
        return None
    return np.asarray(np.unique(shard.confidential[:, -2], return_inverse=True)[1], np.int64)


def fill_missing(features: AnyArray) -> AnyArray:
    """Raw records for the control: what is not finite becomes the column's mean."""
    known = np.isfinite(features)
    if known.all():
        return features
    n = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, features, 0).sum(axis=0, dtype=np.float64) / n
    return np.where(known, features, mean.astype(features.dtype))


def read_targets(shard: Shard, model: StoredMap) -> FloatArray:
    """Worker side: the target prediction of every record, once its released row is made of it.

    Parameters
    ----------
    shard
        Raw records with their released rows; NaN where withheld.
    model
        The stored map.

    Returns
    -------
    targets : (n_records, n_predictions)
        NaN where the row is withheld.

    Raises
    ------
    GuaranteeError
        If a released row differs in a bit from what the model makes of its target prediction.
    """
    fitted = load_map(model.url, model.digest)
    assert isinstance(fitted, FollowsTarget), "only called for such maps"
    held = ~find_empty_rows(shard.released)
    known = held & find_finite_rows(shard.features)
    values = fitted.predict_target(shard.features[known])
    made = fitted.release_target(values, shard.released.dtype)
    n_apart = int((held & ~known).sum())
    if made.shape == shard.released[known].shape:
        n_apart += int((_as_bytes(made) != _as_bytes(shard.released[known])).any(axis=1).sum())
    else:
        n_apart += len(made)
    if n_apart:
        raise GuaranteeError(
            f"{n_apart} of {int(held.sum())} released rows are not what the model makes of them.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="not-of-target",
        )
    # Withheld rows stay where they are; which they are is published and attacked.
    found = np.full((len(held), values.shape[1]), np.nan)
    found[known] = values
    return found


def _as_bytes(rows: FloatArray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
