"""The audit of surrogates that are signed sums: what they keep, and attacks by name.

The attacks are those that signed sums are known to fall to. What none of them finds is unknown,
never safe: second moments and the regression model are released by design.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample, list_possible, run_kind
from privpipe.attacks.moments.surrogate_utility import (
    learn,
    report_utility,
    summarise_pairs,
    summarise_tests,
)
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.errors import InputError, PrivpipeError
from privpipe.numerics.regression.labels import name_targets
from privpipe.numerics.regression.moments import CoMoments
from privpipe.protocols import FloatArray
from privpipe.records.holdout import Part
from privpipe.store.arrays.blocks import read_block
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.release import ReleasePlan
from privpipe_flows.runs.run import Run, find_attack_options
from privpipe_flows.runs.stages.audit_surrogate import MOST_RECORDS, read_some_features
from privpipe_flows.runs.stages.train import Trained

__all__ = ["NOT_PROTECTED", "audit_masking"]

NOT_PROTECTED = (
    "second moments of the records, their means and their approximate number",
    "the regression coefficients, which the responses are made of: no residual is released",
    "a record, from whoever knows all others and gets surrogates beyond a tenth of the square of "
    "their number, over all releases together",
    "all records, from whoever kept P or its key; both are destroyed when the release is published",
    "anything in the sense of differential privacy",
)
"""What the report says is not protected."""

MOST_RELEASED = 200_000
"""Surrogates that attacks are given."""

LEAST_RECORDS = 10
"""Records of either side below which nothing is measured."""


def audit_masking(
    run: Run, trained: Trained, plan: ReleasePlan, executor: Executor
) -> dict[str, Any]:
    """Measure utility on held-out raw records, and attack the surrogates.

    Returns
    -------
    findings
        As `audit_surrogate` gives them; `surrogate` holds the attacks, the utility and what is not
        protected.
    """
    audited = run.options.audit
    options = find_attack_options(run.options)
    attacks: dict[str, Any] = {}
    utility: dict[str, Any] | None = None
    n_judged = 0
    if audited.holdout > 0:
        fitted, held_out = (_keep(run, part) for part in ("fit", "held_out"))
        pairs = _reduce(fitted, executor, summarise_pairs)
        attacks = _attack(fitted, held_out, plan, pairs, options, executor)
        utility = _measure_utility(run, trained, plan, pairs, held_out, executor, options)
        n_judged = 0 if utility is None else int(utility["n_records"])
    return {
        "basis": "A surrogate release: its records are nobody's.",
        "n_records": n_judged,
        "n_groups": None,
        "privacy": {},
        "desired": {},
        "confidential": {},
        "e_utility": None,
        "membership": attacks.get("membership"),
        "surrogate": {
            "attacks": attacks,
            "utility": utility,
            "not_protected": list(NOT_PROTECTED),
        },
        "adversaries": _judge(attacks, utility, options),
    }


def _keep(run: Run, part: Part) -> Collection:
    return replace(run.training, only_finite=False).keeping(run.split, part)


def _reduce(collection: Collection, executor: Executor, summarise: Any, **more: Any) -> CoMoments:
    shards = ShardedCollection(collection, executor, label="audit")
    found: CoMoments = shards.reduce(partial(summarise, schema=collection.schema, **more))
    return found


def _expand(moments: CoMoments, n_features: int) -> FloatArray:
    """Sum of products of [features, ones, the rest]."""
    whole = moments.scatter + moments.count * np.outer(moments.mean, moments.mean)
    sums = moments.count * moments.mean
    whole = np.insert(np.insert(whole, n_features, sums, axis=0), n_features, 0.0, axis=1)
    whole[:, n_features] = np.insert(sums, n_features, moments.count)
    return whole


def _attack(
    fitted: Collection,
    held_out: Collection,
    plan: ReleasePlan,
    pairs: CoMoments,
    options: AttackOptions,
    executor: Executor,
) -> dict[str, Any]:
    """Every kind of attack that needs nothing but the release and records of both sides."""
    d = fitted.schema.n_features
    gram = _expand(pairs, d)[: d + 1, : d + 1]
    task = ("surrogates", (fitted, held_out, plan, gram, options))
    [(_, found)] = executor.map_tasks(attack_surrogates, [task], prefix="attack")
    if isinstance(found, PrivpipeError):
        raise found
    return dict(found)


def attack_surrogates(
    fitted: Collection,
    held_out: Collection,
    plan: ReleasePlan,
    gram: FloatArray,
    options: AttackOptions,
) -> dict[str, Any]:
    """Worker side: read the release and a sample of both sides; numbers alone come back."""
    sides = [_append_ones(read_some_features(side)) for side in (fitted, held_out)]
    if min(map(len, sides)) < LEAST_RECORDS:
        return {}
    n_released = min(plan.chunks.n_records, MOST_RELEASED)
    released = np.asarray(read_block(plan.data_url, FEATURES, 0, n_released, plan.run), np.float64)
    sample = Sample(released=released, members=sides[0], others=sides[1], gram=gram)
    found: dict[str, Any] = {}
    for name in list_possible(sample):
        try:
            found[name] = json.loads(run_kind(name, sample, options).to_json())
        except InputError as error:
            found[name] = {"failed": str(error)}
    return found


def _append_ones(features: FloatArray) -> FloatArray:
    known = features[np.isfinite(features).all(axis=1)][:MOST_RECORDS]
    return np.column_stack([known, np.ones(len(known))])


def _measure_utility(
    run: Run,
    trained: Trained,
    plan: ReleasePlan,
    pairs: CoMoments,
    held_out: Collection,
    executor: Executor,
    options: AttackOptions,
) -> dict[str, Any] | None:
    """Ridge regression of surrogates and of raw records, both on held-out raw records."""
    q = trained.n_features_out
    if pairs.count < 2:
        return None
    masked, raw = learn(_sum_released(plan, trained), q), learn(_expand(pairs, q - 1), q)
    tests = _reduce(held_out, executor, summarise_tests, masked=masked, raw=raw)
    if tests.count < LEAST_RECORDS:
        return None
    hidden = name_targets(held_out.schema.confidential)
    names = trained.response_names
    return report_utility(tests, masked, raw, names, hidden, level=options.level).as_dict()


def _sum_released(plan: ReleasePlan, trained: Trained) -> FloatArray:
    """Sum of products of the surrogates' [features, responses]."""
    total = np.zeros((trained.n_features_out + len(trained.response_names),) * 2)
    for chunk in range(plan.chunks.n_chunks):
        start, stop = plan.chunks.rows(chunk)
        parts = [
            np.asarray(read_block(plan.data_url, array.name, start, stop, plan.run), np.float64)
            for array in plan.arrays
        ]
        rows = np.hstack([part.reshape(stop - start, -1) for part in parts])
        total += rows.T @ rows
    return total


