"""The check stage: all that metadata can show, before a cluster is touched."""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from dask.utils import format_bytes

from privpipe.cluster.passes.sample_drawing import GROUP_SLACK
from privpipe.cluster.workers import connection, dashboard
from privpipe.errors import GuaranteeError, InputError, OptionError, StoreError
from privpipe.pipeline.runs import earlier, resume, spend, subject_limit, trusted_code
from privpipe.pipeline.runs.run import Run, find_attack_options, list_groups, now, split_by_subject
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.forecast import check_gate, refuse_constant
from privpipe.protocols import Method, Role
from privpipe.records.schema import explain_unknown
from privpipe.report.audit_text import say
from privpipe.sanitizers import METHODS
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.objects import measure_files
from privpipe.store.access.workspace import RunState, check_name, has_workspace, workspace_url
from privpipe.store.arrays.blocks import BASIS
from privpipe.store.arrays.layout import FEATURES, RECEIPTS, RELEASED, companion_url, exists
from privpipe.store.collections.collection import Collection
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
    method, roles = METHODS[options.method.name], _find_roles(options)
    epsilon = options.method.consumes()
    if epsilon is not None:
        spend.check_lasting(options)
    if options.cluster.address is not None:
        connection.check_address(options.cluster.address)
    else:
        dashboard.check_dashboard(options.cluster.dashboard)
    _check_method(options, method, roles)
    if method.releases == "surrogate":
        _check_surrogate(options, method)
    for name in options.release.include:
        _check_included(name, roles)
    check_vouched(options, options.audit.vouched)
    collection, training = _open(options, roles)
    state = RunState(
        # Short, since it is in every Dask key and receipt: it distinguishes the runs that meet on
        # one scheduler or in one account, and need not be a secret.
        run_id=secrets.token_hex(4),
        options_sha256=options.digest(),
        source_digest=collection.digest,
        source_fingerprint=read_source_version(collection.url),
        training_fingerprint=read_source_version(training.url),
        started=now(),
        code=trusted_code.find_code(options.model_dump(mode="json")["method"]),
    )
    run = Run(options, method, collection, training, split_by_subject(options, training), state)
    if run.training.public or epsilon is not None:
        _check_public(run)
    subject_limit.check_subjects(run)
    _check_labels(run)
    options.method.check_size(training.schema)
    method.check(options.method, training.schema)
    for name in options.release.include:
        collection.schema_of_records.variable(name)
    if not run.trains_on_itself:  # else the fitted names are its own
        run = replace(run, collection=collection.matched(run.fitted_schema))
    if run.collection.unknown_categories or options.release.partitions:
        _check_released(run)
    _check_held_out(run)
    _check_outputs(run)
    if options.gate.enforce:
        check_gate(run)
    if epsilon is not None:
        spend.check_limit(run, epsilon)
    earlier.open_named(run)  # last: it opens other releases
    return run


def check_vouched(options: RunOptions, names: Sequence[str]) -> None:
    """Refuse what is vouched for and not released: a misspelled name would vouch for nothing."""
    for name in sorted({*names} - {*options.vouchable}):
        raise explain_unknown("[audit] vouched has no", name, options.vouchable, OptionError)


def _find_roles(options: RunOptions) -> dict[Role, tuple[str, ...]]:
    """Variables of each role: those of the configuration, and those the method itself names."""
    named: dict[Role, tuple[str, ...]] = {"confidential": (), "attributes": (), "groups": ()}
    named.update(options.method.columns())
    both = dict.fromkeys((*options.collection.confidential, *named["confidential"]))
    return {**named, "desired": options.collection.desired, "confidential": tuple(both)}


def _check_method(given: RunOptions, method: Method, roles: Mapping[Role, tuple[str, ...]]) -> None:
    """The method has what the other sections need of it, and they what it needs."""
    section = given.collection
    if given.release.layout == "factored" and not given.method.may_factor():
        problem = f"The method {method.name!r} has no factored layout with these options."
        remedy = 'Set [release] layout = "dense", or use null_space.'
        raise OptionError(problem, remedy=remedy, code="layout")
    if lacking := [role for role in sorted(given.method.needs()) if not roles.get(role)]:
        problem = f"The method {method.name!r} needs [collection] {lacking[0]}."
        raise OptionError(problem, remedy="Name at least one variable.")
    if section.weights is not None and not given.method.weighs:
        problem = f"The method {method.name!r} counts records once; [collection] weights is set."
        remedy = f"Leave weights out, or use one of: {_list_methods('weighs')}."
        raise OptionError(problem, remedy=remedy, code="weights")
    if section.standardise and not given.method.scales:
        raise OptionError(
            f"[collection] standardise is true, and the method {method.name!r} takes features as "
            "they are, or standardises them by itself.",
            remedy=f"Leave standardise out, or use one of: {_list_methods('scales')}.",
            code="standardise",
        )


