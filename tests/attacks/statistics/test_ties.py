"""Equal records: repeats are tied and stay on one side, profiles of a small table are not."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Target
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.folds import deal_folds
from privpipe.attacks.statistics.splits import find_ties
from privpipe.attacks.threats.inference import measure_attacks

QUICK = AttackOptions(adversaries=("nearest_neighbours", "least_squares"), max_exposed=0.1)


def repeat(n: int, times: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Measured records, each so many times, with a class that their features do not tell."""
    random = np.random.default_rng(seed)
    return (
        np.repeat(random.normal(size=(n, 4)), times, axis=0),
        np.repeat(random.integers(0, 2, n), times),
    )


def test_find_ties__joins_what_is_equal_raw_or_released() -> None:
    random = np.random.default_rng(0)
    raw, released = random.normal(size=(2, 6, 3))
    raw[1] = raw[0]
    raw[2] = raw[1] + 1e-3
    released[2] = released[1]
    released[4:] = np.nan
    ties = find_ties(released, raw)
    assert ties is not None
    assert len(set(ties[:3])) == 1
    assert len(set(ties)) == 4  # withheld ones are each alone
    assert find_ties(released[:1], raw[:1]) is None


def test_find_ties__a_withheld_record_is_tied_to_none() -> None:
    table = np.array([[np.nan, 1.0], [0.1, 7.0], [0.3, 5.0], [0.1, 7.0], [0.6, 1.0]])
    ties = find_ties(table)
    assert ties is not None
    assert ties.tolist() == [0, 1, 2, 1, 3]


def test_find_ties__leaves_strangers_apart_whatever_is_released_of_them() -> None:
    random = np.random.default_rng(0)
    raw = random.normal(size=(3000, 6))
    raw[1000:2000] = raw[:1000] + 1e-3 * random.normal(size=(1000, 6))
    raw[1000:2000, 0] = 1e300 * random.normal(size=1000)  # two entries of one person, two dates
    released = raw.copy()
    released[2000:] = 0.0
    released[1000:2000] = released[:1000]
    ties = find_ties(released, raw)
    assert ties is not None
    assert (ties[:1000] == ties[1000:2000]).all()
    assert len(set(ties)) == 2000
    joined = find_ties(released)
    assert joined is not None
    assert len(set(joined)) == 1001


def test_measure_attacks__sees_what_a_release_of_equal_records_tells_of_strangers() -> None:
    random = np.random.default_rng(0)
    raw = random.normal(size=(2100, 6))
    secret = (raw[:, 0] + random.normal(size=2100) > 0).astype(int)
    released = np.where(np.abs(raw[:, :1]) < 1, 0.0, raw)
    report = measure_attacks(released, secret, raw=raw, options=QUICK)
    assert report.verdict == "leaks"
    area = next(s.interval for s in report.outcomes[0].scores if s.name == "auc")
    assert area.upper - area.lower < 0.08  # .28 where two thirds are one witness


def test_find_ties__leaves_records_of_few_profiles_to_themselves() -> None:
    random = np.random.default_rng(0)
    raw = random.integers(0, 2, (3000, 8)).astype(np.float64)
    turned = raw @ np.linalg.qr(random.normal(size=(8, 8)))[0]
    assert find_ties(turned, raw) is None
    measured, _ = repeat(300, 10)
    assert find_ties(np.zeros((3000, 1)), measured) is not None
    assert find_ties(np.zeros((3000, 1))) is None


def test_deal_folds__keeps_ties_whole_and_classes_in_their_shares() -> None:
    x, classes = repeat(400, 3)
    ties = find_ties(x)
    assert ties is not None
    for split in deal_folds(np.arange(1200), classes=classes, units=ties):
        sides = [set(ties[part]) for part in (split.train, split.tune, split.test)]
        assert sum(map(len, sides)) == 400
        assert abs(len(split.test) - 240) < 40


def test_measure_attacks__learns_no_label_of_a_repeat_by_heart() -> None:
    x, secret = repeat(700, 3)
    widths = []
    for rows in (slice(None), slice(None, None, 3)):
        report = measure_attacks(x[rows], secret[rows], options=QUICK)
        assert report.verdict != "leaks"
        area = next(s.interval for s in report.outcomes[0].scores if s.name == "auc")
        widths.append(area.upper - area.lower)
    assert widths[0] > 0.9 * widths[1]  # of 700 records, not of 2,100
    evidence = prepare_evidence(x, secret, options=QUICK)
    assert evidence.ties is not None
    for split in Target(evidence, 0, QUICK).split_records():
        assert not set(evidence.ties[split.train]) & set(evidence.ties[split.test])


def test_measure_attacks__counts_every_record_of_few_profiles() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (5000, 6)).astype(np.float64)
    secret = np.where(random.random(5000) < 0.1, 1 - x[:, 1], x[:, 1]).astype(int)
    report = measure_attacks(x, secret, options=QUICK)
    assert report.verdict == "leaks"
    _, score = report.strongest(report.decide()[0].target, "accuracy")
    assert score.advantage > 0.74
