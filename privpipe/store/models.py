"""Fitted maps as Zarr plus JSON, with a digest, never pickled; and predictors given as files.

A map is a frozen dataclass of arrays, numbers, strings, guarantees, other maps and tuples of
these: arrays become Zarr arrays, those of a map within a map under its place ("maps.0.weights"),
the rest attributes. What it was fitted on, by name, is in the header. The digest covers all
of it.
"""

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from typing import Any

import fsspec
import numpy as np
import zarr
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore

from privpipe import sanitizers
from privpipe.errors import FormatError, GuaranteeError, InputError, OptionError, PrivacyWarning
from privpipe.fitted_names import names_of, schema_of, with_names, with_schema
from privpipe.fitted_schema import FittedSchema
from privpipe.protocols import AnyArray, Guarantee, RecordMap
from privpipe.store.access import location, objects
from privpipe.store.access.location import Place
from privpipe.store.arrays import layout
from privpipe.store.arrays.destination import show_made

# Digests of older models must stay what they were: keys of draws are bound to them.
LATER_FIELDS = ("delta", "protects", "parameters", "statement")
"""Of a guarantee, since format version 2."""

NAMED_SINCE = 3
"""Format version since which models know what they were fitted on by name."""


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
    url = location.as_url(url)
    given: Any = fitted  # callers without a type checker hand over arrays and estimators
    if not is_dataclass(given) or not isinstance(getattr(given, "guarantee", None), Guarantee):
        problem = f"A model of type {type(fitted).__name__} cannot be stored."
        remedy = "Give a map that one of the fits returned."
        raise OptionError(problem, remedy=remedy, code="not-a-map")
    layout.check_output_free(url)
    arrays = dict[str, AnyArray]()
    plain = _plain_fields(fitted, arrays)
    digest, schema = digest_map(fitted), schema_of(fitted)
    root = layout.root_document(
        {
            "format": "model",
            "format_version": layout.FORMAT_VERSIONS["model"][-1],
            "kind": fitted.kind,
            "fields": plain,
            "arrays": sorted(arrays),
            "guarantee": asdict(fitted.guarantee),
            "n_features_in": fitted.n_features_in,
            "n_features_out": fitted.n_features_out,
            "digest": digest,
            "feature_names": list(names_of(fitted)),
            **({} if schema is None else {"schema": schema.encode()}),
            **(header or {}),
        }
    )
    _store(url, arrays, root, beside=url)
    return digest


def _store(url: str, arrays: Mapping[str, AnyArray], root: bytes, *, beside: str) -> None:
    """Write arrays, then the root document: a folder is made `beside` a place, and renamed."""
    path = location.local_path(beside)
    work = url if path is None else f"{path}.model-{os.getpid()}"
    try:
        objects.write_all(objects.open_store(work), _array_objects(arrays))
        # The root last: in a bucket, where nothing can be renamed, it is what makes it visible.
        show_made(url, work, root)
    finally:
        if path is not None:
            shutil.rmtree(work, ignore_errors=True)


