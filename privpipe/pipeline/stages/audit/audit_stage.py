"""The audit stage: judge the finished release on labelled records its map has never seen."""

import hashlib
import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.moment_audit import audit_release, summarise_pairs, summarise_raw
from privpipe.attacks.utility import UtilityLosses, measure_losses
from privpipe.capabilities import Descends, Promises, UtilityPromise, UtilitySummary
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import recall
from privpipe.cluster.passes.loaded_map import StoredMap, clean_shard
from privpipe.cluster.passes.reduce import JointQuery, ShardedCollection, reduce_jointly
from privpipe.errors import GuaranteeError, InputError
from privpipe.numerics.moments import Coding
from privpipe.pipeline.runs import earlier, spend
from privpipe.pipeline.runs.run import Cleaned, Run, Trained, find_attack_options
from privpipe.pipeline.stages.audit import audit_attacks, audit_canaries, audit_surrogates
from privpipe.pipeline.stages.audit.audit_places import audit_places, is_constant
from privpipe.pipeline.stages.audit.judged_records import describe_basis, find_test, pair_released
from privpipe.pipeline.stages.report_writing import describe_parameters, describe_run
from privpipe.protocols import Shards
from privpipe.records.sampling import Part, PartCount, Split
from privpipe.sanitizers.arrays import ChangedShards
from privpipe.store.arrays.blocks import digest_receipts
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.registers import note_attempt
from privpipe.store.models import open_model
from privpipe.store.releases.release_writing import ReleasePlan, read_ledger

WIDEST_GAP = 1 / 40
"""Of the budget's root, between what the audit finds and what the receipts say."""


def audit_losses(run: Run, cleaned: Cleaned, executor: Executor) -> dict[str, Any] | None:
    """What every released record lost, where the map promises that; see `audit_stage`.

    Raises
    ------
    GuaranteeError
        As `audit_stage`.
    """
    if (promise := read_promise(run)) is None:
        return None
    [losses] = reduce_jointly([query_losses(run, cleaned.plan, promise, executor)], "audit")
    return report_losses(losses, promise, cleaned)


def read_promise(run: Run) -> UtilityPromise | None:
    """What the stored model promises of every record; None where it promises no utility."""
    fitted = open_model(run.stored_model_url)
    return fitted.promise if isinstance(fitted, Promises) else None


def query_losses(
    run: Run, plan: ReleasePlan, promise: UtilityPromise, executor: Executor
) -> JointQuery:
    """What every released record lost."""
    bare = replace(run.collection, desired=(), confidential=(), weights=None, only_finite=False)
    paired = pair_released(bare, plan)
    shards = ShardedCollection(paired, executor, "audit_utility", run.checkpoints)
    return JointQuery(shards, partial(measure_losses, promise=promise))


def report_losses(lost: UtilityLosses, promise: UtilityPromise, cleaned: Cleaned) -> dict[str, Any]:
    """What every released record lost, held against what is promised."""
    if promise.utility_budget > 0:  # at 0 the promise is exact up to rounding
        _check_promise(lost, promise, cleaned.utility, is_dense=cleaned.plan.basis is None)
    return lost.describe(promise.utility_budget)


def _check_promise(
    losses: UtilityLosses, promise: UtilityPromise, cost: UtilitySummary | None, *, is_dense: bool
) -> None:
    """No record may have lost too much, and what the receipts say must be what is found.

    Stored records are rounded after cleaning measured them: their margin is at most a fiftieth of
    the budget's root in a dense release. Readers of a factored one round by themselves.
    """
    if losses.n_above:
        raise GuaranteeError(
            f"{losses.n_above} of {losses.n_records} records lost more than the utility budget.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="budget-exceeded",
        )
    if cost is None or not is_dense or losses.n_records != cost.n_records - cost.n_withheld:
        return
    # Square roots, since what was rounded moves the distance of a record, not its square: the root
    # of the largest loss by at most that of one record, and the root of their sum by at most
    # root n times that (Minkowski).
    pairs = (losses.largest, cost.largest), (losses.total, cost.total)
    n = max(losses.n_records, 1)
    apart = [abs(found**0.5 - said**0.5) for found, said in pairs]
    if max(apart[0], apart[1] / n**0.5) > WIDEST_GAP * promise.utility_budget**0.5:
        problem = "The audit finds another loss of utility than the cleaning reported."
        remedy = "Nothing was published. This is a fault of privpipe: report it."
        raise GuaranteeError(problem, remedy=remedy, code="audit-disagrees")


JUDGES = "audit_judge"
"""Label of the pass over the records that judge."""


