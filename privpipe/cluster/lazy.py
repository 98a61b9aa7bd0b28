"""A fitted map on xarray and Dask: lazy stays lazy, block by block along the records."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import by_name
from privpipe.protocols import AnyArray, RecordMap, RecordStream
from privpipe.records.schema import suggest

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

Block = AnyArray
StreamOf = Callable[[int, int], RecordStream]
"""Stream of the records `start` to `stop`, such as the method `part` of a keyed stream. A keyed
stream holds a key and works on threads of this process only."""


def apply_dataset(
    fitted: RecordMap,
    dataset: xr.Dataset,
    *,
    features: str = "features",
    streams: StreamOf | None = None,
) -> xr.Dataset:
    """Replace the features of a dataset by what a map makes of them.

    Parameters
    ----------
    fitted
        The map.
    dataset
        Holds the features, with two dimensions: records first.
    features
        Their name.
    streams
        For a map that draws: the stream of the records `start` to `stop`.

    Returns
    -------
    released
        The dataset with the released features in place of the raw ones, and everything else as it
        was. Only what lies along the raw features is left out when their number changes. Lazy where
        the features were lazy; nothing is computed here.

    Raises
    ------
    OptionError
        If the dataset has no such variable.
    InputError
        If it has other dimensions than two, or another number of features than the map reads, or
        the coordinate along them names others.

    Examples
    --------
    >>> import privpipe, xarray as xr
    >>> cleaner = privpipe.NullSpaceCleaner.from_predictor([[1.0], [-1.0]], utility_budget=0)
    >>> raw = xr.Dataset({"features": (("record", "feature"), np.array([[3.0, 1.0]]))})
    >>> apply_dataset(cleaner, raw.chunk()).features.values.round(12)
    array([[ 1., -1.]])
    """
    import dask.array as da  # slow to load, and there already where its kinds are given
    import xarray as xr

    _check_kinds(fitted, dataset)
    if features not in dataset:
        known = [str(name) for name in dataset.data_vars]
        problem = f"The dataset has no variable {features!r}{suggest(features, known)}"
        raise OptionError(problem, remedy=f"It has: {', '.join(known) or 'none'}.")
    raw = dataset[features]
    ordered = by_name(fitted, raw)
    # (by name, not by place: columns in another order are the same records)
    if ordered is not raw:  # what else lies along the features is put into their order as well
        along = raw.dims[1]
        dataset = dataset.sel({along: ordered[along].to_numpy()})
        raw = dataset[features]
    _check_shape(fitted, raw.shape)
    if isinstance(raw.data, da.Array):
        released: Any = apply_lazily(fitted, raw.data, streams=streams)
    else:
        released = _apply_block(raw.to_numpy(), fitted, [0], streams, (0, 0))
    along = raw.dims[1]
    rest = dataset.drop_vars(features)
    # Coordinates of raw features would name filtered ones.
    if fitted.n_features_out != raw.shape[1]:
        rest = rest.drop_dims([along])
    return rest.assign({features: xr.Variable(raw.dims, released, raw.attrs)})


def apply_lazily(fitted: RecordMap, x: da.Array, *, streams: StreamOf | None = None) -> da.Array:
    """Map a Dask array of records, (n_records, n_features_in), block by block.

    Parameters
    ----------
    fitted
        The map.
    x
        Records; chunks along the features are joined, those along the records stay.
    streams
        See `apply_dataset`.

    Returns
    -------
    released : (n_records, n_features_out)
        Lazy, in the floating dtype of `x`; one task per block more than `x` has.

    Raises
    ------
    InputError
        If the number of features is another, or the chunks along the records are not known.
    """
    _check_shape(fitted, x.shape)
    if np.isnan(x.shape[0]):
        problem = "The number of records in each chunk is not known."
        raise InputError(problem, remedy="Call compute_chunk_sizes() on the array first.")
    # A map needs whole records; along the records nothing is moved.
    joined = x.rechunk({1: -1})
    # First record of each block: what is drawn for a record depends on its number.
    starts = np.concatenate([[0], np.cumsum(joined.chunks[0])]).tolist()
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    released: da.Array = joined.map_blocks(
        _apply_block,
        fitted=fitted,
        at=starts,
        streams=streams,
        dtype=dtype,
        chunks=(joined.chunks[0], (fitted.n_features_out,)),
        meta=np.empty((0, 0), dtype),
        # A name of its own: making one from the arguments would pickle the stream.
        name=f"clean_chunk-{uuid.uuid4().hex}",
    )
    assert released.numblocks == joined.numblocks, "one block per block of records"
    return released


def _apply_block(
    x: Block, fitted: RecordMap, at: list[int], streams: StreamOf | None, block_id: tuple[int, int]
) -> Block:
    """Worker side: one block; its place among the blocks gives the numbers of its records."""
    start = at[block_id[0]]
    return fitted.apply(x, None if streams is None else streams(start, start + len(x)))


def _check_kinds(fitted: Any, dataset: Any) -> None:
    """Arguments the wrong way round, or of other kinds."""
    import xarray as xr

    if not callable(getattr(fitted, "apply", None)) or not isinstance(dataset, xr.Dataset):
        raise InputError(
            f"apply_dataset was given a {type(fitted).__name__} and a {type(dataset).__name__}.",
            remedy="Give a fitted map, then an xarray.Dataset; for a Dask array use apply_lazily, "
            "for a numpy array the map's own apply.",
            code="kinds",
        )


def _check_shape(fitted: RecordMap, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] != fitted.n_features_in:
        problem = f"Features of shape {shape} do not fit a map of {fitted.n_features_in} features."
        raise InputError(problem, remedy=f"Give (n_records, {fitted.n_features_in}).", code="shape")
