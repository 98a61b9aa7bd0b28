"""The audit of surrogates that are signed sums: what they keep, and attacks by name.

Two questions decide. Of confidential variables: what do models fitted to the surrogates tell of
them, for raw records that no surrogate was made of, beyond the wanted answer? Of records: which are
rebuilt? Behind exact coefficients the answer is never "safe": two closed forms are run and shown,
and attacks by outsiders, which must find no more than is allowed and each succeed on an unsafe
control of the same records. What was not asked, or failed without such a control, is unknown or
unproven, and never passes. Where entries are missing, records are judged as the method completes
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.surrogate_utility import (
    CompleteRecords,
    learn,
    report_utility,
    summarise_pairs,
    summarise_tests,
)
from privpipe.attacks.threats.attack_table import Sample, SaysJson, run_kind
from privpipe.attacks.threats.signed_sums import run_control
from privpipe.attacks.threats.verdicts.outcomes import Decision
from privpipe.attacks.threats.verdicts.record_decisions import (
    CLOSED_FORMS,
    EARLIER,
    RECORD_ATTACKS,
    decide_records,
    halve_level,
    share_level,
)
from privpipe.capabilities import MixesRecords
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.attack_tasks import distribute_attacks
from privpipe.cluster.passes.evidence_sample import sample_answers
from privpipe.cluster.passes.loaded_map import load_map
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.passes.sample_drawing import Drawing, gather_sample, make_sample_key
from privpipe.errors import InputError, MemoryBudgetError, PrivpipeError
from privpipe.numerics.regression.moments import CoMoments, name_targets
from privpipe.pipeline.runs.earlier import find_named_surrogates
from privpipe.pipeline.runs.run import Run, Trained, find_attack_options
from privpipe.pipeline.stages.audit.audit_surrogate import NOT_COMPARED, draw_sides, say_nothing
from privpipe.protocols import FloatArray
from privpipe.records.sampling import Part
from privpipe.store.arrays.blocks import read_block
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.earlier_release import EarlierSurrogates
from privpipe.store.releases.release_writing import ReleasePlan

NOT_PROTECTED = (
    "single records: the coefficients are exact, so that whoever knows all other records solves "
    "for the one that is left, whatever the number of surrogates",
    "the records by which two releases differ: whoever has a release with and one without a record "
    "solves for it, and knows no other",
    "second moments of the records, their means and their approximate number",
    "all records, from whoever kept P or its key; both are destroyed when the release is published",
    "anything in the sense of differential privacy",
)
"""What the report says is not protected."""

UNNAMED = (
    "whatever the responses and the features tell of a person: no variable is named as "
    "confidential, and none was judged"
)
"""The same, where nothing is confidential."""

MOST_RELEASED = 200_000
"""Surrogates that attacks are given."""

WORST = ("leaks", "unknown", "unproven", "not protected", "safe")
"""Verdicts, the worst first."""

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
    options = halve_level(find_attack_options(run.options, run.attempt))
    model = load_map(run.stored_model_url, trained.model_digest)
    assert isinstance(model, MixesRecords), "the stage has looked"
    attacks: dict[str, Any] = {}
    controls: dict[str, Any] = {}
    utility: dict[str, Any] | None = None
    found: dict[str, Any] = say_nothing("no record was held out")
    if run.options.audit.holdout > 0:
        fitted, held_out = (_keep(run, part) for part in ("fit", "held_out"))
        as_made, as_read = (
            partial(model.restore_records, schema=fitted.schema, reads_responses=told)
            for told in (True, False)
        )
        made, read = (
            _reduce(fitted, executor, summarise_pairs, complete=one) for one in (as_made, as_read)
        )
        gram = _expand(made, trained.n_features_out - 1)
        mine, theirs = draw_sides(run, (fitted, held_out), executor)
        earlier = find_named_surrogates(run)
        job = (mine, theirs, plan, gram, as_made, earlier, share_level(options))
        [(_, answer)] = executor.map_tasks(attack_surrogates, [("all", job)], prefix="attack")
        if isinstance(answer, PrivpipeError):
            raise answer
        attacks, controls = answer
        masked = learn(_sum_released(plan, trained), trained.n_features_out)
        utility = _measure_utility(trained, masked, read, held_out, executor, options, as_read)
        found = _attack_variables(run, held_out, masked, executor, options, as_read)
    return NOT_COMPARED | {
        "basis": "A surrogate release: its records are nobody's. Confidential variables are "
        "guessed from what models fitted to the surrogates answer for held-out raw records.",
        "n_records": 0 if utility is None else int(utility["n_records"]),
        "membership": attacks.get("membership"),
        "surrogate": {
            "attacks": attacks,
            "controls": controls,
            "utility": utility,
            "not_protected": [
                *NOT_PROTECTED,
                *([] if run.options.collection.confidential else [UNNAMED]),
            ],
        },
        "adversaries": _join(found, decide_records(attacks, controls, options)),
    }


def _attack_variables(
    run: Run,
    held_out: Collection,
    masked: FloatArray,
    executor: Executor,
    options: AttackOptions,
    complete: CompleteRecords,
) -> dict[str, Any]:
    """Every adversary on what models fitted to surrogates answer for held-out raw records."""
    if not held_out.confidential:
        why = "no variable is named as confidential, so that none was judged"
        return say_nothing(why, "safe")
    if not run.options.audit.adversaries:
        return say_nothing("no adversary was asked for")
    place = (run.sample_url, make_sample_key(run.sample_url))
    try:
        report = distribute_attacks(
            executor,
            partial(sample_answers, held_out, options.without_limits(), masked, complete, place),
            options=options,
            checkpoints=run.checkpoints,
            power=True,
        )
    except (InputError, MemoryBudgetError) as error:
        return say_nothing(str(error))
    found: dict[str, Any] = json.loads(report.to_json())
    return found


def _join(found: dict[str, Any], records: Sequence[Decision]) -> dict[str, Any]:
    """Verdicts of variables and of records together; the worst of them is the release's."""
    told = [{key: _or_none(value) for key, value in asdict(one).items()} for one in records]
    first = (str(found["verdict"]), str(found["reason"]))
    verdicts = [first, *((one.verdict, one.reason) for one in records)]
    worst, reason = min(verdicts, key=lambda one: WORST.index(one[0]))
    return found | {
        "verdict": worst,
        "reason": reason,
        "decisions": [*found["decisions"], *told],
        "n_records": found.get("n_records", 0),
        "n_given": found.get("n_given", 0),
        "n_withheld": 0,
        "options": found.get("options", {"level": records[0].level}),
    }


