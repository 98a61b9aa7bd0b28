"""Keys and account of a run: who draws, what every partition loses by it, whether both will last.

An account that begins anew lets the same records lose their limit again. A key that is gone is
followed by another, and two draws for one record are averaged.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import fsspec
import numpy as np

from privpipe.errors import GuaranteeError, StoreError
from privpipe.pipeline.runs.run import Run, Trained
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.promises import CHARGED, RECORDS_OF_ONE
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.mounts import find_loss
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.keyring import account as accounts
from privpipe.store.keyring.account_chain import AccountChain, append_link, check_chain, reaching
from privpipe.store.keyring.keyfiles import check_keys_apart, key_folder
from privpipe.store.keyring.keys import PartitionKeys, make_partition_keys
from privpipe.store.releases.incremental_release import PARTS
from privpipe.store.releases.release_writing import ReleasePlan


def check_limit(run: Run, epsilon: float) -> None:
    """Refuse before anything is fitted what no draws of the method's epsilon can be.

    Whether these draws were charged before is known when the map is. A partition whose limit is
    reached and that was never charged this epsilon cannot be that case.

    Raises
    ------
    GuaranteeError
        If the limit would be passed.
    StoreError
        If the account cannot be reached, or is damaged.
    """
    limit = run.options.privacy.most_epsilon
    method, delta = run.options.method, float(getattr(run.options.method, "delta", 0.0))
    charge = accounts.Charge("", "", epsilon, delta, "", method.concentrates())
    most_delta = run.options.privacy.most_delta or max(accounts.MOST_DELTA, delta)
    account = run.open_account()
    check_remembered(run, check_chain(account.url))
    for part in run.collection.schema_of_records.partitions:
        loss = account.read(part.digest)
        # The same draws again lose nothing more. Whether these are the same is known only with the
        # model, so here a charge of at least this epsilon is taken for that one; the account
        # itself decides when the loss is reserved.
        if not any(entry.epsilon >= epsilon for entry in loss.entries):
            account.check_limit(loss, replace(charge, partition=part.digest), limit, most_delta)


def make_keys(run: Run, trained: Trained) -> PartitionKeys:
    """Keys of the draws: bound to content, model and treatment, stored apart from the release."""
    path = local_path(run.release_url)
    if path is not None:
        check_keys_apart(path)
    # Surrogates are made of the records of the fit, by keys of this run alone: these end with it,
    # and no other run may need them.
    mixes = trained.tile_rows is not None
    records = run.training if mixes else run.collection
    treatment = f"surrogates of run {run.run_id}" if mixes else _describe_treatment(run, trained)
    parts, model = records.schema_of_records.partitions, trained.model_digest
    digest = hashlib.sha256(treatment.encode()).hexdigest()
    return make_partition_keys(parts, model, digest, run=run.run_id, source=records.digest)


def _describe_treatment(run: Run, trained: Trained) -> str:
    """What decides, beside content and model, which values the map is given.

    Equal words on two values of one record show their difference exactly: what changes the
    values changes the words.
    """
    columns = run.collection.attributes if trained.reads == "attributes" else ()
    fill = b"" if trained.mean_record is None else np.array(trained.mean_record, "<f8").tobytes()
    about = {"columns": list(columns), "fill": hashlib.sha256(fill).hexdigest()}
    return json.dumps(about, sort_keys=True)


def _list_charges(
    run: Run, trained: Trained, keys: PartitionKeys | None
) -> tuple[accounts.Charge, ...]:
    """What a run takes from every partition; nothing where no differential privacy is promised."""
    guarantee, named = trained.guarantee, {} if keys is None else keys.list_fingerprints()
    if guarantee.number is None:
        return ()
    rho: float | None = None
    if guarantee.kind == "central_dp":
        rho = run.options.method.concentrates()
        if rho is not None:  # of n records of a subject n times n
            rho *= dict(guarantee.parameters).get(RECORDS_OF_ONE, 1.0) ** 2
        # The moments were drawn once, and are in the model: what is made of it again costs nothing.
        # Of a collection that grows, once for all of its releases; of more records of a subject
        # than before once more.
        source, steps = trained.model_digest, trained.steps
        if steps:
            source = f"{accounts.find_line(run.open_account().url, steps)}, {guarantee.number!r}"
        for part in run.training.schema_of_records.partitions:
            about = f"moments of {part.digest} in {source}"
            named[part.digest] = hashlib.sha256(about.encode()).hexdigest()
    loss = guarantee.number, guarantee.delta, guarantee.protects, rho
    return tuple(accounts.Charge(content, key, *loss) for content, key in named.items())


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
    charges = _list_charges(run, trained, keys) if trained.guarantee.kind in CHARGED else ()
    if not charges:
        yield 0.0
        return
    account, privacy = run.open_account(), run.options.privacy
    # Without a limit of its own, delta is that of one release: a second one is a decision.
    most_delta = privacy.most_delta or max(accounts.MOST_DELTA, trained.guarantee.delta)
    charged = (loss.partition for loss in account.read_all() if loss.n_charges)
    run.sketches.check([*(charge.partition for charge in charges), *charged])
    check_remembered(run, check_chain(account.url))
    # Reserved before the first chunk exists: a process that dies later has charged for what may
    # have been read, never released what was not charged. The chain then notes the new head.
    account.reserve(charges, run.run_id, privacy.most_epsilon, most_delta)
    append_link(account.url, "charge")
    try:
        account = account.renew()
        lost = [account.read_joined(charge.partition) for charge in charges]
        yield max(min(one.epsilon, one.compose(most_delta)) for one in lost)
    except BaseException:  # Ctrl-C, too
        # A chunk that was written may have been copied by whoever reads the folder: it stays lost.
        if not _has_written(plan):
            account.record("void", charges, run.run_id)
            append_link(account.url, "charge")
        raise


def describe_account(run: Run) -> dict[str, float | None] | None:
    """What the records of a run have lost by now in all releases, and the limit.

    None where the method promises no epsilon, so that nothing is counted.
    """
    if run.options.method.consumes() is None:
        return None
    account, privacy = run.open_account(), run.options.privacy
    delta = privacy.most_delta or accounts.MOST_DELTA
    parts = (
        *run.collection.schema_of_records.partitions,
        *run.training.schema_of_records.partitions,
    )
    lost = [account.read_joined(digest) for digest in {part.digest for part in parts}]
    worst = max(lost, key=lambda one: min(one.epsilon, one.compose(delta)))
    composed = worst.compose(delta)
    at = delta if composed < worst.epsilon else worst.delta
    return {"epsilon": min(composed, worst.epsilon), "delta": at, "limit": privacy.most_epsilon}


def _has_written(plan: ReleasePlan) -> bool:
    """Whether any chunk is there, with or without a receipt, or had one before it was removed."""
    # Two traces, since a chunk is written before its receipt, and the chunks of a refused release
    # are removed while its ledger stays.
    noted = list_keys(open_store(plan.work_url), "ledger/")
    return bool(noted) or any("/c/" in key for key in list_keys(open_store(plan.data_url)))


def confirm_loss(run: Run, run_id: str) -> None:
    """Say that the release of a run, maybe one that died since, is published.

    Its loss was counted from the first chunk on.
    """
    if run.options.method.consumes() is not None:
        account = run.open_account()
        digests = [part.digest for part in run.collection.schema_of_records.partitions]
        account.confirm_run(digests, run_id)
        append_link(account.url, "charge")


def check_remembered(run: Run, chain: AccountChain) -> None:
    """Refuse draws on an account that has forgotten some, or was begun anew.

    Looked at are the releases named by ``[audit] earlier`` and those beside this one, with the
    parts of those that grow.

    Raises
    ------
    GuaranteeError
        If one of them recorded a head that this chain of the same account never had. If one of them
        was charged for the same records to an account that is not this one.
    StoreError
        If the folder of the releases cannot be reached.
    """
    for url in _list_releases(run):
        with reaching(url):
            header = _read_header(url)
        recorded = header["account"]
        mine = recorded.get("chain") == chain.id
        if chain.knows(str(recorded.get("head"))) or not (mine or _is_charged(run, header)):
            continue
        said = "" if mine else " or to another account for the same records"
        raise GuaranteeError(
            f"The account at {shown(chain.url)} does not know the release {shown(url)}, which "
            f"was charged to it{said}. It was restored from an older backup, begun anew, or "
            "lost its newest entries.",
            remedy="Restore the newest backup of the account, or name in [privacy] account the one "
            "that knows. Nothing private is released on one that has forgotten losses.",
            code="account-behind",
        )


def _is_charged(run: Run, header: Mapping[str, Any]) -> bool:
    """Whether a release lost of these records what an account has to remember."""
    promised = header.get("guarantee")
    kind = promised.get("kind") if isinstance(promised, dict) else None
    return kind in CHARGED and header.get("source_digest") == run.collection.digest


def _list_releases(run: Run) -> Iterator[str]:
    """Places that may be releases: named ones, and all beside this one; each with its parts."""
    folder, _, _ = run.release_url.rstrip("/").rpartition("/")
    if folder.endswith(f"/{PARTS}"):  # this is a part: what grows lies beside others
        folder = folder.rpartition("/")[0].rpartition("/")[0]
    for url in (*run.options.audit.earlier, *_list_places(folder)):
        yield url
        yield from _list_places(join(url, PARTS))


def _list_places(folder: str) -> list[str]:
    """What lies in a folder; nothing where there is none, or it is a file."""
    if not folder:
        return []
    with reaching(folder):
        files, path = fsspec.core.url_to_fs(local_path(folder) or folder)
        files.invalidate_cache()
        urls = files.ls(path, detail=False) if files.isdir(path) else []
    return [join(folder, key) for key in sorted(one.rstrip("/").rpartition("/")[2] for one in urls)]


def _read_header(url: str) -> dict[str, Any]:
    """The header of a release, with what it records of its account; empty where it is no such."""
    content = read_bytes(open_store(url, read_only=True), "zarr.json")
    try:
        header = dict(json.loads(content or b"")["attributes"]["privpipe"])
        return header | {"account": dict(header["account"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"account": {}}


def check_lasting(options: RunOptions) -> None:
    """Refuse a promise that holds across runs where nothing lasts across them.

    Raises
    ------
    StoreError
        If a method with differential privacy has its account or its keys in memory or in a
        container's own layer. Not where ``[privacy] ephemeral`` accepts it.
    """
    fleeting = list_fleeting(options) if is_promised_across_runs(options) else []
    if fleeting and options.privacy.ephemeral == "refuse":
        raise StoreError(
            f"{'. '.join(fleeting)}. What records have lost, and by which draws, would be lost.",
            remedy="Name folders that last, as a volume of the container, in [privacy] account or "
            "PRIVPIPE_ACCOUNT and in PRIVPIPE_KEYS. Or, for records that no one releases again, "
            'set [privacy] ephemeral = "accept", which counts as weaker.',
            code="ephemeral",
        )


def is_promised_across_runs(options: RunOptions) -> bool:
    """Whether the method charges an account."""
    return options.method.consumes() is not None


def list_fleeting(options: RunOptions) -> list[str]:
    """What is for later runs and lies where it is lost, each in a sentence without its end.

    The account, with its registers of releases and attempts, of every run; the keys of those that
    charge it.
    """
    places = {"account": accounts.find_account(options.privacy.account)}
    if is_promised_across_runs(options):
        places["key folder"] = str(key_folder())
    found = [(what, place, find_loss(place)) for what, place in places.items()]
    return [f"The {what} {shown(place)} is in {loss}" for what, place, loss in found if loss]
