"""How often audits err, in both directions: simulations with a leak of known size, or none.

``python -m tests.bench.audit_errors [audits] [single grouped]`` runs all at full size and prints
shares; the suite runs them small. Whether what a report says it would have found is found:
`audit_power`. Every audit is a whole one: sample, split, adversaries, intervals, verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.protocols import Column

__all__ = ["LIMITS", "measure_false_leaks", "measure_false_safes"]

N_RECORDS = 1200

LIMITS = AttackOptions(
    adversaries=("least_squares",),
    decides=("accuracy", "auc", "tpr_at_0.01"),
    max_advantage=0.15,
    max_exposed=0.05,
    must_find=0.5,
)


TRUTH = {"accuracy": 0.5, "auc": 0.5, "tpr_at_0.01": 0.01}
"""Scores of whatever adversary on a fair coin."""


def audit(share: float, seed: int, *, grouped: bool, n_records: int = N_RECORDS) -> AttackReport:
    """A release of which a share of the records tells the secret, the same of all of a subject."""
    random = np.random.default_rng(seed)
    subject = np.arange(n_records) // (3 if grouped else 1)
    n = subject[-1] + 1
    secret = random.integers(0, 2, n)
    told = np.where(random.random(n) < share, secret, random.integers(0, 2, n))
    released = np.column_stack([(2.0 * told - 1), random.normal(size=n)])[subject]
    released[:, 1] += 0.1 * random.normal(size=n_records)
    return measure_attacks(
        released,
        secret[subject],
        columns=[Column("secret", 2)],
        groups=subject if grouped else None,
        options=replace(LIMITS, seed=seed),
    )


def measure_false_leaks(n_audits: int, *, grouped: bool) -> dict[str, float]:
    """Of noise: share of audits that say "leaks", and share whose intervals all hold the truth.

    The truth of the scores, not of advantages: these are counted from the majority of the test
    records, which is itself drawn. With ``leaks SCORE`` and ``covers SCORE``, the same by the
    intervals of one score alone.
    """
    found: dict[str, list[bool]] = {}
    for seed in range(n_audits):
        report = audit(0.0, seed, grouped=grouped)
        found.setdefault("leaks", []).append(report.verdict == "leaks")
        holds, leaks = dict.fromkeys(LIMITS.decides, True), dict.fromkeys(LIMITS.decides, False)
        for score in (s for o in report.outcomes for s in o.scores if s.name in LIMITS.decides):
            holds[score.name] &= score.interval.lower <= TRUTH[score.name] <= score.interval.upper
            leaks[score.name] |= score.gain_lower > LIMITS.allowed(score.name)
        found.setdefault("covers", []).append(all(holds.values()))
        for name in LIMITS.decides:
            found.setdefault(f"leaks {name}", []).append(leaks[name])
            found.setdefault(f"covers {name}", []).append(holds[name])
    return {name: float(np.mean(values)) for name, values in found.items()}


def measure_false_safes(n_audits: int, *, grouped: bool) -> dict[str, float]:
    """At a true advantage of twice the limit: share of audits that say "safe".

    With ``safe SCORE``, what that score alone would say; a true-positive rate at few false alarms
    is not twice its own limit beyond it.
    """
    share, found = 2 * LIMITS.max_advantage, dict[str, list[bool]]()
    for seed in range(n_audits):
        report = audit(share, seed, grouped=grouped)
        found.setdefault("safe", []).append(report.verdict == "safe")
        within = dict.fromkeys(LIMITS.decides, True)
        for score in (s for o in report.outcomes for s in o.scores if s.name in LIMITS.decides):
            within[score.name] &= score.gain_upper <= LIMITS.allowed(score.name)
        for name in ("accuracy", "auc"):
            found.setdefault(f"safe {name}", []).append(within[name])
    return {name: float(np.mean(values)) for name, values in found.items()}


def main(n_audits: int, which: Iterable[str]) -> None:
    """Print all shares, with Clopper and Pearson's limits."""
    for grouped in (word == "grouped" for word in which):
        word = "grouped" if grouped else "single"
        shares = measure_false_leaks(n_audits, grouped=grouped)
        shares |= measure_false_safes(n_audits, grouped=grouped)
        for name, share in shares.items():
            held = measure_exact_interval(round(share * n_audits), n_audits)
            print(f"{word:8} {name:20} {share:.3f} ({held.lower:.3f} to {held.upper:.3f})")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 500, arguments[1:] or ("single", "grouped"))
