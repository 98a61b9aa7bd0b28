"""Unsafe controls: settings in which an attack on signed sums must succeed, of the same records.

That an attack fails on a release says nothing unless it succeeds on records like these. Each
control breaks the rule that the attack is about, with fresh signs, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample, SaysJson, run_kind
from privpipe.attacks.kinds.membership import MembershipReport, measure_membership
from privpipe.attacks.kinds.signed_sums import trace
from privpipe.protocols import FloatArray

MANY_PER_RECORD = 20
"""Surrogates per square of the records whose second moments are to be seen without noise."""

OUTLYING = 30.0
"""How many times as far from the mean the farthest record is moved."""

N_TRACED = 150
"""Releases of few records that are traced together: one has too few to count."""

MOST_RECORDS = 2000
"""Of a control, so that it costs little beside the attack itself."""


def run_control(kind: str, sample: Sample, options: AttackOptions) -> SaysJson:
    """Run an attack on a sample like the given one, made so that it must succeed.

    Parameters
    ----------
    kind
        One of `CONTROLS`.
    sample
        With `members` and `others`; the rest of it is not read.
    options
        As for the attack itself.
    """
    assert sample.others is not None
    bounded = replace(sample, others=sample.others[:MOST_RECORDS])
    random = np.random.default_rng(options.seed)
    if kind == "tracing":
        return _trace_few(bounded, random, options)
    return run_kind(kind, CONTROLS[kind](bounded, random), options)


def _sum(
    sample: Sample, members: FloatArray, n_surrogates: int, random: np.random.Generator
) -> Sample:
    """Signed sums of these members alone."""
    signs = random.choice([-1.0, 1.0], (len(members), n_surrogates)) / np.sqrt(n_surrogates)
    gram = members.T @ members
    return replace(sample, members=members, released=signs.T @ members, gram=gram)


def _take(sample: Sample, n: int, random: np.random.Generator) -> FloatArray:
    assert sample.members is not None
    rows = random.permutation(len(sample.members))[:n]
    found: FloatArray = sample.members[rows]
    return found


def _copy(sample: Sample, _: np.random.Generator) -> Sample:
    """Surrogates that are records."""
    assert sample.members is not None
    members = sample.members[:MOST_RECORDS]
    return replace(sample, members=members, released=members)


def _trace_few(
    sample: Sample, random: np.random.Generator, options: AttackOptions
) -> MembershipReport:
    """Moments of so few records that each of them weighs; of many such releases together."""
    assert sample.members is not None
    n = sample.members.shape[1]
    pairs = []
    for _ in range(N_TRACED):
        inside, outside = trace(_sum(sample, _take(sample, n, random), MANY_PER_RECORD * n, random))
        pairs.append((inside, random.permutation(outside)[: len(inside)]))
    members, others = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return measure_membership(members, others, level=options.level, seed=options.seed)


def _sum_rank(sample: Sample, random: np.random.Generator) -> Sample:
    """As many records as dimensions: the components are the records."""
    assert sample.members is not None
    rank = int(np.linalg.matrix_rank(sample.members[:MOST_RECORDS]))
    return _sum(sample, _take(sample, rank, random), 4000, random)


def _move_out(sample: Sample, random: np.random.Generator) -> Sample:
    """One record far from all others."""
    members = _take(sample, MOST_RECORDS, random).copy()
    mean = members[:, :-1].mean(axis=0)
    shift = members[0, :-1] - mean
    spread = members[:, :-1].std(axis=0)
    shift = np.where(np.abs(shift) > spread, shift, spread)  # far in every feature
    members[0, :-1] = mean + max(OUTLYING, np.sqrt(2 * len(members))) * shift
    return _sum(sample, members, 1000, random)


CONTROLS: dict[str, Callable[[Sample, np.random.Generator], Sample]] = {
    "membership": _copy,
    "independent_components": _sum_rank,
    "outlying_record": _move_out,
}
"""What is broken for each kind of attack on single records; tracing has a way of its own."""