def _judge(
    attacks: Mapping[str, Any], utility: Mapping[str, Any] | None, options: AttackOptions
) -> dict[str, Any]:
    """An attack that succeeds is a leak; that none does proves nothing of others."""
    reasons = [
        f"{name}: {found['recovered']['estimate']:.1%} of {found['n_attacked']} records recovered"
        for name, found in attacks.items()
        if found.get("succeeded")
    ]
    member = attacks.get("membership", {})
    if "true_positive" in member:
        least = member["true_positive"]["lower"] - member["false_positive"]["upper"]
        if least > options.max_advantage:
            reasons.append(f"membership is told with an advantage of at least {least:.3f}")
    for name, found in zip(
        (utility or {}).get("hidden", ()), (utility or {}).get("explained", ()), strict=True
    ):
        if found["lower"] > options.max_advantage:
            reasons.append(
                f"the released model explains {found['estimate']:.2f} of the variance of {name}"
            )
    if reasons:
        return {"verdict": "leaks", "reason": "; ".join(reasons) + ".", "decisions": []}
    failed = [name for name, found in attacks.items() if "failed" in found]
    lacking = [name for name in ("membership", "all_but_one") if name not in attacks]
    reason = (
        f"no attack succeeded ({', '.join(sorted(set(attacks) - set(failed))) or 'none was run'}), "
        "which proves nothing of others"
    )
    if failed or lacking:
        reason += f"; not measured: {', '.join([*failed, *lacking])}"
    return {"verdict": "unknown", "reason": f"{reason}.", "decisions": []}
