"""Attacks as Dask tasks: prepared evidence goes to the workers once, outcomes come back.

Outcomes are numbers about records; no record and no library's message travels with them. What
attacks beside inference need is read on a worker (`_PROVIDERS`): those are measured of a release
whose needs something here provides.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.attack_options import ALONE, USUAL, AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut, Target
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.splits import find_ties
from privpipe.attacks.threats import paired_training
from privpipe.attacks.threats.attack_table import ATTACKS, Sample, run_by_name
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.power import choose_planted, list_leaks, measure_power
from privpipe.attacks.threats.two_samples import MOST_COMPARED, measure_losses_of_model
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.outcomes import SKIPPED, Attack, AttackOutcome, is_of_release
from privpipe.attacks.threats.verdicts.safeguards import Detection, LearningCurve
from privpipe.capabilities import Promises
from privpipe.cluster.executors.executor import Event, Executor, WorkerMemory
from privpipe.cluster.pass_checkpoints import Checkpoints, recall
from privpipe.cluster.passes.evidence_sample import AuditSources, fill_missing, read_groups
from privpipe.cluster.passes.sample_drawing import Drawing, keep_chunk
from privpipe.errors import MemoryBudgetError, PrivpipeError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import IntArray, Shard
from privpipe.records.sampling import take_records
from privpipe.store.collections.collection import Collection
from privpipe.store.models import open_model

QUICK = {("released", "quadratic"), ("released", "boosting"), ("released", "logistic")}
"""Source and adversary of attacks that run first, beside all that know the target."""

_FIXED_BYTES = 256 << 20
"""Kernel features of one width, and slack."""


def plan_attack_bytes(evidence: Evidence) -> int:
    """Bytes one attack needs beside the evidence, at most.

    The records it trains and tunes on are copied, once as they are, once in double precision,
    and once more where it trains on both.
    """
    widest: int = max(source.values.shape[1] for source in evidence.sources.values())
    itemsize: int = max(source.values.itemsize for source in evidence.sources.values())
    # The most greedy adversary: which one a worker gets next is not known.
    n = max(
        min(evidence.n_records, adversary.max_train + adversary.max_tune)
        for adversary in ADVERSARIES.values()
    )
    return _FIXED_BYTES + n * widest * (2 * itemsize + 8)


@dataclass(frozen=True)
class EvidenceSummary:
    """What the driver must know of evidence that stays on workers.

    Parameters
    ----------
    plan
        The attacks to run.
    counts
        Numbers of records and groups, as `Evidence.counts` names them.
    held_bytes, attack_bytes
        Bytes of the evidence, and of one attack beside it.
    left_out
        Variables that cannot be attacked.
    planted
        Variables in which leaks are planted, and the leaks.
    """

    plan: tuple[Attack, ...]
    counts: dict[str, Any]
    held_bytes: int
    attack_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    planted: tuple[tuple[str, str], ...] = ()


Run = Callable[[Callable[..., Any], Mapping[str, tuple[Any, ...]], str], Iterator[tuple[str, Any]]]
"""``run(function, tasks, prefix)`` yields name and result of ``function(evidence, *task)`` as they
are done; an error is a result."""


def remember(
    evidence: Evidence, find: Callable[..., Any], task: tuple[Any, ...], known: Checkpoints | None
) -> Any:
    """Worker side: what a function finds of the evidence, unless an earlier run did.

    An unknown is not remembered: the next run tries again.
    """
    make = partial(find, evidence, *task)
    return recall(known, "found", make, stores=lambda found: getattr(found, "is_known", True))


def distribute_attacks(
    executor: Executor,
    prepare: Callable[[], Evidence],
    *,
    options: AttackOptions = USUAL,
    checkpoints: Checkpoints | None = None,
    power: bool = False,
    n_released: int = 0,
    ends_early: bool = False,
) -> AttackReport:
    """Run the attacks of an audit on the workers of a cluster.

    Parameters
    ----------
    executor
        Who works.
    prepare
        Prepares what is attacked; picklable. It runs once on a worker, as to read the sample from
        the release.
    options
        Adversaries, bounds, limit and confidence.
    checkpoints
        Where outcomes are checkpointed, and found by a run that resumes; None for nowhere.
    power
        Whether leaks are planted as well, to say what would have been found. What is safe is then
        attacked with fewer labels as well, to say what more would have revealed.
    n_released
        Records of the release: somebody may know the labels of all.
    ends_early
        Whether a certain leak ends the audit: the quick attacks run first, and what is left is
        skipped where they show one. All attacks share the level, whether they are run or not.

    Returns
    -------
    AttackReport
        The same as `measure_attacks` gives, but for the seconds. An attack whose worker was
        lost is "unknown".

    Raises
    ------
    MemoryBudgetError
        If a worker cannot hold the evidence and one attack per thread.
    PrivpipeError
        What preparing the evidence raised.

    Notes
    -----
    Keys are ``attack-<run id>-<source>-<adversary>-<variable>``: the dashboard groups them
    under "attack". A worker holds one copy of the evidence and one attack per thread.
    """
    # Limits decide nothing that is measured: a corrected one finds all outcomes checkpointed.
    measured = options.without_limits()
    # Where the evidence is used, so that no record passes the driver.
    held = executor.hold(prepare, key="prepare_evidence")
    known = checkpoints and checkpoints.about(prepare, measured)

    def run(
        function: Callable[..., Any], tasks: Mapping[str, tuple[Any, ...]], prefix: str
    ) -> Iterator[tuple[str, Any]]:
        # What an earlier run has checkpointed of this evidence is read instead.
        about = known and partial(known.about, function.__name__)
        calls = ((name, (function, task, about and about(*task))) for name, task in tasks.items())
        return executor.map_tasks(remember, calls, shared=(held,), prefix=prefix)

    plan = [("1", (held, measured))]
    [(_, summary)] = executor.run_tasks(describe_evidence, plan, prefix="plan_attacks")
    check_worker_memory(summary, executor.measure())
    executor.listener(Event("attack", "begins", len(summary.plan), "attacks"))
    about: dict[str, Any] = {"left_out": summary.left_out, **summary.counts}
    outcomes: list[AttackOutcome] = []
    # Quick ones find most leaks: where nothing ends early they are the first of one wave.
    waves = ([a for a in summary.plan if is_quick(a) == quick] for quick in (True, False))
    for wave in waves if ends_early else [summary.plan]:
        attacks = {attack.name: attack for attack in wave}
        tasks = {name: (attack, measured) for name, attack in attacks.items()}
        for name, found in run(run_attack, tasks, "attack"):
            if isinstance(found, PrivpipeError):
                # The code of the error only: its text may come from anywhere.
                reason = f"The worker failed: {found.code}."
                found = AttackOutcome(attacks[name], "unknown", reason=reason)
            outcomes.append(found)
            executor.listener(Event("attack", "advances", 1, "attacks"))
        report = summarise_outcomes(outcomes, summary.plan, options, **about)
        if ends_early and report.verdict == "leaks":
            skipped = set(summary.plan) - {one.attack for one in outcomes}
            outcomes += [AttackOutcome(attack, "unknown", reason=SKIPPED) for attack in skipped]
            executor.listener(Event("attack", "ends", unit="attacks"))
            return summarise_outcomes(outcomes, summary.plan, options, **about)
    executor.listener(Event("attack", "ends", unit="attacks"))
    if not power:
        return report
    report = replace(report, power=_plant_leaks(run, summary, options))
    return replace(report, curves=_follow_labels(run, report, n_released))


def is_quick(attack: Attack) -> bool:
    """Whether an attack is among those that find most leaks in a small part of the time.

    >>> is_quick(Attack("sex", "classes", "joined", "boosting"))
    True
    """
    # An included variable by itself is soon read, and one that leaks is what a refusal names first.
    is_alone = attack.source.startswith(ALONE)
    return is_alone or attack.source == "joined" or (attack.source, attack.adversary) in QUICK


def _plant_leaks(run: Run, drawn: EvidenceSummary, options: AttackOptions) -> tuple[Detection, ...]:
    """What the audit finds of planted leaks; one whose attack failed is not found."""
    options = replace(options.without_limits(), must_find=options.must_find)
    tasks = {f"{leak}-{target}": (target, leak, options) for target, leak in drawn.planted}
    found = dict(run(detect_leak, tasks, "plant"))
    return tuple(
        one
        if isinstance(one := found[f"{leak}-{target}"], Detection)
        else Detection(target, leak, math.nan, "", False)
        for target, leak in drawn.planted
    )


def detect_leak(evidence: Evidence, target: str, leak: str, options: AttackOptions) -> Detection:
    """Worker side: plant a leak and look for it."""
    return measure_power(Target.named(evidence, target, options), leak)


def _follow_labels(run: Run, report: AttackReport, n_released: int) -> tuple[LearningCurve, ...]:
    """Learning curves of the variables that are safe but for these."""
    # Only what is safe is followed: more labels cannot make a leak smaller.
    tasks, n_total = {}, max(n_released, report.n_given)
    for target in [one.target for one in report.decide() if one.verdict == "safe"]:
        attacks = [o.attack for o in report.outcomes if o.attack.target == target]
        n_attacks = sum(is_of_release(attack.source) for attack in attacks)
        strongest = paired_training.choose_strongest(report.outcomes, target, report.options)
        if strongest is not None:
            tasks[target] = (strongest, report.options, n_total, n_attacks)
    return tuple(
        one if isinstance(one, LearningCurve) else LearningCurve(target, reason=one.code)
        for target, one in dict(run(paired_training.measure_curve, tasks, "learn")).items()
    )


def describe_evidence(evidence: Evidence, options: AttackOptions) -> EvidenceSummary:
    """Worker side: what the driver must know of the evidence; no record is in it."""
    return EvidenceSummary(
        plan=plan_attacks(evidence, options),
        counts=evidence.counts(),
        held_bytes=evidence.n_bytes,
        attack_bytes=plan_attack_bytes(evidence),
        left_out=evidence.left_out,
        planted=tuple(
            (evidence.columns[j].name, leak)
            for j in choose_planted(evidence)
            for leak in list_leaks(evidence)
        ),
    )


def check_worker_memory(summary: EvidenceSummary, workers: WorkerMemory) -> None:
    """Raise MemoryBudgetError where a worker cannot hold the evidence and its attacks."""
    # A worker that gets the evidence holds its message and its arrays for a moment.
    needed = 2 * summary.held_bytes + workers.threads * summary.attack_bytes
    if workers.smallest and needed > workers.smallest:
        raise MemoryBudgetError(
            f"Attacks need {needed / 2**20:.0f} MiB on a worker of {workers.threads} threads, "
            f"the smallest has {workers.smallest / 2**20:.0f} MiB.",
            remedy="Lower max_records or max_bytes of the attacks, or use larger workers.",
        )


@dataclass(frozen=True)
class _Provider:
    """How some fields of a `Sample` are read of the records of an audit.

    Parameters
    ----------
    provides
        The fields.
    suits
        Whether the records have them.
    read
        ``read(sources, options)``; a sample.
    """

    provides: frozenset[str]
    suits: Callable[[AuditSources], bool]
    read: Callable[[AuditSources, AttackOptions], Sample]


def list_measured(sources: AuditSources) -> tuple[str, ...]:
    """Attacks that are measured of a release of records, in the order of the table."""
    return tuple(name for name in ATTACKS if _find_provider(name, sources) is not None)


def attack_by_name(sources: AuditSources, name: str, options: AttackOptions) -> str:
    """Worker side: draw what an attack needs and run it.

    Returns
    -------
    report
        Of the attack, as JSON: numbers about records, no value of any.
    """
    provider = _find_provider(name, sources)
    assert provider is not None, "the driver has listed it"
    return run_by_name(name, provider.read(sources, options), options).to_json()


def _find_provider(name: str, sources: AuditSources) -> _Provider | None:
    needs = set(ATTACKS[name].needs)
    return next((one for one in _PROVIDERS if needs <= one.provides and one.suits(sources)), None)


def draw_missing(executor: Executor, drawings: Sequence[Drawing]) -> None:
    """Draw of every chunk what is drawn of it and not stored yet: nothing where cleaning did."""
    for number, drawing in enumerate(drawings):
        wider: Drawing | None = drawing
        while wider is not None:
            tasks = (
                (f"{number}-{wider.widened:g}-{chunks[0]:06d}", (wider, chunks))
                for chunks in wider.collection.plan.tasks()
            )
            drawn = executor.run_tasks(draw_chunks, tasks, prefix="draw_sample")
            wider = wider.widen(sum(n_drawn for _, n_drawn in drawn))


def draw_chunks(drawing: Drawing, chunks: Sequence[int]) -> int:
    """Worker side: store what is drawn of some chunks; how many records that is."""
    return sum(len(keep_chunk(drawing, chunk).words) for chunk in chunks)


def _draw(
    sources: AuditSources, collection: Collection, options: AttackOptions, few: int | None = None
) -> Shard:
    """Records of a part, raw and released; withheld ones are left out."""
    drawn = sources.draw(collection, options)
    if few is not None:
        drawn = drawn.take(np.sort(np.argsort(drawn.words, kind="stable")[:few]))
    return take_records(drawn.shard, np.flatnonzero(~find_empty_rows(drawn.shard.released)))


def _read_pairs(sources: AuditSources, options: AttackOptions) -> Sample:
    """Raw and released records, row by row, with what is released as recorded."""
    shard = _draw(sources, sources.judged, options)
    # Codes are equal by nature: of tables of classes no record is left out for having an equal.
    if sources.published.group is None and not sources.judged.indicators:
        ties = find_ties(shard.released, shard.features)
        if ties is not None:  # a record is no better concealed for being there twice
            shard = take_records(shard, np.unique(ties, return_index=True)[1])
    first, last = np.cumsum([len(sources.judged.confidential), len(sources.published.included)])
    who, more = read_groups(shard, sources.published), shard.confidential[:, first:last]
    return Sample(shard.released, fill_missing(shard.features), groups=who, included=more)


def _read_members(sources: AuditSources, options: AttackOptions) -> Sample:
    """Records of either side as who has the model and the release sees them."""
    assert sources.learned is not None
    fitted = open_model(sources.model.url)
    predictor = fitted.promise.predictor if isinstance(fitted, Promises) else None
    others = sources.judged if sources.fresh is None else sources.fresh
    sides = [_draw(sources, part, options, MOST_COMPARED) for part in (sources.learned, others)]
    features = np.concatenate([side.features for side in sides])
    labels = np.concatenate([side.desired for side in sides])
    released = np.concatenate([side.released for side in sides]).astype(np.float64)
    # Both sides are measured as one table: what differs may be the records, never the measuring.
    raw = np.asarray(fill_missing(features), np.float64)
    losses = measure_losses_of_model(raw, labels, predictor, released)
    table = np.hstack([losses, np.nan_to_num(labels), released])
    n_learned = len(sides[0].features)
    return Sample(learned=table[:n_learned], fresh=table[n_learned:])


def _read_populations(sources: AuditSources, options: AttackOptions) -> Sample:
    """Records of the release, and the released records that judged it."""
    assert sources.release is not None
    parts = sources.release, sources.judged
    tables = [_draw(sources, part, options, MOST_COMPARED).released for part in parts]
    first, second = (table[find_finite_rows(table)].astype(np.float64) for table in tables)
    return Sample(published=first, judged=second)


def _read_codes(sources: AuditSources, options: AttackOptions) -> Sample:
    """Released codes and confidential classes; numbers have none and are left out."""
    shard, columns = _draw(sources, sources.judged, options), sources.judged.schema.confidential
    chosen = [j for j, column in enumerate(columns) if column.is_categorical]
    attributes = sources.judged.schema.attributes
    ends = np.cumsum([column.n_categories or 0 for column in attributes])
    # A row without any indicator is a missing value, which an outsider sees as such.
    parts: list[IntArray] = [
        np.where(block.any(axis=1), block.argmax(axis=1), -1)
        for block in np.split(shard.released, ends[:-1], axis=1)
    ]
    return Sample(
        codes=np.column_stack(parts),
        classes=np.nan_to_num(shard.confidential[:, chosen], nan=-1).astype(np.int64),
        attributes=tuple(column.name for column in attributes),
        columns=tuple(columns[j] for j in chosen),
    )


_PROVIDERS = (
    _Provider(frozenset(("released", "raw", "groups")), lambda _: True, _read_pairs),
    _Provider(frozenset(("learned", "fresh")), lambda one: one.learned is not None, _read_members),
    _Provider(
        frozenset(("codes", "classes", "attributes", "columns")),
        lambda one: (
            one.judged.indicators
            and any(column.is_categorical for column in one.judged.schema.confidential)
        ),
        _read_codes,
    ),
    _Provider(
        frozenset(("published", "judged")), lambda one: one.release is not None, _read_populations
    ),
)


def measure_retained_utility(sources: AuditSources, options: AttackOptions) -> list[dict[str, Any]]:
    """Worker side: how well every desired variable is predicted, raw and released, with limits.

    Returns
    -------
    found
        A `RetainedUtility` per desired variable as a dictionary; of one that could not be measured
        its name and the reason.

    Raises
    ------
    InputError
        If the sample is too small, or no variable varies.
    """
    shard, columns = _draw(sources, sources.judged, options), sources.judged.schema.desired
    evidence = prepare_evidence(
        shard.released,
        shard.desired,
        raw=fill_missing(shard.features),
        columns=columns,
        groups=read_groups(shard, sources.published),
        ties=not sources.judged.indicators,
        options=options,
    )
    found: list[dict[str, Any]] = []
    for position, column in enumerate(evidence.columns):
        try:
            target = Target(evidence, position, options)
            found.append(asdict(paired_training.measure_retained(target)))
        except PrivpipeError as error:
            found.append({"target": column.name, "reason": error.code})
    return found + [{"target": one.target, "reason": one.reason} for one in evidence.left_out]
