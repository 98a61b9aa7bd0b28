"""Attacks as Dask tasks: prepared evidence goes to the workers once, outcomes come back.

Outcomes are numbers about records; no record and no library's message travels with them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.paired_training import choose_strongest, measure_curve
from privpipe.attacks.threats.power import choose_planted, list_leaks, measure_power
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.attacks.threats.verdicts.safeguards import Detection, LearningCurve
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


@dataclass(frozen=True)
class _Work:
    """Evidence that workers hold, and who runs tasks on it.

    Parameters
    ----------
    executor
        Who works.
    evidence
        What it holds; every task is given it first.
    known
        Where outcomes about this evidence are checkpointed; None for nowhere.
    """

    executor: Executor
    evidence: Any
    known: Checkpoints | None

    def run(
        self,
        function: Callable[..., Any],
        tasks: Mapping[str, tuple[Any, ...]],
        prefix: str,
        retries: int = 2,
    ) -> Iterator[tuple[str, Any]]:
        """Name and result of each task, in the order of finishing; an error is a result.

        One that an earlier run has checkpointed is read instead.
        """
        about = self.known and partial(self.known.about, function.__name__)
        calls = ((name, (function, task, about and about(*task))) for name, task in tasks.items())
        return self.executor.map_tasks(
            remember, calls, shared=(self.evidence,), prefix=prefix, retries=retries
        )


def remember(
    evidence: Evidence,
    function: Callable[..., Any],
    task: tuple[Any, ...],
    checkpoints: Checkpoints | None,
) -> Any:
    """Worker side: what a function finds of the evidence, unless an earlier run did.

    An unknown is not remembered: the next run tries again.
    """
    if checkpoints is not None and (known := checkpoints.read("found")) is not None:
        return known
    found = function(evidence, *task)
    if checkpoints is not None and getattr(found, "is_known", True):
        checkpoints.write("found", found)
    return found


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
        Where outcomes are checkpointed, and found by a run that resumes; None for nowhere.
    power
        Whether leaks are planted as well, to say what would have been found, and what is safe is
        attacked with fewer labels, to say what more would have revealed.
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
    # Limits decide nothing that is measured: a corrected one finds all outcomes checkpointed.
    measured = options.without_limits()
    # A function runs where the evidence is used, so that no record passes the driver.
    if isinstance(evidence, Evidence):
        held = executor.send(evidence)
    else:
        held = executor.hold(evidence, key="prepare_evidence")
    known = checkpoints and checkpoints.about(evidence, measured)
    work = _Work(executor, held, known)
    plan = [("1", (measured,))]
    [(_, summary)] = executor.map_tasks(
        describe_evidence, plan, shared=(held,), prefix="plan_attacks"
    )
    if isinstance(summary, PrivpipeError):
        raise summary
    check_worker_memory(summary, executor.measure())
    attacks = {attack.name: attack for attack in summary.plan}
    tasks = {name: (attack, measured) for name, attack in attacks.items()}
    executor.listener(Event("attack", "begins", len(attacks), "attacks"))
    outcomes: list[AttackOutcome] = []
    for name, found in work.run(run_attack, tasks, "attack", retries):
        if isinstance(found, PrivpipeError):
            # The code of the error only: its text may come from anywhere.
            reason = f"The worker failed: {found.code}."
            found = AttackOutcome(attacks[name], "unknown", reason=reason)
        outcomes.append(found)
        executor.listener(Event("attack", "advances", 1, "attacks"))
        if progress is not None:
            progress(len(outcomes), len(attacks), found)
    executor.listener(Event("attack", "ends", unit="attacks"))
    report = summarise_outcomes(
        outcomes, summary.plan, options, left_out=summary.left_out, **summary.counts
    )
    if not power:
        return report
    report = replace(report, power=_plant_leaks(work, summary, options))
    return replace(report, curves=_follow_labels(work, report, n_released))


def _plant_leaks(
    work: _Work, summary: EvidenceSummary, options: AttackOptions
) -> tuple[Detection, ...]:
    """What the audit finds of planted leaks; one whose attack failed is not found."""
    options = replace(options.without_limits(), must_find=options.must_find)
    tasks = {f"{leak}-{target}": (target, leak, options) for target, leak in summary.planted}
    found = dict(work.run(detect_leak, tasks, "plant"))
    return tuple(
        one
        if isinstance(one := found[f"{leak}-{target}"], Detection)
        else Detection(target, leak, math.nan, "", False)
        for target, leak in summary.planted
    )


def detect_leak(evidence: Evidence, target: str, leak: str, options: AttackOptions) -> Detection:
    """Worker side: plant a leak and look for it."""
    position = [column.name for column in evidence.columns].index(target)
    return measure_power(evidence, position, leak, options)


def _follow_labels(work: _Work, report: AttackReport, n_released: int) -> tuple[LearningCurve, ...]:
    """Learning curves of the variables that are safe but for these."""
    # Only what is safe is followed: more labels cannot make a leak smaller.
    tasks, n_total = {}, max(n_released, report.n_given)
    for target in [one.target for one in report.decide() if one.verdict == "safe"]:
        attacks = [o.attack for o in report.outcomes if o.attack.target == target]
        n_attacks = sum(is_of_release(attack.source) for attack in attacks)
        strongest = choose_strongest(report.outcomes, target, report.options)
        if strongest is not None:
            tasks[target] = (strongest, report.options, n_total, n_attacks)
    found = dict(work.run(measure_curve, tasks, "learn"))
    return tuple(
        one if isinstance(one, LearningCurve) else LearningCurve(target, reason=one.code)
        for target, one in found.items()
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
            remedy="Lower max_records or max_bytes of the attacks, or use fewer threads or "
            "larger workers.",
        )
