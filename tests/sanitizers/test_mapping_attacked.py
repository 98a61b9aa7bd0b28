"""Adversarial inputs of solve_privacy_mapping: whatever goes in, no false number comes out."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from privpipe import SparseMapping, certify_mapping, solve_privacy_mapping
from privpipe.errors import ConvergenceError, InputError, OptionError
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.protocols import FloatArray, IntArray
from tests.oracles_sppm import all_distances, solve_exactly
from tests.referee_sppm import judge

ROUNDING = Decimal("1e-13")
"""Nats by which a published float may miss the exact number."""

few = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a failing case is small as it is
    report_multiple_bugs=False,
)


@st.composite
def joints(draw: st.DrawFn, n_symbols: int, n_private: int = 0) -> FloatArray:
    """Random joints with empty symbols, empty values, hard zeros and cells down to 1e-320."""
    m = n_private or draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    table = rng.gamma(draw(st.sampled_from([0.05, 0.4, 3.0])), size=(m, n_symbols)) + 1e-9
    if draw(st.booleans()):
        table[rng.random(table.shape) < 0.4] = 0.0
    if draw(st.booleans()):
        table[:, rng.integers(n_symbols)] = 0.0
    if draw(st.booleans()):
        table[rng.integers(m)] = 0.0
    if draw(st.booleans()):
        small = draw(st.sampled_from([1e-12, 1e-60, 1e-150, 1e-300, 5e-324]))
        table[rng.integers(m), rng.integers(n_symbols)] = small
    if not table.sum() > 0:
        table[0, 0] = 1.0
    return np.asarray(table / table.sum())


@st.composite
def alphabets(draw: st.DrawFn) -> tuple[IntArray | FloatArray, Any, FloatArray]:
    """Codes, a distortion of any kind and scale, and the distances it means."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 7))
    scale = 10.0 ** draw(st.sampled_from([-200, -100, -50, -8, 0, 0, 0, 0, 8, 60, 100, 160, 200]))
    kind = draw(st.sampled_from(["hamming", "squared", "absolute", "line", "matrix"]))
    grid = np.stack(np.meshgrid(range(3), range(3), indexing="ij"), -1).reshape(-1, 2)
    codes = grid[rng.permutation(9)[:n]]
    if kind == "hamming":
        return codes, kind, all_distances(codes, kind)
    if kind in ("squared", "absolute"):
        spots = codes * scale
        with np.errstate(all="ignore"):
            return spots, kind, all_distances(spots, kind)
    if kind == "line":
        spots = scale * np.cumsum(rng.exponential(size=n) + 1e-3)[:, None]
        with np.errstate(all="ignore"):
            return spots, "squared", all_distances(spots, "squared")
    wide = draw(st.sampled_from([1.0, 1.0, 1e6, 1e30, 1e120]))
    with np.errstate(over="ignore"):
        matrix = np.minimum(scale * wide ** rng.uniform(-1, 1, size=(n, n)), 1e300)
    matrix[rng.random((n, n)) < draw(st.sampled_from([0.0, 0.3]))] = 0.0
    np.fill_diagonal(matrix, 0.0)
    return codes, matrix, matrix


def draw_budget(draw: st.DrawFn, joint: FloatArray, distances: FloatArray) -> float:
    share = draw(
        st.sampled_from([0.0, 5e-324, 1e-300, 1e-100, 1e-46, 1e-20, 1e-9, 1e-3, 0.1, 0.4, 0.9, 2.0])
    )
    with np.errstate(all="ignore"):
        means = joint.sum(axis=0) @ distances
    whole = float(means.min()) if np.isfinite(means.min()) else 1.0
    return share if share in (5e-324, 1e-300) else share * whole


def check_numbers(
    mapping: SparseMapping, joint: FloatArray, distances: FloatArray, budget: float, gap: float
) -> None:
    """The referee's verdict, and the optimum of a general solver where it finds one."""
    information, bound, excess, column_error = judge(joint, distances, mapping, budget)
    assert column_error <= Decimal("1e-12")
    assert excess <= Decimal("1e-12") * Decimal(budget)
    assert abs(information - Decimal(mapping.information)) <= ROUNDING
    assert Decimal(mapping.lower_bound) <= max(bound, Decimal(0))
    assert 0 <= mapping.lower_bound <= mapping.information
    if mapping.stopped == "gap reached":
        assert mapping.gap <= gap + 1e-12


