"""Both errors of a verdict, simulated from scores, and the steps that share the level."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.statistics.exposure import measure_exposures
from privpipe.attacks.statistics.intervals import Confidence, Interval, measure_hits_interval
from privpipe.attacks.statistics.roc import orient_ranking
from privpipe.attacks.statistics.scores import (
    Score,
    ScoredAgainst,
    measure_class_scores,
    measure_number_scores,
)
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared
from privpipe.attacks.threats.verdicts.judgement import LeftOut, decide_variables
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, Decision
from privpipe.protocols import Column

OPTIONS = AttackOptions()
N_ADVERSARIES = 7


def margins(random: np.random.Generator, truth: np.ndarray, kind: str) -> np.ndarray:
    """What an adversary says of records: nothing, or twice of what is allowed."""
    noise = random.normal(size=len(truth))
    if kind == "nothing":
        return noise
    if kind == "accuracy":  # .6, where .55 is allowed
        return noise + (2 * truth - 1) * stats.norm.ppf(0.6)
    known = random.random(len(truth)) < 0.02
    return np.where(known, 100.0 * (2 * truth - 1), noise)


def decide(
    seed: int, n_records: int, kinds: tuple[str, ...], options: AttackOptions = OPTIONS
) -> tuple[Decision, ...]:
    """Verdicts on variables of such a kind each, from seven adversaries that differ."""
    random = np.random.default_rng(seed)
    strict, *also = options.plan_levels(
        count_compared(N_ADVERSARIES, "classes", options), len(kinds)
    )
    outcomes = []
    for number, kind in enumerate(kinds):
        truth = random.integers(0, 2, n_records)
        for adversary in range(N_ADVERSARIES):
            # Only one of them can use what there is.
            said = margins(random, truth, kind if adversary == 0 else "nothing")
            scores = measure_class_scores(
                truth, (np.column_stack([-said, said]),) * 2, 0, Confidence(strict, also, seed=seed)
            )
            attack = Attack(f"v{number}", "classes", "released", f"a{adversary}")
            outcomes.append(AttackOutcome(attack, "measured", scores=scores))
    return decide_variables(outcomes, options, n_records=n_records)


@pytest.mark.slow
@pytest.mark.parametrize("n_records", [60, 150])  # tested of 200 and of 500
def test_decide_variables__accuses_noise_in_at_most_one_of_twenty(n_records: int) -> None:
    found = [decide(seed, n_records, ("nothing", "nothing")) for seed in range(120)]
    wrong = sum(any(one.verdict == "leaks" for one in pair) for pair in found)
    assert wrong <= 0.05 * 120
    assert all(one.verdict != "unknown" for pair in found for one in pair)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accuracy", "exposure"])
@pytest.mark.parametrize("n_records", [700, 4000])
def test_decide_variables__clears_twice_what_is_allowed_in_at_most_one_of_twenty(
    kind: str, n_records: int
) -> None:
    n_trials = 80 if n_records < 1000 else 20
    verdicts = [decide(seed, n_records, (kind,))[0].verdict for seed in range(n_trials)]
    assert verdicts.count("safe") <= 0.05 * n_trials
    if n_records == 4000:
        assert verdicts.count("leaks") > 0.3 * n_trials


@pytest.mark.slow
def test_decide_variables__clears_noise_where_records_are_many() -> None:
    verdicts = [decide(seed, 14_000, ("nothing",))[0].verdict for seed in range(8)]
    assert verdicts.count("safe") >= 7


def test_decide_variables__names_the_score_that_decided() -> None:
    """An estimate beyond its limit closed the gate, and the message named a wider limit within."""
    options = replace(OPTIONS, max_advantage=0.21, max_exposed=0.04)
    area = Interval(0.5 + 0.2307 / 2, 0.58, 0.63, 0.95, "x")
    exposed = Interval(0.0301, 0.011, 0.14, 0.95, "x")
    scores = (Score("auc", area, 0.5), Score("tpr_at_0.01", exposed, 0.01))
    attack = Attack("v", "classes", "released", "a")
    outcome = AttackOutcome(attack, "measured", scores=scores)
    (found,) = decide_variables([outcome], options, n_records=1000)
    assert found.verdict == "unproven"
    assert found.score == "auc"
    assert "area under the ROC curve" in found.reason
    assert "allowed 0.21. The estimate is near or above the limit" in found.reason


def test_decide_variables__one_attack_that_failed_makes_it_unknown() -> None:
    near = Interval(0.5, 0.49, 0.51, 0.95, "x")
    scores = (
        Score("auc", near, 0.5),
        Score("tpr_at_0.01", Interval(0.01, 0.0, 0.011, 0.95, "x"), 0.01),
    )
    known = AttackOutcome(Attack("v", "classes", "released", "a"), "measured", scores=scores)
    lost = AttackOutcome(Attack("v", "classes", "released", "b"), "unknown", reason="lost")
    (found,) = decide_variables([known, lost], OPTIONS, n_records=1000)
    assert (found.verdict, found.n_unknown) == ("unknown", 1)


def test_decide_variables__asks_for_more_records_than_there_were() -> None:
    found = [decide(seed, 1000, ("nothing",))[0] for seed in (3, 6)]  # chance shows a little
    assert [one.verdict for one in found] == ["unproven", "unproven"]
    assert all(one.n_needed > 1000 for one in found)


@pytest.mark.parametrize(
    ("n_records", "seeds"),
    [(100, 4), *(pytest.param(n, 6, marks=pytest.mark.slow) for n in (200, 500))],
)
def test_measure_attacks__seldom_accuses_noise_with_adversaries_of_its_own(
    n_records: int, seeds: int
) -> None:
    options = AttackOptions(adversaries=("logistic", "naive_bayes"))
    verdicts = []
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        released, secret = random.normal(size=(n_records, 4)), random.integers(0, 2, n_records)
        verdicts.append(measure_attacks(released, secret, options=options).verdict)
    assert verdicts.count("leaks") <= 1  # two of six have probability .03 at most, of four .014
    assert "safe" not in verdicts


@pytest.mark.parametrize("seeds", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_measure_attacks__of_few_records_seldom_accuses_what_the_target_reveals(seeds: int) -> None:
    """Nothing is gained beyond the target; seven audits in ten said "leaks"."""
    options = AttackOptions(adversaries=("naive_bayes",), max_advantage=0.0, max_exposed=0.0)
    verdicts = []
    for seed in range(seeds):
        random = np.random.default_rng(1000 + seed)
        target = random.random(200) < 0.5
        secret = random.random(200) < np.where(target, 0.7, 0.3)
        released = random.normal(size=(200, 2)) + np.outer(target, [1, 0])
        known = Auxiliary(target[:, None].astype(float), (Column("target", 2, ("0", "1")),))
        verdicts.append(measure_attacks(released, secret, options=options, desired=known).verdict)
    assert verdicts.count("leaks") <= max(1, seeds // 8)  # of .05 each more has probability .03


@pytest.mark.parametrize(("share", "n_classes"), [(0.0, 2), (0.02, 2), (0.02, 5)])
@pytest.mark.parametrize("false_positive", [0.001, 0.01])
def test_measure_exposures__covers(share: float, n_classes: int, false_positive: float) -> None:
    missed = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        truth = random.integers(0, n_classes, 1500)
        ranking = random.normal(size=(1500, n_classes))
        known = random.random(1500) < share
        ranking[known] += 1000.0 * (2 * np.eye(n_classes)[truth[known]] - 1)
        [found] = measure_exposures(truth, ranking, [false_positive], Confidence(0.9))
        # The false alarms are all among those not known.
        actual = share + (1 - share) * false_positive / (1 - share)
        missed += not found.lower <= actual <= found.upper
    assert missed <= 0.1 * 200 + 3 * np.sqrt(0.09 * 200)


@pytest.mark.parametrize("size", [1, 3])
def test_measure_exposures__of_a_rare_class_accuses_no_noise(size: int) -> None:
    """A wrong claim of 180 records weighs more than the rate: half of all audits said "leaks"."""
    random, found = np.random.default_rng(5), []
    for _ in range(60):
        secret = (random.random(6000 // size) < 0.03).astype(int)
        groups = np.repeat(np.arange(len(secret)), size)
        said = random.normal(size=len(secret))[groups] + 0.3 * random.normal(size=len(groups))
        known = Confidence(0.99, groups=groups if size > 1 else None)
        ranking = np.column_stack([-said, said])
        found += measure_exposures(secret[groups], ranking, [0.001], known)
    assert sum(one.lower > 0.001 for one in found) <= 2
    assert all(one.upper > 0.001 for one in found)


def test_measure_exposures__of_uneven_classes_is_the_false_positive_rate_where_nothing_shows() -> (
    None
):
    found = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        truth = (random.random(4000) < 0.1).astype(int)
        # Calibrated noise: the larger class is claimed with more certainty.
        said = random.normal(size=4000) ** 3 - 2
        ranking = np.column_stack([-said, said])
        found.append(measure_exposures(truth, ranking, [0.01])[0].estimate)
    assert np.mean(found) == pytest.approx(0.01, abs=0.002)
    [constant] = measure_exposures(truth, np.zeros((4000, 2)), [0.01])
    assert constant.lower < 0.01 < constant.upper < 0.03


def test_measure_exposures__of_subjects_is_wider() -> None:
    random = np.random.default_rng(3)
    groups = np.repeat(np.arange(50), 40)
    truth = np.repeat(random.integers(0, 2, 50), 40)
    known = np.repeat(random.random(50) < 0.1, 40)
    said = np.where(known, 9.0 * (2 * truth - 1), random.normal(size=2000))
    measure = partial(measure_exposures, truth, np.column_stack([-said, said]), [0.01])
    [plain], [grouped] = measure(), measure(Confidence(groups=groups))
    assert grouped.estimate == plain.estimate
    assert grouped.upper - grouped.lower > 2 * (plain.upper - plain.lower)


def test_measure_number_scores__sees_numbers_that_stand_open() -> None:
    random = np.random.default_rng(4)
    truth = random.normal(size=9000)
    said = np.where(random.random(9000) < 0.03, 10 * truth, 0.01 * random.normal(size=9000))
    scores = {s.name: s for s in measure_number_scores(truth, (said, said), 0.0)}
    assert scores["tpr_at_0.01"].advantage_lower > 0.01
    assert scores["r2"].advantage_upper < 0.1


def test_orient_ranking__turns_each_class_by_itself_and_two_together() -> None:
    truth = np.array([0, 0, 1, 1, 2, 2])
    ranking = np.eye(3)[truth] * [1, -1, 1]
    assert orient_ranking(truth, ranking).tolist() == [1, -1, 1]
    assert orient_ranking(truth[:4], -np.eye(2)[truth[:4]]).tolist() == [-1, -1]


def test_orient_ranking__turns_nothing_by_chance() -> None:
    """A leak of .15 of a rare class is the wrong way round in one of forty samples to tune by."""
    random, turned = np.random.default_rng(0), 0
    for _ in range(200):
        secret, other = (random.random((2, 600)) < 0.1).astype(int)
        told = np.where(random.random(600) < 0.15, secret, other) + 1e-3 * random.normal(size=600)
        turned += orient_ranking(secret, np.column_stack([-told, told]))[0] < 0
    assert turned == 0


def _outcome(target: str, hits: int, options: AttackOptions, n_targets: int) -> AttackOutcome:
    strict, *also = options.plan_levels(1, n_targets)
    interval = measure_hits_interval(np.arange(1000) < hits, Confidence(strict, also))
    attack = Attack(target, "classes", "released", "a")
    return AttackOutcome(attack, "measured", scores=(Score("accuracy", interval, 0.5),))


def test_decide_variables__shares_the_level_step_by_step() -> None:
    """What one variable of five does not need, the others are given."""
    options = replace(OPTIONS, decides=("accuracy",))
    # Above .55: by so much that one of two is enough, and not one of five.
    close = 1000 * (0.55 + 0.5 * (2.3 + 2.55) * np.sqrt(0.248 / 1000))
    alone = _outcome("b", round(close), options, 5)
    others = [_outcome(name, 500, options, 5) for name in "cde"]
    helped = [_outcome(name, 900, options, 5) for name in "cde"]
    harsh = decide_variables([_outcome("a", 500, options, 5), alone, *others], options)
    mild = decide_variables([_outcome("a", 500, options, 5), alone, *helped], options)
    assert harsh[1].verdict == "unproven"
    assert mild[1].verdict == "leaks"
    assert [one.verdict for one in mild] == ["safe", *["leaks"] * 4]


def test_decide_variables__says_why_with_every_figure() -> None:
    options = replace(OPTIONS, decides=("accuracy",))
    (leaky,) = decide_variables([_outcome("<b>", 700, options, 1)], options, n_records=5000)
    for figure in ("'<b>' leaks", "accuracy of 0.7", "guessing 0.5", "advantage of 0.4", "0.1"):
        assert figure in leaky.reason
    (close,) = decide_variables([_outcome("b", 525, options, 1)], options, n_records=5000)
    assert close.verdict == "unproven"
    assert 1500 < close.n_needed < 6000
    # Millions of records "would decide" of an estimate a hundredth below what is allowed.
    (near,) = decide_variables([_outcome("b", 549, options, 1)], options, n_records=5000)
    assert near.verdict == "unproven"
    assert "near or above the limit; more records will probably not help" in near.reason
    left_out = decide_variables([], options, [LeftOut("c", "too rare.")])
    assert left_out[0].verdict == "unproven"
    assert "too rare" in left_out[0].reason


def test_decide_variables__of_folds_of_one_class_each_names_no_rate() -> None:
    """A true-positive rate was "nan" there, in one of 123 audits, in a sentence of the report."""
    truth, said = np.arange(100) % 2, np.random.default_rng(0).normal(size=100)
    scores = measure_class_scores(
        truth, (np.column_stack([-said, said]),) * 2, 0, reference=ScoredAgainst(folds=truth)
    )
    assert {one.name for one in scores if np.isnan(one.interval.estimate)} > {"tpr_at_0.01"}
    outcome = AttackOutcome(Attack("v", "classes", "released", "a"), "measured", scores=scores)
    for score in scores:  # whichever decides
        options = AttackOptions(decides=(score.name,))
        [found] = decide_variables([outcome], options, n_records=100)
        assert "nan" not in found.reason
        if np.isnan(score.interval.estimate):
            assert found.verdict == "unknown"
            assert "of some class too few records are held out to compare any" in found.reason


def test_plan_levels__keeps_few_steps_and_at_takes_a_stricter_one() -> None:
    levels = OPTIONS.plan_levels(28, 100)
    assert len(levels) < 25
    assert list(levels) == sorted(levels, reverse=True)
    interval = measure_hits_interval(np.arange(100) < 50, Confidence(levels[0], levels[1:]))
    for n_open in range(1, 101):
        wanted = OPTIONS.plan_level(28, n_open)
        taken = interval.at(wanted).level
        assert taken >= wanted
        assert (1 - taken) > 0.7 * (1 - wanted)
