"""Attacks as Dask tasks: prepared evidence goes to the workers once, outcomes come back.

Outcomes are numbers about records; no record and no library's message travels with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut
from privpipe.attacks.threats.attack_plan import plan_attacks
from privpipe.attacks.threats.inference import run_attack
from privpipe.attacks.threats.learning_curve import choose_strongest, measure_curve
from privpipe.attacks.threats.power import choose_planted, list_leaks, measure_power
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.detection import Detection
from privpipe.attacks.threats.verdicts.learning import LearningCurve
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import Executor, WorkerMemory
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.errors import MemoryBudgetError, PrivpipeError

_FIXED_BYTES = 256 << 20
"""Kernel features of one width, a block of bootstrap weights with its sums, and slack."""


def plan_attack_bytes(evidence: Evidence) -> int:
    """Bytes one attack needs beside the evidence, at most.

    The records it trains and tunes on are copied, once as they are, once in double precision,
    and once more where it trains on both.
    """
    widest: int = max(source.values.shape[1] for source in evidence.sources.values())
    itemsize: int = max(source.values.itemsize for source in evidence.sources.values())
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
        Variables in which leaks are planted, and kinds of leak.
    """

    plan: tuple[Attack, ...]
    counts: dict[str, Any]
    held_bytes: int
    attack_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    planted: tuple[tuple[str, str], ...] = ()


