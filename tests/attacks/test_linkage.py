"""Linkage, reconstruction and membership: certain where nothing is hidden, chance where all is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.linkage_reconstruction import (
    draw_pairs,
    measure_linkage,
    measure_ranks,
    measure_reconstruction,
)
from privpipe.attacks.threats.membership import (
    measure_membership,
    measure_nearest,
    measure_surprise,
)
from privpipe.errors import InputError


@pytest.fixture
def raw() -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 8)) * 10.0 ** np.arange(-4, 4) + 5
    x[:, 3] = 1.0
    return x


def test_measure_ranks__equals_brute_force_across_blocks(monkeypatch) -> None:
    from privpipe.attacks.threats import linkage_reconstruction

    monkeypatch.setattr(linkage_reconstruction, "_PROBES_AT_ONCE", 7)
    monkeypatch.setattr(linkage_reconstruction, "_GALLERY_AT_ONCE", 11)
    random = np.random.default_rng(1)
    probes, gallery = random.normal(size=(20, 3)), random.normal(size=(50, 3))
    own = random.integers(0, 50, 20)
    d = cdist(probes, gallery)
    expected = (d < d[np.arange(20), own][:, None]).sum(axis=1)
    np.testing.assert_array_equal(measure_ranks(probes, gallery, own), expected)
    np.testing.assert_allclose(measure_nearest(probes, gallery), d.min(axis=1))


def test_measure_ranks__finds_identical_entries_by_chance_only() -> None:
    ranks = measure_ranks(np.zeros((400, 2)), np.zeros((100, 2)), np.arange(400) % 100)
    assert 0 <= ranks.min() < 5
    assert 95 < ranks.max() < 100
    assert abs(np.mean(ranks < 10) - 0.1) < 0.05


def test_measure_linkage__is_certain_for_the_identity_and_for_any_rotation(raw) -> None:
    report = measure_linkage(raw, raw)
    assert {attack.method for attack in report.attacks} == {"direct", "learned", "ranked"}
    assert all(attack.top_1.estimate == 1.0 for attack in report.attacks)
    turned = (raw - raw.mean(axis=0)) @ np.linalg.qr(np.random.default_rng(2).normal(size=(8, 8)))[
        0
    ]
    found = measure_linkage(raw, turned[:, ::-1] * 3 + 1)
    assert found.strongest.method == "learned"
    assert found.strongest.top_10.lower > 0.5


@pytest.mark.parametrize("unit", [1e-165, 1e200])
def test_measure_linkage__and_reconstruction_see_a_release_in_any_unit(raw, unit) -> None:
    """Copies times 1e-165 were found by chance only: their columns were taken for constants."""
    for one, other in ((raw, unit * raw), (unit * raw, raw)):
        assert measure_linkage(one, other).strongest.top_1.estimate == 1.0
        assert min(measure_reconstruction(one, other).strongest.column_r2) > 0.99


def test_measure_linkage__is_chance_for_unrelated_and_for_constant_releases(raw) -> None:
    for released in (np.random.default_rng(3).normal(size=(600, 8)), np.full((600, 8), 2.0)):
        report = measure_linkage(raw, released)
        assert report.chance_10 == pytest.approx(10 / 600)
        for attack in report.attacks:
            assert attack.top_10.lower <= report.chance_10 <= attack.top_10.upper
            assert attack.top_1.upper < 0.05


@pytest.mark.parametrize(("n_copied", "n_columns"), [(1, 10), (3, 10), (1, 40)])
def test_measure_linkage__finds_records_by_columns_copied_among_noise(n_copied, n_columns) -> None:
    """By one distance over all columns one of ten found .0008 of 5,000 records, three .02."""
    random = np.random.default_rng(0)
    raw, released = random.normal(size=(3000, 10)), random.normal(size=(3000, n_columns))
    released[:, :n_copied] = raw[:, :n_copied]
    least = 0.9 if n_copied == 1 else 0.95
    assert measure_linkage(raw, released).strongest.top_1.lower > least


@pytest.mark.parametrize(
    "curve",
    [lambda x: np.exp(3 * x), lambda x: -(x**3), lambda x: 1 / (1 + np.exp(-8 * x))],
    ids=["exponential", "falling cube", "logistic"],
)
def test_measure_linkage__finds_records_by_a_column_copied_on_a_curve(curve) -> None:
    """By what is linear in the raw record none of 4,000 was found, and each is."""
    random = np.random.default_rng(1)
    raw, released = random.normal(size=(3000, 5)), random.normal(size=(3000, 6))
    released[:, 2] = curve(raw[:, 0])
    report = measure_linkage(raw, released)
    assert report.attacks[0].top_10.upper < 0.03
    assert report.strongest.method == "ranked"
    assert report.strongest.top_1.lower > 0.95


def test_measure_linkage__of_noise_finds_no_more_than_guessing_does() -> None:
    """The best of several ways to weigh columns is judged by records that did not choose it."""
    found, hits = 0, []
    for seed in range(40):
        random = np.random.default_rng(seed)
        raw, released = random.normal(size=(400, 10)), random.normal(size=(400, 12))
        report = measure_linkage(raw, released, options=AttackOptions(seed=seed))
        found += report.strongest.top_10.lower > report.chance_10
        hits.append(report.attacks[0].top_10.estimate)
    assert found <= 4  # nominal 2 at most; more than 4 have probability .05
    assert np.mean(hits) < 1.2 * report.chance_10


@pytest.mark.parametrize("n_missing", [0, 150])
def test_measure_linkage__looks_by_what_is_released_as_recorded(raw, n_missing) -> None:
    """Beside a unique salary "few are found again" was said of a release of noise."""
    random = np.random.default_rng(3)
    released = random.normal(size=(600, 2))
    salary = random.gamma(3, 9000, 600)
    salary[:n_missing] = np.nan
    table = np.column_stack([random.integers(0, 2, 600), salary])
    report = measure_linkage(raw, released, included=table)
    assert report.n_included == 2
    assert report.strongest.top_1.estimate == pytest.approx(1 - n_missing / 600, abs=0.06)
    halves = measure_linkage(raw, released, included=table[:, :1]).strongest
    assert halves.top_10.estimate == pytest.approx(20 / 600, abs=0.03)
    with pytest.raises(InputError, match=r"included has shape .3, 2., raw .600, 8."):
        measure_linkage(raw, released, included=table[:3])


def test_measure_linkage__does_not_probe_with_the_pairs_it_learned_from() -> None:
    random = np.random.default_rng(9)
    raw, released = random.normal(size=(300, 120)), random.normal(size=(300, 60))
    learned = measure_linkage(raw, released).attacks[0]
    assert learned.top_10.lower <= 10 / 300 <= learned.top_10.upper


def test_measure_linkage__states_its_report(raw) -> None:
    report = measure_linkage(
        raw, raw[:, :2], np.arange(600) // 6, options=AttackOptions(max_records=400)
    )
    assert [attack.method for attack in report.attacks] == ["learned", "ranked"]
    assert report.attacks[0].top_1.method == "grouped_wilson"
    assert (report.n_gallery, report.n_probes) == (400, 200)
    wide = np.tile(raw, (1, 164))
    assert len(draw_pairs(raw, wide, None, AttackOptions(max_bytes=1 << 20))[2]) == 99
    assert json.loads(report.to_json())["strongest"] == "learned"
    with pytest.raises(InputError, match=r"raw has shape .600, 8., released .3, 8."):
        measure_linkage(raw, raw[:3])


def test_measure_reconstruction__measures_what_is_left(raw) -> None:
    whole = measure_reconstruction(raw, raw @ np.diag(10.0 ** np.arange(4, -4, -1)))
    assert whole.strongest.r2.estimate > 0.99
    assert len(whole.strongest.column_r2) == 7
    half = measure_reconstruction(raw, raw[:, [0, 1, 2]])
    np.testing.assert_allclose(half.attacks[0].column_r2[:3], 1, atol=0.01)
    assert max(half.attacks[0].column_r2[3:]) < 0.1
    assert half.attacks[0].r2.estimate == pytest.approx(3 / 7, abs=0.08)
    nothing = measure_reconstruction(raw, np.random.default_rng(4).normal(size=(600, 3)))
    assert nothing.strongest.r2.upper < 0.1


def test_measure_reconstruction__chooses_its_ridge_on_records_of_their_own() -> None:
    random = np.random.default_rng(10)
    raw, released = random.normal(size=(300, 5)), random.normal(size=(300, 140))
    report = measure_reconstruction(raw, released)
    assert all(-0.25 < attack.r2.estimate < 0.1 for attack in report.attacks)


def test_measure_reconstruction__sees_more_than_linear(raw) -> None:
    x = np.random.default_rng(5).normal(size=(1500, 1))
    report = measure_reconstruction(x**2, x)
    linear, kernel = report.attacks
    assert linear.r2.estimate < 0.2
    assert kernel.r2.estimate > 0.9
    assert report.strongest.adversary == "rbf"
    assert json.loads(report.to_json())["strongest"] == "rbf"


def test_measure_reconstruction__goes_by_group_and_refuses(raw) -> None:
    report = measure_reconstruction(
        raw, raw, np.arange(600) // 10, options=AttackOptions(max_records=500)
    )
    assert report.attacks[0].r2.method == "grouped_influence"
    with pytest.raises(InputError, match=r"released .3, 8."):
        measure_reconstruction(raw, raw[:3])
    with pytest.raises(InputError, match="not finite"):
        measure_reconstruction(np.where(raw > 5, np.nan, raw), raw)


def test_measure_membership__finds_members_of_an_overfitted_model() -> None:
    random = np.random.default_rng(6)
    x, y = random.normal(size=(400, 150)), random.normal(size=400)
    slope = np.linalg.lstsq(x[:200], y[:200], rcond=None)[0]
    loss = (y - x @ slope) ** 2
    report = measure_membership(loss[:200], loss[200:])
    assert report.area.lower > 0.7
    assert report.advantage > 0.4
    assert report.epsilon_floor > 0.5
    assert json.loads(report.to_json())["n_members"] == 200


def test_measure_membership__shows_nothing_where_nothing_is() -> None:
    held, floors, advantages = 0, [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        report = measure_membership(
            random.normal(size=100), random.normal(size=100), options=AttackOptions(seed=seed)
        )
        held += report.area.lower <= 0.5 <= report.area.upper
        floors.append(report.epsilon_floor > 0)
        advantages.append(report.advantage)
    assert held >= 52  # nominal 57; fewer than 52 of 60 has probability .01
    assert sum(floors) <= 4
    # A threshold judged by the records that chose it would show .15.
    assert abs(np.mean(advantages)) < 0.05


def test_measure_surprise__is_small_for_copies() -> None:
    random = np.random.default_rng(7)
    surrogate = np.column_stack([random.normal(size=(300, 3)) * [1, 100, 1e-3], np.ones(300)])
    near = measure_surprise(surrogate[:50] * (1 + 1e-9), surrogate)
    far = measure_surprise(surrogate[:50] + np.array([0.5, 50, 5e-4, 0]), surrogate)
    assert near.max() < 1e-5 < far.min()
    assert measure_membership(near, far).area.estimate == 1.0
    with pytest.raises(InputError, match="3 columns, the surrogate 4"):
        measure_surprise(surrogate[:, :3], surrogate)


def test_measure_epsilon_floor__is_a_lower_bound_for_randomised_response() -> None:
    # Randomised response with privacy loss 1: members answer yes with probability e/(1+e).
    random = np.random.default_rng(8)
    share = np.e / (1 + np.e)
    above = 0
    for seed in range(40):
        members = (random.random(2000) > share).astype(float)
        others = (random.random(2000) > 1 - share).astype(float)
        floor = measure_membership(members, others, options=AttackOptions(seed=seed)).epsilon_floor
        assert floor > 0.7
        above += floor > 1
    assert above <= 4


def test_measure_membership__refuses() -> None:
    with pytest.raises(InputError, match="members has 3 values"):
        measure_membership(np.zeros(3), np.zeros(30))
    with pytest.raises(InputError, match="others has 30 values, 30 not finite"):
        measure_membership(np.zeros(30), np.full(30, np.nan))
