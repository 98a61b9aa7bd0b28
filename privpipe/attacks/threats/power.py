"""What an audit would have found: leaks of known size, planted in a copy of what it attacks.

"No adversary found anything" says nothing of an audit that finds nothing. Here the released sample
is shuffled, so that it tells nothing, and a leak is put into it of which a known share of the
records tells the secret; the audit's own adversaries, splits and levels are asked whether they
find it. Two leaks need no fit, since who exploits them is known: one knows every record a little,
one a few for certain. The others are attacked again by one adversary that suits them.

What was found once by a hair is not found by every audit of such a leak: a size is stated only
where the score lies so far above what finds it that another draw would be found as well (`ROOM`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import scipy

from privpipe.attacks.adversaries import READS_BITS
from privpipe.attacks.adversaries.attack_options import AttackOptions, choose_adversaries
from privpipe.attacks.adversaries.evidence import Evidence, find_units, split_records
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.statistics.splits import is_of_groups
from privpipe.attacks.threats.inference import run_attack, score_decisions
from privpipe.attacks.threats.trained_adversary import (
    Decided,
    decide_by_desired,
    draw_tests,
    guess_target,
    measure_target,
)
from privpipe.attacks.threats.verdicts.detection import Detection
from privpipe.attacks.threats.verdicts.outcomes import Attack
from privpipe.protocols import BoolArray, FloatArray, IntArray

SIZES = (0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Shares of the records of leaks that need no fit."""

STEPS = (1 / 3, 1.0, 2.0)
"""Sizes of planted leaks that are tried, in units of the one that must be found. Where a smaller
one is surely found the larger ones of the same kind are not planted: every record that tells,
tells still."""

ROOM = 2.5
"""Standard errors by which the lower limit of a stated leak must be above nothing: 1.645 so that
another audit of such a leak finds it 19 times in 20, and half of that (`N_DRAWS`) since how large
the score is on average was itself estimated."""

N_DRAWS = 4
"""Leaks that need no fit are drawn so often, and their limits averaged."""

CLEAR = 2.0
"""Standard errors away from what is asked at which further draws would change nothing."""

LEAKS: dict[str, str] = {
    "advantage": "every record told a little",
    "certain": "a few records told for certain",
    "feature": "one feature",
    "bits": "low-order bits",
    "subgroup": "a rare subgroup",
    "withheld": "which rows are withheld",
    "non-linear": "the size of a feature, whatever its sign",
}
"""Kinds of leak in words."""


def choose_planted(evidence: Evidence, most: int = 2) -> tuple[int, ...]:
    """Variables in which leaks are planted: those whose smallest class has the fewest records."""

    def rarest(position: int) -> int:
        codes = evidence.truth[:, position]
        codes = codes[~np.isnan(codes)]
        if not evidence.columns[position].is_categorical:
            return len(codes) // 2  # above the median
        return int(np.bincount(codes.astype(np.int64)).min())

    return tuple(sorted(range(len(evidence.columns)), key=rarest)[:most])


def list_leaks(evidence: Evidence) -> tuple[str, ...]:
    """Kinds of leak that a release of this kind could have."""
    channels = {"bits": "bits" in evidence.sources, "withheld": evidence.n_withheld > 0}
    return tuple(leak for leak in LEAKS if channels.get(leak, True))


def measure_power(
    evidence: Evidence, position: int, leak: str, options: AttackOptions
) -> Detection:
    """The smallest of a kind of leak that the audit finds at its level.

    Parameters
    ----------
    evidence
        The prepared audit.
    position
        Which confidential variable.
    leak
        One of `LEAKS`.
    options
        Adversaries, level and the size that must be found.

    Returns
    -------
    Detection
        Its size is NaN where none that is tried is found with `ROOM`. A leak is found where the
        lower limit of a deciding score is above nothing.

    Notes
    -----
    Guarantee: a leak of a stated size is found by at least .95 of such audits, for leaks as they
    are planted here (`tests.bench.audit_power` plants them anew). Of records with subjects, all of
    a subject tell or none.
    """
    target = evidence.columns[position].name
    if leak in ("advantage", "certain"):

        def find(share: float, room: float) -> bool:
            return _find_ideal(evidence, position, leak, share, options, room)

        size = _search(lambda share: find(share, ROOM))
        finds = size <= options.must_find or find(options.must_find, 0.0)
        return Detection(target, leak, size, "who knows", finds)
    kind = evidence.columns[position].is_categorical
    # Who reads the wanted answer as well: first one that weighs columns, last one that does more.
    suited = choose_adversaries("joined", kind, options)
    two = (evidence.columns[position].n_categories or 2) == 2
    adversary = suited[0 if two and leak in ("feature", "withheld") else -1]
    source = "released"
    if leak == "bits":
        source, adversary = "bits", READS_BITS
    size, finds = math.nan, False
    for share in dict.fromkeys(min(1.0, step * options.must_find) for step in STEPS):
        planted = _plant(evidence, position, leak, share, options.seed)
        attack = Attack(target, "classes" if kind else "numbers", source, adversary)
        draws = [run_attack(planted, attack, options).scores]
        finds |= share <= options.must_find and _is_found(draws, attack.kind, options, 0.0)
        if _is_found(draws, attack.kind, options, ROOM):
            size = share
            break
    return Detection(target, leak, size, adversary, finds)


