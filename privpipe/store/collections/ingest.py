"""Ingest: turn a foreign source into a collection, streaming.

Two passes: the first over the variables alone finds kinds and category tables, the second
writes chunk by chunk. Memory does not grow with the source, in a secret random order neither.
"""

import secrets
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from os import PathLike
from typing import Any

import numpy as np

from privpipe.errors import GuessWarning, InputError, OptionError
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.protocols import AnyArray
from privpipe.records import schema as schemas
from privpipe.records.schema import CollectionSchema, as_names
from privpipe.store.access import objects
from privpipe.store.access.location import Place, as_url, join, shown
from privpipe.store.access.objects import Listener, unheard
from privpipe.store.arrays import destination, sealed_arrays
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections import collection, proposal
from privpipe.store.collections.survey import Coder, Survey, fit_survey, survey_source
from privpipe.store.collections.writing import Chunk, write_held
from privpipe.store.sources import formats, frames
from privpipe.store.sources.reading.recoding import parse_bins
from privpipe.store.sources.reading.source import Block, RecordSource, SourceLayout, unstable

MOST_CHUNK_BYTES = 2**30
"""Largest chunk: compressors take less than 2 GiB, and a worker holds several."""

BLOCK_ROWS = 2**17
"""Most records of a source held at once, however narrow they are."""

BUCKET_BYTES = 2**27
"""Of the records that are put in order at once, about; memory holds them three times."""


@dataclass(frozen=True)
class IngestOptions:
    """How a source becomes a collection.

    Parameters
    ----------
    layout
        Which array or column of the source is what.
    categorical, numeric, drop
        Added to those of `layout`: variables whose kind is forced, and what is left out.
    dtype
        Floating dtype of the features, "float32" or "float64"; by default float32 where it
        holds every number of the source's types exactly.
    min_category_count
        Rarer values of categorical variables are pooled to "(other)"; 1 pools nothing.
    chunk_bytes
        Bytes of features per chunk.
    schema
        How a table is read and what its columns become, as `propose_schema` proposes it; what
        `layout` says of a column takes precedence.
    shuffle
        Bring the records of each partition into a secret random order.
    """

    layout: SourceLayout = field(default_factory=SourceLayout)
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    min_category_count: int = 1
    chunk_bytes: int = schemas.TARGET_CHUNK_BYTES
    schema: proposal.TableSchema | None = None
    shuffle: bool = False

    @property
    def least_count(self) -> int:
        """Records of the rarest category that is not pooled."""
        said = 1 if self.schema is None else self.schema.file.min_category_count
        return max(said, self.min_category_count)

    @property
    def whole_layout(self) -> SourceLayout:
        """The layout with the options that were given beside it."""
        more: dict[str, Any] = {
            name: (*getattr(self.layout, name), *as_names(getattr(self, name)))
            for name in ("categorical", "numeric", "drop")
        }
        whole = replace(self.layout, **more)
        if self.schema is None:
            return whole
        usual = {one.name: one.default for one in fields(SourceLayout)}
        said = {name: value for name, value in vars(whole).items() if value != usual[name]}
        return self.schema.layout(**said)


USUAL = IngestOptions()
"""Of a source that is given none."""


def ingest(
    source_url: Place | Any,
    dest_url: Place,
    options: IngestOptions = USUAL,
    *,
    like: CollectionSchema | None = None,
    listen: Listener = unheard,
) -> CollectionSchema:
    """Make a collection from a foreign source.

    Parameters
    ----------
    source_url
        A file, a folder of files, Hive partitions included, or a group of arrays in one of
        `privpipe.store.sources.formats.FORMATS`; a local path or an fsspec URL. Or a Dask data
        frame, or a dataset of xarray, which are computed part by part.
    dest_url
        Where the collection will be; nothing may be there yet.
    options
        See `IngestOptions`.
    like
        Take features, variables, category tables, dtype and chunks of another collection, whose
        records these join; what does not fit is refused.
    listen
        Called after each block with how many records it had, and how many there are in all: 0 in
        the first pass, which counts them.

    Returns
    -------
    CollectionSchema
        What the collection holds; `read_statistics` has its counts.

    Raises
    ------
    OptionError
        If an option names what the source does not have, or is out of range.
    InputError
        If the source does not fit.
    StoreError
        If the source cannot be read, changes meanwhile, or the destination exists or cannot be
        written.

    Warns
    -----
    GuessWarning
        If it is guessed whether whole numbers are classes.

    Notes
    -----
    Two passes, each in blocks, so that memory does not grow with the source. One process at a time
    writes a destination; killed at any time it leaves nothing visible, and the next ingest removes
    what it left. Records keep the order of the source, unless they are shuffled. Each partition of
    the source (a file of a folder, or a Hive folder) is a run of records of its own.
    """
    dest_url = as_url(dest_url)
    check_options(options)
    layout, where = options.whole_layout, "The frame"
    if isinstance(source_url, str | PathLike):
        url, least = as_url(source_url), options.least_count
        source, where = formats.open_source(url, layout, min_category_count=least), shown(url)
    else:
        source = frames.open_frame(source_url, layout)
    with destination.hold_destination(dest_url) as work:
        plan = plan_collection(_watch(source, listen, 0), where, options, like)
        watched, schema = _watch(source, listen, plan.schema.n_records), plan.schema
        blocks = encode_blocks(watched, schema, plan.survey.coders, plan.rows)
        if options.shuffle:
            blocks = shuffle_blocks(blocks, schema, join(work, "buckets"))
        table = None if options.schema is None else options.schema.overruled(options.layout)
        write_held(
            dest_url,
            work,
            schema,
            fill_chunks(blocks, schema),
            is_shuffled=options.shuffle,
            n_pooled=plan.survey.n_pooled,
            binning=source.losses,
            table=None if table is None else table.encode(),
        )
    return collection.open_collection(dest_url).schema_of_records


