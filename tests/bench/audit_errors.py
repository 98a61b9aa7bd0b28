"""How often audits err, in both directions: simulations with a leak of known size, or none.

``python -m tests.bench.audit_errors [audits] [law ...]`` runs 6,000 records and prints shares; the
suite runs them small. Whether what a report says it would have found is found:
`audit_power`. Every audit is a whole one: sample, split, adversaries, intervals, verdict.

Seen at 6,000 records, exactly at the limit: two classes by record "safe" .013, "leaks" .010 of 300;
of subjects of three records .010, .010 of 200 (by the area alone .050 safe, by accuracy .030); five
classes "safe" 0, "leaks" .03 of 100 (area .040); numbers "safe" .040 of 400 (.023 to .064), "leaks"
.005; a number with a long tail .040 and 0 of 200; four uneven classes .023 and .006 of 176; a
number that the target explains in part .033 and .003 of 300. By R squared as folds learned it .078
of 399 audits of numbers said "safe": mean, slope and ridge cost a tenth of an error. At twice the
limit, subjects: "safe" 0 and "leaks" 1 of 60. With the majority's share held as a number accuracy
alone was .23. By the area alone .07 of single records pass: where a release ties records, what
breaks the ties is learned from the others.

A number of Student's law: .047 (.026 to .077) and 0 of 300 at the limit, where .067 of the first 60
were. At twice the limit 0 of 200 are "safe", of noise all of 100; likewise of the explained number.

Of 920 subjects of 1 to 12 records .100 (.038 to .205) of 60 passed, by accuracy .200, by the area
.117. Limits of unequal subjects were not the cause: given the told value itself .032 and .048 of
2,000 pass. Folds learned a rule whose true gain was .132 where the release's was .150. None of 300
passed by accuracy whose rule was at the limit, and errors about that truth are .93 of the claimed.
Now accuracy bears the best mean of each fold. By least squares alone .030 of 300 pass, which was
.073. By accuracy .060 do, which was .170, and .123 by the area. Of noise .900 of 150 pass, which
was .907; of 32 whole audits of it 28 say "safe" both ways. The area is a little too sure: its error
about the truth of its rule is 1.13 times the claimed, for the folds break ties alike.

Odds that drift tell the time, and so the secret: the gain was .170 at "the limit" of .150, and .022
at "nothing". There "safe" was 0 and "leaks" .083 of 60. Now the law deducts it, and .067 of 150
pass least squares alone: the area's error is 1.11 times the claimed there.

Whole audits exactly at the limit, 100 each: "safe" .03 of four uneven classes, .05 of odds that
drift, .04 of 1 to 12 records a subject, .02 of what a target reveals in part. "Leaks" .01 at most.

A release that tells .078 of the records for certain and nothing of others gains the limit by the
area. Ten of ten audits say "leaks", by exposure. The area alone has 1.39 times the claimed error
there, for ties are broken by noise, and .015 of 200 pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.protocols import Column

__all__ = ["LIMITS", "measure_false_leaks", "measure_verdicts"]

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


LAWS = (
    *("single", "grouped", "five", "rare", "target", "number"),
    *("skewed", "uneven", "sizes", "heavy", "drifts", "explained", "silent"),
)
"""Two even classes, by record or the same of three records of a subject; five classes; two of which
one is of a tenth; two that a target reveals in part, as income does sex; a number.

