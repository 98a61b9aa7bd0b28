"""The attacks of the audit: adversaries, planted leaks, and every other attack there is reason for.

All of them are given different held-out records, as a reader of the release sees them. A failure
is unknown, and unknown never passes the gate. Records of the groups of ``[about] groups`` are drawn
whole, for an average over all records hides twenty. Names of groups are values of records: they
are in the report for operators and on the officer's page, nowhere else.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import LeftOut
from privpipe.attacks.threats.verdicts.outcomes import WORST_FIRST, without_nan
from privpipe.attacks.threats.worst_off import OUTLIERS, RAREST, measure_group
from privpipe.capabilities import FollowsTarget
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import Checkpoints, recall
from privpipe.cluster.passes import attack_tasks, loaded_map
from privpipe.cluster.passes.evidence_sample import AuditSources, is_released, sample_evidence
from privpipe.cluster.passes.sample_drawing import Drawing, Published, make_sample_key
from privpipe.errors import PrivpipeError, StoreError
from privpipe.numerics.limits import say_limits
from privpipe.pipeline.runs.earlier import Earlier, find_earlier
from privpipe.pipeline.runs.run import Run, Trained, find_attack_options, find_training, list_groups
from privpipe.pipeline.stages.audit import judged_records
from privpipe.records.sampling import Part
from privpipe.report.audit_text import Findings, read_texts, say
from privpipe.store.arrays.layout import FEATURES, RELEASED
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.keys import list_keys
from privpipe.store.models import open_model
from privpipe.store.releases.published import EarlierRelease
from privpipe.store.releases.release_writing import ReleasePlan

DRIFT = 0.1
"""Advantage at distinguishing the release from the judged records above which is a warning."""

UTILITY = "utility"
"""Name of the report on desired variables, among those of attacks."""


def attack_release(run: Run, trained: Trained, plan: ReleasePlan, executor: Executor) -> Findings:
    """Attack the release that is about to be published.

    Returns
    -------
    findings
        - ``adversaries``: the report of the inference attacks with what was planted.
        - ``groups``: the worst-off.
        - ``proof``: by what theorem released features were not attacked but their target
          predictions.
        - ``attacks``: the other attacks by name.
        - ``utility``: desired predictions with limits.
        - ``warnings``: sentences that decide nothing.
    """
    earlier = find_earlier(run, plan)
    sources = find_sources(run, trained, plan, earlier)
    theorem = find_theorem(run)
    if run.options.audit.adversaries:
        # First, by all workers: of a chunk that cleaning has not drawn one would draw for all.
        options = find_attack_options(run.options).without_limits()
        attack_tasks.draw_missing(executor, sources.list_drawings(options))
    attacks, utility = _measure_reports(run, executor, sources)
    unread = describe_published(run, earlier, trained)[1]
    adversaries = _attack(run, executor, sources, unread, by_target=theorem is not None)
    proof = None
    if theorem is not None and "n_given" in adversaries:
        n_records = adversaries["n_given"] - adversaries["n_withheld"]
        proof = {"theorem": theorem, "model": trained.model_digest, "n_records": n_records}
    others = find_other_draws(run, earlier.releases)
    draws = [say("draws", runs=", ".join(others))] if others else []
    # A leak of all records keeps the gate closed whatever is found of some.
    leaks = adversaries["verdict"] == "leaks" and not run.whole_audit
    return {
        "adversaries": adversaries,
        "groups": None if leaks else audit_groups(run, executor, sources),
        "proof": proof,
        "attacks": attacks,
        "utility": utility,
        "warnings": [*warn_of_drift(attacks), *warn_of_unsaid(utility), *earlier.warnings, *draws],
    }


def find_theorem(run: Run) -> str | None:
    """By what theorem rows are made of target predictions alone; None where no map says so.

    Nor where missing values are filled in before it: these rows are made of other records than
    those that are read here.
    """
    fitted = open_model(run.stored_model_url)
    if not isinstance(fitted, FollowsTarget) or run.options.release.nonfinite == "impute":
        return None
    return fitted.target_theorem


def find_sources(run: Run, trained: Trained, plan: ReleasePlan, earlier: Earlier) -> AuditSources:
    """Where the records that are attacked are, and what their release reveals."""
    published, _ = describe_published(run, earlier, trained)
    held_out = run.options.audit.holdout > 0
    indicators = trained.reads == "attributes"

    def find(part: Part) -> Collection:
        found = replace(run.training, indicators=indicators, fill=trained.mean_record)
        found = found.keeping(run.split, part)
        if published.order or published.withholds:  # who is withheld or imputed is a leak, too
            found = replace(found, only_finite=False)
        return judged_records.pair_released(found, plan) if run.trains_on_itself else found

    def read(collection: Collection) -> Collection:
        whole = replace(collection, indicators=indicators, only_finite=False)
        return judged_records.pair_released(whole, plan)

    judged, fresh, release = find("held_out" if held_out else "all"), None, None
    if (labelled := judged_records.find_labelled(run)) is not None:
        fresh = judged
        # Records of the release itself judge where they have labels: others may be of another
        # population.
        judged = read(labelled)
    elif not run.trains_on_itself:
        release = read(run.collection)
    # Of a model that was learned elsewhere it is not known whom it saw.
    return AuditSources(
        judged=judged,
        model=loaded_map.StoredMap(run.stored_model_url, trained.model_digest),
        published=published,
        learned=find("fit") if held_out and find_training(run) == run.training.digest else None,
        fresh=fresh,
        release=release,
        place=(run.sample_url, make_sample_key(run.sample_url)),
    )


def plan_samples(run: Run, trained: Trained, plan: ReleasePlan) -> tuple[Drawing, ...]:
    """What the audit will draw of the release: the pass that cleans stores it."""
    if run.method.releases == "surrogate" or not run.options.audit.adversaries:
        return ()
    sources = find_sources(run, trained, plan, find_earlier(run, plan))
    drawings = sources.list_drawings(find_attack_options(run.options).without_limits())
    return tuple(one for one in drawings if is_released(one.collection))


def describe_published(
    run: Run, found: Earlier, trained: Trained | None = None
) -> tuple[Published, list[LeftOut]]:
    """What the release reveals beside its features, and what of it no judged record shows."""
    release = run.options.release
    judges = run.trains_on_itself or judged_records.find_labelled(run) is not None
    published = Published(
        included=release.include if judges else (),
        # Records that were never released have no place in its order.
        order=judges,
        partitions=release.partitions,
        withholds=release.nonfinite == "withhold",
        group=run.split.group,
        earlier=found.releases if judges else (),
        compares_noise=bool(run.training.desired),
    )
    unread = judged_records.list_unjudged(run)
    if not judges:
        alike = [one for one in found.releases if trained and _has_the_same_rows(run, trained, one)]
        unread += [LeftOut(one.name, WORDS["joined"]) for one in found.releases if one not in alike]
        if alike and EARLIER not in run.options.audit.vouched:
            unread.append(LeftOut(EARLIER, WORDS["in_both"]))
    return published, [*unread, *found.unread]


EARLIER = "earlier"
"""What is vouched for of earlier releases by the same map: which records are in both."""
WORDS: Mapping[str, str] = read_texts("words.yaml")["earlier"]


def _has_the_same_rows(run: Run, trained: Trained, earlier: EarlierRelease) -> bool:
    """Whether an earlier release has the very row that this one has, of a record in both.

    That of the same map, which draws nothing, with the same variables: joined they reveal of a
    record nothing but that it is in both.
    """
    held = {name for name, _ in (*earlier.arrays, *earlier.coded)} - {FEATURES, RELEASED}
    is_same = earlier.model == trained.model_digest and not trained.draws
    return is_same and held == {*run.options.release.include}


def find_other_draws(run: Run, earlier: tuple[EarlierRelease, ...]) -> tuple[str, ...]:
    """Runs that drew other noise for partitions of this collection, as the key folder knows."""
    # Two draws for one record are averaged by whoever holds both. The key folder knows of runs that
    # no register does: of those whose release was never published, or noted elsewhere.
    mine = {part.digest for part in run.collection.schema_of_records.partitions}
    known = {run.run_id, *(one.run for one in earlier)}
    try:
        entries = list_keys()
    except StoreError:  # a run that draws nothing does without the folder
        return ()
    runs = {one for entry in entries if entry.binding.source in mine for one in entry.runs}
    return tuple(sorted(runs - known))


def warn_of_drift(attacks: Mapping[str, Any]) -> list[str]:
    """A sentence where the release differs from the records that judged it."""
    found = attacks.get("drift")
    if found is None or found["status"] != "measured":
        return []
    best = found["report"]["strongest"]
    if best["advantage_lower"] <= DRIFT:
        return []
    return [say("drift", best=best, limits=say_limits(best["lower"], best["upper"]))]


def warn_of_unsaid(utility: Mapping[str, Any]) -> list[str]:
    """A sentence for each target of which classes are lost in the release."""
    return [say("unsaid", name=name, one=one) for name, one in utility.items() if one.get("unsaid")]


def _measure_reports(
    run: Run, executor: Executor, sources: AuditSources
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every attack beside inference, and how well desired variables are predicted.

    A failure is unknown, with its code.
    """
    if not run.options.audit.adversaries:
        return {}, {}
    options = find_attack_options(run.options, run.attempt).without_limits()
    desired = run.training.desired
    names = [*attack_tasks.list_measured(sources), *([UTILITY] if desired else ())]
    tasks = [(name, (sources, name, options, run.checkpoints)) for name in names]
    found = dict(executor.map_tasks(report_once, tasks, prefix="attack"))
    utility: dict[str, Any] = {}
    if desired:
        measured = found.pop(UTILITY)
        if isinstance(measured, PrivpipeError):
            utility = {name: {"reason": measured.code} for name in desired}
        else:
            utility = {one.pop("target"): one for one in json.loads(measured)}
    attacks = {
        name: {"status": "unknown", "reason": found[name].code}
        if isinstance(found[name], PrivpipeError)
        else {"status": "measured", "report": json.loads(found[name])}
        for name in names
        if name in found
    }
    return attacks, utility


