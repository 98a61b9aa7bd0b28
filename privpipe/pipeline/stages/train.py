"""The train stage: learn the map from shards on the workers, store it in the workspace.

Before it the sources are proved: what a run reads is what was ingested.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from privpipe.capabilities import MakesRecords
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes import pricing_rounds, proof_pass
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.errors import GuaranteeError, InputError, PrivpipeError, PrivpipeWarning, StoreError
from privpipe.fitted_names import schema_of, with_schema
from privpipe.numerics.noise.amplification import amplify_by_shuffling
from privpipe.pipeline.runs.earlier import find_growth, find_model, open_named
from privpipe.pipeline.runs.missing_values import fill_training
from privpipe.pipeline.runs.run import Run, Trained, find_subject, list_versions, now
from privpipe.pipeline.runs.subject_limit import count_subjects, protect_subjects
from privpipe.promises import SHUFFLED_DELTA, SHUFFLED_EPSILON
from privpipe.protocols import Guarantee, RecordMap
from privpipe.records.sampling import Part
from privpipe.report.audit_text import read_texts
from privpipe.report.published_findings import say_promised
from privpipe.sanitizers import chain, grounds
from privpipe.store import models
from privpipe.store.access.location import join, local_path
from privpipe.store.access.workspace import workspace_url
from privpipe.store.arrays.layout import check_output_free, exists, read_header
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.writing import is_shuffled
from privpipe.store.keyring.sketches import Ties

LEARNED = {"method", "options", "source", "feature_names", "training_digest", "holdout"}
LEARNED |= {"versions", "trained"}
"""Of a model's header, what stays true where the model is used again. The version of its format
does not: it is that of the code that writes it."""


def train_stage(run: Run, executor: Executor) -> Trained:
    """Fit on the training records that are not held out; a stored model is never fitted again."""
    # First of all, since who the records are decides what they may lose, which earlier releases
    # are joined with this one, and whose model is used again.
    sketch_records(run, executor)
    run = fill_training(run, executor)
    if run.options.audit.earlier:
        open_named(run)  # of other records they are refused now that records are known
    if exists(run.stored_model_url):
        fitted = models.open_model(run.stored_model_url)
        if not _is_alike(fitted, run.stored_model_url, run):
            problem = "The stored model was trained on records with other columns or categories."
            remedy = "`privpipe purge`, then run again: the model is learned anew."
            raise InputError(problem, remedy=remedy, code="schema-drift")
    else:
        check_output_free(run.model_url)
        # Two models of nearly the same records reveal one record: an earlier one is used again.
        fitted, about = _find_learned(run) or _learn(run, executor)
        # By which `privpipe apply` cleans records to come as this run would.
        about["run"] = _dump_run(run)
        models.write_model(fitted, run.work_model_url, about)
    return _describe(fitted, run, executor)


def train_apart(runs: Sequence[Run], executor: Executor) -> None:
    """Fit runs on the same records that have no model yet, each a task, where workers have room.

    What cannot be fitted is left to `train_stage`, which says why.
    """
    pending = []
    for run in runs:
        with suppress(PrivpipeError):
            sketch_records(run, executor)
            if not exists(run.stored_model_url) and _find_learned(run) is None:
                pending.append(fill_training(run, executor))
    if not pending or not (shards := _shards(pending[0], executor)).spreads(len(pending)):
        return
    for run, found in zip(pending, shards.spread(_learn_apart, pending), strict=True):
        if found is not None:
            fitted, about, said = found
            for one in said:
                warnings.warn(one, stacklevel=2)
            models.write_model(fitted, run.work_model_url, about | {"run": _dump_run(run)})


def _learn_apart(shards: ShardedCollection, run: Run) -> tuple[Any, ...] | None:
    """Worker side: a fit, what its model says of it, and what it warned of."""
    with warnings.catch_warnings(record=True) as said, suppress(PrivpipeError):
        warnings.simplefilter("always", PrivpipeWarning)
        return *_learn(run, shards.executor), [one.message for one in said]
    return None


def _dump_run(run: Run) -> dict[str, Any]:
    """The configuration, with the place of its training records wherever it is read."""
    content = run.options.model_dump(mode="json", exclude={"compare"})
    path = local_path(run.options.training_path)
    if path is not None:
        content["training" if run.options.training else "collection"]["path"] = path
    return content


def _find_learned(run: Run) -> tuple[RecordMap, dict[str, Any]] | None:
    """The model of an earlier release that has to serve again, with what it says of itself."""
    known = find_model(run)
    if known is None or not _is_alike(fitted := models.open_model(known), known, run):
        return None
    # With the header of its own training: what it learned from stays known.
    about = read_header(known, "model")
    return fitted, {key: value for key, value in about.items() if key in LEARNED}


def _learn(run: Run, executor: Executor) -> tuple[RecordMap, dict[str, Any]]:
    """A fit to the records, and what the stored model says of it."""
    method, extra = run.options.method, run.read_files()
    if method.prices:
        extra["price"] = pricing_rounds.ClusterPricing(executor, place=method.pricing)
    if method.is_judged and run.split.share:
        extra["judges"] = _shards(run, executor, "held_out"), run.split.share
    begun = find_growth(run) if method.grows else None
    if begun and _is_alike(earlier := models.open_model(begun), begun, run):
        extra["earlier"] = earlier
    standardises = run.options.collection.standardise
    fit = partial(chain.fit_standardised, run.method) if standardises else run.method.fit
    fitted = fit(_shards(run, executor), method, **extra)
    if run.options.release.layout == "factored":
        fitted = method.factor(fitted, run.collection.schema_of_records.dtype)
    return with_schema(fitted, run.fitted_schema), {
        "method": run.method.name,
        "options": run.method_options(),
        "source": run.method.source,
        "training_digest": run.training.digest,
        "holdout": run.options.audit.holdout,
        "versions": list_versions(),
        "trained": now(),
    }


def _is_alike(fitted: RecordMap, url: str, run: Run) -> bool:
    """Of records with the names of this run's; an older model, of these very records."""
    known = schema_of(fitted)
    if known is not None:
        return known.encode() == run.fitted_schema.encode()
    digest = read_header(url, "model").get("training_digest")
    return not run.fitted_schema.knows_names or digest == run.training.digest