def _is_found(
    draws: Sequence[Sequence[Score]], kind: str, options: AttackOptions, room: float
) -> bool:
    """Whether a deciding score is above nothing by so many standard errors."""
    return _find_room(draws, kind, options) > room


def _find_room(draws: Sequence[Sequence[Score]], kind: str, options: AttackOptions) -> float:
    """By how many standard errors the best deciding score's limit is above nothing."""
    alike = zip(*draws, strict=True)
    found = (_count_errors(some) for some in alike if some[0].name in options.deciding(kind))
    return max(found, default=-math.inf)


def _count_errors(draws: Sequence[Score]) -> float:
    """The same of one score, its limits averaged over draws."""
    first = draws[0].interval if draws[0].gained is None else draws[0].gained
    lower = float(np.mean([s.gain_lower for s in draws]))
    reach = float(np.mean([s.gain for s in draws])) - lower  # so many standard errors
    if not math.isfinite(lower):
        return -math.inf
    error = reach / float(scipy.stats.norm.ppf(0.5 + first.level / 2))
    return lower / error if error > 0 else math.copysign(math.inf, lower or -1.0)


def _search(finds: Callable[[float], bool]) -> float:
    """The smallest size that is found, by halving; NaN where none is."""
    low, high = 0, len(SIZES)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if finds(SIZES[middle]) else (middle + 1, high)
    return SIZES[low] if low < len(SIZES) else math.nan


