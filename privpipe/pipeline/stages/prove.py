"""Proof of the sources before anything is learned: what a run reads is what was ingested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.proof_pass import prove_collection
from privpipe.pipeline.runs.run import Run
from privpipe.store.access.location import join
from privpipe.store.access.workspace import workspace_url
from privpipe.store.collections.collection import Collection

WORDS = {
    "ingest": "proved: every chunk that was read is the one that was ingested, by its receipt",
    "digest": "proved: it has no receipts; every byte was read once and matched its digest, and "
    "every chunk that was read later is one of those",
    "noted": "not proved: its digest covers no more than the lengths of chunks; every chunk that "
    "was read is the one that stood there when the run began",
}


def has_receipts(run: Run) -> bool:
    """Whether nothing has to be read to prove the sources."""
    return None not in (run.collection.sealed.proof, run.training.sealed.proof)


def prove_sources(run: Run, executor: Executor) -> Run:
    """The run with a proof of both collections; those with receipts have one."""
    return replace(
        run,
        collection=_prove(run, run.collection, executor),
        training=_prove(run, run.training, executor),
    )


def _prove(run: Run, collection: Collection, executor: Executor) -> Collection:
    place = join(workspace_url(run.release_url), "sources", collection.digest[:16])
    return prove_collection(executor, collection, place)


def describe_proof(run: Run) -> dict[str, Any]:
    """For the header of the release: what is known of the records it was made of."""
    origins = {"source": run.collection.sealed.proof, "training": run.training.sealed.proof}
    return {
        f"{name}_proof": WORDS[proof.origin] if proof is not None else "not proved"
        for name, proof in origins.items()
    }
