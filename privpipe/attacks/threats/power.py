"""What an audit would have found: leaks of known size, planted in a copy of what it attacks.

"No adversary found anything" says nothing of an audit that finds nothing. Here the released sample
is shuffled, so that it reveals nothing. Then a leak is put into it by which a known share of the
records reveals the secret. Adversaries, splits and levels are those of the audit. Two leaks need no
fit, since who exploits them is known: one knows every record a little, one a few for certain. The
others are attacked again by one adversary that suits them.

What was found once by a hair is not found by every audit of such a leak. So a size is stated only
where the score lies so far above what finds it that another draw would be found as well (`ROOM`).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import scipy

from privpipe.attacks.adversaries import READS_BITS, problem
from privpipe.attacks.adversaries.attack_options import AttackOptions, choose_adversaries
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.statistics.scores import Decided, Score
from privpipe.attacks.statistics.splits import is_of_groups
from privpipe.attacks.threats import inference
from privpipe.attacks.threats.verdicts import outcomes, safeguards
from privpipe.protocols import BoolArray, FloatArray, IntArray

SIZES = (0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Shares of the records of leaks that need no fit."""

STEPS = (1 / 3, 1.0, 2.0)
"""Sizes of planted leaks that are tried, in units of the one that must be found. Where a smaller
one is surely found the larger ones of the same leak are not planted. Every record that leaks in it
leaks in them, too."""

ROOM = 2.5
"""Standard errors by which the lower limit of a stated leak must be above nothing. They are 1.645
so that another audit of such a leak finds it 19 times in 20. Half of that is added (`N_DRAWS`)
since how large the score is on average was itself estimated."""

N_DRAWS = 4
"""Leaks that need no fit are drawn so often, and their limits averaged."""

CLEAR = 2.0
"""Standard errors away from what is required at which further draws would change nothing."""

LEAKS = ("advantage", "certain", "feature", "bits", "subgroup", "withheld", "non-linear")
"""Leaks that are planted, by the names that reports store.

In turn:

- every record reveals a little
- a few records reveal all
- one feature of some records
- low-order bits
- a rare subgroup, far from all others
- which rows are withheld
- the size of a feature, whatever its sign
"""


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
    """Leaks that a release like this could have."""
    channels = {"bits": "bits" in evidence.sources, "withheld": evidence.n_withheld > 0}
    return tuple(leak for leak in LEAKS if channels.get(leak, True))


def measure_power(target: Target, leak: str) -> safeguards.Detection:
    """The smallest of a sort of leak that the audit finds at its level.

    Parameters
    ----------
    target
        The variable; its options give adversaries, level and the size that must be found.
    leak
        One of `LEAKS`.

    Returns
    -------
    Detection
        Its size is NaN where none that is tried is found with `ROOM`. A leak is found where the
        lower limit of a deciding score is above nothing.

    Notes
    -----
    Guarantee: a leak of a stated size is found by at least .95 of such audits, for leaks as they
    are planted here. `tests.bench.audit_power` plants them anew. Of records with subjects, all of a
    subject leak or none.
    """
    name, options = target.column.name, target.options
    if leak in ("advantage", "certain"):
        find = partial(_find_ideal, target, leak)
        # What finds a smaller leak finds a larger one: the smallest size that is found, by halving.
        first = bisect_left(SIZES, True, key=lambda share: find(share, ROOM))
        size = SIZES[first] if first < len(SIZES) else math.nan
        finds = size <= options.must_find or find(options.must_find, 0.0)
        return safeguards.Detection(name, leak, size, "who knows", finds)
    # Who reads desired variables as well: first one that weighs columns, last one that does more.
    suited = choose_adversaries("joined", target.column.is_categorical, options)
    two = (target.n_classes or 2) == 2
    adversary = suited[0 if two and leak in ("feature", "withheld") else -1]
    source = "released"
    if leak == "bits":
        source, adversary = "bits", READS_BITS
    size, finds = math.nan, False
    for share in dict.fromkeys(min(1.0, step * options.must_find) for step in STEPS):
        planted = _plant(target, leak, share)
        attack = outcomes.Attack(name, target.kind, source, adversary)
        # What one fold finds all of them find. What it misses they find where it must be found.
        several = share >= options.must_find and inference.is_shown_by_one(target)
        for one in (True, False) if several else (True,):
            scores = inference.run_attack(planted, attack, options, only_first=one).scores
            if (room := _find_room([scores], attack.kind, options)) > ROOM:
                break
        finds |= share <= options.must_find and room > 0
        if room > ROOM:
            size = share
            break
    return safeguards.Detection(name, leak, size, adversary, finds)