def report_once(
    sources: AuditSources, name: str, options: AttackOptions, checkpoints: Checkpoints | None
) -> str:
    """Worker side: the report of that name, unless an earlier run checkpointed it."""
    known = checkpoints and checkpoints.about(sources, options, name)

    def measure() -> str:
        if name == UTILITY:
            return json.dumps(attack_tasks.measure_retained_utility(sources, options))
        return attack_tasks.attack_by_name(sources, name, options)

    return recall(known, "report", measure)


def _attack(
    run: Run, executor: Executor, sources: AuditSources, unread: list[LeftOut], *, by_target: bool
) -> dict[str, Any]:
    """Every adversary on a bounded sample of the held-out records; a failure is unknown."""
    options = find_attack_options(run.options, run.attempt)
    found = judged_records.attack_variables(
        run,
        executor,
        partial(sample_evidence, sources, options.without_limits(), by_target=by_target),
        options,
        unread=unread,
        n_released=run.collection.n_records,
    )
    return found | ({"strongest": _find_strongest(found, run)} if "table" in found else {})


def _find_strongest(found: dict[str, Any], run: Run) -> dict[str, Any]:
    """Per confidential variable the strongest adversary on released and on raw records."""
    shown = ("adversary", "score", "estimate", "lower", "upper", "baseline")
    columns = run.training.schema.confidential
    decides = {one.name: "accuracy" if one.is_categorical else "r2" for one in columns}
    strongest: dict[str, Any] = {name: {} for name in decides}
    judged = [row for row in found["table"] if row["source"] in ("raw", "released", "noise")]
    measured = [row for row in judged if row["score"] == decides.get(row["target"])]
    for row in sorted(measured, key=lambda row: -row["advantage_upper"]):
        strongest[row["target"]].setdefault(row["source"], {key: row[key] for key in shown})
    return strongest


