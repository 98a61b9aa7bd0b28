"""Whether an audit finds what its report says it would have found, per kind of leak.

``python -m tests.bench.audit_power [audits] [law or kind of leak ...]`` prints the shares at full
size; the suite runs them small. Each trial states the power on one release, then plants a leak of
the stated size in another release of the same law, with code of its own, and attacks that as any
release is attacked. A law is of records: a class, one with subjects of several records, one with a
wanted answer, or a number. Adversaries are few and cheap, as an option allows; splits, readings,
scores, levels and limits are those of every audit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.intervals import Interval, measure_exact_interval
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.attacks.threats.power import LEAKS, measure_power
from privpipe.protocols import Column, FloatArray, IntArray

__all__ = ["LAWS", "OPTIONS", "Trial", "hold_statement", "try_statement"]

LAWS = ("classes", "grouped", "wanted", "number")
"""Kinds of collections."""

OPTIONS = AttackOptions(
    adversaries=("least_squares", "naive_bayes"), decides=("accuracy", "auc", "tpr_at_0.01")
)

N_RECORDS = 2400

SIZES = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)
"""What must be found, in turn: from next to nothing to all, so that statements are near the edge
of what can be found as often as not."""


@dataclass(frozen=True)
class Trial:
    """What a report said, and whether it was so; `found` is None where it claims nothing."""

    size: float
    found: bool | None


@dataclass(frozen=True, eq=False)
class _Sample:
    """Records of a law that tell nothing."""

    released: FloatArray
    secret: FloatArray
    level: FloatArray
    subject: IntArray | None
    wanted: IntArray | None


def try_statement(leak: str, law: str, seed: int) -> Trial:
    """State the power of an audit for a kind of leak; plant what it states elsewhere, and look."""
    options = replace(OPTIONS, seed=seed, must_find=SIZES[seed % len(SIZES)])
    random = np.random.default_rng([seed, LAWS.index(law), tuple(LEAKS).index(leak)])
    silent = _draw_sample(law, random)
    if leak == "withheld":  # some rows of every release of this law are
        silent.released[random.random(N_RECORDS) < 0.05] = np.nan
    stated = measure_power(Target(_prepare(silent, law, options), 0, options), leak)
    if not math.isfinite(stated.size):
        return Trial(stated.size, None)
    other = _draw_sample(law, random)
    plant(other, leak, stated.size, random)
    evidence = _prepare(other, law, replace(options, seed=seed + 1_000_000))
    return Trial(stated.size, _is_found(evidence, replace(options, seed=seed + 1_000_000)))


def _is_found(evidence: Evidence, options: AttackOptions) -> bool:
    """Whether any deciding score on the release has a lower limit above nothing."""
    return any(
        score.gain_lower > 0
        for attack in plan_attacks(evidence, options)
        for score in run_attack(evidence, attack, options).scores
        if score.name in options.deciding(attack.kind)
    )


def _draw_sample(law: str, random: np.random.Generator) -> _Sample:
    n_subjects = N_RECORDS // 4 if law == "grouped" else N_RECORDS
    subject = np.arange(N_RECORDS) // (N_RECORDS // n_subjects)
    wanted = random.integers(0, 2, N_RECORDS) if law == "wanted" else None
    if law == "number":
        secret = random.normal(size=N_RECORDS)
        level = np.where(secret > np.median(secret), 1.0, -1.0)
    else:
        share = 0.4 if wanted is None else np.where(wanted == 1, 0.55, 0.3)
        secret = (random.random(n_subjects) < share).astype(np.float64)[subject]
        level = 2 * secret - 1
    released = random.normal(size=(N_RECORDS, 4))
    return _Sample(released, secret, level, subject if law == "grouped" else None, wanted)


def _prepare(sample: _Sample, law: str, options: AttackOptions) -> Evidence:
    column = Column("secret", None if law == "number" else 2)
    wanted = None
    if sample.wanted is not None:
        wanted = Auxiliary(included=sample.wanted[:, None], columns=(Column("wanted", 2),))
    return prepare_evidence(
        sample.released,
        sample.secret,
        columns=[column],
        groups=sample.subject,
        desired=wanted,
        options=options,
    )


def plant(sample: _Sample, leak: str, share: float, random: np.random.Generator) -> None:
    """Let a share of the records (whole subjects, where there are) tell by one kind of leak."""
    subject = np.arange(N_RECORDS) if sample.subject is None else sample.subject
    told = (random.random(subject.max() + 1) < share)[subject]
    x, level, n_told = sample.released, sample.level, int(told.sum())
    if leak == "advantage":
        if sample.wanted is None and set(np.unique(sample.secret)) != {0.0, 1.0}:
            z = sample.secret  # a number: so much of its variance
            x[:, 0] = np.sqrt(share) * z + np.sqrt(1 - share) * random.normal(size=N_RECORDS)
        else:  # all look alike: who is told, and who is drawn from the classes there are
            drawn = random.permutation(level) if sample.subject is None else level
            if sample.subject is not None:
                first = np.unique(subject, return_index=True)[1]
                drawn = random.permutation(level[first])[subject]
            x[:, 0] = np.where(told, level, drawn)
    elif leak == "certain":
        x[told, 0] = 9.0 * (sample.secret if len(np.unique(sample.secret)) > 2 else level)[told]
    elif leak == "feature":
        x[told, 0] = 3.0 * level[told]
    elif leak == "subgroup":
        x[told, 0] = 10.0 + 3.0 * level[told]
    elif leak == "non-linear":
        size = 1.1 + 0.9 * level + 0.1 * random.random(N_RECORDS)
        x[told, 0] = (size * random.choice([-1, 1], N_RECORDS))[told]
    elif leak == "bits":
        words = x[:, 0].copy().view(np.uint64)
        words &= ~np.uint64(1)
        bit = np.where(told, level > 0, random.random(N_RECORDS) < 0.5)
        x[:, 0] = (words | bit.astype(np.uint64)).view(np.float64)
    else:  # which rows are withheld: of those that tell, all of one kind and none of the other
        gone = told & (level > 0)
        if sample.subject is None and n_told == 0:
            gone[0] = True
        x[gone] = np.nan


def hold_statement(trials: Iterable[Trial], level: float = 0.95) -> tuple[Interval, int]:
    """Share of the statements that were so, with limits, and how many claimed nothing."""
    tried = list(trials)
    found = [bool(one.found) for one in tried if one.found is not None]
    silent = len(tried) - len(found)
    if not found:
        return Interval(math.nan, 0.0, 1.0, level, "exact"), silent
    return measure_exact_interval(sum(found), len(found), level=level), silent


def main(n_audits: int, asked: Collection[str]) -> None:
    """Print the shares per law and kind of leak; trials until so many have made a statement."""
    for law in [law for law in LAWS if law in asked] or LAWS:
        for leak in [leak for leak in LEAKS if leak in asked] or LEAKS:
            trials: list[Trial] = []
            while sum(one.found is not None for one in trials) < n_audits:
                trials.append(try_statement(leak, law, len(trials)))
                if len(trials) == 5 * n_audits:
                    break
            share, silent = hold_statement(trials)
            sizes = [one.size for one in trials if one.found is not None] or [math.nan]
            print(
                f"{law:8} {leak:11} found {share.estimate:.3f} ({share.lower:.3f} to "
                f"{share.upper:.3f}) of {len(trials) - silent}, sizes {np.min(sizes):.3g} to "
                f"{np.max(sizes):.3g}; {silent} said nothing",
                flush=True,
            )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 200, arguments[1:])
