"""Folds: everybody judges once, neighbours in time lie apart, every side has the same mix."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.statistics.folds import FOLDS, cut_cells, deal_folds
from privpipe.attacks.statistics.splits import (
    FEWEST_IN_CELL,
    cut_in_time,
    is_of_groups,
    names_groups,
    number_stretches,
)
from privpipe.errors import InputError
from privpipe.protocols import IntArray


def draw_days(n_people: int = 5) -> tuple[IntArray, IntArray]:
    """People who do three things one after the other, each for a time of its own, in the order of
    the records."""
    rng = np.random.default_rng(0)
    runs = [
        (person, task, int(rng.integers(30, 90))) for person in range(n_people) for task in range(3)
    ]
    people = np.concatenate([np.full(n, person) for person, _, n in runs])
    return people, np.concatenate([np.full(n, task) for _, task, n in runs])


def test_cut_in_time__every_side_has_the_same_mix_of_tasks() -> None:
    """Cut without regard to them, what a person did last would judge and never train."""
    people, tasks = draw_days()
    rows = np.arange(len(people))
    for split in cut_in_time(rows, people, rows, tasks):
        for person in range(5):
            shares = [
                np.bincount(tasks[part[people[part] == person]], minlength=3)
                for part in (split.train, split.test)
            ]
            train, test = (counts / counts.sum() for counts in shares)
            assert np.abs(train - test).sum() / 2 < 0.06
    judged = np.concatenate([split.test for split in cut_in_time(rows, people, rows, tasks)])
    assert len(judged) == len(np.unique(judged))
    assert len(judged) > 0.95 * len(rows)  # but for those beside another task's


def test_cut_in_time__without_tasks_what_lasts_a_while_is_on_every_side() -> None:
    people, tasks = draw_days()
    rows = np.arange(len(people))
    for split in cut_in_time(rows, people, rows, None):
        for person in range(5):
            for part in (split.train, split.test):
                assert set(tasks[part[people[part] == person]]) == {0, 1, 2}


@pytest.mark.parametrize("with_tasks", [True, False])
def test_cut_in_time__neighbours_stay_apart(with_tasks: bool) -> None:
    people, tasks = draw_days()
    places = np.random.default_rng(1).permutation(len(people))
    order = np.argsort(places)  # of the records in time
    people, tasks = people[places], tasks[places]
    rows = np.arange(len(people))
    for split in cut_in_time(rows, people, places, tasks if with_tasks else None):
        side = np.full(len(rows), -1)
        for number, part in enumerate((split.train, split.tune, split.test)):
            assert (side[part] == -1).all()
            side[part] = number
        in_time, who = side[order], people[order]
        meets = (in_time[1:] != in_time[:-1]) & (who[1:] == who[:-1])
        assert ((in_time[1:] == -1) | (in_time[:-1] == -1))[meets].all()


def test_cut_in_time__of_unequal_lengths_short_groups_train_and_none_are_refused() -> None:
    people = np.repeat([0, 1, 2], [FEWEST_IN_CELL - 1, FEWEST_IN_CELL, 400])
    rows = np.arange(len(people))
    for split in cut_in_time(rows, people, rows, None):
        assert set(people[split.test]) == {1, 2}
        assert (people[split.train] == 0).sum() == FEWEST_IN_CELL - 1
    few = np.repeat([0, 1], FEWEST_IN_CELL - 1)
    with pytest.raises(InputError, match="A group has 11 records at most, too few") as short:
        cut_in_time(np.arange(22), few, np.arange(22), None)
    assert "12 records of each group" in short.value.remedy


def test_cut_in_time__rare_tasks_of_a_group_are_taken_together() -> None:
    people, tasks = np.zeros(60, int), np.arange(60) % 15  # four records each
    for split in cut_in_time(np.arange(60), people, np.arange(60), tasks):
        assert len(split.test) >= 18


@pytest.mark.parametrize("n_women", [2, 3, 10])
def test_deal_folds__every_group_judges_once_and_never_where_it_trains(n_women: int) -> None:
    groups = np.repeat(np.arange(30), np.random.default_rng(2).integers(1, 9, 30))
    classes = (groups < n_women).astype(int)
    splits = deal_folds(np.arange(len(groups)), units=groups, classes=classes, seed=4)
    judged = np.concatenate([split.test for split in splits])
    assert sorted(judged) == list(range(len(groups)))
    for split in splits:
        sides = [set(groups[part]) for part in (split.train, split.tune, split.test)]
        assert sides[0] | sides[1] | sides[2] == set(range(30))
        assert sum(map(len, sides)) == 30
        assert all(sides)
        assert set(classes[split.train]) == set(classes[split.test]) == {0, 1}


def test_deal_folds__of_one_group_or_one_of_a_class_is_refused() -> None:
    for groups, classes in (
        (np.zeros(9, int), None),
        (np.arange(4), np.array([0, 0, 0, 1])),
        (np.arange(4), np.array([0, 0, 1, 1])),
    ):
        with pytest.raises(InputError, match=r"A class has [12] of \d records or groups"):
            deal_folds(np.arange(len(groups)), units=groups, classes=classes)


def test_deal_folds__shares_settings_that_no_record_it_judges_has_chosen() -> None:
    random = np.random.default_rng(5)
    classes, strata = (random.random(4000) < 0.2).astype(int), random.integers(0, 3, 4000)
    splits = deal_folds(np.arange(4000), classes=classes, strata=strata)
    assert len(splits) == FOLDS
    assert sorted(np.concatenate([split.test for split in splits])) == list(range(4000))
    for split in splits:
        assert split.choose is not None
        assert not set(split.test) & {*split.choose, *split.tune, *split.train}
        assert set(split.choose) <= set(split.train)
        cells = classes[split.test] * 3 + strata[split.test]
        np.testing.assert_allclose(
            np.bincount(cells), np.bincount(classes * 3 + strata) / 5, rtol=0.1
        )
    assert len({split.choose.tobytes() for split in splits if split.choose is not None}) == 2


def test_deal_folds__judges_only_what_may_not_only_train() -> None:
    only, classes = np.arange(100) < 60, np.arange(100) % 2
    splits = deal_folds(np.arange(100), classes=classes, train_only=only)
    assert sorted(np.concatenate([split.test for split in splits])) == list(range(60, 100))
    with pytest.raises(InputError, match="both sides"):
        deal_folds(np.arange(40), units=np.arange(40) // 10, train_only=np.arange(40) < 15)


def test_cut_cells__are_of_a_fold_and_a_target_or_of_its_neighbours() -> None:
    random = np.random.default_rng(6)
    folds, few = random.integers(0, 2, 1000), random.integers(0, 3, (1000, 1)).astype(float)
    cells, partners = cut_cells(folds, few, few)
    assert len(np.unique(cells)) == 6
    assert partners is None
    many = random.normal(size=(1000, 1))
    assert (cut_cells(folds, many, None)[0] == folds).all()
    for known in (many[:, 0] ** 2, np.repeat(many, 3, axis=1)):
        cells, _ = cut_cells(folds, many, known)
        assert len(np.unique(cells)) > 20
        for cell in np.unique(cells):
            assert np.ptp(folds[cells == cell]) == 0
            assert 15 <= (cells == cell).sum() <= 40


@pytest.mark.parametrize("n_columns", [1, 2])
def test_cut_cells__have_partners_of_a_fold_with_nearly_the_same_target(n_columns: int) -> None:
    random, folds = np.random.default_rng(6), np.arange(1001) % 2
    many = random.normal(size=(1001, n_columns))
    _, partners = cut_cells(folds, many, many[:, 0] > 1)
    assert partners is not None
    assert (np.sort(partners) == np.arange(1001)).all()
    assert (folds[partners] == folds).all()
    assert (partners != np.arange(1001)).all()
    assert np.median(abs(many - many[partners])) < (0.01 if n_columns == 1 else 0.1)
    # What is predicted counts foremost.
    assert np.mean((many[:, 0] > 1) != (many[partners, 0] > 1)) < 0.005


@pytest.mark.parametrize("size", [3, 10])
def test_cut_cells__have_no_partner_of_the_same_subject_or_set_of_equal_records(size: int) -> None:
    """Exchanged within one, a release goes on revealing what it reveals of it."""
    random, units = np.random.default_rng(7), np.arange(1200) // size
    folds, target = units % 3, random.normal(size=1200 // size)[units][:, None]
    _, partners = cut_cells(folds, target, target[:, 0], units)
    assert partners is not None
    assert (units[partners] != units).all()
    assert (folds[partners] == folds).all()
    assert np.median(abs(target - target[partners])) < 0.1


def test_number_stretches__are_of_one_group_and_task_without_a_break() -> None:
    people, tasks = draw_days()
    places = np.random.default_rng(3).permutation(len(people))
    numbers = number_stretches(people[places], places, tasks[places])
    for number in np.unique(numbers):
        mine = numbers == number
        assert len(set(zip(people[places][mine], tasks[places][mine], strict=True))) == 1
        assert np.ptp(places[mine]) == mine.sum() - 1
    assert np.bincount(numbers).max() <= np.ceil(np.cbrt(np.bincount(people).max()))


def test_names_groups__is_of_whole_groups_of_which_one_is_alone() -> None:
    groups = np.array([3, 3, 1, 1, 2])
    assert is_of_groups(groups, np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert not is_of_groups(groups, np.array([0, 1, 0, 0, 1]))
    assert names_groups(groups, groups)
    assert names_groups(groups, np.array([0, 0, 0, 0, 1]))
    assert not names_groups(groups, np.zeros(5, int))
    assert not names_groups(groups, np.array([0, 1, 0, 0, 1]))
