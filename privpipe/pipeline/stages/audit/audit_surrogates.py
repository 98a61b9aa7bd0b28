"""The audit of surrogates that are signed sums: what they retain, and attacks by name.

Two questions decide. What do models fitted to the surrogates reveal of confidential variables
beyond the desired ones, for raw records that no surrogate was made of? Which records are rebuilt?
Behind exact coefficients the verdict is never "safe": two closed forms are run and shown. So are
attacks by outsiders. These must find no more than is allowed, and each must succeed on an unsafe
control of the same records. What was not run, or failed without such a control, is unknown or
unproven, and never passes. Where entries are missing, records are judged as the method completes
them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from privpipe.attacks import utility
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats import record_decisions
from privpipe.attacks.threats.attack_table import CLOSED_FORMS, RECORD_ATTACKS, Sample, run_by_name
from privpipe.attacks.threats.record_recovery import run_control
from privpipe.attacks.threats.verdicts.outcomes import WORST_FIRST, Decision, without_nan
from privpipe.capabilities import MakesRecords
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes import attack_tasks, loaded_map, reduce, sample_drawing
from privpipe.cluster.passes.evidence_sample import plan_drawing, sample_predictions
from privpipe.cluster.passes.sample_drawing import Drawing, Published
from privpipe.errors import InputError
from privpipe.numerics.moments import CoMoments, name_targets
from privpipe.pipeline.runs.earlier import find_named_surrogates
from privpipe.pipeline.runs.run import MOST_RECORDS, Run, Trained, find_attack_options
from privpipe.pipeline.runs.spend import describe_account
from privpipe.pipeline.stages.audit.audit_canaries import audit_canaries
from privpipe.pipeline.stages.audit.judged_records import attack_variables, report_nothing
from privpipe.protocols import FloatArray
from privpipe.records.sampling import Part
from privpipe.report.audit_text import read_texts
from privpipe.store.arrays.blocks import read_block
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.published import EarlierRelease
from privpipe.store.releases.release_writing import ReleasePlan

NOT_PROTECTED: Sequence[str] = read_texts("words.yaml")["not_protected"]
"""What the report says is not protected."""

PROTECTED_TO_EPSILON: Sequence[str] = read_texts("words.yaml")["protected_to_epsilon"]
"""The same of noisy moments."""

UNNAMED: str = read_texts("words.yaml")["unnamed"]
"""The same, where nothing is confidential."""

OF_COEFFICIENTS = ("all_but_one",)
"""Closed forms that start from the coefficients that are released; the others from exact ones."""

MOST_RELEASED = 200_000
"""Surrogates that attacks are given."""

PARTS: tuple[Part, Part] = ("fit", "held_out")
"""Of the training records: surrogates are made of the first."""

LEAST_RECORDS = 10
"""Records of either side below which nothing is measured."""


def audit_surrogates(
    run: Run, trained: Trained, plan: ReleasePlan, executor: Executor
) -> dict[str, Any]:
    """Measure utility on held-out raw records, and attack the surrogates.

    Returns
    -------
    findings
        As `audit_stage` gives them, without figures of single variables: no released record belongs
        to a raw one. `surrogate` holds the attacks, the utility and what is not protected.
    """
    # Variables and single records are two families of verdicts: each has half of the error.
    options = record_decisions.halve_level(find_attack_options(run.options, run.attempt))
    promise, promised = trained.guarantee, ""
    if promise.kind == "central_dp":
        promised = f"epsilon {promise.number:g} with delta {promise.delta:.2g}"
    judged: _Judged = {}, {}, None, report_nothing("no record was held out")
    if run.options.audit.holdout > 0:
        closed = OF_COEFFICIENTS if promised else tuple(CLOSED_FORMS)
        judged = _judge_surrogates(run, trained, plan, executor, options, closed)
    attacks, controls, measured, found = judged
    return {
        "n_groups": None,
        "privacy": {},
        "desired": {},
        "confidential": {},
        "e_utility": None,
        "basis": "A surrogate release: its records belong to no person. Confidential variables are "
        "guessed from what models fitted to the surrogates predict for held-out raw records.",
        "n_records": 0 if measured is None else int(measured["n_records"]),
        "membership": _as_json(attacks["membership"]) if attacks else None,
        "surrogate": {
            "attacks": {name: _as_json(one) for name, one in attacks.items()},
            "controls": {name: _as_json(one) for name, one in controls.items()},
            "utility": measured,
            "not_protected": [
                *(PROTECTED_TO_EPSILON if promised else NOT_PROTECTED),
                *([] if run.options.collection.confidential else [UNNAMED]),
            ],
        },
        "canaries": audit_canaries(run),
        "account": describe_account(run),
        "adversaries": _join(
            found, record_decisions.decide_records(attacks, controls, options, promised)
        ),
    }


_Attacked: TypeAlias = dict[str, record_decisions.Found]
_Judged: TypeAlias = tuple[_Attacked, _Attacked, dict[str, Any] | None, dict[str, Any]]
"""Attacks on single records, their controls, utility, and what was found of variables."""


def _judge_surrogates(
    run: Run,
    trained: Trained,
    plan: ReleasePlan,
    executor: Executor,
    options: AttackOptions,
    closed: tuple[str, ...],
) -> _Judged:
    """By records that were held out."""
    model = loaded_map.load_map(run.stored_model_url, trained.model_digest)
    assert isinstance(model, MakesRecords), "no other map releases surrogates"
    whole = replace(run.training, only_finite=False)
    fitted, held_out = (whole.keeping(run.split, part) for part in PARTS)
    # Surrogates are made of records completed by features and responses; who applies their
    # model knows the features alone.
    restore = partial(model.restore_records, schema=fitted.schema)
    as_made, as_read = (partial(restore, reads_responses=known) for known in (True, False))
    summarise = partial(_reduce, fitted, executor, utility.summarise_completed)
    made, read = (summarise(complete=one) for one in (as_made, as_read))
    gram = _expand(made, trained.n_features_out - 1)
    place = (run.sample_url, sample_drawing.make_sample_key(run.sample_url))
    sides = tuple(Drawing(side, Published(), MOST_RECORDS, *place) for side in (fitted, held_out))
    attack_tasks.draw_missing(executor, sides)
    level = record_decisions.share_level(options)
    job = (*sides, plan, gram, as_made, find_named_surrogates(run), level, closed)
    # By one worker, which alone reads records.
    [(_, outcome)] = executor.run_tasks(attack_surrogates, [("all", job)], prefix="attack")
    attacks, controls = outcome
    measured = None
    masked = utility.learn(_sum_released(plan, trained), trained.n_features_out)
    if read.count >= 2:
        models = masked, utility.learn(_expand(read, len(masked) - 1), len(masked))
        measured = _measure_utility(trained, models, held_out, executor, options, as_read)
    judged = plan_drawing(held_out, options.without_limits(), Published(), place)
    sample = partial(sample_predictions, judged, options.without_limits(), masked, as_read)
    if held_out.confidential:
        found = attack_variables(run, executor, sample, options)
    else:
        why = "no variable is named as confidential, so that none was judged"
        found = report_nothing(why, "safe")
    return attacks, controls, measured, found


def _as_json(found: record_decisions.Found) -> dict[str, Any]:
    """What came of an attack as a report stores it."""
    if isinstance(found, InputError):
        return {"failed": str(found)}
    return dict(json.loads(found.to_json()))


def _join(found: dict[str, Any], records: Sequence[Decision]) -> dict[str, Any]:
    """Verdicts of variables and of records jointly; the worst of them is the release's."""
    rows = without_nan([one.as_row() for one in records])
    # Ties go to the variables, which come first.
    worst = min([found, *rows], key=lambda one: WORST_FIRST.index(one["verdict"]))
    nothing = {"n_records": 0, "n_given": 0, "options": {"level": records[0].level}}
    decisions = [*found["decisions"], *rows]
    about = {"verdict": worst["verdict"], "reason": worst["reason"], "decisions": decisions}
    return nothing | found | about | {"n_withheld": 0}


