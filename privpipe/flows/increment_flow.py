"""One run of an incremental release: clean what is new, then switch to the next generation.

Whatever is killed on the way leaves the former generation as it was. Parts that were finished are
found by their names, and the next run makes the rest.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any

from privpipe.cluster.executors.dask_executor import open_executor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.errors import GateError, InputError, StoreError
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline import stage_tasks
from privpipe.pipeline.runs import resume, spend
from privpipe.pipeline.runs.run import Cleaned, Run, Trained, cluster_options, list_versions, now
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages import clean, gate, increment_check, publish
from privpipe.pipeline.stages.audit import audit_places, audit_stage, judged_records
from privpipe.pipeline.stages.increment_check import History, TimeSpan, check_part_of
from privpipe.report.published_findings import hide_small_count
from privpipe.store.access.generation_log import publish_generation, write_root
from privpipe.store.access.location import shown
from privpipe.store.access.workspace import RunState, hold_workspace, remove_workspace, write_state
from privpipe.store.arrays.layout import exists, read_header
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.growing_collection import StoredPartition, read_partitions
from privpipe.store.releases import incremental_release
from privpipe.store.releases.incremental_release import IncrementalState, Part, PrivateLedger
from privpipe.store.releases.release_writing import ReleasePlan

GRACE = timedelta(days=1)
"""Before a part that was replaced is deleted: readers may have it open."""


def release_increment(options: RunOptions, watch: Watch, times: TimeSpan) -> str:
    """Release the partitions of some times that are not released yet, as one new generation.

    Returns
    -------
    outcome
        "published", or "nothing to do" where all are released already.

    Raises
    ------
    GateError
        If the audit of a new history, or of a partition, does not pass; then nothing is published.
        If partitions may have drifted, or have values that no mapping knows: the others are
        published before.
    """
    increment_check.check_incremental(options)
    spend.check_lasting(options)
    url = options.release.path
    partitions = read_partitions(options.collection.path)
    history = increment_check.find_history(options)
    with hold_workspace(url):
        found = incremental_release.read_incremental(url)
        if found is not None:
            write_root(url, found[0])  # a writer that died may have left it behind
        former, state = found or (None, NOTHING_RELEASED)
        left = incremental_release.sweep_parts(url, state, datetime.now(UTC))
        state = replace(state, retired=left)
        same = state if state.line == history.id else None
        work = _Work(options, watch, history, PrivateLedger(url), state, same)
        new = [one for one in partitions if work.is_new(one) and work.takes(one, times)]
        # Their partition holds other records now, or is gone.
        replaced = work.stored - {*map(work.name, partitions)}
        if not new and not replaced:
            watch.say(f"done     {shown(url)}: all partitions of this time are released")
            remove_workspace(url)
            return "nothing to do"
        content, drifted = _make(work, new, replaced)
        if content != state:
            # Until here readers see the former generation, from here on the whole of the next.
            generation = publish_generation(url, "release", content.encode(), former)
            watch.publish()
            watch.say(
                f"done     release {shown(url)}, generation {generation.number}: "
                f"{len(new) - len(drifted)} new parts of {len(content.parts)}, "
                f"{len(content.retired)} retired"
            )
        remove_workspace(url)
    if drifted:
        raise GateError(
            " ".join(one.message for one in drifted), remedy=drifted[0].remedy, code=drifted[0].code
        )
    return "published"


LEFT_OUT = {"drift": "it may have drifted", "stratum-unknown": "a value of [method] by is new"}
"""Codes of partitions that do not stop the nights after them, and why in words."""

NOTHING_RELEASED = IncrementalState("", {}, (), 1, ())


@dataclass(frozen=True)
class _Work:
    """A run of an incremental release, and the generation that it begins with.

    Parameters
    ----------
    options, watch, history, ledger
    former
        The generation, of whatever history.
    same
        The same, where it is of this history.
    """

    options: RunOptions
    watch: Watch
    history: History
    ledger: PrivateLedger
    former: IncrementalState
    same: IncrementalState | None

    @property
    def stored(self) -> set[str]:
        """Names of the parts that stay unless they are replaced."""
        return {part.id for part in self.same.parts} if self.same else set()

    def name(self, partition: StoredPartition) -> str:
        """Name of the part that a partition becomes, by its content."""
        return self.ledger.name_part(self.history.id, partition.content)

    def is_new(self, partition: StoredPartition) -> bool:
        """Whether a partition is neither released nor withdrawn."""
        withdrawn = self.ledger.is_withdrawn(partition.known_by, self.former.withdrawn)
        return self.name(partition) not in self.stored and not withdrawn

    def takes(self, partition: StoredPartition, times: TimeSpan) -> bool:
        """Whether it is of these times; a new history takes all that the former one released."""
        held = () if self.same else (part.content for part in self.former.parts)
        return times.holds(partition) or self.ledger.mark_content(partition.content) in held

    def note(self, partition: StoredPartition) -> None:
        """Write down whose part it is, without which no one could withdraw it by name."""
        about = {"name": partition.name, "time": partition.time, "content": partition.content}
        self.ledger.note(self.name(partition), about)


def _make(
    work: _Work, new: list[StoredPartition], replaced: set[str]
) -> tuple[IncrementalState, list[GateError]]:
    """The next state, with the new parts made; the first of a history brings model and audit.

    One night's drift does not stop the nights after it. But a new history replaces all parts, so it
    begins with all that was released or not at all.
    """
    state, former, made, drifted = work.same, work.former, list[Part](), list[GateError]()
    if state is not None:
        _judge_again(work, state)
    for partition in new:
        part = None if state is None else _find_made(work, partition)
        try:
            if part is None:
                state, part = _make_part(work, partition, state)
        except GateError as error:
            if error.code not in LEFT_OUT or (work.same is None and former.parts):
                raise
            work.watch.say(f"refused  partition {partition.name!r}: {LEFT_OUT[error.code]}")
            drifted.append(error)
            continue
        made.append(part)
    if state is None:
        raise drifted[0]
    stay = work.same.parts if work.same else ()
    # Of another history nothing stays: its parts were made by another model, and are never mixed.
    gone = () if work.same else [part.id for part in former.parts]
    due = (datetime.now(UTC) + GRACE).isoformat()
    parts = tuple(part for part in (*stay, *made) if part.id not in replaced)
    live, newly = {part.id for part in parts}, (*gone, *sorted(replaced))
    retired = (*former.retired, *(incremental_release.Retired(part, due) for part in newly))
    following = replace(
        state,
        parts=parts,
        withdrawn=former.withdrawn,
        # What came back is retired no more.
        retired=tuple(one for one in retired if one.id not in live),
    )
    return following, drifted


def _judge_again(work: _Work, state: IncrementalState) -> None:
    """The limits of today on the audit of the history: what was let through once may be too much.

    The whole audit is in the private ledger; the header of an older release holds its own.
    """
    findings = work.ledger.recall(_audit_key(work.history)) or state.header["audit"]
    if "differences" not in findings and "options" not in findings["adversaries"]:
        problem = "The audit of this history of generations is not in its private ledger."
        remedy = "Restore the ledger beside the release, or begin a new one by another option."
        raise StoreError(problem, remedy=remedy, code="ledger")
    limits = work.options.gate
    if not limits.enforce or findings["gate"]["state"] == "approved":
        return
    if complaints := gate.judge_findings(findings, limits):
        raise GateError(
            complaints[0].reason,
            remedy="Nothing was published. It was judged by other limits: loosen [gate], or change "
            "the method, which begins a new history.",
            code=complaints[0].code,
        )


def _find_made(work: _Work, partition: StoredPartition) -> Part | None:
    """A part that a killed run finished and no generation names."""
    url = incremental_release.part_url(work.options.release.path, work.name(partition))
    if not exists(url):
        return None
    with hold_workspace(url):
        work.note(partition)
        remove_workspace(url)
    return _describe_part(work, partition, url)


def _make_part(
    work: _Work, partition: StoredPartition, state: IncrementalState | None
) -> tuple[IncrementalState, Part]:
    options, watch = work.options, work.watch
    part = work.name(partition)
    url = incremental_release.part_url(options.release.path, part)
    if state is None and exists(url):  # of a history whose first run died: its audit is not known
        incremental_release.delete_part(options.release.path, part)
    run = check_part_of(options, work.history, partition, part)
    with hold_workspace(url), gate.dropping_refused(url):
        run, _ = resume.begin_or_resume(run)
        watch.run_id = run.run_id
        opened = open_executor(cluster_options(options), run.run_id, watch.hear)
        with opened as executor, watch.working(executor):
            # Its day of the month: of every date a scheduler would keep a name for ever.
            executor.part = f"_day{partition.time[8:10]}"
            if state is None:
                watch.say(f"cluster  {executor.describe()}")
            with watch.stage("train", f"{run.training.n_records:,} records, once per history"):
                trained = stage_tasks.train_task(run, executor)
            plan = clean.plan_release(run, trained)
            if state is not None:
                _check_arrays(state, plan, partition)
            # Before a record of it is cleaned: workspaces of parts lie in the published tree, where
            # what is refused must leave nothing.
            with watch.stage("drift", f"limit {options.gate.drift_max}"), _leaving_nothing(url):
                _check_drift(work, run, trained, partition, executor)
            n = plan.chunks.n_chunks
            run = resume.begin_stage(run, "clean", model_digest=trained.model_digest, n_chunks=n)
            with (
                watch.stage("clean", f"{plan.chunks.n_records:,} records of a new partition"),
                _naming_unknown(partition.name, url),
            ):
                cleaned = stage_tasks.clean_task(run, trained, plan, executor)
            state = _audit_part(work, run, trained, cleaned, executor, state)
        head = _head_part(run, trained, work.history, cleaned)
        publish.show_release(run, trained, cleaned, head, incremental=True)
        spend.confirm_loss(run, run.run_id)
        work.note(partition)
        remove_workspace(url)
    return state, _describe_part(work, partition, url)


@contextmanager
def _naming_unknown(name: str, url: str) -> Iterator[None]:
    """Of a value of `by` that no training record has the partition is to blame, and left out."""
    try:
        yield
    except InputError as error:
        if error.code not in LEFT_OUT:
            raise
        remove_workspace(url)
        problem = f"The partition {name!r} is not released: {error.message}"
        remedy = (
            f"Append it without them: `privpipe append ... --partition {quote(name)} --replace`; "
        )
        remedy += "or begin another release, trained on records that have it."
        raise GateError(problem, remedy=remedy, code=error.code) from None


@contextmanager
def _leaving_nothing(url: str) -> Iterator[None]:
    try:
        yield
    except GateError:
        remove_workspace(url)
        raise


def _audit_part(
    work: _Work,
    run: Run,
    trained: Trained,
    cleaned: Cleaned,
    executor: Executor,
    state: IncrementalState | None,
) -> IncrementalState:
    """Audit the first part of a history whole, and further ones on their own records.

    Where these carry no labels, what they lost: what no label judges was refused when the history
    began, or vouched for by name.
    """
    watch, options = work.watch, work.options
    if state is not None and judged_records.find_labelled(run) is None:
        with watch.stage("audit", "what each new record lost"):
            audit_stage.audit_losses(run, cleaned, executor)
            gate.check_places(audit_places.audit_places(run, trained, cleaned.plan), options.gate)
        return state
    whose = "held-out records, once per history" if state is None else "the part's own records"
    with watch.stage("audit", whose):
        findings = stage_tasks.audit_task(run, trained, cleaned, executor)
    # The release itself has no run: a state of its own is what `approve` and `purge` look for.
    whole = replace(run, options=options)
    fresh = RunState(run.run_id, options.digest(), "", "", "", now(), stage="gate")
    write_state(options.release.path, fresh)
    judged = stage_tasks.gate_task(whole, cleaned, findings, True, watch)
    if state is not None:
        return state
    work.ledger.keep(_audit_key(work.history), json.loads(json.dumps(judged)))
    # Method and guarantee are in the header of the history itself.
    header = publish.describe_fit(run, trained, cleaned, judged | {"about": {}}) | {"begun": now()}
    rows = cleaned.plan.arrays[0].chunk_rows  # readers join parts: all have the same chunks
    return IncrementalState(work.history.id, header, _describe_arrays(cleaned.plan), rows, ())


def _check_drift(
    work: _Work, run: Run, trained: Trained, partition: StoredPartition, executor: Executor
) -> None:
    key = f"reference-{work.history.id[:16]}"
    indicators = trained.reads == "attributes"

    def measure(collection: Collection, name: str) -> CoMoments:
        found = replace(collection, indicators=indicators, fill=trained.mean_record)
        return ShardedCollection(found, executor, name).reduce(increment_check.summarise_features)

    known = work.ledger.recall(key)
    if known is None:
        fit = run.training.keeping(run.split, "fit")
        known = increment_check.DriftReference.of(measure(fit, "reference")).encode()
        work.ledger.keep(key, known)
    bare = replace(run.collection, desired=(), confidential=(), weights=None)
    moments = measure(replace(bare, only_finite=not indicators), "drift")
    attributes = run.collection.schema.attributes if indicators else ()
    sizes = [column.n_categories or 0 for column in attributes]
    before = increment_check.DriftReference.decode(known)
    drift = increment_check.measure_drift(before, moments, run.options.audit.level, sizes)
    work.ledger.keep(f"drift/{work.name(partition)}", vars(drift))
    increment_check.check_drift(drift, run.options.gate.drift_max, partition.name)


def _audit_key(history: History) -> str:
    return f"audit-{history.id[:16]}"


def _check_arrays(state: IncrementalState, plan: ReleasePlan, partition: StoredPartition) -> None:
    """Readers join the parts: each has the arrays and category tables of the first.

    Raises
    ------
    InputError
        Before a record of the partition is read.
    """
    mine = {str(one["name"]): one["attributes"] for one in _describe_arrays(plan)}
    first = {str(one["name"]): dict(one["attributes"]) for one in state.arrays}
    other = sorted(name for name in {*mine, *first} if mine.get(name) != first.get(name))
    if other:
        raise InputError(
            f"The partition {partition.name!r} would be released with another kind or other "
            f"categories of {', '.join(map(repr, other))} than the parts before.",
            remedy="Ingest it like the partitions before, or leave the variable out of include. "
            "Or begin a new history with a training collection that has all its categories.",
            code="schema-drift",
        )


def _describe_arrays(plan: ReleasePlan) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "name": array.name,
            "dtype": array.dtype,
            "columns": array.shape[1] if len(array.shape) > 1 else 0,
            "attributes": dict(array.attributes),
        }
        for array in plan.arrays
    )


def _head_part(run: Run, trained: Trained, history: History, cleaned: Cleaned) -> dict[str, Any]:
    """The header of a part: what it is a part of; no digest of its records."""
    return {
        "method": run.method.name,
        "line": history.id,
        "model_digest": trained.model_digest,
        "versions": list_versions(),
        "published": now(),
        "feature_names": [],
        "partitions": [],
        "n_withheld": hide_small_count(cleaned.n_withheld),
    }


def _describe_part(work: _Work, partition: StoredPartition, url: str) -> Part:
    header = read_header(url, "release")
    return Part(
        work.name(partition),
        work.ledger.mark_content(partition.content),
        int(header["n_records"]),
        header["n_withheld"],
        incremental_release.digest_root(url),
    )