def distribute_attacks(
    executor: Executor,
    evidence: Evidence | Callable[[], Evidence],
    *,
    options: AttackOptions | None = None,
    progress: Callable[[int, int, AttackOutcome], None] | None = None,
    retries: int = 1,
    checkpoints: Checkpoints | None = None,
    power: bool = False,
    n_released: int = 0,
) -> AttackReport:
    """Run the attacks of an audit on the workers of a cluster.

    Parameters
    ----------
    executor
        Who works.
    evidence
        What is attacked: prepared evidence, which is sent to every worker once; or a
        picklable function that prepares it, which runs once on a worker (for instance to
        read the sample from the release, so that no record passes the driver).
    options
        Adversaries, bounds, limit and confidence.
    progress
        Called after each attack with the number done, the number planned and the outcome.
    retries
        Times an attack is tried again when its worker is lost.
    checkpoints
        Where outcomes are checkpointed, and found by a run that goes on; None for nowhere.
    power
        Whether leaks are planted as well, to say what would have been found, and what is safe is
        attacked with fewer labels, to say what more would have told.
    n_released
        Records of the release: somebody may know the labels of all.

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
    options = options or AttackOptions()
    measured = options.without_limits()
    if isinstance(evidence, Evidence):
        held = executor.send(evidence)
    else:
        held = executor.hold(evidence, key="prepare_evidence")
    summary: EvidenceSummary = _ask_one(executor, describe_evidence, held, measured)
    check_worker_memory(summary, executor.measure())
    known = checkpoints and checkpoints.about(evidence, measured)
    attacks = {attack.name: attack for attack in summary.plan}
    tasks = (
        (attack.name, (attack, measured, known and known.about(attack))) for attack in summary.plan
    )
    executor.listener(Event("attack", "begins", len(attacks), "attacks"))
    outcomes: list[AttackOutcome] = []
    for name, found in executor.map_tasks(
        attack_once, tasks, shared=(held,), prefix="attack", retries=retries
    ):
        outcomes.append(_lose(attacks[name], found) if isinstance(found, PrivpipeError) else found)
        executor.listener(Event("attack", "advances", 1, "attacks"))
        if progress is not None:
            progress(len(outcomes), len(attacks), outcomes[-1])
    executor.listener(Event("attack", "ends", unit="attacks"))
    report = summarise_outcomes(
        outcomes, summary.plan, options, left_out=summary.left_out, **summary.counts
    )
    if not power:
        return report
    report = replace(report, power=_plant_leaks(executor, held, summary, options, known))
    return replace(report, curves=_follow_labels(executor, held, report, n_released, known))


def _follow_labels(
    executor: Executor, held: Any, report: AttackReport, n_released: int, known: Checkpoints | None
) -> tuple[LearningCurve, ...]:
    """Learning curves of the variables that are safe but for these."""
    options, tasks = report.options, {}
    n_total = max(n_released, report.n_given)
    for target in [one.target for one in report.decide() if one.verdict == "safe"]:
        attacks = [o.attack for o in report.outcomes if o.attack.target == target]
        n_attacks = sum(is_of_release(attack.source) for attack in attacks)
        strongest = choose_strongest(report.outcomes, target, options)
        if strongest is not None:
            asked = (strongest, options, n_total, n_attacks)
            tasks[target] = (*asked, known and known.about("curve", *asked))
    found = dict(
        executor.map_tasks(follow_once, list(tasks.items()), shared=(held,), prefix="learn")
    )
    return tuple(
        one if isinstance(one, LearningCurve) else LearningCurve(target, reason=one.code)
        for target, one in found.items()
    )


def follow_once(
    evidence: Evidence,
    attack: Attack,
    options: AttackOptions,
    n_total: int,
    n_attacks: int,
    checkpoints: Checkpoints | None,
) -> LearningCurve:
    """Worker side: measure a learning curve, unless an earlier run did."""
    if checkpoints is not None and (kept := checkpoints.read("curve")) is not None:
        known: LearningCurve = kept
        return known
    found = measure_curve(evidence, attack, options, n_total, n_attacks)
    if checkpoints is not None and found.is_known:
        checkpoints.write("curve", found)
    return found


def _plant_leaks(
    executor: Executor,
    held: Any,
    summary: EvidenceSummary,
    options: AttackOptions,
    known: Checkpoints | None,
) -> tuple[Detection, ...]:
    """What the audit finds of planted leaks; one whose attack failed is not found."""
    planned = summary.planted
    options = replace(options.without_limits(), must_find=options.must_find)
    tasks = (
        (f"{leak}-{target}", (target, leak, options, known and known.about(target, leak, options)))
        for target, leak in planned
    )
    found = dict(executor.map_tasks(detect_once, tasks, shared=(held,), prefix="plant"))
    kept = {name: one for name, one in found.items() if isinstance(one, Detection)}
    return tuple(
        kept.get(f"{leak}-{target}", Detection(target, leak, math.nan, "", False))
        for target, leak in planned
    )


def detect_once(
    evidence: Evidence,
    target: str,
    leak: str,
    options: AttackOptions,
    checkpoints: Checkpoints | None,
) -> Detection:
    """Worker side: plant a leak and look for it, unless an earlier run did."""
    if checkpoints is not None and (kept := checkpoints.read("detection")) is not None:
        known: Detection = kept
        return known
    position = [column.name for column in evidence.columns].index(target)
    found = measure_power(evidence, position, leak, options)
    if checkpoints is not None:
        checkpoints.write("detection", found)
    return found


def _ask_one(executor: Executor, function: Callable[..., Any], held: Any, *arguments: Any) -> Any:
    """Answer of one function about what is held, found where it is."""
    tasks = [("1", arguments)]
    [(_, found)] = executor.map_tasks(function, tasks, shared=(held,), prefix="plan_attacks")
    if isinstance(found, PrivpipeError):
        raise found
    return found


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


def attack_once(
    evidence: Evidence, attack: Attack, options: AttackOptions, checkpoints: Checkpoints | None
) -> AttackOutcome:
    """Worker side: run an attack, unless an earlier run checkpointed its outcome."""
    if checkpoints is not None and (kept := checkpoints.read("outcome")) is not None:
        known: AttackOutcome = kept
        return known
    outcome = run_attack(evidence, attack, options)
    if checkpoints is not None and outcome.status == "measured":
        checkpoints.write("outcome", outcome)
    return outcome


def check_worker_memory(summary: EvidenceSummary, workers: WorkerMemory) -> None:
    """Raise MemoryBudgetError where a worker cannot hold the evidence and its attacks."""
    # A worker that gets the evidence holds its message and its arrays for a moment.
    needed = 2 * summary.held_bytes + workers.threads * summary.attack_bytes
    if workers.smallest and needed > workers.smallest:
        raise MemoryBudgetError(
            f"Attacks need {needed / 2**20:.0f} MiB on a worker of {workers.threads} threads, "
            f"the smallest has {workers.smallest / 2**20:.0f} MiB.",
            remedy="Lower max_records or max_bytes of the attacks, or use fewer threads or "
            "larger workers.",
        )


def _lose(attack: Attack, error: PrivpipeError) -> AttackOutcome:
    # The code of the error only: its text may come from anywhere.
    return AttackOutcome(attack, "unknown", reason=f"The worker failed: {error.code}.")
