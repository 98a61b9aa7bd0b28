"""The check stage: all that metadata can tell, before a cluster is touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

from flows.options import RunOptions
from flows.run import Run, digest_options, make_run_id, now
from privpipe.dist.cluster import check_address
from privpipe.errors import InputError, OptionError, StoreError
from privpipe.protocols import Role
from privpipe.records.schema import CollectionSchema
from privpipe.records.splits import make_split
from privpipe.sanitizers import METHODS
from privpipe.store.collection import Collection, open_collection
from privpipe.store.fingerprint import fingerprint
from privpipe.store.layout import FEATURES, RELEASED
from privpipe.store.location import join, local_path, measure_files, shown
from privpipe.store.workspace import RunState, workspace_url

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
    roles = _roles(options)
    if options.release.layout == "factored" and not method.factored:
        raise OptionError(
            f"The method {method.name!r} has no factored layout.",
            remedy='Set [release] layout = "dense", or use null-space cleaning.',
            code="layout",
        )
    for role in sorted(method.needs(options.method)):
        if not roles.get(role):
            raise OptionError(
                f"The method {method.name!r} needs [collection] {role}.",
                remedy="Name at least one variable.",
            )
    if section.weights is not None and not method.weighs:
        raise OptionError(
            f"The method {method.name!r} counts every record once; [collection] weights names "
            "a variable.",
            remedy="Leave weights out, or use null_space, null_space_targeted or leace.",
            code="weights",
        )
    training = replace(
        open_collection(options.training_path, **roles, weights=section.weights),
        only_finite=options.release.nonfinite != "fail",
    )
    collection = training
    if options.training is not None:
        collection = open_collection(section.path, attributes=roles["attributes"])
    _check_schemas(collection.schema_of_records, training.schema_of_records)
    _check_include(options, collection.schema_of_records)
    _check_partitions(options, collection.schema_of_records)
    if options.audit.group is not None:
        training.schema_of_records.variable(options.audit.group)
    _check_outputs(options, collection)
    return Run(
        options=options,
        method=method,
        collection=collection,
        training=training,
        split=make_split(options.audit.holdout, options.audit.group),
        state=RunState(
            run_id=make_run_id(),
            options_sha256=digest_options(options),
            source_digest=collection.digest,
            source_fingerprint=fingerprint(collection.url),
            training_fingerprint=fingerprint(training.url),
            started=now(),
        ),
    )


def _roles(options: RunOptions) -> dict[Role, tuple[str, ...]]:
    """Variables of each role: those of the configuration, and those the method itself names."""
    asked = METHODS[options.method.name].columns(options.method)
    section = options.collection
    confidential = dict.fromkeys((*section.confidential, *asked.get("confidential", ())))
    return {
        "desired": section.desired,
        "confidential": tuple(confidential),
        "attributes": asked.get("attributes", ()),
    }


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
        if name in (FEATURES, RELEASED):
            raise OptionError(
                f"[release] include names {name!r}, which is a part of every release: raw features "
                "are never released.",
                remedy="Name other variables only; rename the variable when you ingest it.",
            )
        schema.variable(name)
        if name in _roles(options)["attributes"]:
            raise OptionError(
                f"[release] include names the attribute {name!r}, which the method releases.",
                remedy="Leave it out: its released values are in every release.",
            )
        if name in _roles(options)["confidential"]:
            raise OptionError(
                f"[release] include names the confidential variable {name!r}.",
                remedy="A confidential variable is never released.",
                code="confidential-included",
            )


def _check_partitions(options: RunOptions, schema: CollectionSchema) -> None:
    """Partitions by a confidential variable would tell it, whatever they are called."""
    keys = {
        level.partition("=")[0]
        for partition in schema.partitions
        for level in partition.name.split("/")
        if "=" in level
    }
    told = sorted(keys & set(_roles(options)["confidential"]))
    if options.release.partitions and told:
        raise OptionError(
            f"[release] partitions is true, and the collection is partitioned by the confidential "
            f"variable {', '.join(map(repr, told))}.",
            remedy="Set it to false: which records stood together would tell the variable.",
            code="confidential-included",
        )


def _check_outputs(options: RunOptions, collection: Collection) -> None:
    for place in (collection.url, options.training_path):
        if _same_or_inside(options.release.path, place):
            raise OptionError(
                f"The release {shown(options.release.path)} and the collection {shown(place)} "
                "are the same place or one inside the other.",
                remedy="Choose another place for the release.",
                code="output-inside-input",
            )
    path = local_path(options.release.path)
    if path is None:
        return
    schema = collection.schema_of_records
    needed = schema.n_records * (schema.n_features + 1) * (8 if schema.dtype == "float64" else 4)
    # What an interrupted run has written already needs no more room.
    needed -= measure_files(join(workspace_url(path), "release"))
    free = shutil.disk_usage(_existing_parent(path)).free
    if needed > free:
        raise StoreError(
            f"The release may take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free "
            f"at {shown(path)}.",
            remedy="Free space or choose another place.",
            code="disk-full",
        )


def _same_or_inside(url: str, source: str) -> bool:
    """Whether one of two places holds the other; symbolic links are followed."""
    path, home = local_path(url), local_path(source)
    if path is not None and home is not None:
        real, home = os.path.realpath(path), os.path.realpath(home)
        return os.path.commonpath([real, home]) in (real, home)
    if path is not None or home is not None:
        return False
    one, other = f"{shown(url).rstrip('/')}/", f"{shown(source).rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)


def _existing_parent(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path