def _list_methods(ability: str) -> str:
    return ", ".join(one.name for one in METHODS.values() if getattr(one.options, ability))


def _check_surrogate(options: RunOptions, method: Method) -> None:
    """Records of no one have no variables of anyone, and none is withheld."""
    release = options.release
    forbidden = {
        "[release] include": bool(release.include),
        '[release] nonfinite = "withhold"': release.nonfinite == "withhold",
        '[release] nonfinite = "impute"': release.nonfinite == "impute",
        "[release] partitions": release.partitions,
        '[release] layout = "factored"': release.layout == "factored",
        "[training]": options.training is not None,
    }
    if what := next((name for name, given in forbidden.items() if given), None):
        raise OptionError(
            f"The method {method.name!r} makes records of its own of all those that it is fitted "
            f"to, and completes missing entries itself. But {what} is about single records.",
            remedy='Leave it out; [method] missing = "complete" completes records.',
            code="surrogate",
        )


def _check_included(name: str, roles: Mapping[Role, tuple[str, ...]]) -> None:
    if name in (FEATURES, RELEASED, RECEIPTS, BASIS, *roles["attributes"]):
        problem = f"[release] include names {name!r}, which is never released raw."
        remedy = "Name other variables only; rename the variable when you ingest it."
        raise OptionError(problem, remedy=remedy)
    if name in roles["confidential"]:
        problem = f"[release] include names the confidential variable {name!r}."
        remedy = "A confidential variable is never released."
        raise OptionError(problem, remedy=remedy, code="confidential-included")


def _open(options: RunOptions, roles: dict[Role, tuple[str, ...]]) -> tuple[Collection, Collection]:
    """The records to release and those to learn from, which may be the same."""
    section, path = options.collection, options.training_path
    public = options.training is not None and options.training.public
    # One that grows is released as it is now; part by part with [release] incremental alone.
    opened = open_whole_collection(path, **roles, weights=section.weights, public=public)
    training = replace(opened, only_finite=options.release.nonfinite != "fail")
    if options.training is None:
        return training, training
    return open_whole_collection(section.path, attributes=roles["attributes"]), training


def _check_public(run: Run) -> None:
    """Of a run that promises or learns from public records: those to protect are not public."""
    # By content: the same records at another place are found.
    mine = {part.digest for part in run.collection.schema_of_records.partitions}
    shared = mine & {part.digest for part in run.training.schema_of_records.partitions}
    if run.training.public and shared:
        raise GuaranteeError(
            f"[training] public is true, but {len(shared)} of its partitions hold the records of "
            "[collection], which are to be protected.",
            remedy="Train on records that are public and not among those to release.",
            code="not-public",
        )
    # A mean that is put into released records is learned, as a filter is.
    if run.options.release.nonfinite == "impute" and not run.training.public:
        raise GuaranteeError(
            '[release] nonfinite = "impute" releases the mean of training records that are not '
            "said to be public: what it reveals of them is outside the promise.",
            remedy="Name public records as [training] with public = true; or set [release] "
            'nonfinite = "withhold"; or allow_data_bound = true, which promises nothing.',
            code="not-public",
        )


def _check_labels(run: Run) -> None:
    """A class that is alone is known from the metadata, and groups are on one side of the split."""
    schema, group = run.training.schema, run.split.group
    columns = (*schema.desired, *schema.confidential, *schema.groups)
    if alone := [c.name for c in columns if c.n_categories is not None and c.n_categories < 2]:
        raise refuse_constant(alone)
    if run.options.about.get("groups"):
        list_groups(run.options, run.training.schema_of_records)
    read_as_group = next((one.name for one in schema.groups), group)
    if run.split.share > 0 and read_as_group != group:
        raise OptionError(
            f"[method] group is {read_as_group!r}, and records are held out by "
            f"{group or 'record'!r}: a group would be trained against and judged.",
            remedy=f'Set [collection] subject = "{read_as_group}".',
            code="group_split",
        )