def open_model(url: Place) -> RecordMap:
    """Read a fitted map; ``open_model(url).apply(x)`` needs neither Dask nor Prefect.

    Where the model knows the names of its features and categories, records are read by them.

    Warns
    -----
    PrivacyWarning
        If it reads categories and is of a version that did not store their names: codes are taken
        as they are, and those of a table that was written later may mean something else.

    Raises
    ------
    StoreError
        If there is nothing there.
    FormatError
        If it is not a model, its kind is not known, its digest does not match, or it is none that
        a fit returns: its parts do not fit, or it promises what such a map cannot promise.
    """
    url = location.as_url(url)
    header = read_model_header(url)
    arrays = read_arrays(url, header["arrays"])
    kind = str(header["kind"])
    if kind not in sanitizers.RECORD_MAPS:
        problem = f"{location.shown(url)} holds a map of the unknown kind {kind!r}."
        remedy = f"This privpipe knows: {', '.join(sorted(sanitizers.RECORD_MAPS))}."
        raise FormatError(problem, remedy=remedy)
    problem, code = "is damaged: its digest does not match.", "model-digest"
    try:
        fitted = _name_map(_make_map(kind, header["fields"], arrays, ""), header)
        # A digest is no proof against who wrote both, and NaN in a matrix would pass silently
        # through a product.
        floats = [array for array in arrays.values() if array.dtype.kind == "f"]
        if digest_map(fitted) == header["digest"] and all(np.isfinite(a).all() for a in floats):
            problem = ""
    except (OptionError, InputError, GuaranteeError) as error:
        problem, code = f"is none that a fit returns. {error.message}", "promise"
    # What a damaged or forged document can raise; its text may quote the document.
    except (TypeError, KeyError, AttributeError, ValueError, IndexError, RecursionError):
        pass
    if problem:
        remedy = "Train it again, or get it from where it came."
        raise FormatError(f"The model {location.shown(url)} {problem}", remedy=remedy, code=code)
    if fitted.reads == "attributes" and header["format_version"] < NAMED_SINCE:
        warnings.warn(
            f"The model {location.shown(url)} does not know the names of the categories that it "
            "reads: codes are taken as they are. Train it again.",
            PrivacyWarning,
            stacklevel=2,
        )
    return fitted


def _name_map(fitted: RecordMap, header: Mapping[str, Any]) -> RecordMap:
    """The map with what it was fitted on; of an older model with the names of its features."""
    if "schema" in header:
        return with_schema(fitted, FittedSchema.decode(header["schema"]))
    return with_names(fitted, tuple(map(str, header.get("feature_names") or ())))


def publish_model(work_url: str, url: str) -> None:
    """Make a model of a workspace visible at its own place, in one step.

    It is written anew, of what its header names: nothing else that lies in its folder, be it a
    link, is published with it. A run that died after that finds its own model there and resumes.

    Raises
    ------
    StoreError
        If something is there already.
    FormatError
        If the workspace holds no model, or its arrays cannot be read.
    """
    root = objects.read_bytes(objects.open_store(work_url, read_only=True), layout.ROOT_DOCUMENT)
    names = read_model_header(work_url)["arrays"]
    if objects.read_bytes(objects.open_store(url, read_only=True), layout.ROOT_DOCUMENT) != root:
        layout.check_output_free(url)
        _store(url, read_arrays(work_url, names), root or b"", beside=work_url)


def read_model_header(url: str) -> Mapping[str, Any]:
    """The attributes of a stored model."""
    return layout.read_header(url, "model")


def read_arrays(url: str, names: list[str]) -> dict[str, AnyArray]:
    """Read small arrays of a Zarr group whole."""
    store = objects.open_store(url, read_only=True)
    return location.guard_read(
        lambda: {name: objects.read_whole(store, name) for name in names},
        FormatError,
        f"Arrays of {location.shown(url)} cannot be read",
        remedy="Train the model again, or get it from where it came.",
    )


def digest_map(fitted: RecordMap) -> str:
    """SHA-256 over kind, plain fields, arrays and the names of what the map was fitted on,
    independent of where and how it is stored."""
    arrays = dict[str, AnyArray]()
    plain = _plain_fields(fitted, arrays)
    schema = schema_of(fitted)
    # Tables in another order would relabel every record, so the digest covers their names.
    named = [] if schema is None else [schema.encode()]
    sha = hashlib.sha256(json.dumps([fitted.kind, plain, *named], sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # Whatever the byte order of the machine that fitted it.
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sha.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        sha.update(little.tobytes())
    return sha.hexdigest()


def _plain_fields(model: RecordMap, arrays: dict[str, AnyArray], place: str = "") -> dict[str, Any]:
    """The plain fields as JSON; arrays are added by their names."""
    plain: dict[str, Any] = {}
    for item in fields(model):  # type: ignore[arg-type]  # a RecordMap is a dataclass
        value = getattr(model, item.name)
        if isinstance(value, np.ndarray):
            arrays[place + item.name] = value
        else:
            plain[item.name] = _to_json(value, arrays, place + item.name)
    return plain


def _to_json(value: Any, arrays: dict[str, AnyArray], place: str) -> Any:
    if isinstance(value, Guarantee):
        return {"guarantee": _describe_guarantee(value)}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item, arrays, f"{place}.{i}") for i, item in enumerate(value)]}
    if isinstance(value, np.ndarray):
        arrays[place] = value
        return {"array": place}
    if is_dataclass(value):
        inner: Any = value
        return {"map": inner.kind, "fields": _plain_fields(inner, arrays, f"{place}.")}
    return value.item() if isinstance(value, np.generic) else value


