"""`privpipe compare`: methods and budgets side by side on one collection; nothing is published.

Every entry is trained on the same records and judged by the same adversaries on the same sample of
held-out records. Its map releases these where they are read: no release is written. The raw records
are attacked once, and leaks are planted once. What was measured is checkpointed in a workspace per
entry, so that a comparison that was stopped resumes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import Any

from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.attacks.threats.verdicts.outcomes import is_of_release
from privpipe.cluster.executors.dask_executor import open_executor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.attack_tasks import distribute_attacks, measure_retained_utility
from privpipe.cluster.passes.evidence_sample import AuditSources, sample_evidence
from privpipe.cluster.passes.loaded_map import StoredMap
from privpipe.errors import OptionError, PrivpipeError
from privpipe.pipeline.runs import earlier, resume
from privpipe.pipeline.runs.run import Run, Trained, cluster_options, find_attack_options, now
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages import check, gate, train
from privpipe.pipeline.stages.audit import audit_attacks, judged_records
from privpipe.records.sampling import Part
from privpipe.report.comparison_page import render_comparison
from privpipe.report.release_sections import WEIGHED
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import write_file
from privpipe.store.access.workspace import hold_workspace, remove_workspace
from privpipe.store.arrays.layout import companion_url


def plan_entries(
    options: RunOptions, vary: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, RunOptions]:
    """The entries of a configuration by label, each with a place of its own to work in.

    Parameters
    ----------
    options
        Its ``[[compare]]`` entries are compared; without any, its method.
    vary
        Values by option: an entry whose method has the option becomes one for each value.

    Raises
    ------
    OptionError
        If there are fewer than two, two are the same, or no method has an option of `vary`.
    """
    entries: dict[str, RunOptions] = {}
    base, varied = companion_url(options.release.path, "compare"), vary or {}
    named = [(one.label or _name(one.method), one.method) for one in options.compare]
    if varied and not named:
        named = [(str(options.method.name), options.method)]
    known = sorted({key for _, method in named for key in _list_options(method)})
    if unknown := [key for key in varied if key not in known]:
        problem = f"No method that is compared has an option {unknown[0]!r}."
        remedy = f"Name one of: {', '.join(known)}."
        raise OptionError(problem, remedy=remedy, code="nothing-to-compare")
    found = [each for one in named for each in _vary(*one, varied)]
    if len(found) < 2:
        raise OptionError(
            f"There are {len(found)} [[compare]] entries.",
            remedy='Add two or more, as: [[compare]] and method = { name = "leace" } below it; or '
            "vary an option of the method: --vary utility_budget=0.01,0.1.",
            code="nothing-to-compare",
        )
    for label, method in found:
        if METHODS[method.name].releases == "surrogate":
            problem = f"[[compare]] names {method.name!r}, whose records are no one's."
            raise OptionError(problem, remedy="Leave it out.", code="surrogate")
        about = options.model_copy(update={"method": method, "compare": ()})
        if not method.scales:  # standardised are those that depend on it
            about = about.change("collection", standardise=False)
        # Named by its options: a comparison that was stopped finds what it has measured.
        place = join(base, f"{method.name}-{about.digest()[:8]}.zarr")
        entries[label] = about.change("release", path=place)
    if len(entries) < len(found):
        problem = "Two entries have the same label, or the same method and options."
        remedy = "Give each [[compare]] entry a label of its own."
        raise OptionError(problem, remedy=remedy, code="same-entries")
    return entries


def _name(method: Any) -> str:
    budget = getattr(method, "utility_budget", None)
    return str(method.name) if budget is None else f"{method.name} {budget:g}"


def _list_options(method: Any) -> list[str]:
    return [item.name for item in fields(method) if item.name != "name"]


def _vary(label: str, method: Any, vary: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """A method with each value of the options to vary; itself where it has none."""
    keys = [key for key in vary if key in _list_options(method)]
    given = {item.name: getattr(method, item.name) for item in fields(method)}
    for values in product(*(vary[key] for key in keys)):
        chosen = dict(zip(keys, values, strict=True))
        name = ", ".join([label, *(f"{key} {value}" for key, value in chosen.items())])
        yield name, make_options(type(method), given | chosen, method.name) if chosen else method


def compare_collection(
    options: RunOptions, watch: Watch, vary: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Any]:
    """Train, attack and measure every entry; write the table, the figure and the JSON.

    Returns
    -------
    comparison
        What ``compare.json`` holds.

    Raises
    ------
    OptionError, InputError, StoreError
        If the configuration cannot be compared; what an entry alone raises is in its row.
    """
    runs = {label: check.check_stage(entry) for label, entry in plan_entries(options, vary).items()}
    url = companion_url(options.release.path, "compare")
    at_work = options.change("release", path=join(url, "cluster.zarr"))
    rows: list[dict[str, Any]] = []
    with (
        hold_workspace(at_work.release.path),
        open_executor(cluster_options(at_work), "compare", watch.hear) as executor,
    ):
        watch.say(f"cluster  {executor.describe()}")
        if not executor.here:
            with watch.stage("fit", f"{len(runs)} entries"):
                _fit_apart(runs.values(), executor)
        shared: AttackReport | None = None
        for label, run in runs.items():
            with watch.stage("compare", label):
                row, shared = _measure(label, run, executor, shared)
                rows.append(row)
    front = find_front(rows)
    content = json.dumps(
        {
            "format_version": 1,
            "made": now(),
            "source": next(iter(runs.values())).collection.digest,
            "limits": options.gate.model_dump(mode="json"),
            "entries": [row | {"on_front": row["label"] in front} for row in rows],
        },
        indent=1,
    )
    comparison: dict[str, Any] = json.loads(content)  # as readers of the file find it
    page = render_comparison(comparison, version=version("privpipe"))
    write_file(join(url, "compare.json"), content)
    write_file(join(url, "compare.html"), page)
    # Checkpoints go last: a kill before costs no attack.
    for place in (*(run.release_url for run in runs.values()), at_work.release.path):
        remove_workspace(place)
    watch.say(f"compared {shown(url)}/compare.html")
    return comparison


def _fit_apart(runs: Iterable[Run], executor: Executor) -> None:
    """Fit all entries at once where workers have room; what one alone raises its row says."""
    begun = []
    with ExitStack() as held:
        for run in runs:
            with suppress(PrivpipeError):
                held.enter_context(hold_workspace(run.release_url))
                begun.append(resume.begin_or_resume(run)[0])
        train.train_apart(begun, executor)


def _measure(
    label: str, run: Run, executor: Executor, shared: AttackReport | None
) -> tuple[dict[str, Any], AttackReport | None]:
    """One row, and what the first one measured for all."""
    about = {"label": label, "method": run.method.name, "options": run.method_options()}
    try:
        with hold_workspace(run.release_url):
            run, _ = resume.begin_or_resume(run)
            trained = train.train_stage(run, executor)
            sources = _find_sources(run, trained)
            report, shared = _attack(run, executor, sources, shared)
            utility = _measure_utility(executor, sources, run)
    except PrivpipeError as error:
        return about | {"error": error.message, "code": error.code}, shared
    found: dict[str, Any] = json.loads(report.to_json())
    views = {  # target predictions as the gate reads them of an audit
        name: {view: {one["score"]: one[view]["estimate"]} for view in ("raw", "released")}
        for name, one in utility.items()
        if "score" in one
    }
    findings = {"adversaries": found, "utility": utility, "desired": views}
    complaints = gate.judge_findings(findings, run.options.gate)
    return about | {
        "guarantee": asdict(trained.guarantee),
        "verdict": found["verdict"],
        "reason": found["reason"],
        "would_pass": not complaints,
        "complaints": [one.reason for one in complaints],
        "decisions": found["decisions"],
        "utility": utility,
        "gain": _find_gain(report),
        "loss": _find_loss(utility),
    }, shared


def _find_sources(run: Run, trained: Trained) -> AuditSources:
    """Held-out records, released by the map where they are read."""
    published, _ = audit_attacks.describe_published(run, earlier.find_earlier(run))
    part: Part = "held_out" if run.options.audit.holdout else "all"
    judged = judged_records.find_labelled(run) or run.training.keeping(run.split, part)
    judged = replace(judged, indicators=trained.reads == "attributes", fill=trained.mean_record)
    # What is imputed is so where it is read: the map is given what it would be in a run.
    if judged.fill is None and (published.order or published.withholds):
        judged = replace(judged, only_finite=False)
    model = StoredMap(run.stored_model_url, trained.model_digest)
    published = replace(published, compares_noise=False)
    return AuditSources(judged=judged, model=model, published=published)


def _attack(
    run: Run, executor: Executor, sources: AuditSources, shared: AttackReport | None
) -> tuple[AttackReport, AttackReport | None]:
    """Every adversary; the raw records and the planted leaks are those of the first entry.

    Entries that release codes attack other raw columns, and have both of their own.
    """
    options = find_attack_options(run.options)
    first = shared is None or sources.judged.indicators
    sample = partial(sample_evidence, sources, options.without_limits(), controls=first)
    held = run.checkpoints
    report = distribute_attacks(executor, sample, options=options, checkpoints=held, power=first)
    if sources.judged.indicators:
        return report, shared
    if shared is None:
        return report, report
    raw = [one for one in shared.outcomes if one.attack.source == "raw"]
    return replace(report, outcomes=(*report.outcomes, *raw), power=shared.power), shared


def _measure_utility(executor: Executor, sources: AuditSources, run: Run) -> dict[str, Any]:
    if not run.training.desired:
        return {}
    tasks = [("utility", (sources, find_attack_options(run.options).without_limits()))]
    [(_, found)] = executor.map_tasks(measure_retained_utility, tasks, prefix="attack")
    if isinstance(found, PrivpipeError):
        raise found
    return {one["target"]: one for one in found}


def _find_gain(report: AttackReport) -> dict[str, float] | None:
    """What the strongest adversary gains over the target, of the variable that leaks most."""
    mine = [one for one in report.outcomes if is_of_release(one.attack.source)]
    found = [score for one in mine for score in one.scores if score.name in WEIGHED]
    worst = max(found, key=lambda score: score.gain_upper, default=None)
    if worst is None:
        return None
    return {"estimate": worst.gain, "lower": worst.gain_lower, "upper": worst.gain_upper}


def _find_loss(utility: Mapping[str, Any]) -> dict[str, float] | None:
    """The loss of the target that loses most."""
    found = [one["loss"] for one in utility.values() if "loss" in one]
    worst = max(found, key=lambda one: one["estimate"], default=None)
    return worst and {key: float(worst[key]) for key in ("estimate", "lower", "upper")}


def find_front(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Labels of the entries that no other beats in both loss and gain.

    >>> row = lambda label, loss, gain: {
    ...     "label": label, "loss": {"estimate": loss}, "gain": {"estimate": gain}}
    >>> find_front([row("a", 0.1, 0.1), row("b", 0.2, 0.2), row("c", 0.0, 0.3)])
    ('a', 'c')
    """
    places = {
        row["label"]: (row["loss"]["estimate"], row["gain"]["estimate"])
        for row in rows
        if row.get("loss") and row.get("gain")
    }

    def is_beaten(mine: tuple[float, float]) -> bool:
        others = (other for other in places.values() if other != mine)
        return any(other[0] <= mine[0] and other[1] <= mine[1] for other in others)

    return tuple(label for label, place in places.items() if not is_beaten(place))