GROUP_AUDIT: dict[str, Any] = {
    "adversaries": ("logistic", "least_squares", "boosting"),
    "max_records": 5_000,
    "min_class_records": 4,
}
"""A group is audited by fewer adversaries, and may be of few records."""


def audit_groups(run: Run, executor: Executor, sources: AuditSources) -> dict[str, Any] | None:
    """What is revealed of each group, and retained of its target; None where none is named.

    Returns
    -------
    findings
        ``n_groups``; ``rows``, see `measure_group`; ``utility``; and ``unknown``, what could not be
        judged and why. Each entry of these has ``group``, and ``of``, its variable.
    """
    if not (named := list_groups(run.options, sources.judged.schema_of_records)):
        return None
    listed = [*named, ("", OUTLIERS, None), ("", RAREST, None)]
    options = replace(find_attack_options(run.options, run.attempt), **GROUP_AUDIT)
    # Limits of all groups hold together.
    options = replace(options, level=options.plan_level(len(listed)))
    tasks = [
        (f"{number}", (sources, *group, options, run.checkpoints))
        for number, group in enumerate(listed)
    ]
    judged = dict(executor.map_tasks(judge_group, tasks, prefix="group"))
    found: dict[str, Any] = {"n_groups": len(listed), "rows": [], "utility": [], "unknown": []}
    for (number, _), (of, group, _) in zip(tasks, listed, strict=True):
        if isinstance(one := judged[number], PrivpipeError):
            one = {"unknown": [{"reason": one.code}]}
        for key, rows in one.items():
            found[key] += [{"group": group, "of": of} | r for r in rows]
    found["rows"].sort(key=lambda r: (WORST_FIRST.index(r["verdict"]), -(r["gain_lower"] or 0.0)))
    return found


def judge_group(
    sources: AuditSources,
    of: str,
    group: str,
    code: int | None,
    options: AttackOptions,
    checkpoints: Checkpoints | None,
) -> dict[str, Any]:
    """Worker side: what is found of a group, unless an earlier run checkpointed it."""
    known = checkpoints and checkpoints.about(sources, of, group, options)
    judge = partial(_judge, sources, of, group, code, options)
    return dict(json.loads(recall(known, "group", judge)))


def _judge(data: AuditSources, of: str, group: str, code: int | None, given: AttackOptions) -> str:
    published, judged = replace(data.published, compares_noise=False), data.judged
    if code is not None:
        # Those as well that the fit saw: of twenty too few are held out.
        published, judged = replace(published, only=(of, code)), judged.keeping(None, "all")
    data, utility = replace(data, published=published, judged=judged), []
    try:
        evidence = sample_evidence(data, given, controls=group == OUTLIERS)
        if code is not None and judged.desired:
            utility = attack_tasks.measure_retained_utility(data, given)
    except PrivpipeError as error:
        return json.dumps({"unknown": [{"reason": error.code}]})
    rows, utility = measure_group(evidence, group, given), [u for u in utility if "score" in u]
    return json.dumps(without_nan({"rows": rows, "utility": utility}))