@dataclass(frozen=True)
class CollectionPlan:
    """What the first pass over a source decides: schema, codes, and records per block."""

    schema: CollectionSchema
    survey: Survey
    rows: int


def plan_collection(
    source: RecordSource, where: str, options: IngestOptions, like: CollectionSchema | None = None
) -> CollectionPlan:
    """Survey a source, and plan the chunks of its collection; see `ingest`."""
    layout = options.whole_layout
    categorical = frozenset((*layout.categorical, *parse_bins(layout.bins)))  # bins are categories
    numeric = frozenset(layout.numeric)
    dtype = np.dtype(options.dtype) if options.dtype else source.features_dtype
    width, most = source.n_features, options.chunk_bytes
    chunk_rows = schemas.plan_chunk_rows(width, dtype.itemsize, target_bytes=most)
    if like is not None:
        dtype, chunk_rows = np.dtype(like.dtype), like.chunk_rows
        categorical = frozenset(v.name for v in like.variables if v.categories is not None)
        numeric = frozenset(v.name for v in like.variables) - categorical
    # A table of few columns has chunks of millions of rows, and text of each is held at once.
    rows = min(chunk_rows, BLOCK_ROWS)
    survey = survey_source(
        source, rows, categorical=categorical, numeric=numeric, least_count=options.least_count
    )
    if survey.n_records == 0:
        raise InputError(f"{where} has no records.", remedy="Give at least one.", code="empty")
    if not source.n_features and not survey.coders:
        problem = f"Nothing is left of {where}."
        raise InputError(problem, remedy="Leave features or variables in.", code="empty")
    if like is not None:
        survey = fit_survey(survey, source, like, where)
    _say_guesses(survey.coders)
    schema = CollectionSchema(
        n_records=survey.n_records,
        n_features=source.n_features,
        dtype=dtype.name,
        chunk_rows=min(chunk_rows, survey.n_records),
        variables=tuple(coder.variable for coder in survey.coders),
        feature_names=source.feature_names,
        partitions=survey.partitions,
    )
    return CollectionPlan(schema, survey, rows)


def _watch(source: RecordSource, listen: Listener, n_records: int) -> RecordSource:
    """The same source, which reports every block that is read."""

    def read(rows: int, with_features: bool) -> Iterator[Block]:
        for block in source.read(rows, with_features):
            yield block
            listen(block.n_records, n_records)

    return replace(source, read=read)


def _say_guesses(coders: Sequence[Coder]) -> None:
    """Name the variables of whole numbers, which may be classes or numbers."""
    classes = [one.guess for one in coders if one.guess and one.variable.categories is not None]
    numbers = [one.guess for one in coders if one.guess and one.variable.categories is None]
    # A guess is said with the option that overrules it.
    for what, way, names in (("classes", "numeric", classes), ("numbers", "categorical", numbers)):
        if names:
            warnings.warn(
                f"{', '.join(names)}: whole numbers, which are stored as {what}. Else use --{way}.",
                GuessWarning,
                stacklevel=4,
            )


def encode_blocks(
    source: RecordSource, schema: CollectionSchema, coders: Sequence[Coder], rows: int
) -> Iterator[dict[str, AnyArray]]:
    """The blocks of a source in the dtypes of the schema; StoreError if it has changed."""
    left = schema.n_records
    for block in source.read(rows, True):
        left -= block.n_records
        # Arrays have their shape already: further records would be lost without an error.
        if left < 0:
            raise unstable("holds another number of records than")
        yield {
            FEATURES: cast_features(block.features, np.dtype(schema.dtype), source.feature_names),
            **{c.variable.name: c.encode(block.variables[c.variable.name]) for c in coders},
        }
    if left:
        raise unstable("holds another number of records than")