@pytest.mark.slow
@given(st.data())
@settings(few, max_examples=250)
def test_solve_privacy_mapping__publishes_no_false_number(data: st.DataObject) -> None:
    codes, distortion, distances = data.draw(alphabets())
    joint = data.draw(joints(len(codes)))
    budget = draw_budget(data.draw, joint, distances)
    gap = data.draw(st.sampled_from([1e-3, 1e-6, 1e-9]))
    solver = data.draw(st.sampled_from(["auto", "auto", "auto", "frank_wolfe"]))
    refused: InputError | None = None
    try:
        mapping = solve_privacy_mapping(
            joint, codes, distortion, distortion_budget=budget, gap=gap, solver=solver, n_steps=20
        )
    except InputError as error:
        refused = error
    if refused is not None:
        assert refused.code == "extreme-distances"
        return
    check_numbers(mapping, joint, distances, budget, gap)


@given(st.data())
@few
def test_solve_privacy_mapping__warm_starts_of_anything(data: st.DataObject) -> None:
    codes, distortion, distances = data.draw(alphabets().filter(lambda found: len(found[0]) > 1))
    n_private = data.draw(st.integers(2, 3))
    first = data.draw(joints(len(codes), n_private))
    joint = data.draw(joints(len(codes), n_private))
    gap = 1e-6
    refused: InputError | None = None
    try:
        budget = draw_budget(data.draw, first, distances)
        start = solve_privacy_mapping(first, codes, distortion, distortion_budget=budget, gap=gap)
    except InputError as error:
        refused = error
    if refused is not None:
        assert refused.code == "extreme-distances"
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    damage = data.draw(st.sampled_from(["none", "shift", "noise", "multiplier", "unnormalised"]))
    changes: dict[str, Any] = {
        "none": {},
        "shift": {"potentials": start.potentials + 40.0},
        "noise": {"potentials": 1e3 * rng.normal(size=start.potentials.shape)},
        "multiplier": {"multiplier": 10.0 ** rng.uniform(-300, 300)},
        "unnormalised": {"probabilities": start.probabilities * 10.0 ** rng.uniform(-9, 9)},
    }[damage]
    budget = draw_budget(data.draw, joint, distances)
    try:
        mapping = solve_privacy_mapping(
            joint,
            codes,
            distortion,
            distortion_budget=budget,
            gap=gap,
            start=replace(start, **changes),
        )
    except InputError as error:  # other symbols have mass, so other distances count
        refused = error
    if refused is not None:
        assert refused.code == "extreme-distances"
        return
    check_numbers(mapping, joint, distances, budget, gap)


def test_solve_privacy_mapping__neighbours_bracket_the_optimum_of_a_general_solver() -> None:
    """Starts of another joint: today's bound was "reached" four times above the optimum."""
    rng = np.random.default_rng(5)
    codes = np.stack(np.meshgrid(range(3), range(4), indexing="ij"), -1).reshape(-1, 2)
    distances = all_distances(codes, "hamming")
    compared = 0
    for _ in range(12):
        table = rng.gamma(0.4, size=(2, 2, 12)) + 1e-3
        table[0, 0] *= 20  # priors that differ, so that potentials of one are too high in the other
        first, joint = (part / part.sum() for part in table)
        start = solve_privacy_mapping(first, codes, distortion_budget=0.3)
        mapping = solve_privacy_mapping(joint, codes, distortion_budget=0.3, start=start)
        optimum = solve_exactly(joint, distances, 0.3)
        assert mapping.lower_bound <= optimum + 1e-6
        assert mapping.information >= optimum - 1e-6
        assert mapping.gap <= 1e-6
        compared += optimum > 1e-3
    assert compared >= 6