def _describe_guarantee(guarantee: Guarantee) -> dict[str, Any]:
    """Its fields; those that came later only where they say something, so that digests of older
    models stay what they were."""
    later = {item.name: item.default for item in fields(Guarantee) if item.name in LATER_FIELDS}
    found = asdict(guarantee)
    return {name: value for name, value in found.items() if later.get(name, ...) != value}


def _make_map(
    kind: str, plain: Mapping[str, Any], arrays: Mapping[str, AnyArray], place: str
) -> RecordMap:
    """A map from its description; KeyError where the kind is not known."""
    here = {name.removeprefix(place): one for name, one in arrays.items() if name.startswith(place)}
    mine = {name: one for name, one in here.items() if "." not in name}
    made = {name: _from_json(value, arrays, place + name) for name, value in plain.items()}
    return sanitizers.RECORD_MAPS[kind](**mine, **made)


def _from_json(value: Any, arrays: Mapping[str, AnyArray], place: str) -> Any:
    if isinstance(value, dict) and "guarantee" in value:
        return Guarantee(**value["guarantee"])
    if isinstance(value, dict) and "tuple" in value:
        items = enumerate(value["tuple"])
        return tuple(_from_json(item, arrays, f"{place}.{i}") for i, item in items)
    if isinstance(value, dict) and "array" in value:
        return arrays[place]
    if isinstance(value, dict) and "map" in value:
        return _make_map(value["map"], value["fields"], arrays, f"{place}.")
    return value


def _array_objects(arrays: Mapping[str, AnyArray]) -> dict[str, bytes]:
    memory = MemoryStore()
    group = zarr.create_group(memory)
    for name, one in arrays.items():
        group.create_array(name, data=one, chunks=one.shape or "auto", compressors=[Crc32cCodec()])
    found = objects.read_all(memory)
    del found[layout.ROOT_DOCUMENT]  # of the group; a model's own is written last
    return found


NAMES = ("coefficients", "intercept")


def read_predictor(url: str) -> dict[str, AnyArray]:
    """Read a linear predictor.

    Parameters
    ----------
    url
        A .npy file holds the coefficients alone; a .npz file or a Zarr group holds an array
        ``coefficients (n_features, n_desired)`` and optionally ``intercept (n_desired,)``.

    Raises
    ------
    FormatError
        If it cannot be read.
    InputError
        If there are no coefficients.
    """
    problem = f"The predictor {location.shown(url)} cannot be read"
    remedy = "Give a .npy or .npz file without pickles, or a Zarr group."
    found = location.guard_read(partial(_read_predictor, url), FormatError, problem, remedy=remedy)
    if "coefficients" in found:
        return found
    remedy = "Store coefficients (n_features, n_desired) and optionally intercept."
    raise InputError(f"{location.shown(url)} has no array 'coefficients'.", remedy=remedy)


def _read_predictor(url: str) -> dict[str, AnyArray]:
    if not url.endswith((".npy", ".npz")):
        group = zarr.open_group(objects.open_store(url, read_only=True), mode="r")
        return {name: np.asarray(array[...]) for name, array in group.arrays() if name in NAMES}
    with fsspec.open(url, "rb") as file:
        # Never a pickle: it would run code of whoever wrote the file.
        content = np.load(io.BytesIO(file.read()), allow_pickle=False)
    if isinstance(content, np.ndarray):
        return {"coefficients": content}
    return {name: content[name] for name in content.files if name in NAMES}
