"""Seconds and memory of an audit with all adversaries on raw, released and noisy records.

``python -m tests.bench.bench_attacks [records] [features] [workers]``

Without workers the attacks run in this process, and the peak is its own; with workers they run
on a local cluster of single-threaded processes.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
from distributed import Client, LocalCluster

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.outcomes import AttackOutcome
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.passes.attack_tasks import distribute_attacks
from tests.bench.watching import forget_peak, peak_bytes


def draw_records(n_records: int, n_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated records, their release without one direction, and a secret along it."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(n_records, 40))
    x = hidden @ random.normal(size=(40, n_features)) / 6
    x += 0.5 * random.normal(size=x.shape)
    direction = random.normal(size=n_features)
    direction /= np.linalg.norm(direction)
    along = x @ direction
    secret = (along + random.normal(size=n_records) > 0).astype(np.int64)
    return x, x - np.outer(along, direction), secret


def given(evidence: Evidence) -> Evidence:
    """On a worker: what travelled there."""
    return evidence


def audit(evidence: Evidence, options: AttackOptions, workers: int) -> AttackReport:
    """All attacks, here, each told as it ends, or on workers."""

    def tell(done: int, planned: int, outcome: AttackOutcome) -> None:
        advantage = max((score.advantage for score in outcome.scores), default=float("nan"))
        print(
            f"{done:3d}/{planned} {outcome.attack.name:45s} {outcome.seconds:6.1f} s  "
            f"advantage {advantage:5.2f}  peak {peak_bytes() / 2**20:6.0f} MiB",
            flush=True,
        )

    if workers:
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster) as client,
        ):
            held = partial(given, evidence)
            return distribute_attacks(DaskExecutor(client), held, options=options)
    plan, outcomes = plan_attacks(evidence, options), []
    for attack in plan:
        outcomes.append(run_attack(evidence, attack, options))
        tell(len(outcomes), len(plan), outcomes[-1])
    return summarise_outcomes(outcomes, plan, options, **evidence.counts())


def main(n_records: int = 100_000, n_features: int = 300, workers: int = 0) -> AttackReport:
    """Audit, and print seconds and memory beside those of the records themselves."""
    x, released, secret = draw_records(n_records, n_features)
    noisy = x + np.random.default_rng(1).laplace(size=x.shape)
    options = AttackOptions()
    forget_peak()
    given = peak_bytes()
    started, used = time.perf_counter(), time.process_time()
    evidence = prepare_evidence(released, secret, raw=x, noise=noisy, options=options)
    prepared, preparing = time.perf_counter() - started, peak_bytes()
    del x, released, noisy
    forget_peak()
    report = audit(evidence, options, workers)
    total = time.perf_counter() - started
    processor = time.process_time() - used
    memory = {
        "before": given,
        "at most while preparing": preparing,
        "held as evidence": evidence.n_bytes,
        "at most in the attacks": peak_bytes(),
    }
    print(
        f"{n_records} records, {n_features} features: {total:.0f} s ({processor:.0f} s of "
        f"processor here), of them {prepared:.1f} s to prepare. MiB: "
        + ", ".join(f"{size / 2**20:.0f} {name}" for name, size in memory.items())
    )
    print(report.decisions.T.to_string())
    return report


def run(small: bool) -> list[tuple[str, float, str, str, float, float]]:
    """Seconds of each adversary on released records, against the least squares one."""
    table = (main(600, 8) if small else main()).table
    spent = table[table.source == "released"].groupby("adversary").seconds.first()
    base = float(spent["least_squares"])
    return [
        (name, float(found), "s", "least squares", base, float(found) / base)
        for name, found in spent.items()
    ]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