def _reduce(collection: Collection, executor: Executor, summarise: Any, **more: Any) -> CoMoments:
    shards = reduce.ShardedCollection(collection, executor, label="audit")
    return cast(CoMoments, shards.reduce(partial(summarise, **more)))


def _expand(moments: CoMoments, n_features: int) -> FloatArray:
    """Sum of products of [features, ones, the rest]."""
    # Scatter is about the mean; sums of products are about zero, with the ones between both blocks.
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
    complete: utility.CompleteRecords,
    earlier: Sequence[EarlierRelease],
    options: AttackOptions,
    closed: Sequence[str],
) -> tuple[dict[str, record_decisions.Found], dict[str, record_decisions.Found]]:
    """Worker side: read the release and a sample of both sides; numbers alone come back."""
    (members, responses), (others, _) = (_read_some(side, complete) for side in (fitted, held_out))
    if min(len(members), len(others)) < LEAST_RECORDS:
        return {}, {}
    released, *predicted = _read_released(plan, 0, min(plan.chunks.n_records, MOST_RELEASED))
    sample = Sample(
        released=released,
        surrogate_responses=np.column_stack(predicted),
        members=members,
        member_responses=responses,
        others=others,
        gram=gram,
    )
    found = {name: _try(run_by_name, name, sample, options) for name in (*closed, *RECORD_ATTACKS)}
    for one in earlier:
        joined = replace(sample, earlier=one.read_surrogates(MOST_RELEASED))
        found[f"{record_decisions.EARLIER}: {one.name}"] = _try(
            run_by_name, record_decisions.EARLIER, joined, options
        )
    controls = {name: _try(run_control, name, members, others, options) for name in RECORD_ATTACKS}
    return found, controls