@pytest.fixture(scope="module")
def pair() -> tuple[FloatArray, SparseMapping]:
    rng = np.random.default_rng(0)
    joint = rng.gamma(0.4, size=(2, 6)) + 1e-3
    joint /= joint.sum()
    return joint, solve_privacy_mapping(joint, np.arange(6), distortion_budget=0.2)


def _set(array: Any, place: Any, value: Any) -> Any:
    changed = array.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: {"potentials": _set(s.potentials, (0, 0), np.nan)}, "non-finite"),
        (lambda s: {"potentials": s.potentials[:, :1]}, "one per symbol and private value"),
        (lambda s: {"potentials": np.zeros((6, 3))}, "needs"),
        (lambda s: {"multiplier": -1.0}, "negative"),
        (lambda s: {"multiplier": np.inf}, "negative multiplier"),
        (lambda s: {"codes": s.codes[::-1]}, "another alphabet"),
        (lambda s: {"codes": s.codes[:, 0]}, "another alphabet"),
    ],
)
def test_solve_privacy_mapping__refuses_a_start_without_numbers(
    pair: tuple[FloatArray, SparseMapping], change: Any, match: str
) -> None:
    joint, start = pair
    bad = replace(start, **change(start))
    with pytest.raises(OptionError, match=match):
        solve_privacy_mapping(joint, np.arange(6), distortion_budget=0.1, start=bad)


def test_solve_privacy_mapping__three_classes_from_two_are_refused(
    pair: tuple[FloatArray, SparseMapping],
) -> None:
    joint = np.concatenate([pair[0], pair[0][:1]]) / (1 + pair[0][0].sum())
    with pytest.raises(OptionError, match=r"shape \(6, 2\), and the joint needs \(6, 3\)"):
        solve_privacy_mapping(joint, np.arange(6), distortion_budget=0.1, start=pair[1])


@pytest.mark.parametrize("kind", ["squared", "absolute", "matrix"])
@pytest.mark.parametrize("scale", [1e-100, 1e-60, 1e60, 1e100])
def test_solve_privacy_mapping__scales_change_nothing(kind: str, scale: float) -> None:
    rng = np.random.default_rng(3)
    joint = rng.gamma(0.4, size=(2, 12)) + 1e-4
    joint /= joint.sum()
    spots = rng.uniform(size=(12, 2))
    distances = all_distances(spots, "absolute")
    power = 2 if kind == "squared" else 1

    def solve(by: float) -> SparseMapping:
        distortion: Any = distances * by if kind == "matrix" else kind
        codes = spots * by if kind in ("squared", "absolute") else spots
        budget = 0.1 * by**power
        return solve_privacy_mapping(joint, codes, distortion, distortion_budget=budget, gap=1e-8)

    plain, scaled = solve(1.0), solve(scale)
    assert scaled.stopped == plain.stopped == "gap reached"
    assert scaled.information == pytest.approx(plain.information, abs=2e-8)
    assert scaled.distortion == pytest.approx(plain.distortion * scale**power, rel=1e-4)
    assert scaled.distortion_budget == 0.1 * scale**power


@pytest.mark.parametrize("budget", [5e-324, 1e-320, 1e-200, 1e-46, 1e-45])
@pytest.mark.parametrize("kind", ["hamming", "squared"])
def test_solve_privacy_mapping__hardly_any_budget_is_the_identity(kind: str, budget: float) -> None:
    rng = np.random.default_rng(4)
    joint = rng.gamma(0.4, size=(3, 12)) + 1e-4
    joint /= joint.sum()
    mapping = solve_privacy_mapping(joint, np.arange(12), kind, distortion_budget=budget)
    assert mapping.distortion <= budget
    assert mapping.gap <= 1e-12
    assert mapping.distortion_budget == budget


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (np.arange(4) * 1e-170, "squared"),
        (np.arange(4) * 1e200, "squared"),
        (np.array([0.0, 1e-300, 1.0, 2.0]), "absolute"),
    ],
)
def test_solve_privacy_mapping__refuses_what_float64_cannot_hold(codes: Any, kind: str) -> None:
    with pytest.raises(InputError, match="reach from"):
        solve_privacy_mapping(np.full((2, 4), 1 / 8), codes, kind, distortion_budget=0.1)