def shuffle_blocks(
    blocks: Iterable[dict[str, AnyArray]], schema: CollectionSchema, place: str
) -> Iterator[dict[str, AnyArray]]:
    """Bring the records of each partition into an order of which all are equally likely.

    Parameters
    ----------
    blocks
        Records in the dtypes of the schema, by array, in the order of the source.
    schema
        Its partitions say where one ends: records stay within theirs.
    place
        URL of a private folder for raw records on the way; it is removed.

    Yields
    ------
    block
        The records of one bucket.

    Notes
    -----
    Each record goes to a bucket at random, and each bucket is put in random order (Rao 1961,
    Sandelius 1962). The words come from a key that is never written. Whoever knows the source and
    the release, but not the collection, does not know which record came from where.
    """
    key, store = secrets.token_bytes(KEY_BYTES), objects.open_store(place)
    arrays = sealed_arrays.collection_arrays(schema)
    rows = np.dtype([(one.name, one.dtype, one.shape[1:]) for one in arrays])
    partitions = schema.partitions or (schemas.Partition("", 0, schema.n_records),)
    n_buckets = {one: -(-one.n_records * rows.itemsize // BUCKET_BYTES) for one in partitions}
    first = dict(zip(partitions, accumulate(n_buckets.values(), initial=0), strict=False))

    def draw(purpose: str, start: int, count: int) -> AnyArray:
        stream = KeyedStream(key, partition="shuffle", first_record=start, n_records=count)
        return stream.words(purpose, 1)[:, 0]

    waiting: dict[int, list[bytes]] = {}
    start = held = n_pieces = 0
    for block in blocks:
        records = np.empty(len(next(iter(block.values()))), rows)
        for name, values in block.items():
            records[name] = values
        for run in schemas.cut_by_partition(partitions, start, start + len(records)):
            some, records = np.split(records, [run.n_records])
            chosen = draw("bucket", start, len(some)) % np.uint64(n_buckets[run.partition])
            order = np.argsort(chosen, kind="stable")
            found, cuts = np.unique(chosen[order], return_index=True)
            numbers = (first[run.partition] + found.astype(np.int64)).tolist()
            for number, part in zip(numbers, np.split(some[order], cuts[1:]), strict=True):
                waiting.setdefault(number, []).append(part.tobytes())
            start, held = start + len(some), held + some.nbytes
        if held >= BUCKET_BYTES or start == schema.n_records:
            for number, pieces in waiting.items():
                objects.write_bytes(store, f"{number}/{n_pieces}", b"".join(pieces))
            waiting, held, n_pieces = {}, 0, n_pieces + 1
    start = 0
    for number in range(sum(n_buckets.values())):
        stored = objects.read_many(store, objects.list_keys(store, f"{number}/"))
        records = np.frombuffer(b"".join(stored.values()), rows)
        records = records[np.argsort(draw("order", start, len(records)))]
        start += len(records)
        yield {name: records[name] for name in rows.names or ()}
    objects.remove_tree(place)


def fill_chunks(blocks: Iterable[dict[str, AnyArray]], schema: CollectionSchema) -> Iterator[Chunk]:
    """Put blocks together to whole chunks."""
    plans = sealed_arrays.collection_arrays(schema)
    done = filled = 0
    chunk: dict[str, AnyArray] = {}
    for encoded in blocks:
        n_records, at = len(encoded[FEATURES]), 0
        while at < n_records:
            size = min(schema.chunk_rows, schema.n_records - done)
            if not chunk:
                chunk = {FEATURES: np.empty((size, 0), schema.dtype)}
                chunk |= {p.name: np.empty((size, *p.shape[1:]), p.dtype) for p in plans}
            take = min(size - filled, n_records - at)
            for name, values in encoded.items():
                chunk[name][filled : filled + take] = values[at : at + take]
            at, filled = at + take, filled + take
            if filled == size:
                yield chunk
                done, filled, chunk = done + size, 0, {}


def cast_features(features: AnyArray, dtype: np.dtype[Any], names: Sequence[str] = ()) -> AnyArray:
    """Features in the dtype of the collection.

    Raises
    ------
    InputError
        If a finite number does not fit; columns are named, values are not.
    """
    if features.dtype == dtype:
        return features
    with np.errstate(over="ignore"):
        found: AnyArray = features.astype(dtype)
    lost = np.isinf(found) & np.isfinite(features)
    if lost.any():
        places = np.flatnonzero(lost.any(axis=0))[:8]
        where = ", ".join(names[j] if names else f"column {j}" for j in places)
        problem = f"{int(lost.sum())} cells of the features overflow {dtype} (in {where})."
        remedy = "Ingest with --dtype float64, or scale these features."
        raise InputError(problem, remedy=remedy, code="overflow")
    return found


def check_options(options: IngestOptions) -> None:
    if options.dtype not in (None, "float32", "float64"):
        problem = f"The dtype {options.dtype!r} is not known."
        raise OptionError(problem, remedy="Use float32 or float64.")
    if not 1 <= options.chunk_bytes <= MOST_CHUNK_BYTES:
        problem = f"Chunks of {options.chunk_bytes:.6g} bytes are requested."
        remedy = f"Use 1 byte to {MOST_CHUNK_BYTES // 2**20:,} MiB of features per chunk."
        raise OptionError(problem, remedy=remedy)
    if options.min_category_count < 1:
        problem = f"min_category_count is {options.min_category_count}."
        raise OptionError(problem, remedy="Use 1, which pools nothing, or more.")
