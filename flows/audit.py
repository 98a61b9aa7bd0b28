"""The audit stage: judge the finished release on labelled records its map has never seen."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from flows.run import Run
from flows.train import Trained
from privpipe.attacks.options import AttackOptions
from privpipe.attacks.rounds import audit_release
from privpipe.attacks.utility import Promise, UtilityLosses, audit_utility
from privpipe.attacks.verdicts import AttackReport
from privpipe.dist.attacks import distribute_attacks
from privpipe.dist.cleaned import CleanedShards
from privpipe.dist.evidence import sample_evidence
from privpipe.dist.reduce import ShardedCollection
from privpipe.errors import GuaranteeError, InputError, MemoryBudgetError
from privpipe.protocols import Shards
from privpipe.records.splits import Part
from privpipe.sanitizers.summary import UtilitySummary
from privpipe.store.artifacts import read_arrays, read_model_header
from privpipe.store.collection import PartCount
from privpipe.store.release import ReleasePlan

__all__ = ["audit_stage"]

WIDEST_GAP = 1 / 40
"""Of the budget's root, between what the audit finds and what the receipts say."""


def audit_stage(
    run: Run,
    trained: Trained,
    plan: ReleasePlan,
    cost: UtilitySummary | None,
    client: Client,
) -> dict[str, Any]:
    """Audit the release that is about to be published.

    Returns
    -------
    findings
        JSON-ready; see `audit_release`, with the basis of the figures in words.

    Raises
    ------
    GuaranteeError
        If a released record lost more utility than was promised, or the losses are not what the
        receipts of the cleaning say (`cost`): nothing is published.
    """
    held_out = run.options.audit.holdout > 0
    judged = _count_judged(run, held_out)
    raw = _shards(run, trained, client, "fit" if held_out else "all", "audit_raw")
    findings = audit_release(
        raw,
        _released(run, trained, plan, client, "attack" if held_out else "all", "audit_attack"),
        _released(run, trained, plan, client, "test" if held_out else "all", "audit_judge"),
        n_released=_count_released(raw, trained, plan),
        unit_roundoff=_unit_roundoff(plan),
        keeps_features=trained.keeps_features or plan.basis is not None,
        coding=getattr(run.options.method, "label_coding", "zero_one"),
    )
    utility = _audit_utility(run, plan, cost, client)
    return {
        "basis": _describe_basis(run, held_out),
        **findings,
        "e_utility": utility,
        "n_groups": judged.n_groups,
        "adversaries": _attack(run, trained, plan, client, held_out),
    }


def _audit_utility(
    run: Run, plan: ReleasePlan, cost: UtilitySummary | None, client: Client
) -> dict[str, Any] | None:
    """What every released record lost; None where nothing of the kind is promised."""
    promise = _read_promise(run)
    if promise is None:
        return None
    collection = replace(
        run.collection,
        desired=(),
        confidential=(),
        weights=None,
        only_finite=False,
        released_url=plan.data_url,
        released_run=plan.run,
        released_basis=plan.basis,
    )
    shards = ShardedCollection(collection, client, run.run_id, "audit_utility", run.keeper)
    losses = audit_utility(shards, promise)
    if promise.utility_budget > 0:  # at 0 the promise is exact up to rounding
        _check_promise(losses, promise, cost, is_dense=plan.basis is None)
    return losses.describe(promise.utility_budget)


def _check_promise(
    losses: UtilityLosses, promise: Promise, cost: UtilitySummary | None, *, is_dense: bool
) -> None:
    """No record may have lost too much, and what the receipts say must be what is found.

    Stored records are rounded after cleaning measured them: their margin is at most a fiftieth of
    the budget's root in a dense release. Readers of a factored one round by themselves.
    """
    if losses.n_above:
        raise GuaranteeError(
            f"{losses.n_above} of {losses.n_records} released records lost more utility than the "
            "budget allows.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="budget-exceeded",
        )
    if cost is None or not is_dense or losses.n_records != cost.n_records - cost.n_withheld:
        return
    pairs = (losses.largest, cost.largest), (losses.total, cost.total)
    n = max(losses.n_records, 1)
    apart = [abs(found**0.5 - said**0.5) for found, said in pairs]
    if max(apart[0], apart[1] / n**0.5) > WIDEST_GAP * promise.utility_budget**0.5:
        raise GuaranteeError(
            "The audit finds another loss of utility than the cleaning reported.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="audit-disagrees",
        )


