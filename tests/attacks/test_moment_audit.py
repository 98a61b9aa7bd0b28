"""The first audit: it sees a leak when there is one, and its sums do not depend on shards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from privpipe import NullSpaceCleaner, Records, fit_null_space_cleaner
from privpipe.attacks.moment_audit import (
    AuditPlan,
    audit_release,
    find_coordinates,
    fit_linear_attack,
    measure_pairs,
    summarise_pairs,
    summarise_raw,
)
from privpipe.numerics.moments import Coding, CoMoments, LeastSquares, code_targets
from privpipe.protocols import Column, FloatArray, Shard, ShardSchema
from tests.standard import make_standard

WANTED = (Column("height"), Column("late", 2), Column("side", 3))
SECRET = (Column("income"), Column("party", 3))
SCHEMA = ShardSchema(9, WANTED, SECRET)
TARGETS = {"height": [0], "late": [1], "side": [2, 3, 4], "income": [5], "party": [6, 7, 8]}


class Paired(Records):
    """Records in memory with their released counterparts."""

    def __init__(self, features: FloatArray, released: FloatArray, **options: Any) -> None:
        super().__init__(features, **options)
        self._released = released

    def shards(self) -> Any:
        start = 0
        for shard in super().shards():
            stop = start + shard.n_records
            yield replace(shard, released=self._released[start:stop])
            start = stop


def audit(release: Any, n_shards: int = 1, seed: int = 5) -> dict[str, Any]:
    parts = []
    for part in range(3):
        x, v = make_standard(1500, seed + part)
        parts.append(
            Paired(
                x,
                release(x),
                desired=np.column_stack([v["height"], v["late"]]),
                confidential=v["income"],
                n_shards=n_shards,
            )
        )
    raw, attack, test = parts
    about = {"schema": raw.schema, "coding": "zero_one"}
    learned = (
        raw.reduce(partial(summarise_raw, **about)),
        attack.reduce(partial(summarise_pairs, **about)),
    )
    return audit_release(raw.schema, learned, test, n_released=9, unit_roundoff=2.0**-53)


@pytest.fixture(scope="module")
def cleaner() -> NullSpaceCleaner:
    x, v = make_standard(1500, 5)
    targets = np.column_stack([v["height"], v["late"]])
    return fit_null_space_cleaner(Records(x, desired=targets), utility_budget=0.05, ridge=1e-6)


def test_audit__finds_nothing_in_cleaned_records(cleaner: NullSpaceCleaner) -> None:
    found = audit(cleaner.apply)
    assert found["confidential"]["confidential_0"]["raw"]["r2"] > 0.95
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] < 0.1
    assert found["desired"]["desired_0"]["released"]["r2"] > 0.9


def test_audit__catches_an_identity_release(cleaner: NullSpaceCleaner) -> None:
    found = audit(lambda x: x)
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] > 0.95


def test_audit__catches_a_wrong_sign(cleaner: NullSpaceCleaner) -> None:
    found = audit(lambda x: 2 * x - cleaner.apply(x))
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] > 0.9


def test_audit__does_not_depend_on_shards(cleaner: NullSpaceCleaner) -> None:
    one, many = audit(cleaner.apply), audit(cleaner.apply, n_shards=11)
    for view, figures in one["desired"]["desired_1"].items():
        assert figures == pytest.approx(many["desired"]["desired_1"][view], rel=1e-9)
    assert one["privacy"]["released"]["e_privacy"] == pytest.approx(
        many["privacy"]["released"]["e_privacy"], rel=1e-9
    )


def test_find_coordinates__sees_the_rank_through_rounding(cleaner: NullSpaceCleaner) -> None:
    x, _ = make_standard(1500, 5)
    for dtype, unit in ((np.float64, 2.0**-53), (np.float32, 2.0**-24)):
        released = cleaner.apply(x.astype(dtype)).astype(np.float64)
        assert find_coordinates(CoMoments.of(released), 9, unit).shape == (9, 2)


def test_fit_linear_attack__survives_a_constant_release() -> None:
    rows = np.column_stack([np.full((50, 3), 2.5), np.arange(50.0)])
    attack = fit_linear_attack(CoMoments.of(rows), 3, 2.0**-53)
    assert np.array_equal(attack.coefficients, np.zeros((3, 1)))
    assert attack.intercept[0] == pytest.approx(24.5)


def test_shard__counts_its_records() -> None:
    assert Shard(np.zeros((4, 2))).n_records == 4


def make_pairs(n_records: int = 400, *, appended: bool = False) -> Shard:
    """Records with a coarse release, a withheld one, and labels missing here and there."""
    x, v = make_standard(n_records, 3)
    rng = np.random.default_rng(0)
    released = x + rng.normal(size=x.shape)
    if appended:
        released = np.hstack([released, rng.normal(1, 0.2, (n_records, 1))])
    released[11] = np.nan
    desired = np.column_stack([v["height"], v["late"], np.digitize(x[:, 1], [8.0, 11.0])])
    secret = np.column_stack([v["income"], v["party"]])
    desired[::7, 1], secret[::5, 1], secret[3, 0] = np.nan, np.nan, np.nan
    return Shard(x, desired, secret, released=released)


def plan_audit(shard: Shard, coding: Coding, *, keeps_features: bool = True) -> AuditPlan:
    """A plan with predictors of no merit: every figure shows."""
    rng = np.random.default_rng(1)
    pairs = summarise_pairs(shard, schema=SCHEMA, coding=coding)
    n, m = shard.features.shape[1], shard.released.shape[1]
    raw, attack = (
        LeastSquares(rng.normal(size=(k, 9)) / 9, rng.normal(size=9), 1.0) for k in (n, m)
    )
    return AuditPlan(SCHEMA, coding, raw, attack, np.linspace(0, 3, n), pairs.joint, keeps_features)


def judge_slowly(shard: Shard, plan: AuditPlan) -> dict[str, FloatArray]:
    """What `measure_pairs` adds, record by record."""
    values = np.hstack([shard.desired, shard.confidential])
    targets = code_targets(values, plan.columns, plan.coding)
    names = [column.name for column in plan.columns]
    found: dict[str, Any] = {}
    for i in np.flatnonzero(np.isfinite(shard.released).all(axis=1)):
        x, seen = shard.features[i], shard.released[i]
        ones = seen[9] if len(seen) == 10 else 1.0
        scores = {
            "raw": x @ plan.raw.coefficients + plan.raw.intercept,
            "released": seen[:9] @ plan.raw.coefficients + ones * plan.raw.intercept,
            "retrained": seen @ plan.attack.coefficients + plan.attack.intercept,
        }
        blind = plan.mean @ plan.raw.coefficients + plan.raw.intercept
        table = found.setdefault("distortion", np.zeros((4, 9)))
        table += [(seen[:9] - x) ** 2, x - plan.mean, (x - plan.mean) ** 2, np.ones(9)]
        for view in ("released", "retrained"):
            table = found.setdefault(f"privacy/{view}", np.zeros((4, 4)))
            for k, j in enumerate(range(5, 9)):
                table[:2, k] += (scores[view][j] - scores["raw"][j]) ** 2, 1
                if not np.isnan(truth := targets[i, j]):
                    table[2:, k] += abs(scores[view][j] - truth) > abs(blind[j] - truth), 1
        for view, score in scores.items():
            for column, truth in zip(plan.columns, values[i], strict=True):
                _judge_one(found, f"{view}/{column.name}", score, truth, column, plan.coding)
        party = values[i, names.index("party")]
        joint = plan.joint[1]
        assert joint is not None
        if not np.isnan(party):
            answer = 3 * int(np.nan_to_num(values[i, 1])) + int(values[i, 2])
            for view, guess in (
                ("guessing", joint.sum(axis=0).argmax()),
                ("answer_only", joint[answer].argmax()),
            ):
                found.setdefault(f"{view}/party", np.zeros((3, 3)))[int(party), guess] += 1
    return found


def _judge_one(
    found: dict[str, Any], name: str, score: FloatArray, truth: float, column: Column, coding: str
) -> None:
    mine = score[TARGETS[column.name]]
    k = column.n_categories
    table = found.setdefault(name, np.zeros((k, k) if k else 4))
    if np.isnan(truth):
        return
    if k is None:
        table += 1, truth, truth**2, (mine[0] - truth) ** 2
    else:
        middle = 0.5 if coding == "zero_one" else 0.0
        table[int(truth), int(mine[0] > middle) if k == 2 else mine.argmax()] += 1


@pytest.mark.parametrize("coding", ["zero_one", "plus_minus"])
@pytest.mark.parametrize("appended", [False, True])
def test_measure_pairs__is_the_sum_over_released_records(coding: Coding, appended: bool) -> None:
    shard = make_pairs(appended=appended)
    plan = plan_audit(shard, coding)
    sums, slow = measure_pairs(shard, plan=plan), judge_slowly(shard, plan)
    assert sums.count == 399
    assert sums.added.keys() == slow.keys()
    for name, expected in slow.items():
        found = sums.added[name].sum(axis=0) if name.startswith("privacy") else sums.added[name]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9, err_msg=name)


def test_measure_pairs__keeps_subjects_whole_in_the_parts_of_the_records() -> None:
    """Of one subject all pairs are in one part, whatever the shards; without one, by content."""
    whole = make_pairs()
    plan = plan_audit(whole, "zero_one")
    subject = np.full((400, 1), 7.0)
    one = measure_pairs(
        replace(whole, confidential=np.hstack([whole.confidential, subject])), plan=plan
    ).added["privacy/retrained"]
    assert np.count_nonzero(one[:, 1].sum(axis=1)) == 1
    spread = measure_pairs(whole, plan=plan).added["privacy/retrained"]
    assert np.count_nonzero(spread[:, 1].sum(axis=1)) > 50
    np.testing.assert_allclose(one.sum(axis=0), spread.sum(axis=0), rtol=1e-12)


def test_measure_pairs__leaves_raw_predictors_out_where_features_are_others() -> None:
    shard = make_pairs(appended=True)
    plan = plan_audit(shard, "zero_one", keeps_features=False)
    assert not any("released" in name for name in measure_pairs(shard, plan=plan).added)


def test_summarise_pairs__counts_answers_and_classes_of_complete_records() -> None:
    shard = make_pairs()
    pairs = summarise_pairs(shard, schema=SCHEMA, coding="zero_one")
    values = np.hstack([shard.desired, shard.confidential])
    rows = [i for i in range(400) if i != 11 and not np.isnan(values[i]).any()]
    joint = np.zeros((6, 3), int)
    for i in rows:
        joint[int(3 * values[i, 1] + values[i, 2]), int(values[i, 4])] += 1
    assert pairs.joint[0] is None
    np.testing.assert_array_equal(pairs.joint[1], joint)
    assert pairs.moments.count == len(rows)
    targets = code_targets(values, [*WANTED, *SECRET], "zero_one")
    expected = np.hstack([shard.released, targets])[rows].mean(axis=0)
    np.testing.assert_allclose(pairs.moments.mean, expected, rtol=1e-12)


def test_pairs__merge_to_those_of_the_whole() -> None:
    whole = make_pairs()
    thirds = [
        Shard(
            whole.features[i::3],
            whole.desired[i::3],
            whole.confidential[i::3],
            released=whole.released[i::3],
        )
        for i in range(3)
    ]
    learn = {"schema": SCHEMA, "coding": "zero_one"}
    one, two, three = (summarise_pairs(part, **learn) for part in thirds)
    merged, pairs = one.merge(two).merge(three), summarise_pairs(whole, **learn)
    np.testing.assert_array_equal(merged.joint[1], pairs.joint[1])
    np.testing.assert_allclose(merged.moments.scatter, pairs.moments.scatter, atol=1e-6)
    plan = plan_audit(whole, "zero_one")
    a, b, c = (measure_pairs(part, plan=plan) for part in thirds)
    sums, total = a.merge(b).merge(c), measure_pairs(whole, plan=plan)
    assert sums.count == total.count
    for name, expected in total.added.items():
        np.testing.assert_allclose(sums.added[name], expected, rtol=1e-12, atol=1e-9, err_msg=name)