Nothing was tuned to the others: a number with a long tail; four classes of .6, .3, .08 and .02; two
of subjects with 1 to 12 records; a number of Student's law with 5 degrees of freedom; two whose
odds turn from 1 to 3 in the course of the records; a number half of whose variance a number that
is the target explains; two of which most records tell neither."""

NUMBERS = ("number", "skewed", "heavy", "explained")
SUBJECTS = ("grouped", "sizes")
KNOWN = ("target", "explained")


def audit(share: float, seed: int, *, law: str, n_records: int = N_RECORDS) -> AttackReport:
    """A release of which a share of the records tells the secret, the same of all of a subject.

    Of all others it tells another value, drawn alike, or none if "silent". So the gain is the
    share, by accuracy of even classes, by the area under the ROC curve of all, and by R squared of
    numbers.
    """
    random = np.random.default_rng(seed)
    subject = np.arange(n_records) // (3 if law == "grouped" else 1)
    if law == "sizes":
        subject = np.repeat(np.arange(n_records), random.integers(1, 13, n_records))[:n_records]
    n = int(subject[-1]) + 1
    target = (random.random(n) < 0.24).astype(int)
    number = random.normal(size=n)

    def draw() -> np.ndarray:
        if law == "explained":
            return (number + random.normal(size=n)) / 2**0.5
        if law == "heavy":
            return random.standard_t(5, size=n)
        if law in NUMBERS:
            return random.normal(size=n) if law == "number" else random.exponential(size=n)
        if law == "drifts":
            return (random.random(n) < np.linspace(0.5, 0.75, n)).astype(int)
        if law == "uneven":
            return random.choice(4, n, p=(0.6, 0.3, 0.08, 0.02))
        if law == "target":
            return (random.random(n) < np.where(target == 1, 0.15, 0.387)).astype(int)
        if law == "rare":
            return (random.random(n) < 0.1).astype(int)
        return random.integers(0, 5 if law == "five" else 2, n)

    secret, other = draw(), draw()
    # What the target explains of a number is no gain: the leak is of the other half.
    share = 2 * share if law == "explained" else share
    if law == "drifts":
        # Two draws of one time are alike already: odds that drift are 1/45 of the variance.
        share = max(0.0, (share - 1 / 45) / (1 - 1 / 45))
    if law == "silent":
        # Of a pair one that tells is enough for the area: it gains 2 s - s**2, accuracy s.
        share, other = 1 - (1 - share) ** 0.5, np.full(n, 2)
    told = np.where(random.random(n) < (share**0.5 if law in NUMBERS else share), secret, other)
    n_told = int(max(secret.max(), other.max())) + 1
    told = told[:, None] if law in NUMBERS else np.eye(n_told)[told]
    released = np.column_stack([told, random.normal(size=n)])[subject]
    released[:, -1] += 0.1 * random.normal(size=n_records)
    n_classes = None if law in NUMBERS else int(secret.max()) + 1
    known = Auxiliary(target[:, None].astype(float), (Column("target", 2),))
    if law == "explained":
        known = Auxiliary(number[:, None], (Column("target", None),))
    return measure_attacks(
        released,
        secret[subject],
        columns=[Column("secret", n_classes)],
        groups=subject if law in SUBJECTS else None,
        desired=known if law in KNOWN else None,
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
        report = audit(0.0, seed, law="grouped" if grouped else "single")
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


def measure_verdicts(
    n_audits: int, law: str, times: float, n_records: int = N_RECORDS
) -> dict[str, float]:
    """At a true gain of so many times the limit: shares of audits that say "safe" and "leaks".

    With ``safe SCORE``, what that score alone would say: all limits are to be within, each at the
    whole level, so that each is wrong at the limit in at most ``1 - level`` of audits.
    """
    found: dict[str, list[bool]] = {}
    for seed in range(n_audits):
        report = audit(times * LIMITS.max_advantage, seed, law=law, n_records=n_records)
        for verdict in ("safe", "leaks"):
            found.setdefault(verdict, []).append(report.verdict == verdict)
        within = dict.fromkeys(("r2",) if law in NUMBERS else ("accuracy", "auc"), True)
        for one in (one for outcome in report.outcomes for one in outcome.scores):
            if one.name in within:
                limit = one.at(LIMITS.safe_level).gain_upper
                within[one.name] &= limit <= LIMITS.allowed(one.name)
        for name, holds in within.items():
            found.setdefault(f"safe {name}", []).append(holds)
    return {name: float(np.mean(values)) for name, values in found.items()}


def main(n_audits: int, laws: Iterable[str], n_records: int) -> None:
    """Print all shares, with Clopper and Pearson's limits."""
    for law in laws:
        for times in (0.0, 1.0, 2.0):
            shares = measure_verdicts(n_audits, law, times, n_records)
            for name, share in shares.items():
                held = measure_exact_interval(round(share * n_audits), n_audits)
                limits = f"({held.lower:.3f} to {held.upper:.3f})"
                print(f"{law:8} x {times:g} {name:14} {share:.3f} {limits}", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 200, given[1:] or LAWS, 6000)