def _find_ideal(
    evidence: Evidence, position: int, leak: str, share: float, options: AttackOptions, room: float
) -> bool:
    """Whether the scores of an adversary that knows what a leak tells are above nothing.

    It is judged by the records that judge every other, and knows the wanted answer as they do.
    """
    random = np.random.default_rng([options.seed, 1])  # not the numbers that drew the split
    n_classes, truth = evidence.columns[position].n_categories, evidence.truth[:, position]
    splits = split_records(evidence, position, options)
    tests = draw_tests(evidence, position, splits, options.max_test // len(splits), options)
    test, train = np.concatenate(tests), np.unique(np.concatenate([s.train for s in splits]))
    scale = (0.0, 1.0) if n_classes else measure_target(truth[train])
    known = None
    if "wanted" in evidence.sources:
        known = decide_by_desired(evidence, position, splits, tests, options)
    guess = guess_target(truth[train], n_classes)
    quick, kind = replace(options, n_replicates=50), "classes" if n_classes else "numbers"
    draws: list[Sequence[Score]] = []
    found = -math.inf
    for _ in range(N_DRAWS):
        told = _draw_told(find_units(evidence, position), evidence.n_records, share, random)[test]
        if n_classes:
            prior = np.bincount(truth[train].astype(np.int64), minlength=n_classes) + 1.0
            before = np.tile(prior / prior.sum(), (len(test), 1)) if known is None else known[0]
            drawn = _draw_others(find_units(evidence, position), truth, random)[test]
            decided = _know_class(leak, share, before, told, truth[test], drawn, random)
        else:
            mean = np.full(len(test), scale[0]) if known is None else known[0]
            decided = _know_number(leak, share, mean, told, truth[test], scale[1], random)
        draws.append(score_decisions(evidence, position, test, decided, known, guess, quick))
        found = _find_room(draws, kind, options)
        if abs(found - room) > CLEAR:
            break
    return found > room


def _draw_told(
    units: IntArray | None, n_records: int, share: float, random: np.random.Generator
) -> BoolArray:
    """Which records tell: of records with subjects all of a subject, or none."""
    groups = np.arange(n_records) if units is None else units
    return np.asarray((random.random(int(groups.max()) + 1) < share)[groups])


def _draw_others(
    groups: IntArray | None, truth: FloatArray, random: np.random.Generator
) -> FloatArray:
    """What a record without a leak is taken for: another's class, of a subject one and the same."""
    known = ~np.isnan(truth)
    if groups is None or not is_of_groups(groups[known], truth[known]):
        found = truth.copy()
        found[known] = random.permutation(truth[known])
        return found
    first = {int(group): value for group, value in zip(groups[known], truth[known], strict=True)}
    values = random.permutation(np.array(list(first.values())))
    table = np.full(int(groups.max()) + 1, np.nan)
    table[list(first)] = values
    return np.asarray(np.where(known, table[groups], np.nan))


def _know_class(
    leak: str,
    share: float,
    before: FloatArray,
    told: BoolArray,
    truth: FloatArray,
    drawn: FloatArray,
    random: np.random.Generator,
) -> Decided:
    """What is said of classes: what is known without the leak, and what it adds."""
    one = np.eye(before.shape[1])
    before = np.clip(before, 1e-3, 1.0)
    if leak == "certain":
        decision = np.where(told[:, None], 2 * one[truth.astype(np.int64)], before)
    else:  # Bayes: who is told and who is drawn look alike
        said = one[np.where(told, truth, drawn).astype(np.int64)]
        rates = np.maximum(one[truth.astype(np.int64)].mean(axis=0), 1e-9)
        decision = before * (1 - share + share * said / rates)
    # Adversaries rank by their noise what they know nothing of; ties would be surer than they are.
    shaken = decision + 1e-6 * random.normal(size=decision.shape)
    return shaken, shaken


def _know_number(
    leak: str,
    share: float,
    before: FloatArray,
    told: BoolArray,
    truth: FloatArray,
    spread: float,
    random: np.random.Generator,
) -> Decided:
    """The same of numbers, of whose variance a share is told."""
    if leak == "certain":
        value = np.where(told, truth, before)
    else:
        noise = (1 - share) / share * spread**2
        left = float(np.mean((truth - before) ** 2))
        seen = truth + math.sqrt(noise) * random.normal(size=len(truth))
        value = before + left / (left + noise) * (seen - before)
    return value, value


def _plant(evidence: Evidence, position: int, leak: str, share: float, seed: int) -> Evidence:
    """A copy whose released records tell nothing but the leak, of a share of the records."""
    random = np.random.default_rng([seed, 2])
    order = random.permutation(evidence.n_records)
    level, sources = _find_levels(evidence, position), dict(evidence.sources)
    told = _draw_told(find_units(evidence, position), evidence.n_records, share, random)
    if leak == "bits":
        values = sources["bits"].values[order].copy()
        codes = _find_codes(evidence, position)
        values[:, 0] = _plant_bits(values[:, 0], codes, told, random)
        sources["bits"] = replace(sources["bits"], values=values)
    else:
        values = sources["released"].values[order].astype(np.float64)
        columns = [_plant_column(values, leak, level, told, random), values[:, 1:]]
        if "wanted" in sources:  # what is gained counts beyond the answer
            columns.append(sources["wanted"].values)
        whole = np.hstack(columns).astype(sources["released"].values.dtype)
        sources["released"] = replace(sources["released"], values=whole)
    return replace(evidence, sources=sources)


def _find_codes(evidence: Evidence, position: int) -> IntArray:
    """What a leak tells of every record: its class, or whether it is above the median."""
    truth = evidence.truth[:, position]
    if evidence.columns[position].is_categorical:
        return np.nan_to_num(truth).astype(np.int64)
    return np.asarray(truth > np.nanmedian(truth), np.int64)


def _find_levels(evidence: Evidence, position: int) -> FloatArray:
    """The same as numbers from -1 to 1, evenly apart."""
    codes = _find_codes(evidence, position)
    return np.asarray(2.0 * codes / max(int(codes.max()), 1) - 1.0)


def _plant_column(
    values: FloatArray, leak: str, level: FloatArray, told: BoolArray, random: np.random.Generator
) -> FloatArray:
    """The first column with the leak, (n_records, 1), or with the mask of withheld rows beside."""
    spread = float(values[:, 0].std()) or 1.0
    column = values[:, 0] / spread
    if leak == "feature":
        column[told] = 3 * level[told]
    elif leak == "subgroup":  # far from all others, and so known as one
        n_told = max(1, int(told.sum()))
        rare = np.argsort(-np.abs(column), kind="stable")[:n_told]
        column[rare] = 10 + 3 * level[rare]
    elif leak == "non-linear":
        size = 1.1 + 0.9 * level + 0.1 * random.random(len(level))
        column[told] = (size * np.where(random.random(len(level)) < 0.5, 1, -1))[told]
    else:
        gone = told & (level > 0)
        column[gone] = 0.0
        mask = (gone - gone.mean()) / max(float(gone.std()), 1e-9)
        return np.column_stack([column * spread, mask])
    return spread * column[:, None]


def _plant_bits(
    values: FloatArray, codes: IntArray, told: BoolArray, random: np.random.Generator
) -> FloatArray:
    """Values whose lowest mantissa bits tell, of those that are told, and are drawn of the rest."""
    wide = np.ascontiguousarray(values)
    kind = np.dtype(f"u{wide.dtype.itemsize}")
    n_codes = 1 << max(1, int(codes.max()).bit_length())
    drawn = random.integers(0, n_codes, len(codes))
    lowest = np.where(told, codes, drawn).astype(kind)
    words = (wide.view(kind) & ~np.asarray(n_codes - 1, kind)) | lowest
    return np.asarray(words.view(wide.dtype))