def _or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _keep(run: Run, part: Part) -> Collection:
    return replace(run.training, only_finite=False).keeping(run.split, part)


def _reduce(collection: Collection, executor: Executor, summarise: Any, **more: Any) -> CoMoments:
    shards = ShardedCollection(collection, executor, label="audit")
    found: CoMoments = shards.reduce(partial(summarise, **more))
    return found


def _expand(moments: CoMoments, n_features: int) -> FloatArray:
    """Sum of products of [features, ones, the rest]."""
    whole = moments.scatter + moments.count * np.outer(moments.mean, moments.mean)
    sums = moments.count * moments.mean
    whole = np.insert(np.insert(whole, n_features, sums, axis=0), n_features, 0.0, axis=1)
    whole[:, n_features] = np.insert(sums, n_features, moments.count)
    return whole


def attack_surrogates(
    fitted: Drawing,
    held_out: Drawing,
    plan: ReleasePlan,
    gram: FloatArray,
    complete: CompleteRecords,
    earlier: Sequence[EarlierSurrogates],
    options: AttackOptions,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Worker side: read the release and a sample of both sides; numbers alone come back."""
    (members, responses), (others, _) = (_read_some(side, complete) for side in (fitted, held_out))
    if min(len(members), len(others)) < LEAST_RECORDS:
        return {}, {}
    n_released = min(plan.chunks.n_records, MOST_RELEASED)
    released, *answered = (
        np.asarray(read_block(plan.data_url, array.name, 0, n_released, plan.run), np.float64)
        for array in plan.arrays
    )
    sample = Sample(
        released=released,
        surrogate_responses=np.column_stack(answered),
        members=members,
        member_responses=responses,
        others=others,
        gram=gram,
    )
    attacks = {
        name: _run(run_kind, name, sample, options) for name in (*CLOSED_FORMS, *RECORD_ATTACKS)
    }
    for one in earlier:
        joined = replace(sample, earlier=one.read(MOST_RELEASED))
        attacks[f"{EARLIER}: {one.name}"] = _run(run_kind, EARLIER, joined, options)
    controls = {name: _run(run_control, name, sample, options) for name in RECORD_ATTACKS}
    return attacks, controls


def _read_some(side: Drawing, complete: CompleteRecords) -> tuple[FloatArray, FloatArray]:
    """The records that were drawn and are whole once completed: both tables."""
    features, responses = complete(gather_sample(side).shard)
    whole = np.isfinite(features).all(axis=1) & np.isfinite(responses).all(axis=1)
    return features[whole], responses[whole]


def _run(
    run: Callable[[str, Sample, AttackOptions], SaysJson],
    name: str,
    sample: Sample,
    options: AttackOptions,
) -> dict[str, Any]:
    """The report of an attack as JSON values, or why there is none."""
    try:
        found: dict[str, Any] = json.loads(run(name, sample, options).to_json())
    except InputError as error:
        return {"failed": str(error)}
    return found


def _measure_utility(
    trained: Trained,
    masked: FloatArray,
    pairs: CoMoments,
    held_out: Collection,
    executor: Executor,
    options: AttackOptions,
    complete: CompleteRecords,
) -> dict[str, Any] | None:
    """Ridge regression of surrogates and of raw records, both on held-out raw records."""
    q = trained.n_features_out
    if pairs.count < 2:
        return None
    raw = learn(_expand(pairs, q - 1), q)
    models = {"masked": masked, "raw": raw}
    about = {"schema": held_out.schema, "complete": complete, **models}
    tests = _reduce(held_out, executor, summarise_tests, **about)
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