def audit_stage(run: Run, trained: Trained, cleaned: Cleaned, executor: Executor) -> dict[str, Any]:
    """Audit the release that is about to be published.

    Returns
    -------
    findings
        The document of the report, JSON-ready; see `audit_release`, with the basis of the figures
        in words.

    Raises
    ------
    GuaranteeError
        If a released record lost more utility than was promised, or the losses are not what the
        receipts of the cleaning say: nothing is published.
    """
    # Noted before anything is judged: an audit that was stopped when it went badly has counted.
    run = begin_attempt(run, cleaned.plan)
    assert run.attempt is not None
    return {
        "format_version": 1,
        "about": describe_run(run, trained),
        "release": _describe_release(run, cleaned.plan),
        "parameters": describe_parameters(run),
        "declared": dict(run.options.about),
        **_audit(run, trained, cleaned, executor),
        "attempt": run.attempt.number,
        "unseen": describe_unseen(run, cleaned),
        "constant": is_constant(run, cleaned.plan),
        "differences": earlier.find_differences(run, trained.model_digest),
    }


def _describe_release(run: Run, plan: ReleasePlan) -> dict[str, Any]:
    """What is released, by numbers and names that the release itself shows."""
    n_features = int(np.prod(plan.arrays[0].shape[1:], dtype=int))
    included = list(run.options.release.include)
    return {"n_records": plan.chunks.n_records, "n_features": n_features, "included": included}


def describe_unseen(run: Run, cleaned: Cleaned) -> dict[str, Any] | None:
    """Records of a profile that the mapping does not know, of all that were released."""
    if cleaned.n_unseen is None:
        return None
    found = {"n_records": cleaned.n_unseen, "n_released": cleaned.plan.chunks.n_records}
    unknown = run.collection.unknown_categories
    return found | ({"unknown_categories": dict(unknown)} if unknown else {})


def _audit(run: Run, trained: Trained, cleaned: Cleaned, executor: Executor) -> dict[str, Any]:
    """Findings of one attempt, by kind of release."""
    plan = cleaned.plan
    if run.method.releases == "surrogate":
        return audit_surrogates.audit_surrogates(run, trained, plan, executor)
    held_out = run.options.audit.holdout > 0 or find_test(run) is not None
    judged = _count_judged(run, held_out)
    # Adversaries train on one half of what is held out and are judged on the other.
    parts: tuple[Part, Part, Part] = ("fit", "attack", "test") if held_out else ("all",) * 3
    learned: Part = "fit" if run.options.audit.holdout > 0 else "all"
    raw = _shards(run, trained, executor, learned, "audit_raw")
    attack = _released(run, trained, plan, executor, parts[1], "audit_attack")
    coding: Coding = getattr(run.options.method, "label_coding", "zero_one")
    promise = read_promise(run)
    queries = [
        JointQuery(raw, partial(summarise_raw, schema=raw.schema, coding=coding)),
        JointQuery(attack, partial(summarise_pairs, schema=raw.schema, coding=coding)),
    ]
    if promise is not None:
        queries.append(query_losses(run, plan, promise, executor))
    # One pass over the records answers all that do not depend on one another.
    moments, pairs, *losses = reduce_jointly(queries, "audit")
    findings = audit_release(
        raw.schema,
        (moments, pairs),
        _released(run, trained, plan, executor, parts[2], JUDGES),
        n_released=_count_released(raw, trained, plan),
        unit_roundoff=_unit_roundoff(plan),
        keeps_features=trained.keeps_features or plan.basis is not None,
        coding=coding,
        level=find_attack_options(run.options, run.attempt).level,
    )
    return {
        "basis": describe_basis(run),
        **findings,
        "e_utility": None if promise is None else report_losses(losses[0], promise, cleaned),
        "n_groups": judged.n_groups,
        **audit_attacks.attack_release(run, trained, plan, executor),
        "places": audit_places(run, trained, plan),
        "canaries": audit_canaries.audit_canaries(run),
        "account": spend.describe_account(run),
        "training": describe_training(run),
    }


def _shards(
    run: Run,
    trained: Trained,
    executor: Executor,
    part: Part,
    label: str,
    test: tuple[Collection, Split] | None = None,
) -> ShardedCollection:
    collection, split = test or (run.training, run.split)
    mine = replace(collection.keeping(split, part), indicators=trained.reads == "attributes")
    mine = replace(mine, only_finite=run.training.only_finite, fill=trained.mean_record)
    # Who judges is put into parts by subject, a column behind the confidential variables.
    if label == JUDGES and run.split.group is not None:
        mine = replace(mine, confidential=(*mine.confidential, run.split.group))
    return ShardedCollection(mine, executor, label, run.checkpoints)


