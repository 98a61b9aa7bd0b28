"""The check stage: all that metadata can tell, before a cluster is touched."""

from __future__ import annotations

import os
import shutil

from flows.options import RunOptions
from flows.run import Run, make_run_id, now
from privpipe.dist.cluster import check_address
from privpipe.errors import InputError, OptionError, StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.records.splits import make_split
from privpipe.sanitizers import METHODS
from privpipe.store.collection import Collection, open_collection
from privpipe.store.layout import FEATURES
from privpipe.store.location import local_path, shown
from privpipe.store.release import check_output_free, companion_url

__all__ = ["check_stage"]


def check_stage(options: RunOptions) -> Run:
    """Check a configuration against the metadata of its collections.

    Raises
    ------
    OptionError, InputError, StoreError, FormatError
        With what is wrong and the way out.
    """
    section = options.collection
    method = METHODS[options.method.name]
    if options.cluster.address is not None:
        check_address(options.cluster.address)
    for role in sorted(method.needs(options.method)):
        if not getattr(section, role, ()):
            raise OptionError(
                f"The method {method.name!r} needs [collection] {role}.",
                remedy="Name at least one variable.",
            )
    training = open_collection(
        options.training_path, desired=section.desired, confidential=section.confidential
    )
    collection = training if options.training is None else open_collection(section.path)
    _check_schemas(collection.schema_of_records, training.schema_of_records)
    _check_include(options, collection.schema_of_records)
    if options.audit.group is not None:
        training.schema_of_records.variable(options.audit.group)
    _check_outputs(options, collection)
    return Run(
        run_id=make_run_id(),
        options=options,
        method=method,
        collection=collection,
        training=training,
        split=make_split(options.audit.holdout, options.audit.group),
        started=now(),
    )


def _check_schemas(collection: CollectionSchema, training: CollectionSchema) -> None:
    if collection.n_features != training.n_features:
        raise InputError(
            f"The collection has {collection.n_features} features, the training collection "
            f"{training.n_features}.",
            remedy="Train on records of the same features.",
            code="schema-drift",
        )
    if collection.feature_names != training.feature_names:
        raise InputError(
            "The features of collection and training collection differ in name or order.",
            remedy="Ingest both from sources with the same columns.",
            code="schema-drift",
        )


def _check_include(options: RunOptions, schema: CollectionSchema) -> None:
    for name in options.release.include:
        if name == FEATURES:
            raise OptionError(
                "[release] include names the raw features.",
                remedy="Released features are always in; name other variables only.",
            )
        schema.variable(name)
        if name in options.collection.confidential:
            raise OptionError(
                f"[release] include names the confidential variable {name!r}.",
                remedy="A confidential variable is never released.",
                code="confidential-included",
            )


def _check_outputs(options: RunOptions, collection: Collection) -> None:
    check_output_free(options.release.path)
    check_output_free(companion_url(options.release.path, "model.zarr"))
    path = local_path(options.release.path)
    source = local_path(collection.url)
    if path is None:
        return
    if source is not None and _same_or_inside(path, source):
        raise OptionError(
            f"The release {path} is equal to or inside the collection it is made from.",
            remedy="Choose another place.",
            code="output-inside-input",
        )
    schema = collection.schema_of_records
    needed = schema.n_records * (schema.n_features + 1) * (8 if schema.dtype == "float64" else 4)
    free = shutil.disk_usage(_existing_parent(path)).free
    if needed > free:
        raise StoreError(
            f"The release may take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free "
            f"at {shown(path)}.",
            remedy="Free space or choose another place.",
            code="disk-full",
        )


def _same_or_inside(path: str, source: str) -> bool:
    real, home = os.path.realpath(path), os.path.realpath(source)
    return os.path.commonpath([real, home]) in (real, home)


def _existing_parent(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
