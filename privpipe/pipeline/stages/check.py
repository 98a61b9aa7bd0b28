"""The check stage: all that metadata can show, before a cluster is touched."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from privpipe.cluster.passes.sample_drawing import GROUP_SLACK
from privpipe.cluster.workers.connection import check_address
from privpipe.cluster.workers.dashboard import check_dashboard
from privpipe.errors import GuaranteeError, InputError, OptionError, StoreError
from privpipe.pipeline.runs.earlier import find_earlier
from privpipe.pipeline.runs.resume import is_published
from privpipe.pipeline.runs.run import Run, find_attack_options, find_fitted, make_run_id, now
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.spend import check_lasting, check_limit
from privpipe.pipeline.runs.subject_limit import check_subjects
from privpipe.pipeline.runs.trusted_code import find_code
from privpipe.pipeline.stages.gate_forecast import check_gate
from privpipe.protocols import Method, Role
from privpipe.records.sampling import make_split
from privpipe.records.schema import CollectionSchema
from privpipe.report.audit_text import say_unknown
from privpipe.sanitizers import METHODS
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.objects import measure_files
from privpipe.store.access.workspace import RunState, check_name, has_workspace, workspace_url
from privpipe.store.arrays.factored_basis import BASIS
from privpipe.store.arrays.layout import FEATURES, RECEIPTS, RELEASED, companion_url, exists
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.growing_collection import open_whole_collection
from privpipe.store.collections.proving import read_source_version

SAMPLE_COLUMNS = 64
"""Columns of eight bytes beside the features of a drawn record: labels, surroundings, number."""


def check_stage(options: RunOptions) -> Run:
    """Check a configuration against the metadata of its collections.

    Raises
    ------
    OptionError, InputError, StoreError, FormatError
        With what is wrong and the remedy.
    """
    # From what needs the options alone, over what opens collections, to what reads the account: the
    # first refusal is the cheapest one. `matched` needs both collections, and what is checked after
    # it sees the released records by the names of the training records.
    method, roles = METHODS[options.method.name], _roles(options)
    check_lasting(options)
    if options.cluster.address is not None:
        check_address(options.cluster.address)
    else:
        check_dashboard(options.cluster.dashboard)
    _check_method(options, method, roles)
    collection, training = _open(options, roles)
    _check_public(options, collection, training)
    _check_imputed(options, method, training)
    _check_kinds(training)
    method.check(options.method, training.schema)
    _check_include(options, collection.schema_of_records)
    collection = collection.matched(find_fitted(options, training))
    _check_unknown(options, collection)
    _check_surrogate(options, method)
    _check_partitions(options, collection.schema_of_records)
    if options.audit.group is not None:
        training.schema_of_records.variable(options.audit.group)
    _check_groups(options, roles["groups"])
    _check_outputs(options, collection)
    run = Run(
        options=options,
        method=method,
        collection=collection,
        training=training,
        split=make_split(options.audit.holdout, options.audit.group),
        state=RunState(
            run_id=make_run_id(),
            options_sha256=options.digest(),
            source_digest=collection.digest,
            source_fingerprint=read_source_version(collection.url),
            training_fingerprint=read_source_version(training.url),
            started=now(),
            code=find_code(options.model_dump(mode="json")["method"]),
        ),
    )
    check_gate(run)
    check_limit(run)
    check_subjects(run)
    find_earlier(run)  # last: it opens other releases
    return run


def _check_method(
    options: RunOptions, method: Method, roles: Mapping[Role, tuple[str, ...]]
) -> None:
    """The method has what the other sections need of it, and they what it needs."""
    section = options.collection
    factors = options.method.may_factor()
    if options.release.layout == "factored" and not factors:
        raise OptionError(
            f"The method {method.name!r} has no factored layout with these options.",
            remedy='Set [release] layout = "dense", or use null_space, not algorithm 2 verbatim.',
            code="layout",
        )
    for role in sorted(options.method.needs()):
        if not roles.get(role):
            raise OptionError(
                f"The method {method.name!r} needs [collection] {role}.",
                remedy="Name at least one variable.",
            )
    if section.weights is not None and not options.method.weighs:
        weighing = [one.name for one in METHODS.values() if one.options.weighs]
        raise OptionError(
            f"The method {method.name!r} counts every record once; [collection] weights names "
            "a variable.",
            remedy=f"Leave weights out, or use one of: {', '.join(weighing)}.",
            code="weights",
        )
    if section.standardise and not options.method.scales:
        scaled = [one.name for one in METHODS.values() if one.options.scales]
        raise OptionError(
            f"[collection] standardise is true, and the method {method.name!r} takes features as "
            "they are, or standardises them by itself.",
            remedy=f"Leave standardise out, or use one of: {', '.join(scaled)}.",
            code="standardise",
        )


def _open(options: RunOptions, roles: dict[Role, tuple[str, ...]]) -> tuple[Collection, Collection]:
    """The records to release and those to learn from, which may be the same."""
    section = options.collection
    # Surrogates are made of all records at once: a growing collection is released as it is.
    whole = METHODS[options.method.name].releases == "surrogate"
    open_training = open_whole_collection if whole else open_collection
    training = replace(
        open_training(
            options.training_path,
            **roles,
            weights=section.weights,
            public=options.training is not None and options.training.public,
        ),
        only_finite=options.release.nonfinite != "fail",
    )
    collection = training
    if options.training is not None:
        collection = open_collection(section.path, attributes=roles["attributes"])
    return collection, training


def _check_unknown(options: RunOptions, collection: Collection) -> None:
    """Where profiles that the fit has not seen are refused, so are categories."""
    unknown = collection.unknown_categories
    if unknown and getattr(options.method, "unseen", "refuse") == "refuse":
        raise InputError(
            f'{say_unknown(unknown)} [method] unseen is "refuse".',
            remedy='Train on records that have them, or set unseen to "nearest".',
            code="schema-drift",
        )


def _roles(options: RunOptions) -> dict[Role, tuple[str, ...]]:
    """Variables of each role: those of the configuration, and those the method itself names."""
    named = options.method.columns()
    section = options.collection
    confidential = dict.fromkeys((*section.confidential, *named.get("confidential", ())))
    return {
        "desired": section.desired,
        "confidential": tuple(confidential),
        "attributes": named.get("attributes", ()),
        "groups": named.get("groups", ()),
    }


def refuse_constant(names: Sequence[str]) -> InputError:
    return InputError(
        f"{', '.join(map(repr, names))} has one and the same value, or none, in every training "
        "record: nothing can be learned of it.",
        remedy="Leave it out of desired, confidential and group, or train on records in which it "
        "varies.",
        code="single_class",
    )


def _check_groups(options: RunOptions, groups: tuple[str, ...]) -> None:
    """A group that is read together in training is on one side of the held-out split."""
    if groups and options.audit.holdout > 0 and options.audit.group != groups[0]:
        raise OptionError(
            f"[method] group is {groups[0]!r}, and records are held out by "
            f"{options.audit.group or 'record'!r}: a group would be trained against and judged.",
            remedy=f'Set [audit] group = "{groups[0]}".',
            code="group_split",
        )


def _check_public(options: RunOptions, collection: Collection, training: Collection) -> None:
    """The records to protect are not public, whatever the configuration says."""
    # By content: the same records at another place are found.
    mine = {part.digest for part in collection.schema_of_records.partitions}
    shared = mine & {part.digest for part in training.schema_of_records.partitions}
    if training.public and shared:
        raise GuaranteeError(
            f"[training] public is true, but {len(shared)} of its partitions hold the records of "
            "[collection], which are to be protected.",
            remedy="Train on records that are public and not among those to release.",
            code="not-public",
        )


def _check_imputed(options: RunOptions, method: Method, training: Collection) -> None:
    """A mean that is put into released records is learned, as a filter is."""
    promises = options.method.consumes() is not None
    if promises and options.release.nonfinite == "impute" and not training.public:
        raise GuaranteeError(
            '[release] nonfinite = "impute" puts the mean training record in the place of what is '
            "missing, and the training records are not said to be public: what it reveals of them "
            "is outside the promise.",
            remedy="Name public records as [training] with public = true; or set [release] "
            'nonfinite = "withhold"; or set [method] allow_data_bound = true, and the release '
            "promises nothing.",
            code="not-public",
        )


def _check_kinds(training: Collection) -> None:
    """A class that is alone is known from the metadata."""
    schema = training.schema
    columns = (*schema.desired, *schema.confidential, *schema.groups)
    empty = [c.name for c in columns if c.n_categories == 0]
    if empty:
        raise InputError(
            f"{', '.join(map(repr, empty))} has no value in any training record: nothing can be "
            "learned or judged of it.",
            remedy="Leave it out of desired, confidential and group, or train on records that "
            "have it.",
            code="missing_labels",
        )
    alone = [c.name for c in columns if c.n_categories is not None and c.n_categories < 2]
    if alone:
        raise refuse_constant(alone)


def _check_include(options: RunOptions, schema: CollectionSchema) -> None:
    for name in options.release.include:
        if name in (FEATURES, RELEASED, RECEIPTS, BASIS):
            raise OptionError(
                f"[release] include names {name!r}, which is a name of a release's own parts: raw "
                "features are never released.",
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


def _check_surrogate(options: RunOptions, method: Method) -> None:
    """Records of no one have no variables of anyone, and none is withheld."""
    release = options.release
    if method.releases != "surrogate":
        return
    forbidden = {
        "include": bool(release.include),
        'nonfinite = "withhold"': release.nonfinite == "withhold",
        "partitions": release.partitions,
        'layout = "factored"': release.layout == "factored",
    }
    if any(forbidden.values()):
        what = next(name for name, given in forbidden.items() if given)
        raise OptionError(
            f"The method {method.name!r} releases records of its own, which belong to no record "
            f"of the collection; [release] {what} speaks of these.",
            remedy="Leave it out.",
            code="surrogate",
        )
    if options.method.forgets_keys and (
        options.training is not None or release.nonfinite == "impute"
    ):
        what = "[training]" if options.training is not None else '[release] nonfinite = "impute"'
        raise OptionError(
            f"The method {method.name!r} makes its records of those that it is fitted to, and "
            f"completes missing entries itself; {what} demands something else.",
            remedy='Leave it out; [method] missing = "complete" completes records.',
            code="surrogate",
        )


def _check_partitions(options: RunOptions, schema: CollectionSchema) -> None:
    """Partitions by a confidential variable would reveal it, whatever they are called."""
    # Partitions are named by folders, such as `state=CA`, where the source has these.
    keys = {
        level.partition("=")[0]
        for partition in schema.partitions
        for level in partition.name.split("/")
        if "=" in level
    }
    published = sorted(keys & set(_roles(options)["confidential"]))
    if options.release.partitions and published:
        raise OptionError(
            f"[release] partitions is true, and the collection is partitioned by the confidential "
            f"variable {', '.join(map(repr, published))}.",
            remedy="Set it to false: which records stood together would reveal the variable.",
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
    check_name(options.release.path)
    is_published(options, collection)  # raises if something else is there
    _check_free(options)
    path = local_path(options.release.path)
    if path is None:
        return
    _check_writable(path)
    schema = collection.schema_of_records
    n_bytes = 8 if schema.dtype == "float64" else 4
    needed = schema.n_records * (schema.n_features + 1) * n_bytes
    needed += _plan_sample_bytes(options, collection, 2 * schema.n_features * n_bytes)
    # What an interrupted run has written already needs no more room.
    needed -= sum(measure_files(join(workspace_url(path), part)) for part in ("release", "sample"))
    free = shutil.disk_usage(_existing_parent(path)).free
    if needed > free:
        raise StoreError(
            f"The release and the audit's sample may take {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free at {shown(path)}.",
            remedy="Free space or choose another place.",
            code="disk-full",
        )


def _plan_sample_bytes(options: RunOptions, collection: Collection, n_bytes: int) -> int:
    """What the audit's samples take, of records of that many bytes raw and released together.

    A sample may be drawn for what is judged and for what singles out; each is written chunk by
    chunk, with more of each chunk where groups of any size are drawn as a whole.
    """
    if not options.audit.adversaries:
        return 0
    schema = collection.schema_of_records
    most = find_attack_options(options).plan_sample(schema.n_records, schema.n_features)
    # Groups are drawn whole, so that a chunk may bring more than its share.
    drawn = most * (GROUP_SLACK if options.audit.group is not None else 1)
    return 2 * min(drawn, schema.n_records) * (n_bytes + SAMPLE_COLUMNS * 8)


def _check_free(options: RunOptions) -> None:
    """A model without a release or a run beside it is somebody else's."""
    url = options.release.path
    model = companion_url(url, "model.zarr")
    if not exists(url) and not has_workspace(url) and exists(model):
        raise StoreError(
            f"{shown(model)}, where the model would go, exists; nothing is ever overwritten.",
            remedy="Choose another place for the release, or remove it.",
            code="exists",
        )


def _check_writable(path: str) -> None:
    parent = _existing_parent(os.path.dirname(path))
    problem = "" if os.path.isdir(parent) else "is no folder"
    problem = problem or ("" if os.access(parent, os.W_OK | os.X_OK) else "cannot be written to")
    if problem:
        raise StoreError(
            f"{shown(parent)} {problem}, and the release {shown(path)} would be in it.",
            remedy="Choose another place, or fix your rights there.",
            code="refused",
        )


def _same_or_inside(url: str, source: str) -> bool:
    """Whether one of two places holds the other; symbolic links are followed."""
    path, home = local_path(url), local_path(source)
    if path is not None and home is not None:
        # A link is no other place: a release through it would be written into its own source.
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
