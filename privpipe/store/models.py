"""Fitted maps as Zarr plus JSON, with a digest, never pickled; and predictors given as files.

A map is a frozen dataclass of arrays, numbers, strings, guarantees, other maps and tuples of these.
Arrays become Zarr arrays, those of a map within a map under its place ("maps.0.weights"). The rest
become attributes. What it was fitted on, by name, is in the header. The digest covers all of it.
"""

import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
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
from privpipe.store.arrays import destination, layout

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
    writer = FieldWriter()
    plain, arrays = writer.describe_fields(fitted), writer.arrays
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
    _store(url, arrays, root, near=url)
    return digest


def _store(url: str, arrays: Mapping[str, AnyArray], root: bytes, *, near: str) -> None:
    """Write arrays, then the root document: a folder is made `near` a place, and renamed."""
    path = location.local_path(near)
    work = url if path is None else f"{path}.model-{os.getpid()}"
    try:
        objects.write_all(objects.open_store(work), _array_objects(arrays))
        # The root last: in a bucket, where nothing can be renamed, it is what makes it visible.
        destination.show_made(url, work, root)
    finally:
        if path is not None:
            shutil.rmtree(work, ignore_errors=True)


def open_model(url: Place) -> RecordMap:
    """Read a fitted map; ``open_model(url).apply(x)`` needs neither Dask nor Prefect.

    Where the model knows the names of its features and categories, records are read by them.

    Warns
    -----
    PrivacyWarning
        If it reads categories and is of a version that did not store their names. Codes are then
        taken as they are, and those of a table that was written later may mean something else.

    Raises
    ------
    StoreError
        If there is nothing there.
    FormatError
        If it is not a model, its kind is not known, or its digest does not match. If it is none
        that a fit returns: its parts do not fit, or it promises what such a map cannot promise.
    """
    url = location.as_url(url)
    header = layout.read_header(url, "model")
    arrays = read_arrays(url, header["arrays"])
    kind, reader = str(header["kind"]), FieldReader(sanitizers.RECORD_MAPS, arrays)
    if kind not in reader.kinds:
        problem = f"{location.shown(url)} holds a map of the unknown kind {kind!r}."
        remedy = f"This privpipe knows: {', '.join(sorted(sanitizers.RECORD_MAPS))}."
        raise FormatError(problem, remedy=remedy)
    problem, code = "is damaged: its digest does not match.", "model-digest"
    try:
        fitted = _name_map(reader.make(kind, header["fields"]), header)
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
    names = layout.read_header(work_url, "model")["arrays"]
    if objects.read_bytes(objects.open_store(url, read_only=True), layout.ROOT_DOCUMENT) != root:
        layout.check_output_free(url)
        _store(url, read_arrays(work_url, names), root or b"", near=work_url)


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
    writer, schema = FieldWriter(), schema_of(fitted)
    plain, arrays = writer.describe_fields(fitted), writer.arrays
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


@dataclass(frozen=True)
class FieldWriter:
    """JSON of dataclasses and of what they hold, beside their arrays.

    Parameters
    ----------
    arrays
        Takes the arrays by their places.
    """

    arrays: dict[str, AnyArray] = field(default_factory=dict)

    def name(self, value: Any) -> str:
        """What a dataclass is called; who may not be written is refused here."""
        return str(value.kind)

    def describe_number(self, value: np.generic, place: str) -> Any:
        """A number of NumPy's."""
        return value.item()

    def describe_fields(self, value: Any, place: str = "") -> dict[str, Any]:
        """The fields but for arrays, which have the place of `value` and their names."""
        found = {item.name: getattr(value, item.name) for item in fields(value)}
        mine = {key: one for key, one in found.items() if isinstance(one, np.ndarray)}
        self.arrays.update({place + key: one for key, one in mine.items()})
        return {k: self.describe(one, place + k) for k, one in found.items() if k not in mine}

    def describe(self, value: Any, place: str) -> Any:
        """A value and all that it holds; see `read_value`."""
        if isinstance(value, Guarantee):
            return {"guarantee": _describe_guarantee(value)}
        if isinstance(value, Mapping):
            return {"mapping": self.describe(tuple(value.items()), place)}
        if isinstance(value, tuple):
            return {"tuple": [self.describe(one, f"{place}.{i}") for i, one in enumerate(value)]}
        if isinstance(value, np.ndarray):
            self.arrays[place] = value
            return {"array": place}
        if is_dataclass(value):
            return {"map": self.name(value), "fields": self.describe_fields(value, f"{place}.")}
        return self.describe_number(value, place) if isinstance(value, np.generic) else value


def _describe_guarantee(guarantee: Guarantee) -> dict[str, Any]:
    """Its fields; those that came later only where they say something, so that digests of older
    models stay what they were."""
    later = {item.name: item.default for item in fields(Guarantee) if item.name in LATER_FIELDS}
    found = asdict(guarantee)
    return {name: value for name, value in found.items() if later.get(name, ...) != value}


@dataclass(frozen=True)
class FieldReader:
    """Values of what a `FieldWriter` made of them; what it never makes raises ValueError.

    Parameters
    ----------
    kinds
        Dataclasses by the names that the writer gave them; a KeyError where one is not known.
    arrays
        By their places.
    """

    kinds: Mapping[str, Callable[..., Any]]
    arrays: Mapping[str, AnyArray]

    def make(self, kind: str, plain: Mapping[str, Any], place: str = "") -> Any:
        """A dataclass of its fields."""
        here = {n.removeprefix(place): a for n, a in self.arrays.items() if n.startswith(place)}
        mine = {name: one for name, one in here.items() if "." not in name}
        made = {name: self.read(value, place + name) for name, value in plain.items()}
        return self.kinds[kind](**mine, **made)

    def read(self, value: Any, place: str) -> Any:
        """A value and all that it holds."""
        if not isinstance(value, dict):
            return value
        [[what, found], *_] = value.items()
        if what == "tuple":
            return tuple(self.read(item, f"{place}.{i}") for i, item in enumerate(found))
        if what == "map":
            return self.make(found, value["fields"], f"{place}.")
        if what == "mapping":
            return dict(self.read(found, place))
        if what in ("array", "scalar"):
            return self.arrays[place] if what == "array" else self.arrays[place][()]
        return {"guarantee": Guarantee}[what](**found)


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
        A .npy file holds the coefficients alone. A .npz file or a Zarr group holds an array
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