def _read_some(side: Drawing, complete: utility.CompleteRecords) -> tuple[FloatArray, FloatArray]:
    """The records that were drawn and are whole once completed: both tables."""
    features, responses = complete(sample_drawing.gather_sample(side).shard)
    whole = np.isfinite(features).all(axis=1) & np.isfinite(responses).all(axis=1)
    return features[whole], responses[whole]


def _try(attack: Callable[..., Any], *arguments: Any) -> record_decisions.Found:
    """The report of an attack, or why there is none."""
    try:
        report: record_decisions.Found = attack(*arguments)
    except InputError as error:
        return error
    return report


def _measure_utility(
    trained: Trained,
    models: utility.Models,
    held_out: Collection,
    executor: Executor,
    options: AttackOptions,
    complete: utility.CompleteRecords,
) -> dict[str, Any] | None:
    """Ridge regression of surrogates and of raw records, both on held-out raw records."""
    schema, responses = held_out.schema, trained.response_names
    about = {"schema": schema, "complete": complete, "models": models}
    tests = _reduce(held_out, executor, utility.summarise_tests, **about)
    if tests.count < LEAST_RECORDS:
        return None
    confidential = name_targets(schema.confidential)
    return utility.report_utility(tests, models, responses, confidential, level=options.level)


def _read_released(plan: ReleasePlan, start: int, stop: int) -> list[FloatArray]:
    """Features of some surrogates, and each response."""
    return [
        np.asarray(read_block(plan.data_url, array.name, start, stop, plan.run), np.float64)
        for array in plan.arrays
    ]


def _sum_released(plan: ReleasePlan, trained: Trained) -> FloatArray:
    """Sum of products of the surrogates' [features, responses]."""
    total = np.zeros((trained.n_features_out + len(trained.response_names),) * 2)
    for chunk in range(plan.chunks.n_chunks):
        start, stop = plan.chunks.rows(chunk)
        rows = np.hstack([x.reshape(stop - start, -1) for x in _read_released(plan, start, stop)])
        total += rows.T @ rows
    return total
