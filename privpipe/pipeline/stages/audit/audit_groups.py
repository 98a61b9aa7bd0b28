"""The worst-off groups: what a release reveals of each one that ``[about] groups`` names.

Their records are drawn whole, for an average over all records hides twenty. Names of groups are
values of records: they are in the report for operators and on the officer's page, nowhere else.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.verdicts.outcomes import WORST_FIRST, without_nan
from privpipe.attacks.threats.worst_off import OUTLIERS, RAREST, measure_group
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import Checkpoints, recall
from privpipe.cluster.passes.attack_tasks import measure_retained_utility
from privpipe.cluster.passes.evidence_sample import AuditSources, sample_evidence
from privpipe.errors import PrivpipeError
from privpipe.pipeline.runs.run import Run, find_attack_options, list_groups

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
        judged and why; each with ``group``, and ``of``, its variable.
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
            utility = measure_retained_utility(data, given)
    except PrivpipeError as error:
        return json.dumps({"unknown": [{"reason": error.code}]})
    rows, utility = measure_group(evidence, group, given), [u for u in utility if "score" in u]
    return json.dumps(without_nan({"rows": rows, "utility": utility}))