@pytest.mark.parametrize("lie", ["bound", "mass", "column", "plan", "budget"])
def test_solve_privacy_mapping__returns_nothing_that_its_certificate_denies(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver that lies is found out: its bound is replaced, its mapping refused."""
    from privpipe.sanitizers.mapping.solving import solve as mapping_solve

    honest = mapping_solve.search_mapping
    rng = np.random.default_rng(6)
    joint = rng.gamma(0.4, size=(2, 8)) + 1e-3
    joint /= joint.sum()

    def search(*args: Any, **given: Any) -> tuple[Search, str]:
        progress, reason = honest(*args, **given)
        weights = progress.plan.weights.copy()
        if lie == "bound":
            progress.bound += 0.05
        if lie == "mass":
            weights[0], weights[1] = -weights[0], weights[1] + 2 * weights[0]
        if lie == "column":
            weights *= 1.01
        if lie == "plan":
            progress.plan = replace(progress.plan, information=0.0)
        progress.plan = replace(progress.plan, weights=weights)
        return progress, reason

    monkeypatch.setattr(mapping_solve, "search_mapping", search)
    budget = 0.2
    if lie == "budget":
        monkeypatch.setattr(
            mapping_solve,
            "prepare_alphabet",
            lambda *given: replace(prepared(*given), budget=budget / 2),
        )
        from privpipe.sanitizers.mapping.alphabet import prepare_alphabet as prepared
    if lie in ("bound", "plan"):
        mapping = solve_privacy_mapping(joint, np.arange(8), distortion_budget=budget)
        check_numbers(mapping, joint, all_distances(np.arange(8)[:, None], "hamming"), budget, 1e-6)
        return
    with pytest.raises(ConvergenceError, match="did not pass its certificate"):
        solve_privacy_mapping(joint, np.arange(8), distortion_budget=budget)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"potentials": np.full((6, 2), np.nan)}, "potentials are NaN"),
        ({"potentials": np.zeros((6, 3))}, "of one alphabet|potentials"),
        ({"joint": np.array([[0.5, np.nan, 0.1, 0.1, 0.1, 0.2]] * 2)}, "no distribution"),
        ({"mapping": "negative"}, "negative"),
        ({"mapping": "column"}, "sums to 1 within"),
    ],
)
def test_certify_mapping__refuses_what_is_no_mapping(
    pair: tuple[FloatArray, SparseMapping], change: dict[str, Any], match: str
) -> None:
    joint, mapping = pair
    whole = mapping.mapping.copy()
    if change.get("mapping") == "negative":
        whole.data[0] = -whole.data[0]
    if change.get("mapping") == "column":
        whole.data[0] *= 0.5
    arguments = {"joint": joint, "potentials": mapping.potentials, **change, "mapping": whole}
    with pytest.raises(InputError, match=match):
        certify_mapping(codes=np.arange(6), multiplier=1.0, distortion_budget=0.2, **arguments)


def test_solve_privacy_mapping__moves_that_cost_nothing_need_no_budget() -> None:
    joint = np.array([[0.4, 0.1, 0.0], [0.1, 0.1, 0.3]])
    matrix = np.array([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0], [5.0, 5.0, 0.0]])
    optimum = solve_privacy_mapping(
        np.array([[0.5, 0.0], [0.2, 0.3]]), [[0], [1]], distortion_budget=0.0
    ).information
    for budget in (0.0, 5e-324, 1e-300, 1e-60):
        found = solve_privacy_mapping(joint, [[0], [1], [2]], matrix, distortion_budget=budget)
        check_numbers(found, joint, matrix, budget, 1e-6)
        assert found.information == pytest.approx(optimum, abs=1e-9)
        # The best multiplier is infinite here: the bound nears it and says that it stopped.
        assert found.gap <= 2e-5
        assert found.gap <= 1e-6 or found.stopped == "no further progress"