def _find_room(draws: Sequence[Sequence[Score]], kind: str, options: AttackOptions) -> float:
    """By how many standard errors the best deciding score's limit is above nothing."""
    alike = zip(*draws, strict=True)
    found = (_count_errors(some) for some in alike if some[0].name in options.deciding(kind))
    return max(found, default=-math.inf)


def _count_errors(draws: Sequence[Score]) -> float:
    """The same of one score, its limits averaged over draws."""
    first = draws[0].interval if draws[0].gained is None else draws[0].gained
    lower = float(np.mean([s.gain_lower for s in draws]))
    half = float(np.mean([s.gain for s in draws])) - lower  # so many standard errors
    if not math.isfinite(lower):
        return -math.inf
    error = half / float(scipy.stats.norm.ppf(0.5 + first.level / 2))
    return lower / error if error > 0 else math.copysign(math.inf, lower or -1.0)


def _find_ideal(target: Target, leak: str, share: float, room: float) -> bool:
    """Whether the scores of an adversary that knows what a leak reveals are above nothing.

    It is judged by the records that judge every other, and knows the desired variables as they do.
    """
    options, n_classes, truth = target.options, target.n_classes, target.truth
    random = np.random.default_rng([options.seed, 1])  # not the numbers that drew the split
    splits = target.split_records()
    tests = inference.draw_tests(target, splits, options.max_test // len(splits))
    test, train = np.concatenate(tests), np.unique(np.concatenate([s.train for s in splits]))
    scale = (0.0, 1.0) if n_classes else problem.measure_target(truth[train])
    reference = inference.compare_to_desired(target, splits, tests)
    guess = problem.guess_target(truth[train], n_classes)
    if reference.known is not None:
        before = reference.known[0]
    elif n_classes:
        prior = np.bincount(truth[train].astype(np.int64), minlength=n_classes) + 1.0
        before = np.tile(prior / prior.sum(), (len(test), 1))
    else:
        before = np.full(len(test), scale[0])
    draws: list[Sequence[Score]] = []
    found, units = -math.inf, target.units
    for _ in range(N_DRAWS):
        leaking = _draw_leaking(target, share, random)[test]
        if n_classes:
            drawn = _draw_others(units, truth, random)[test]
            decided = _know_class(leak, share, before, leaking, truth[test], drawn, random)
        else:
            decided = _know_number(leak, share, before, leaking, truth[test], scale[1], random)
        draws.append(inference.score_decisions(target, test, decided, guess, reference))
        found = _find_room(draws, target.kind, options)
        if abs(found - room) > CLEAR:
            break
    return found > room


def _draw_leaking(target: Target, share: float, random: np.random.Generator) -> BoolArray:
    """Which records leak: of records with subjects all of a subject, or none."""
    groups = np.arange(target.evidence.n_records) if target.units is None else target.units
    return np.asarray((random.random(int(groups.max()) + 1) < share)[groups])


def _draw_others(groups: IntArray | None, true: FloatArray, rng: np.random.Generator) -> FloatArray:
    """What a record without a leak is taken for: another's class, of a subject one and the same."""
    known = ~np.isnan(true)
    if groups is None or not is_of_groups(groups[known], true[known]):
        found = true.copy()
        found[known] = rng.permutation(true[known])
        return found
    first = {int(group): value for group, value in zip(groups[known], true[known], strict=True)}
    values = rng.permutation(np.array(list(first.values())))
    table = np.full(int(groups.max()) + 1, np.nan)
    table[list(first)] = values
    return np.asarray(np.where(known, table[groups], np.nan))


def _know_class(
    leak: str,
    share: float,
    before: FloatArray,
    leaking: BoolArray,
    truth: FloatArray,
    drawn: FloatArray,
    random: np.random.Generator,
) -> Decided:
    """What is said of classes: what is known without the leak, and what it adds."""
    one = np.eye(before.shape[1])
    before = np.clip(before, 1e-3, 1.0)
    if leak == "certain":
        decision = np.where(leaking[:, None], 2 * one[truth.astype(np.int64)], before)
    else:  # Bayes: classes that leak and classes that are drawn look alike
        said = one[np.where(leaking, truth, drawn).astype(np.int64)]
        rates = np.maximum(one[truth.astype(np.int64)].mean(axis=0), 1e-9)
        decision = before * (1 - share + share * said / rates)
    # Adversaries rank by their noise what they know nothing of; ties would be surer than they are.
    shaken = decision + 1e-6 * random.normal(size=decision.shape)
    return shaken, shaken


def _know_number(
    leak: str,
    share: float,
    before: FloatArray,
    leaking: BoolArray,
    truth: FloatArray,
    spread: float,
    random: np.random.Generator,
) -> Decided:
    """The same of numbers, of whose variance a share is revealed."""
    if leak == "certain":
        value = np.where(leaking, truth, before)
    else:
        noise = (1 - share) / share * spread**2
        left = float(np.mean((truth - before) ** 2))
        seen = truth + math.sqrt(noise) * random.normal(size=len(truth))
        value = before + left / (left + noise) * (seen - before)
    return value, value


def _plant(target: Target, leak: str, share: float) -> Evidence:
    """A copy whose released records reveal nothing but the leak, of a share of the records."""
    evidence, random = target.evidence, np.random.default_rng([target.options.seed, 2])
    order = random.permutation(evidence.n_records)
    codes, sources = _find_codes(target), dict(evidence.sources)
    leaking = _draw_leaking(target, share, random)
    if leak == "bits":
        values = sources["bits"].values[order].copy()
        values[:, 0] = _plant_bits(values[:, 0], codes, leaking, random)
        sources["bits"] = replace(sources["bits"], values=values)
    else:
        values = sources["released"].values[order].astype(np.float64)
        level = 2.0 * codes / max(int(codes.max()), 1) - 1.0  # from -1 to 1, evenly apart
        columns = [_plant_column(values, leak, level, leaking, random), values[:, 1:]]
        if "wanted" in sources:  # gains are those beyond the desired variables
            columns.append(sources["wanted"].values)
        whole = np.hstack(columns).astype(sources["released"].values.dtype)
        sources["released"] = replace(sources["released"], values=whole)
    return replace(evidence, sources=sources)


def _find_codes(target: Target) -> IntArray:
    """What a leak reveals of every record: its class, or whether it is above the median."""
    if target.column.is_categorical:
        return np.nan_to_num(target.truth).astype(np.int64)
    return np.asarray(target.truth > np.nanmedian(target.truth), np.int64)


def _plant_column(
    values: FloatArray, leak: str, level: FloatArray, leaks: BoolArray, random: np.random.Generator
) -> FloatArray:
    """The first column with the leak, (n_records, 1); of withheld rows the mask as a second."""
    spread = float(values[:, 0].std()) or 1.0
    column = values[:, 0] / spread
    if leak == "feature":
        column[leaks] = 3 * level[leaks]
    elif leak == "subgroup":  # far from all others, and so known as one
        rare = np.argsort(-np.abs(column), kind="stable")[: max(1, int(leaks.sum()))]
        column[rare] = 10 + 3 * level[rare]
    elif leak == "non-linear":
        size = 1.1 + 0.9 * level + 0.1 * random.random(len(level))
        column[leaks] = (size * np.where(random.random(len(level)) < 0.5, 1, -1))[leaks]
    else:
        gone = leaks & (level > 0)
        column[gone] = 0.0
        mask = (gone - gone.mean()) / max(float(gone.std()), 1e-9)
        return np.column_stack([column * spread, mask])
    return spread * column[:, None]


def _plant_bits(
    values: FloatArray, codes: IntArray, leaking: BoolArray, random: np.random.Generator
) -> FloatArray:
    """Values whose lowest mantissa bits are a leak where it is, and are drawn of the rest."""
    wide = np.ascontiguousarray(values)
    kind = np.dtype(f"u{wide.dtype.itemsize}")
    n_codes = 1 << max(1, int(codes.max()).bit_length())
    lowest = np.where(leaking, codes, random.integers(0, n_codes, len(codes))).astype(kind)
    words = (wide.view(kind) & ~np.asarray(n_codes - 1, kind)) | lowest
    return np.asarray(words.view(wide.dtype))
