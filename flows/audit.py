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
from privpipe.attacks.rounds import Promise, audit_release
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
        If a judged record lost more utility than was promised, or more than the receipts of the
        cleaning say of any record (`cost`): nothing is published.
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
        promise=_read_promise(run, trained),
    )
    utility = findings["e_utility"]
    if utility is not None and utility["budget"] and utility["n_above_budget"]:
        raise GuaranteeError(
            f"{utility['n_above_budget']} of {judged.n_records} judged records lost more utility "
            "than the budget allows.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="budget-exceeded",
        )
    if utility is not None and utility["budget"] and cost is not None and run.trains_on_itself:
        _check_agreement(utility["largest"], cost)
    return {
        "basis": _describe_basis(run, held_out),
        **findings,
        "n_groups": judged.n_groups,
        "adversaries": _attack(run, trained, plan, client, held_out),
    }


def _check_agreement(audited: float, cost: UtilitySummary) -> None:
    """What the audit finds from the stored records cannot exceed what cleaning reported."""
    # Stored records are rounded after cleaning measured them, by far less than their margin.
    if audited > 1.05 * cost.largest:
        raise GuaranteeError(
            "The audit finds a larger loss of utility than the cleaning reported.",
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
    counts = run.training.count_parts(run.split, parts)
    if min(part.n_records for part in counts) < 2:
        raise InputError(
            f"Holding out {run.options.audit.holdout:g} of the training records leaves too few "
            f"to {' / '.join(parts)}: {' / '.join(str(part.n_records) for part in counts)}.",
            remedy="Change [audit] holdout, or train on more records.",
            code="audit-too-small",
        )
    return counts[-1]


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


def _read_promise(run: Run, trained: Trained) -> Promise | None:
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
