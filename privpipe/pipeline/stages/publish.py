"""The publish stage: model, report, and last of all the release."""

from collections.abc import Mapping
from typing import Any

from privpipe.cluster.executors.executor import Event, Listener, ignore
from privpipe.pipeline.runs.earlier import note_release
from privpipe.pipeline.runs.resume import check_unchanged
from privpipe.pipeline.runs.run import Cleaned, Run, Trained, find_training, list_versions, now
from privpipe.pipeline.runs.spend import confirm_loss
from privpipe.pipeline.stages.gate import check_gated
from privpipe.pipeline.stages.train import describe_proof
from privpipe.report.published_findings import hide_small_count, publish_findings, publish_guarantee
from privpipe.store.arrays.layout import exists
from privpipe.store.keyring.keys import forget_keys
from privpipe.store.models import publish_model
from privpipe.store.releases.release_writing import publish_release


def publish_stage(
    run: Run, trained: Trained, cleaned: Cleaned, findings: Mapping[str, Any], listener: Listener
) -> None:
    """Make everything visible; the release itself last, in one step.

    Raises
    ------
    GateError
        If the findings did not pass the gate.
    StoreError
        If the records that were cleaned or judged are no longer those of the start. If the release
        cannot be entered into the register of releases.
    """
    check_gated(findings)
    check_unchanged(run)
    n_objects = cleaned.plan.chunks.n_chunks * len(cleaned.plan.arrays)
    listener(Event("publish", "begins", n_objects, "objects"))
    show_release(run, trained, cleaned, _head(run, trained, cleaned, findings), listener)
    # Confirmed and destroyed only once both are visible: until then the run may fail.
    confirm_loss(run, run.run_id)
    if run.options.method.forgets_keys:
        forget_keys(run.run_id)
    listener(Event("publish", "ends", unit="objects"))


def show_release(
    run: Run,
    trained: Trained,
    cleaned: Cleaned,
    head: Mapping[str, Any],
    listener: Listener = ignore,
    *,
    incremental: bool = False,
) -> None:
    """Enter a release, or a part of one, into the register; show its model, then itself.

    Parameters
    ----------
    run, trained, cleaned
    head
        What it says of itself.
    listener
        Receives how many objects were checked.
    incremental
        Whether it is a part: its records are not all of the collection.
    """
    # The order is the promise: the register knows of the release before anyone can see it, so that
    # the next run joins the two even if this one dies here; the model is there before the release
    # that names its digest.
    chain = note_release(run, trained.model_digest, incremental=incremental)
    if exists(run.work_model_url):  # otherwise a run died between this line and the next
        publish_model(run.work_model_url, run.model_url)
    publish_release(
        cleaned.plan,
        cleaned.receipts,
        dict(head) | {"account": chain.describe()},
        lambda n: listener(Event("publish", "advances", n, "objects")),
    )


def describe_fit(
    run: Run, trained: Trained, cleaned: Cleaned, found: Mapping[str, Any]
) -> dict[str, Any]:
    """What a release, or a growing one of all its parts, says of its fit and its audit."""
    keeps = trained.keeps_features or cleaned.plan.basis is not None
    names = trained.feature_names or run.collection.schema_of_records.feature_names
    return {
        "method": run.method.name,
        "method_source": run.method.source,
        "options": run.method_options(),
        "guarantee": publish_guarantee(trained.guarantee),
        "promise": trained.guarantee.statement or None,
        "training_digest": find_training(run),
        "model_digest": trained.model_digest,
        "audit": publish_findings(found),
        "feature_names": list(names) if trained.reads == "features" and keeps else [],
    }


def _head(run: Run, trained: Trained, cleaned: Cleaned, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the release says of itself; of the source by allow-list, see store/DESIGN.md."""
    # Which records stood together is released where that was chosen; surrogates are by no one.
    cut = run.options.release.partitions and trained.tile_rows is None
    parts = run.collection.schema_of_records.partitions
    return {
        **describe_fit(run, trained, cleaned, found),
        "options_sha256": run.options.digest(),
        "source_digest": run.collection.digest,
        **describe_proof(run),
        "versions": list_versions(),
        "started": run.state.started,
        "published": now(),
        "partitions": [one.n_records for one in parts] if cut else [],
        "n_withheld": hide_small_count(cleaned.n_withheld),
    }
