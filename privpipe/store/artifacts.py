"""Fitted maps as Zarr plus JSON, with a digest; never pickled.

A map is a frozen dataclass of arrays, numbers, strings, tuples of strings and guarantees:
arrays become Zarr arrays, the rest attributes. The digest covers both.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore

from privpipe.errors import FormatError, OptionError
from privpipe.protocols import Guarantee, RecordMap
from privpipe.sanitizers import RECORD_MAPS
from privpipe.store.collection import FORMAT_VERSION, read_header
from privpipe.store.layout import ROOT_DOCUMENT, root_document
from privpipe.store.location import (
    Place,
    as_url,
    create_bytes,
    join,
    list_keys,
    local_path,
    open_store,
    read_bytes,
    shown,
    write_bytes,
)
from privpipe.store.release import check_output_free

__all__ = [
    "digest_map",
    "open_model",
    "publish_model",
    "read_arrays",
    "read_model_header",
    "write_model",
]


def write_model(fitted: RecordMap, url: Place, header: Mapping[str, Any] | None = None) -> str:
    """Store a fitted map; it is visible only once it is whole.

    Parameters
    ----------
    fitted
        The map.
    url
        Where; nothing may be there yet.
    header
        Further attributes, such as method, options, and the digest of the training data.

    Returns
    -------
    digest
        SHA-256 over kind, fields and arrays, hexadecimal.
    """
    url = as_url(url)
    given: Any = fitted  # callers without a type checker hand over arrays and estimators
    if not is_dataclass(given) or not isinstance(getattr(given, "guarantee", None), Guarantee):
        raise OptionError(
            f"A model of type {type(fitted).__name__} cannot be stored.",
            remedy="Give a map that one of the fits returned.",
            code="not-a-map",
        )
    check_output_free(url)
    arrays, plain = _split_fields(fitted)
    digest = digest_map(fitted)
    documents = _array_objects(arrays)
    documents[ROOT_DOCUMENT] = root_document(
        {
            "format": "model",
            "format_version": FORMAT_VERSION,
            "kind": fitted.kind,
            "fields": plain,
            "arrays": sorted(arrays),
            "guarantee": asdict(fitted.guarantee),
            "n_features_in": fitted.n_features_in,
            "n_features_out": fitted.n_features_out,
            "digest": digest,
            **(header or {}),
        }
    )
    path = local_path(url)
    work = url if path is None else f"{path}.model-{os.getpid()}"
    try:
        store = open_store(work)
        for key in sorted(documents, key=lambda key: key == ROOT_DOCUMENT):
            write_bytes(store, key, documents[key])
        if path is not None:
            os.rename(work, path)
    finally:
        if path is not None:
            shutil.rmtree(work, ignore_errors=True)
    return digest


def open_model(url: Place) -> RecordMap:
    """Read a fitted map; ``open_model(url).apply(x)`` needs neither Dask nor Prefect.

    Raises
    ------
    StoreError
        If there is nothing there.
    FormatError
        If it is not a model, its kind is not known, or its digest does not match.
    """
    url = as_url(url)
    header = read_model_header(url)
    arrays = read_arrays(url, header["arrays"])
    kind = RECORD_MAPS.get(str(header["kind"]))
    if kind is None:
        raise FormatError(
            f"{shown(url)} holds a map of the unknown kind {header['kind']!r}.",
            remedy=f"This privpipe knows: {', '.join(sorted(RECORD_MAPS))}.",
        )
    try:
        plain = {name: _from_json(value) for name, value in header["fields"].items()}
        fitted: RecordMap = kind(**arrays, **plain)
        matches = digest_map(fitted) == header["digest"]
    except (TypeError, KeyError, AttributeError):
        matches = False
    if not matches or not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f"):
        raise FormatError(
            f"The model {shown(url)} is damaged: its digest does not match.",
            remedy="Train it again, or get it from where it came.",
            code="model-digest",
        )
    return fitted


def publish_model(work_url: str, url: str) -> None:
    """Make a model of a workspace visible at its own place, in one step.

    Where nothing can be renamed it is copied, root document last; a run that died after that
    finds its own model there and goes on.
    """
    work, path = local_path(work_url), local_path(url)
    if work is not None and path is not None:
        check_output_free(url)
        os.rename(work, path)
        return
    source, target = open_store(work_url, read_only=True), open_store(url)
    root = read_bytes(source, ROOT_DOCUMENT) or b""
    if read_bytes(target, ROOT_DOCUMENT) == root:
        return
    check_output_free(url)
    for key in list_keys(source):
        if key != ROOT_DOCUMENT:
            write_bytes(target, key, read_bytes(source, key) or b"")
    if not create_bytes(join(url, ROOT_DOCUMENT), root):
        check_output_free(url)


def read_model_header(url: str) -> Mapping[str, Any]:
    """The attributes of a stored model."""
    return read_header(url, "model")


def read_arrays(url: str, names: list[str]) -> dict[str, npt.NDArray[Any]]:
    """Read small arrays of a Zarr group whole."""
    store = open_store(url, read_only=True)
    try:
        return {
            name: np.asarray(zarr.open_array(store, path=name, mode="r")[...]) for name in names
        }
    except Exception as error:  # many kinds, depending on store and codec
        problem = type(error).__name__
    raise FormatError(
        f"Arrays of {shown(url)} cannot be read ({problem}).",
        remedy="Train the model again, or get it from where it came.",
    )


def digest_map(fitted: RecordMap) -> str:
    """SHA-256 over kind, plain fields and arrays, independent of where and how it is stored."""
    arrays, plain = _split_fields(fitted)
    sha = hashlib.sha256(json.dumps([fitted.kind, plain], sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sha.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        sha.update(little.tobytes())
    return sha.hexdigest()


def _split_fields(fitted: RecordMap) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    plain: dict[str, Any] = {}
    for item in fields(fitted):  # type: ignore[arg-type]  # a RecordMap is a dataclass
        value = getattr(fitted, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = value
        else:
            plain[item.name] = _to_json(value)
    return arrays, plain


def _to_json(value: Any) -> Any:
    if isinstance(value, Guarantee):
        return {"guarantee": asdict(value)}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item) for item in value]}
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict) and "guarantee" in value:
        return Guarantee(**value["guarantee"])
    if isinstance(value, dict) and "tuple" in value:
        return tuple(_from_json(item) for item in value["tuple"])
    return value


def _array_objects(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    memory = MemoryStore()
    group = zarr.create_group(memory)
    for name, array in arrays.items():
        group.create_array(
            name, data=array, chunks=array.shape or "auto", compressors=[Crc32cCodec()]
        )
    found = {key: read_bytes(memory, key) for key in list_keys(memory)}
    return {key: value for key, value in found.items() if value is not None}
