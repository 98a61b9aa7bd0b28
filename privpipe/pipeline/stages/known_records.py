"""Who the records of a run are, whatever their file: sketches beside the account.

Records that are not in a sketch cannot be charged, learned from or released: the train stage
makes what is missing, once for every partition, before anything else reads them.
"""

from __future__ import annotations

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.errors import GuaranteeError
from privpipe.numerics.identity.record_grids import Overlap
from privpipe.pipeline.runs.run import Run
from privpipe.store.keyring.account import Account, find_account
from privpipe.store.keyring.sketches import Sketches, Ties


def find_sketches(run: Run) -> Sketches:
    """The sketches beside the account of a run."""
    return Sketches(find_account(run.options.privacy.account))


def sketch_records(run: Run, executor: Executor) -> None:
    """Make the sketches of a run's records, and of those it learns from, that are not there.

    Raises
    ------
    StoreError, FormatError
        If the account cannot be reached, or a sketch is missing or damaged.
    GuaranteeError
        If records to protect are said to be public.
    """
    sketches = find_sketches(run)
    subject = run.options.privacy.subject
    sketch_collection(
        executor,
        run.collection,
        sketches,
        variables=run.collection.attributes,
        subject=subject,
    )
    if not run.trains_on_itself:
        sketch_collection(executor, run.training, sketches, variables=run.training.attributes)
        _check_public(run, sketches.ties())


def _check_public(run: Run, ties: Ties) -> None:
    """Records that are to be protected are not public, whatever file they are in."""
    if not run.training.public:
        return
    public = {part.digest for part in run.training.schema_of_records.partitions}
    shared = [
        overlap.mine
        for part in run.collection.schema_of_records.partitions
        for other, overlap in ties.relatives(part.digest).items()
        if other in public and not overlap.by_profile
    ]
    if shared:
        raise GuaranteeError(
            f"[training] public is true, but up to {max(shared):.3g} of the records of a "
            "partition of [collection], which are to be protected, are among them.",
            remedy="Train on records that are public and not among those to release.",
            code="not-public",
        )


def open_account(run: Run) -> Account:
    """The account of a run, which knows records again in whatever partition they are."""
    sketches = find_sketches(run)
    return Account(sketches.account, sketches.ties())


def tell_charged(run: Run) -> list[str]:
    """A sentence for what was charged of these records under other partitions."""
    if run.method.loses(run.options.method) is None:
        return []
    account, ties = open_account(run), find_sketches(run).ties()
    sentences = []
    for part in run.collection.schema_of_records.partitions:
        found = {
            other: overlap
            for other, overlap in ties.relatives(part.digest).items()
            if account.read(other).n_charges
        }
        if not found:
            continue
        most: Overlap = max(found.values(), key=lambda one: one.mine)
        why = ", as far as equal profiles tell" if most.by_profile else ""
        sentences.append(
            f"Up to {most.mine:.3g} of the records of partition {part.digest[:12]} were charged "
            f"before, in {len(found)} other partitions{why}: with those they have lost epsilon "
            f"{account.read_joined(part.digest)[0]:g}."
        )
    return sentences
