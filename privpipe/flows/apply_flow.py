"""A stored model cleans the next file, as the run that it comes from would (``privpipe apply``)."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fsspec
from pydantic import ValidationError

from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import match_columns
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline.runs.missing_values import fill_preview
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.run_options import RunOptions, TrainingSection
from privpipe.pipeline.runs.trusted_code import confirm_code
from privpipe.pipeline.stages import check, increment_check
from privpipe.report.console import say
from privpipe.store.access.location import local_path, shown
from privpipe.store.arrays.layout import exists, has_root, read_header, read_kind
from privpipe.store.collections import growing_collection, proposal
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.models import open_model
from privpipe.store.sources.formats import open_file_table
from privpipe.store.sources.reading.source import SourceLayout


def check_application(
    model: str, source: str, release: str, vouch: Sequence[str]
) -> tuple[RunOptions, Run]:
    """The run that cleans a file or collection with a stored model, checked.

    Everything of a run holds for it: receipts, audit on the training records that the model never
    saw, gate, account, register.

    Parameters
    ----------
    model
        The model beside a published release.
    source
        The next file; it is ingested beside the release.
    release
        Where the release will be.
    vouch
        What no label judges, by name.

    Raises
    ------
    OptionError
        If the model does not know the run that it comes from, or what is vouched for is unknown.
    InputError
        If columns are missing.
    GateError
        If the records differ from the training records by more than ``[gate] drift_max``.
    """
    options = _read_run(read_header(model, "model"), model)
    check.check_vouched(options, vouch)  # before the file is read
    training = options.training_path
    incoming = _ingest_next(source, release, training)
    is_public = options.training is not None and options.training.public
    # What no label judges is answered for by name, as in a configuration; older ones were not
    # checked.
    stored = (name for name in options.audit.vouched if name in options.vouchable)
    vouched = tuple(dict.fromkeys((*stored, *vouch)))
    options = options.change("collection", path=incoming).change("release", path=release)
    section = TrainingSection(path=training, public=is_public)
    options = options.change("audit", vouched=vouched).model_copy(update={"training": section})
    # Validated as a whole, as a file of configuration is.
    options = RunOptions.model_validate(options.model_dump(mode="json"))
    confirm_code(options)
    checked = _without_few_labels(replace(check.check_stage(options), shared_model=model))
    say(*_describe(checked, model))
    _check_drift(checked, source)
    return options, checked


def _read_run(about: Mapping[str, Any], model: str) -> RunOptions:
    """The configuration of the run that published a model."""
    try:
        return RunOptions.model_validate(about["run"])
    except (KeyError, ValidationError):
        problem = OptionError(
            f"The model {shown(model)} does not know the run that it comes from.",
            remedy="Models of an earlier privpipe do not: run its configuration with the new file "
            "as [collection] and the labelled records as [training].",
            code="model-run",
        )
    raise problem


def _ingest_next(source: str, release: str, training: str) -> str:
    """The source as a collection, read as the training records were; one that is one, itself."""
    if has_root(source) and read_kind(source) == "collection":
        return source
    # Named by what was read: another file of the same name is another collection.
    system, path = fsspec.core.url_to_fs(source)
    if not system.exists(path):
        raise InputError(f"There is nothing at {shown(source)}.", remedy="Check the path.")
    state = f"{source} {system.info(path).get('size')} {system.modified(path)}"
    mark = hashlib.sha256(state.encode()).hexdigest()[:12]
    incoming = f"{release.removesuffix('.zarr')}.{mark}.zarr"
    if not exists(incoming):
        ingest(source, incoming, _read_as(training, source))
        say(f"ingest   {shown(source)} to {shown(incoming)}")
    return incoming


def _read_as(training: str, source: str) -> IngestOptions:
    """How a file is read as the training records were: by the schema that these were made by."""
    opened = growing_collection.open_whole_collection(training)
    schema = opened.schema_of_records
    # Of one that grows, as its first partition was read.
    known = read_header(opened.sealed.url, "collection").get("table")
    if known is None:
        layout = proposal.recall_layout(source, schema.feature_names)
        return IngestOptions(layout=layout, dtype=schema.dtype)
    table = proposal.decode_schema(known, shown(training))
    file = open_file_table(source, table.layout())
    here = {column.name for column in file.columns} if file else set(table.columns)
    # A file to come carries no labels, and need not: features it must have, and what it includes.
    labels = proposal.VARIABLE_USES
    columns = {n: c for n, c in table.columns.items() if n in here or c.use not in labels}
    fixed = SourceLayout(spread=schema.feature_names)
    columns_here = proposal.TableSchema(table.file, columns)
    return IngestOptions(fixed, schema=columns_here, dtype=schema.dtype)


def _without_few_labels(run: Run) -> Run:
    """Judged by the training records that the fit never saw, where those labelled here are fewer.

    A model that was approved on thousands would be refused for every small file.
    """
    collection = run.collection
    schema = collection.schema_of_records
    labels = {*run.training.desired, *run.training.confidential}
    left = tuple(one for one in schema.variables if one.name not in labels)
    n_held_out = int(run.training.n_records * run.options.audit.holdout)
    if len(left) == len(schema.variables) or collection.n_records >= n_held_out:
        return run
    judges = f"{n_held_out:,} training records that the model never saw"
    say(f"judged   by {judges}: those labelled here are {collection.n_records:,}")
    schema = replace(schema, variables=left)
    return replace(run, collection=replace(collection, schema_of_records=schema))


def _describe(run: Run, model: str) -> list[str]:
    """What the model promises of records that it never saw, and what it does not know of them."""
    fitted = open_model(model)
    promise = fitted.guarantee
    holds = "every record, new ones too" if "every record" in promise.scope else promise.scope
    lines = [f"model    {shown(model)}", f"promise  {promise.statement or promise.kind}; {holds}"]
    known, schema = schema_of(fitted), run.collection.schema_of_records
    if known is not None:
        columns = [variable.column for variable in schema.variables]
        matching = match_columns(known, schema.n_features, schema.feature_names, columns)
        unknown = {name: n for name, n in matching.unknown.items() if n}
        lines += [f"unknown  {n} categories of {name}" for name, n in unknown.items()]
    return lines


def _check_drift(run: Run, source: str) -> None:
    """Refuse records that differ from the training records by more than the gate allows."""
    indicators = bool(run.training.attributes)
    fill = fill_preview(run.options, run.training).fill

    def measure(collection: Collection) -> CoMoments:
        bare = replace(collection, desired=(), confidential=(), weights=None)
        found = replace(bare, indicators=indicators, only_finite=not indicators, fill=fill)
        return found.reduce(increment_check.summarise_features)

    before = increment_check.DriftReference.of(measure(run.training.keeping(run.split, "fit")))
    attributes = run.collection.schema.attributes if indicators else ()
    sizes = [column.n_categories or 0 for column in attributes]
    moments, level = measure(run.collection), run.options.audit.level
    drift = increment_check.measure_drift(before, moments, level, sizes)
    say(f"drift    at most {drift.upper:.3g} standard deviations of a feature's mean")
    name = os.path.basename(local_path(source) or source)
    increment_check.check_drift(drift, run.options.gate.drift_max, name)