def _shards(run: Run, executor: Executor, part: Part = "fit") -> ShardedCollection:
    rows = run.training
    # One person, one leverage; and a bound on a law is of independent records.
    if (run.method.releases == "surrogate" or run.options.method.is_judged) and run.split.group:
        rows = replace(rows, groups=(run.split.group,))
    return ShardedCollection(rows.keeping(run.split, part), executor, checkpoints=run.checkpoints)


def _describe(fitted: RecordMap, run: Run, executor: Executor) -> Trained:
    digest = models.digest_map(fitted)
    if run.state.model_digest not in (None, digest):
        problem = "The stored model is not the one of the interrupted run."
        raise StoreError(problem, remedy="`privpipe purge`, then run again.", code="other-model")
    guarantee = fitted.guarantee
    if run.options.collection.subject is not None:  # also of a model that was fitted without
        guarantee = grounds.refuse_dependent(guarantee)
    if run.options.collection.subject is not None and (found := count_subjects(run)):
        guarantee = protect_subjects(guarantee, found)
    elif guarantee.kind == "local_dp":
        guarantee = _add_shuffled(guarantee, run)
    read = ["n_features_in", "n_features_out", "reads", "draws", "keeps_features"]
    if isinstance(fitted, MakesRecords):
        read += ["n_records", "tile_rows", "feature_names", "response_names"]
    return Trained(
        model_digest=digest,
        guarantee=guarantee,
        steps=getattr(fitted, "steps", ()),
        mean_record=run.training.fill,
        **{name: getattr(fitted, name) for name in read},
    )


def _add_shuffled(guarantee: Guarantee, run: Run) -> Guarantee:
    """The promise of each record, and what a secret order of all adds to it, where there is one."""
    release, partitions = run.options.release, run.collection.schema_of_records.partitions
    # What is released beside the noisy features may reveal whose record it is.
    plain = not (release.include or release.incremental or release.nonfinite == "withhold")
    if not guarantee.number or not plain or not is_shuffled(run.options.collection.path):
        return guarantee
    # Records are in random order within their partition.
    n = min([p.n_records for p in partitions if p.n_records] or [run.collection.n_records])
    central = amplify_by_shuffling(guarantee.number, n, n**-1.5, draw_delta=guarantee.delta)
    # Rounded upwards here: pages round other parameters to the nearest.
    said = {SHUFFLED_EPSILON: say_promised(central), SHUFFLED_DELTA: say_promised(n**-1.5)}
    more = {name: float(number) for name, number in said.items()}
    return replace(guarantee, parameters=(*guarantee.parameters, *more.items()))


def sketch_records(run: Run, executor: Executor) -> None:
    """Make the sketches of a run's records, and of those it learns from, that are not there.

    Raises
    ------
    StoreError, FormatError
        If the account cannot be reached, or a sketch is missing or damaged.
    GuaranteeError
        If records to protect are said to be public.
    """
    sketches, records = run.sketches, run.collection
    sketch_collection(executor, records, sketches, subject=find_subject(run.options, records))
    if not run.trains_on_itself:
        sketch_collection(executor, run.training, sketches)
        _check_public(run, sketches.ties())


def _check_public(run: Run, ties: Ties) -> None:
    """Records that are to be protected are not public, whatever file they are in."""
    if not run.training.public:
        return
    public = {part.digest for part in run.training.schema_of_records.partitions}
    mine = run.collection.schema_of_records.partitions
    found = (pair for part in mine for pair in ties.relatives(part.digest).items())
    shared = [one.mine for other, one in found if other in public and not one.by_profile]
    if shared:
        raise GuaranteeError(
            f"[training] public is true, but up to {max(shared):.3g} of the records of a "
            "partition of [collection], which are to be protected, are among them.",
            remedy="Train on records that are public and not among those to release.",
            code="not-public",
        )


WORDS: Mapping[str, str] = read_texts("words.yaml")["receipts"]


def has_receipts(run: Run) -> bool:
    """Whether nothing has to be read to prove the sources."""
    return None not in (run.collection.sealed.proof, run.training.sealed.proof)


def prove_sources(run: Run, executor: Executor) -> Run:
    """The run with a proof of both collections; those with receipts have one."""

    def prove(collection: Collection) -> Collection:
        place = join(workspace_url(run.release_url), "sources", collection.digest[:16])
        return proof_pass.prove_collection(executor, collection, place)

    return replace(run, collection=prove(run.collection), training=prove(run.training))


def describe_proof(run: Run) -> dict[str, Any]:
    """For the header of the release: what is known of the records it was made of."""
    proofs = {"source": run.collection.sealed.proof, "training": run.training.sealed.proof}
    return {
        f"{name}_proof": "not proved" if proof is None else WORDS[proof.origin]
        for name, proof in proofs.items()
    }
