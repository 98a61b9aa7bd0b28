"""Variables that say which group it is: found whatever was done when, and never for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.errors import InputError
from privpipe.protocols import Column, FloatArray, IntArray

QUICK = AttackOptions(adversaries=("logistic",))


def draw_people(
    n_people: int, n_tasks: int, n_each: int, shift: float, seed: int
) -> tuple[FloatArray, IntArray, IntArray]:
    """Records of people who do one thing after the other, each moved by an offset of their own.

    What is done moves a record five times as far, and alike for all people.
    """
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(n_people), n_tasks * n_each)
    tasks = np.tile(np.repeat(np.arange(n_tasks), n_each), n_people)
    x = shift * rng.normal(size=(n_people, 6))[people] + rng.normal(size=(len(people), 6))
    return x + 5 * rng.normal(size=(n_tasks, 6))[tasks], people, tasks


def audit(
    x: FloatArray, people: IntArray, tasks: IntArray | None = None, **more: Any
) -> AttackReport:
    wanted = None
    if tasks is not None:
        column = Column("task", int(tasks.max()) + 1)
        wanted = Auxiliary(tasks[:, None].astype(float), (column,))
    return measure_attacks(
        x, people.astype(str), groups=people, desired=wanted, options=QUICK, **more
    )


def accuracy(report: AttackReport, source: str, adversary: str) -> float:
    table = report.table.query("score == 'accuracy'")
    found = table[(table["source"] == source) & (table["adversary"] == adversary)]
    return float(found["estimate"].iloc[0])


@pytest.mark.parametrize("with_tasks", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_named__offsets_of_people_are_found_whatever_they_did_when(with_tasks: bool) -> None:
    """Cut by time alone an adversary learned the first things done, and was judged by the last."""
    x, people, tasks = draw_people(4, 3, 36, 1.0, seed=0)
    report = audit(x, people, tasks if with_tasks else None)
    assert report.verdict == "leaks"
    assert accuracy(report, "groups", "together_1") > 0.6
    assert accuracy(report, "groups", "together_10") > 0.75


def test_named__naming_the_group_takes_no_attack_away() -> None:
    """The same records are judged by the same adversaries, with and without the groups."""
    x, people, _ = draw_people(4, 2, 36, 0.5, seed=1)
    plain = measure_attacks(x, people.astype(str), options=QUICK)
    named = audit(x, people)
    for adversary in QUICK.adversaries:
        found = accuracy(named, "released", adversary)
        assert found == accuracy(plain, "released", adversary)
    assert {o.attack.name for o in plain.outcomes} < {o.attack.name for o in named.outcomes}


@pytest.mark.slow
def test_named__noise_is_not_called_leaking() -> None:
    leaks, singles = 0, []
    for seed in range(3):
        _, people, tasks = draw_people(4, 2, 30, 0.0, seed)
        report = audit(np.random.default_rng(seed).normal(size=(len(people), 3)), people, tasks)
        leaks += report.verdict == "leaks"
        singles.append(accuracy(report, "groups", "together_1"))
    assert leaks <= 1  # 5 % of audits, by the level
    assert abs(np.mean(singles) - 1 / 4) < 0.08


@pytest.mark.slow
def test_control__where_raw_records_tell_nothing_either_nothing_is_judged() -> None:
    """Labels that are no people's at all, as of a wrong join, made every release look safe."""
    options = replace(QUICK, max_advantage=1.0, max_exposed=1.0)
    x, people, _ = draw_people(4, 2, 40, 1.5, seed=3)
    rng = np.random.default_rng(3)
    released, strangers = rng.normal(size=(len(x), 2)), rng.permutation(people)
    given: dict[str, Any] = {"raw": x, "options": options}
    judged = measure_attacks(released, people.astype(str), groups=people, **given)
    assert judged.verdict == "safe"
    blind = measure_attacks(released, strangers.astype(str), groups=strangers, **given)
    assert blind.verdict == "unknown"
    assert "who knows several raw records of one group does no better" in blind.reason
    alone = measure_attacks(released, strangers.astype(str), groups=strangers, options=options)
    assert alone.verdict == "safe"  # without raw records there is no control


def test_control__a_leak_is_a_leak_whatever_the_control_says() -> None:
    x, people, tasks = draw_people(4, 2, 40, 3.0, seed=4)
    raw = np.random.default_rng(4).normal(size=x.shape)
    assert audit(x, people, tasks, raw=raw).verdict == "leaks"


@pytest.mark.slow
def test_trait__every_person_judges_once_and_tells_nothing_of_strangers() -> None:
    """Where each person lies is no trait of theirs; what shifts a class is."""
    rng = np.random.default_rng(5)
    people = np.repeat(np.arange(40), 12)
    sex = rng.permutation(40) % 2
    x = 2 * rng.normal(size=(40, 3))[people] + 0.3 * rng.normal(size=(len(people), 3))
    given: dict[str, Any] = {"groups": people, "options": QUICK}
    report = measure_attacks(x, sex[people].astype(str), **given)
    assert report.verdict == "unproven"
    tests = report.table.query("source == 'released' and score == 'accuracy'")["n_test"]
    assert (tests == len(people)).all()
    x[:, 0] += 4 * sex[people]
    assert measure_attacks(x, sex[people].astype(str), **given).verdict == "leaks"


@pytest.mark.slow
def test_named__what_cannot_be_cut_ends_in_unknown_that_says_why() -> None:
    """One person, one record, one activity, a short time: none of them passes unseen."""
    x, people, tasks = draw_people(4, 1, 60, 1.0, seed=6)
    assert audit(x, people, tasks).verdict == "leaks"  # one activity
    with pytest.raises(InputError, match="single class"):
        audit(x[:60], people[:60])
    one = measure_attacks(
        x[:60], (np.arange(60) % 2).astype(str), groups=people[:60], options=QUICK
    )
    assert one.verdict == "unknown"
    short = np.concatenate([np.arange(60), 60 + np.arange(11), 120 + np.arange(60)])
    report = audit(x[short], people[short])
    assert report.verdict in ("leaks", "unknown")
    failed = report.table.query("status == 'unknown' and adversary == 'together_1'")
    assert "1 of 3 values have no record" in failed["reason"].iloc[0]
    merged = replace(QUICK, rare_classes="merge", min_class_records=12)
    found = measure_attacks(
        x[short], people[short].astype(str), groups=people[short], options=merged
    )
    assert "unknown" not in set(found.table["status"])
    every = np.arange(0, 240, 4)  # nobody has two records that are told apart
    single = measure_attacks(x[every], (every % 3 == 0).astype(str), groups=every, options=QUICK)
    assert "groups" not in set(single.table["source"])