def _check_released(run: Run) -> None:
    """What the release would say of its records: no unknown profile, no confidential partition."""
    unknown, by = run.collection.unknown_categories, getattr(run.options.method, "by", None)
    # Where profiles that the fit has not seen are refused, so are categories; nor is any nearest
    # to a value of `by`, for which there is no map.
    if unknown and (getattr(run.options.method, "unseen", "refuse") == "refuse" or by in unknown):
        why = f"by is {by!r}" if by in unknown else 'unseen is "refuse"'
        problem = f"{say('unknown', found=unknown)} [method] {why}."
        remedy = 'Train on records that have them; of attributes, unseen may be "nearest".'
        raise InputError(problem, remedy=remedy, code="schema-drift")
    # Partitions by a confidential variable would reveal it, whatever they are called: they are
    # named by folders, such as `state=CA`, where the source has these.
    names = (part.name for part in run.collection.schema_of_records.partitions)
    keys = {level.partition("=")[0] for one in names for level in one.split("/") if "=" in level}
    published = sorted(keys & {*run.training.confidential})
    if run.options.release.partitions and published:
        raise OptionError(
            f"[release] partitions is true, and the collection is partitioned by the confidential "
            f"variable {', '.join(map(repr, published))}.",
            remedy="Set it to false: which records stood together would reveal the variable.",
            code="confidential-included",
        )


def _check_held_out(run: Run) -> None:
    """The share that is held out is some record at least, which an adversary is judged on."""
    n_records, share = run.training.schema_of_records.n_records, run.options.audit.holdout
    # Others may be judged by labels of their own.
    if 0 < share * n_records < 1 and run.trains_on_itself:
        problem = f"[audit] holdout is {share:g}, which of {n_records:,} training records is none."
        remedy = f"Hold out at least {4 / n_records:.2g}, or 0 to judge by all records."
        raise OptionError(problem, remedy=remedy, code="audit-too-small")


def _check_outputs(run: Run) -> None:
    """The release has a place of its own."""
    url = run.release_url
    for place in (run.collection.url, run.options.training_path):
        if _same_or_inside(url, place):
            problem = f"{shown(url)} and the collection {shown(place)} share a place."
            remedy = "Choose another place for the release."
            raise OptionError(problem, remedy=remedy, code="output-inside-input")
    check_name(url)
    resume.is_published(run.options, run.collection)  # raises if something else is there
    # A model without a release or a run beside it is somebody else's.
    model = companion_url(url, "model.zarr")
    if not exists(url) and not has_workspace(url) and exists(model):
        problem = f"{shown(model)}, where the model would go, exists; nothing is ever overwritten."
        remedy = "Choose another place for the release, or remove it."
        raise StoreError(problem, remedy=remedy, code="exists")
    if (path := local_path(url)) is not None:
        _check_folder(run, path)


def _same_or_inside(*places: str) -> bool:
    """Whether one of two places holds the other; symbolic links are followed."""
    # A link is no other place: a release through it would be written into its own source.
    real = [os.path.realpath(path) if (path := local_path(url)) else shown(url) for url in places]
    one, other = (f"{place.rstrip('/')}/" for place in real)
    return one.startswith(other) or other.startswith(one)


def _check_folder(run: Run, path: str) -> None:
    """A release on this machine may be written where it shall be, and has room there."""
    parent = next(str(above) for above in PurePath(path).parents if os.path.exists(above))
    is_folder = os.path.isdir(parent)
    if not is_folder or not os.access(parent, os.W_OK | os.X_OK):
        raise StoreError(
            f"{shown(parent)} {'cannot be written to' if is_folder else 'is no folder'}, and the "
            f"release {shown(path)} would be in it.",
            remedy="Choose another place, or fix your rights there.",
            code="refused",
        )
    schema, audit = run.collection.schema_of_records, run.options.audit
    n_bytes = 8 if schema.dtype == "float64" else 4
    needed = schema.n_records * (schema.n_features + 1) * n_bytes
    if audit.adversaries:
        # A sample may be drawn for what is judged and for what singles out; each is written chunk
        # by chunk, raw and released, with more of each chunk where groups, of any size, are drawn
        # as a whole: a chunk may bring more than its share.
        most = find_attack_options(run.options).plan_sample(schema.n_records, schema.n_features)
        drawn = most * (GROUP_SLACK if run.split.group is not None else 1)
        of_record = 2 * schema.n_features * n_bytes + SAMPLE_COLUMNS * 8
        needed += 2 * min(drawn, schema.n_records) * of_record
    # What an interrupted run has written already needs no more room.
    needed -= sum(measure_files(join(workspace_url(path), part)) for part in ("release", "sample"))
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise StoreError(
            f"The release and the audit's sample may take {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free at {shown(path)}.",
            remedy="Free space or choose another place.",
            code="disk-full",
        )
