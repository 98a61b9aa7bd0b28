"""Keys and account of a run: who draws, and what every partition loses by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from privpipe.errors import GuaranteeError
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.known_records import find_sketches, open_account
from privpipe.pipeline.stages.remembered import check_remembered
from privpipe.pipeline.stages.train import Trained
from privpipe.records.partitions import Partition
from privpipe.store.access.location import list_keys, local_path, open_store
from privpipe.store.keyring.account import Charge, add_up_losses
from privpipe.store.keyring.account_chain import append_link, check_chain
from privpipe.store.keyring.keyfiles import check_keys_apart
from privpipe.store.keyring.partition_keys import PartitionKeys, make_partition_keys
from privpipe.store.releases.release import ReleasePlan


def check_limit(run: Run) -> None:
    """Refuse before anything is fitted what no draws of this epsilon can be.

    Whether these draws were charged before is known when the map is; a partition whose limit
    is reached and that was never charged this epsilon cannot be that case.

    Raises
    ------
    GuaranteeError
        If the limit would be passed.
    StoreError
        If the account cannot be reached, or is damaged.
    """
    epsilon, limit = run.method.loses(run.options.method), run.options.privacy.limit
    if epsilon is None:
        return
    account = open_account(run)
    check_remembered(run, check_chain(account.url))
    for part in run.collection.schema_of_records.partitions:
        loss = account.read(part.digest)
        repeats = any(entry.epsilon >= epsilon for entry in loss.entries)
        if limit is None or repeats:
            continue
        lost = max(loss.epsilon, account.read_joined(part.digest)[0])
        if add_up_losses([lost, epsilon]) > limit:
            raise GuaranteeError(
                f"A partition has lost epsilon {lost:g}; another {epsilon:g} would be above "
                f"[privacy] limit = {limit:g}.",
                remedy="Decide on another limit. `privpipe account` lists what was lost.",
                code="account-exhausted",
            )


def make_keys(run: Run, trained: Trained) -> PartitionKeys:
    """Keys of the draws: bound to content, model and treatment, kept apart from the release."""
    path = local_path(run.release_url)
    if path is not None:
        check_keys_apart(path)
    partitions = run.collection.schema_of_records.partitions
    if trained.n_records is not None:  # records of nobody: who they are is what they are made from
        content = "".join(part.digest for part in run.training.schema_of_records.partitions)
        digest = hashlib.sha256(content.encode()).hexdigest()
        partitions = (Partition("surrogate", 0, trained.n_records, digest),)
    return make_partition_keys(
        partitions,
        trained.model_digest,
        _digest_treatment(run, trained),
        run=run.run_id,
        source=run.collection.digest,
    )


def _digest_treatment(run: Run, trained: Trained) -> str:
    """Digest of what decides, beside content and model, which values the map is given.

    Equal words on two values of one record show their difference exactly: what changes the
    values changes the words.
    """
    columns = run.collection.attributes if trained.reads == "attributes" else ()
    fill = b"" if trained.mean_record is None else trained.mean_record.astype("<f8").tobytes()
    about = {"columns": list(columns), "fill": hashlib.sha256(fill).hexdigest()}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _list_charges(trained: Trained, keys: PartitionKeys | None) -> tuple[Charge, ...]:
    """What a run takes from every partition; nothing where no differential privacy is promised."""
    guarantee = trained.guarantee
    if keys is None or guarantee.kind != "local_dp" or guarantee.number is None:
        return ()
    return tuple(
        Charge(content, fingerprint, guarantee.number, guarantee.delta, guarantee.protects)
        for content, fingerprint in keys.list_fingerprints().items()
    )


@contextmanager
def reserve_loss(
    run: Run, trained: Trained, plan: ReleasePlan, keys: PartitionKeys | None
) -> Iterator[float]:
    """Charge the loss before the first chunk; given back if the block fails and wrote nothing.

    Yields
    ------
    loss
        Largest epsilon that a record of this run has lost by now, this run included, in whatever
        partition it stood; 0 where nothing is counted.

    Raises
    ------
    GuaranteeError
        If a partition would lose more than the limit.
    StoreError
        If the account cannot be reached, or is damaged; FormatError if the sketch of a partition
        that was ever charged is missing.
    """
    charges = _list_charges(trained, keys)
    account = open_account(run)
    if charges:
        find_sketches(run).check(
            [
                *(charge.partition for charge in charges),
                *(loss.partition for loss in account.read_all() if loss.n_charges),
            ]
        )
        check_remembered(run, check_chain(account.url))
        account.reserve(charges, run.run_id, run.options.privacy.limit)
        append_link(account.url, "charge")
    try:
        yield max((account.read_joined(charge.partition)[0] for charge in charges), default=0.0)
    except BaseException:
        if charges and not _has_written(plan):
            account.record("void", charges, run.run_id)
            append_link(account.url, "charge")
        raise


def _has_written(plan: ReleasePlan) -> bool:
    """Whether any chunk is there, with or without a receipt, or had one before it was removed."""
    noted = list_keys(open_store(plan.work_url), "ledger/")
    return bool(noted) or any("/c/" in key for key in list_keys(open_store(plan.data_url)))


def confirm_loss(run: Run, trained: Trained) -> None:
    """Say that the release is published; its loss was counted from the first chunk on."""
    if trained.guarantee.kind != "local_dp":  # nothing was charged, and the key may be gone
        return
    charges = _list_charges(trained, make_keys(run, trained))
    if charges:
        (account := open_account(run)).record("confirm", charges, run.run_id)
        append_link(account.url, "charge")


def confirm_published(run: Run, run_id: str) -> None:
    """The same for a run that died between its release and its account."""
    if run.method.loses(run.options.method) is not None:
        digests = [part.digest for part in run.collection.schema_of_records.partitions]
        (account := open_account(run)).confirm_run(digests, run_id)
        append_link(account.url, "charge")