def _released(
    run: Run, trained: Trained, plan: ReleasePlan, executor: Executor, part: Part, label: str
) -> ShardedCollection | ChangedShards:
    """Raw and released records together: read from the release, or cleaned where they are read."""
    test = find_test(run)
    shards = _shards(run, trained, executor, part, label, test)
    if test is None and not run.trains_on_itself:
        model, schema = StoredMap(run.stored_model_url, trained.model_digest), shards.schema
        return ChangedShards(shards, partial(clean_shard, model=model, schema=schema), schema)
    return replace(shards, collection=pair_released(shards.collection, plan))


def _count_judged(run: Run, held_out: bool) -> PartCount:
    test = find_test(run)
    parts: tuple[Part, ...] = ("fit", "attack", "test") if held_out else ("all",)
    counts = _count_parts(run, parts if test is None else parts[1:], test)
    if min(part.n_records for part in counts) < 2:
        what = f"Holding out {run.options.audit.holdout:g} of the training records"
        raise InputError(
            f"{what if test is None else 'Cutting the released records in two'} leaves too few "
            f"to {' / '.join(parts)}: {' / '.join(str(part.n_records) for part in counts)}.",
            remedy="Change [audit] holdout, or train on more records.",
            code="audit-too-small",
        )
    return counts[-1]


def _count_parts(
    run: Run, parts: tuple[Part, ...], test: tuple[Collection, Split] | None = None
) -> tuple[PartCount, ...]:
    """As `Collection.count_parts`, unless an interrupted run has counted them."""
    collection, split = test or (run.training, run.split)
    checkpoints = run.checkpoints.about("count_parts", collection, split, parts)
    return recall(checkpoints, "counts", lambda: tuple(collection.count_parts(split, parts)))


def _count_released(raw: Shards, trained: Trained, plan: ReleasePlan) -> int:
    """Columns of a released record as its readers see it."""
    if trained.reads == "attributes":
        return raw.schema.n_features
    return trained.n_features_out if plan.basis is None else plan.basis.n_features


def _unit_roundoff(plan: ReleasePlan) -> float:
    """Of the released dtype; indicators of released codes are exact."""
    dtype = np.dtype((plan.arrays[0] if plan.basis is None else plan.basis).dtype)
    floating = dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float64)
    return float(np.finfo(floating).eps) / 2


def begin_attempt(run: Run, plan: ReleasePlan) -> Run:
    """The run as this attempt, noted before anything of it is judged.

    Raises
    ------
    StoreError, FormatError
        If the register of attempts cannot be read or written.
    """
    schemas = run.collection.schema_of_records, run.training.schema_of_records
    # The attempt is of these bytes: cleaning again with another key is another attempt, and pays.
    receipts = [one for one in read_ledger(plan) if one.run == plan.run]
    account = find_account(run.options.privacy.account)
    parts = {part.digest for one in schemas for part in one.partitions}
    attempt = note_attempt(account, digest_receipts(receipts), _digest_judge(run), parts)
    return replace(run, attempt=attempt)


def _digest_judge(run: Run) -> str:
    """SHA-256 of all that changes what is measured; no limit does, and no level."""
    # The level is shared by attempts and limits decide nothing that is measured: neither makes
    # another judge.
    usual = AttackOptions()
    measured = replace(find_attack_options(run.options).without_limits(), level=usual.level)
    audit = run.options.audit
    judge = [asdict(measured), audit.holdout, run.options.collection.subject, sorted(audit.earlier)]
    return hashlib.sha256(json.dumps(judge, sort_keys=True).encode()).hexdigest()


DIGITS = 4
"""Of every number: a loss to its last bit is a function of single records."""


def describe_training(run: Run) -> dict[str, Any] | None:
    """The history of the run's model, JSON-ready; None where it was not learned by descent.

    It is in the report, and not in what is released.
    """
    fitted: Any = open_model(run.stored_model_url)
    parts = getattr(fitted, "maps", (fitted,))
    found = next((part for part in parts if isinstance(part, Descends)), None)
    if found is None:
        return None
    bound = float(getattr(found, "generalisation_bound", -1.0))
    return {
        "stopped": found.stopped,
        "columns": list(found.history_columns),
        "history": [[_round(value) for value in row] for row in found.history.tolist()],
        "tasks": list(found.task_names),
        "baselines": [_round(value) for value in found.baselines.tolist()],
        "bound": _round(bound) if bound >= 0 else None,
    }


def _round(value: float) -> float:
    return value if value.is_integer() else float(f"{value:.{DIGITS}g}")