def _attack(
    run: Run, trained: Trained, plan: ReleasePlan, client: Client, held_out: bool
) -> dict[str, Any]:
    """Every adversary on a bounded sample of the held-out records; a failure is unknown."""
    if not run.training.confidential or not run.options.audit.adversaries:
        return {"verdict": "unknown", "reason": "no adversary was asked for", "decisions": []}
    options = AttackOptions(
        adversaries=run.options.audit.adversaries,
        max_records=run.options.audit.max_records,
        rare_classes="merge",
    )
    records = _shards(run, trained, client, "held_out" if held_out else "all", "attack").collection
    named = {"model_url": run.stored_model_url, "model_digest": trained.model_digest}
    if run.trains_on_itself:
        named = {}
        records = replace(
            records, released_url=plan.data_url, released_run=plan.run, released_basis=plan.basis
        )
    try:
        report = distribute_attacks(
            client,
            partial(sample_evidence, records, options, **named),
            options=options,
            run_id=run.run_id,
            keeper=run.keeper,
        )
    except (InputError, MemoryBudgetError) as error:
        return {"verdict": "unknown", "reason": str(error), "decisions": []}
    found: dict[str, Any] = json.loads(report.to_json())
    return found | {
        "verdict": report.verdict,
        "decisions": json.loads(report.decisions.to_json(orient="records")),
        "strongest": _strongest(report, run),
    }


def _strongest(report: AttackReport, run: Run) -> dict[str, Any]:
    """Per confidential variable the strongest adversary on released and on raw records."""
    found: dict[str, Any] = {}
    for column in run.training.schema.confidential:
        score = "accuracy" if column.is_categorical else "r2"
        found[column.name] = {}
        for source in ("raw", "released"):
            try:
                name, value = report.strongest(column.name, score, source)
            except InputError:  # no attack on it succeeded
                continue
            found[column.name][source] = {
                "adversary": name,
                "score": score,
                "estimate": value.interval.estimate,
                "lower": value.interval.lower,
                "upper": value.interval.upper,
                "baseline": value.baseline,
            }
    return found


def _shards(
    run: Run, trained: Trained, client: Client, part: Part, label: str
) -> ShardedCollection:
    kept = run.training.keeping(run.split, part)
    collection = replace(kept, indicators=trained.reads == "attributes")
    return ShardedCollection(collection, client, run.run_id, label, run.keeper)


def _released(
    run: Run, trained: Trained, plan: ReleasePlan, client: Client, part: Part, label: str
) -> Shards:
    """Raw and released records together: read from the release, or cleaned where they are read."""
    shards = _shards(run, trained, client, part, label)
    if not run.trains_on_itself:
        return CleanedShards(shards, run.stored_model_url, trained.model_digest)
    paired = replace(
        shards.collection,
        released_url=plan.data_url,
        released_run=plan.run,
        released_basis=plan.basis,
    )
    return replace(shards, collection=paired)


def _count_judged(run: Run, held_out: bool) -> PartCount:
    parts: tuple[Part, ...] = ("fit", "attack", "test") if held_out else ("all",)
    counts = _count_parts(run, parts)
    if min(part.n_records for part in counts) < 2:
        raise InputError(
            f"Holding out {run.options.audit.holdout:g} of the training records leaves too few "
            f"to {' / '.join(parts)}: {' / '.join(str(part.n_records) for part in counts)}.",
            remedy="Change [audit] holdout, or train on more records.",
            code="audit-too-small",
        )
    return counts[-1]


def _count_parts(run: Run, parts: tuple[Part, ...]) -> tuple[PartCount, ...]:
    """As `Collection.count_parts`, unless an interrupted run has counted them."""
    keeper = run.keeper and run.keeper.about("count_parts", run.training, run.split, parts)
    if keeper is not None and (kept := keeper.read("counts")) is not None:
        known: tuple[PartCount, ...] = kept
        return known
    counts = tuple(run.training.count_parts(run.split, parts))
    if keeper is not None:
        keeper.write("counts", counts)
    return counts


def _count_released(raw: Shards, trained: Trained, plan: ReleasePlan) -> int:
    """Columns of a released record as its readers see it."""
    if trained.reads == "attributes":
        return raw.schema.n_features
    return trained.n_features_out if plan.basis is None else plan.basis.n_features


def _unit_roundoff(plan: ReleasePlan) -> float:
    """Of the released dtype; indicators of released codes are exact."""
    dtype = plan.record_dtype
    floating = dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float64)
    return float(np.finfo(floating).eps) / 2


def _read_promise(run: Run) -> Promise | None:
    """The promised predictor, read from the stored model as an outsider would read it."""
    header = read_model_header(run.stored_model_url)
    budget = header["fields"].get("utility_budget")
    if budget is None or "predictor" not in header["arrays"]:
        return None
    predictor = read_arrays(run.stored_model_url, ["predictor"])["predictor"]
    return Promise(predictor, float(budget))


def _describe_basis(run: Run, held_out: bool) -> str:
    which = "the released records" if run.trains_on_itself else "training records cleaned alike"
    if held_out:
        grouped = f", whole groups of {run.split.group!r}" if run.split.group else ""
        return (
            f"Judged on {which} that the fit never saw ({run.options.audit.holdout:.0%} held "
            f"out{grouped}; half trains the attack, half is judged)."
        )
    return f"Judged on {which} the map was fitted to: optimistic for both sides."
