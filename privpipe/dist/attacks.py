"""Attacks as Dask tasks: prepared evidence goes to the workers once, outcomes come back.

Outcomes are numbers about records; no record and no library's message travels with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, as_completed

from privpipe.attacks.adversaries import plan_attack_bytes
from privpipe.attacks.evidence import Evidence
from privpipe.attacks.inference import plan_attacks, run_attack
from privpipe.attacks.options import AttackOptions
from privpipe.attacks.outcomes import Attack, AttackOutcome
from privpipe.attacks.verdicts import AttackReport, summarise_outcomes
from privpipe.dist.boundary import run_sealed
from privpipe.dist.cluster import WorkerMemory, measure_workers
from privpipe.dist.kept import Keeper
from privpipe.errors import MemoryBudgetError, PrivpipeError

__all__ = ["EvidenceSummary", "check_worker_memory", "distribute_attacks"]


@dataclass(frozen=True)
class EvidenceSummary:
    """What the driver must know of evidence that stays on workers.

    Parameters
    ----------
    plan
        The attacks to run.
    counts
        Numbers of records, as `Evidence.counts` names them.
    held_bytes, attack_bytes
        Bytes of the evidence, and of one attack beside it.
    """

    plan: tuple[Attack, ...]
    counts: dict[str, int]
    held_bytes: int
    attack_bytes: int


def distribute_attacks(
    client: Client,
    evidence: Evidence | Callable[[], Evidence],
    *,
    options: AttackOptions | None = None,
    run_id: str = "",
    progress: Callable[[int, int, AttackOutcome], None] | None = None,
    retries: int = 1,
    keeper: Keeper | None = None,
) -> AttackReport:
    """Run the attacks of an audit on the workers of a cluster.

    Parameters
    ----------
    client
        The cluster.
    evidence
        What is attacked: prepared evidence, which is sent to every worker once; or a
        picklable function that prepares it, which runs once on a worker (for instance to
        read the sample from the release, so that no record passes the driver).
    options
        Adversaries, bounds, limit and confidence.
    run_id
        Part of the task keys, so that two runs on one scheduler do not answer each other;
        drawn at random when empty.
    progress
        Called after each attack with the number done, the number planned and the outcome.
    retries
        Times an attack is tried again when its worker is lost.
    keeper
        Where outcomes are kept, and found by a run that goes on; None to keep nothing.

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
    run_id = run_id or uuid.uuid4().hex[:8]
    held = _place(client, evidence, run_id)
    try:
        summary = _describe(client, held, options, run_id)
        check_worker_memory(summary, measure_workers(client))
        known = keeper and keeper.about(evidence, options)
        tasks = {
            client.submit(
                run_sealed,
                attack_once,
                held,
                attack,
                options,
                known and known.about(attack),
                key=f"attack-{run_id}-{attack.name}",
                pure=False,
                retries=retries,
            ): attack
            for attack in summary.plan
        }
        outcomes = _collect(tasks, progress)
    finally:
        held.release()
    return summarise_outcomes(outcomes, summary.plan, options, **summary.counts)


def _place(
    client: Client, evidence: Evidence | Callable[[], Evidence], run_id: str
) -> Future[Evidence]:
    if isinstance(evidence, Evidence):
        # A future is opaque to Dask: the arrays are neither hashed nor copied into the graph.
        held: Future[Evidence] = client.scatter(evidence, hash=False, broadcast=True)
        return held
    return client.submit(
        run_sealed, evidence, key=f"prepare_evidence-{run_id}", pure=False, retries=2
    )


def _describe(
    client: Client, held: Future[Evidence], options: AttackOptions, run_id: str
) -> EvidenceSummary:
    """The plan, the counts and the bytes, found where the evidence is."""
    task = client.submit(
        run_sealed, describe_evidence, held, options, key=f"plan_attacks-{run_id}", pure=False
    )
    found: EvidenceSummary | PrivpipeError
    try:
        found = task.result()
    except PrivpipeError as error:
        found = error.with_traceback(None)
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
    )


def attack_once(
    evidence: Evidence, attack: Attack, options: AttackOptions, keeper: Keeper | None
) -> AttackOutcome:
    """Worker side: run an attack, unless an earlier run kept what it measured."""
    if keeper is not None and (kept := keeper.read("outcome")) is not None:
        known: AttackOutcome = kept
        return known
    outcome = run_attack(evidence, attack, options)
    if keeper is not None and outcome.status == "measured":
        keeper.write("outcome", outcome)
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


def _collect(
    tasks: dict[Future[AttackOutcome], Attack],
    progress: Callable[[int, int, AttackOutcome], None] | None,
) -> list[AttackOutcome]:
    """Outcomes as they come; a task that failed is an attack whose result is unknown."""
    outcomes: list[AttackOutcome] = []
    for future in as_completed(tasks):
        attack = tasks[future]
        outcome = future.result() if future.status == "finished" else _lose(future, attack)
        future.release()
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(tasks), outcome)
    return outcomes


def _lose(future: Future[Any], attack: Attack) -> AttackOutcome:
    # The class of the exception only: its text may come from anywhere.
    problem = future.exception() if future.status == "error" else None
    reason = type(problem).__name__ if problem is not None else "cancelled"
    return AttackOutcome(attack, "unknown", reason=f"The worker failed: {reason}.")
