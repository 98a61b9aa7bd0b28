"""Canaries: the floor comes near a promise, above it no more often than said, and finds faults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from privpipe.attacks.threats.canaries import (
    SURE,
    guess_canaries,
    limit_gaussian,
    limit_noise,
    limit_pure,
)
from privpipe.errors import GuaranteeError, InputError
from privpipe.numerics.noise import discrete, knorm, mechanism, privunit
from privpipe.numerics.noise.gaussian import convert_mu, find_sigma
from privpipe.numerics.noise.mechanism import Lattice, plan_mechanism
from privpipe.pipeline.stages.audit import audit_canaries
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.masking import private_sums
from privpipe.sanitizers.noise import noisy_filter
from tests.numerics.noise.oracles import stream

RANDOM = np.random.default_rng(7)

SLOW = pytest.mark.slow


def toss(n: int) -> Any:
    return RANDOM.random(n) < 0.5


def fit_noisy(width: int, **given: Any) -> Any:
    row = METHODS["noisy"]
    options = row.options(**({"epsilon": 1.0, "threshold": 1.0, "centre": False} | given))
    return row.fit(Records(RANDOM.normal(size=(50, width))), options)


def audit(fitted: Any) -> Any:
    kinds = toss(fitted.n_canaries)
    return guess_canaries(fitted.release_canaries(kinds, RANDOM.bytes(32))[0], kinds)


@pytest.mark.parametrize("law", ["discrete", "knorm", "privunit"])
@pytest.mark.parametrize(
    # Of the least and the largest the audit takes up to a million canaries.
    "epsilon",
    [pytest.param(0.2, marks=SLOW), 1.0, 5.0, pytest.param(10.0, marks=SLOW)],
)
def test_floor__of_one_coordinate_is_nine_tenths_of_the_promise(law: str, epsilon: float) -> None:
    """Issue: at least .9 of epsilon for the local mechanisms at d = 1, and none above."""
    found = audit(fit_noisy(1, epsilon=epsilon, noise=law))
    assert 0.9 * epsilon <= found.epsilon_floor
    assert found.sure_floor <= epsilon


@pytest.mark.parametrize("law", ["discrete", "knorm", "privunit"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("width", [2, 5, pytest.param(20, marks=SLOW)])
def test_floor__of_more_coordinates_is_not_above(law: str, norm: str, width: int) -> None:
    if norm == "l1" and law != "discrete":
        pytest.skip("of the l2 norm alone")
    found = audit(fit_noisy(width, noise=law, norm=norm))
    assert found.sure_floor <= 1.0
    # Of an axis of the l1 norm one coordinate shows all there is.
    assert norm == "l2" or found.epsilon_floor > 0.8


@pytest.mark.parametrize("order", ["filter_then_noise", "noise_then_filter"])
def test_floor__is_near_the_promise_behind_a_filter_and_in_front(order: str) -> None:
    # The one component lies about where the corners do: of another the filter would show less.
    x = (RANDOM.normal(size=(300, 4)) + 3 * RANDOM.normal(size=(300, 1)) * [1, -1, 1, -1]) * 1e9
    row = METHODS["noisy"]
    options = row.options(
        epsilon=4.0, filter=METHODS["pca"].options(n_filtered=1), order=order, noise="privunit"
    )
    found = audit(row.fit(Records(x, public=True), options))
    assert 0.6 * 4.0 < found.epsilon_floor
    assert found.sure_floor <= 4.0


def draw_naive_knorm(n: int, width: int) -> Any:
    normal = RANDOM.standard_normal((n, width))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return normal * RANDOM.gamma(width, 2.0, n)[:, None]


def test_guess__reads_distances_from_both_ends() -> None:
    """Of K-norm noise their difference is the loss; a direction alone shows less of it."""
    random = np.random.default_rng(3)
    kinds, ends = random.random(40_000) < 0.5, ([1.0, 0.0, 0.0], [-1.0, 0.0, 0.0])
    normal = random.standard_normal((40_000, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    released = np.where(kinds[:, None], *ends) + normal * random.gamma(3, 0.5, (40_000, 1))
    found = guess_canaries(np.round(released * 2**20) / 2**20, kinds)
    assert found.reading == "distance"
    assert 3.1 < found.sure_floor <= 4.0  # two apart, in noise of scale .5


def test_guess__naive_laplace_noise_is_above_five() -> None:
    """Mironov 2012: its low bits tell the record, at a declared epsilon of 1."""
    kinds = toss(120_000)
    noise = RANDOM.laplace(size=(120_000, 1))
    assert guess_canaries(kinds[:, None] + noise, kinds).sure_floor > 5


def test_guess__naive_knorm_noise_is_above_five() -> None:
    kinds, e = toss(200_000), np.eye(20)
    released = np.where(kinds[:, None], e[0], e[1]) + draw_naive_knorm(200_000, 20)
    assert guess_canaries(released, kinds).sure_floor > 5


def test_guess__unrounded_noise_of_the_same_law_is_above_five() -> None:
    """What the grid is for: the same K-norm draws, added as floats."""
    planned, n = plan_mechanism(1.0, 20, "l2", "knorm"), 200_000
    kinds, e = toss(n), np.eye(20)
    noise = planned.noise.draw(stream(n)) * planned.grid  # type: ignore[union-attr, call-arg]
    noise = noise + RANDOM.uniform(0, planned.grid, noise.shape)  # bits below it, as floats have
    released = np.where(kinds[:, None], e[0], e[1]) + noise
    assert guess_canaries(released, kinds).sure_floor > 5


@pytest.mark.parametrize(
    # Of false alarms a twentieth is expected at most; more than "most": .3 %.
    ("runs", "most"),
    [(50, 7), pytest.param(200, 19, marks=SLOW)],
)
def test_guess__false_alarms_and_power_are_as_declared(runs: int, most: int) -> None:
    """Randomised response of a known epsilon: above it in 5 % at most, near it mostly."""
    epsilon, above, near = 1.0, 0, 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for seed in range(runs):
        kinds = toss(8_000)
        seen = np.where(RANDOM.random(8_000) < chance, kinds, ~kinds)[:, None] * 1.0
        floor = guess_canaries(seen, kinds, level=0.95, seed=seed).epsilon_floor
        above += floor > epsilon
        near += floor > 0.8 * epsilon
    assert above <= most
    assert near >= 0.9 * runs


def count_guesses(epsilon: float, share: float, level: float, power: float) -> int:
    """Of a loss of `epsilon`, so many that their floor is `share` of it: see noise's DESIGN."""
    z = st.norm.ppf(level) + st.norm.ppf(power)
    return math.ceil((2 * z * math.cosh(epsilon / 2) / ((1 - share) * epsilon)) ** 2)


@pytest.mark.parametrize("level", [0.95, 0.999])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 3.0])
def test_limit_pure__needs_as_many_guesses_as_said_and_no_fewer(
    epsilon: float, level: float
) -> None:
    """Randomised response, of which no test is sharper than that of the number of right guesses."""
    n, chance = count_guesses(epsilon, 0.9, level, 0.95), 1 / (1 + math.exp(-epsilon))
    shown = []
    for size in (n, n // 4):
        floors = [limit_pure(RANDOM.binomial(size, chance), size, level) for _ in range(300)]
        shown.append(np.mean(np.array(floors) >= 0.9 * epsilon))
    assert shown[0] > 0.9  # .95 is said
    assert shown[1] < 0.65


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_limit_gaussian__needs_twice_as_many_guesses_as_said_at_most(epsilon: float) -> None:
    """To show half of epsilon at delta 1e-6; of a quarter of what is said it is seldom shown."""
    mu, half = (1 / find_sigma(one, 1e-6) for one in (epsilon, epsilon / 2))
    z = st.norm.ppf(0.95) * 2
    n, shown = 2 * math.pi * (z / (mu - half)) ** 2, []
    for size in (2 * n, n / 4):
        draws = RANDOM.binomial(20, st.norm.cdf(mu / 2), (30, round(size / 20))) / 20
        shown.append(np.mean([limit_gaussian(one, 0.95) >= half for one in draws]))
    assert shown[0] > 0.75
    assert shown[1] < 0.6


@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize(
    # Of false alarms a twentieth is expected at most; more than "most": .4 %.
    ("runs", "most"),
    [(100, 11), pytest.param(400, 32, marks=SLOW)],
)
def test_limit_gaussian__false_alarms_are_as_declared(runs: int, most: int, shared: float) -> None:
    """Also where the canaries of a sum are right or wrong together."""
    mu, above, near = 1.0, 0, 0
    for _ in range(runs):
        noise = math.sqrt(shared) * RANDOM.normal(size=(200, 1))
        noise = noise + math.sqrt(1 - shared) * RANDOM.normal(size=(200, 20))
        floor = limit_gaussian((noise > -mu / 2).mean(axis=1), 0.95)
        above += floor > mu
        near += floor > mu / 2
    assert above <= most
    assert near >= (0.5 if shared else 0.9) * runs


def halve(patch: pytest.MonkeyPatch, law: str) -> None:
    """Noise at half scale."""
    if law == "privunit":
        make = privunit._make_table
        patch.setattr(privunit, "_make_table", lambda n, epsilon: make(n, 2 * epsilon))
    else:
        cls: Any = discrete.DiscreteLaplaceNoise if law == "discrete" else knorm.KNormNoise
        draw = cls.draw
        patch.setattr(cls, "draw", lambda self, stream: draw(self, stream) // 2)


@pytest.mark.parametrize(
    ("law", "width", "epsilon"),
    [
        *((law, 1, epsilon) for law in ("discrete", "knorm", "privunit") for epsilon in (1.0, 5.0)),
        *((law, 3, epsilon) for law in ("discrete", "knorm", "privunit") for epsilon in (1.0, 3.0)),
        # More coordinates take more canaries.
        *(
            pytest.param(law, width, epsilon, marks=SLOW)
            for law, width, epsilon in (
                *((law, 10, 1.0) for law in ("discrete", "knorm")),
                *((law, 20, epsilon) for law in ("discrete", "knorm") for epsilon in (1.0, 3.0)),
                ("privunit", 20, 1.0),
            )
        ),
    ],
)
def test_audit__finds_noise_at_half_scale(
    monkeypatch: pytest.MonkeyPatch, law: str, width: int, epsilon: float
) -> None:
    fitted = fit_noisy(width, noise=law, epsilon=epsilon)
    halve(monkeypatch, law)
    assert audit(fitted).sure_floor > epsilon


def limit(fitted: Any, loss: float = 1.0) -> float:
    kinds = toss(2_000)
    released = fitted.release_canaries(kinds, RANDOM.bytes(32), loss)[0]
    return limit_noise(released, kinds, fitted.canary_noise)


@pytest.mark.parametrize("law", ["discrete", "knorm", "privunit"])
@pytest.mark.parametrize("width", [1, 20, 200])
@pytest.mark.parametrize("epsilon", [0.2, 10.0])
def test_limit_noise__finds_half_scale_at_any_width_and_epsilon(
    monkeypatch: pytest.MonkeyPatch, law: str, width: int, epsilon: float
) -> None:
    """Guesses did so for up to 20 coordinates, at epsilon 1 to 5."""
    fitted = fit_noisy(width, noise=law, epsilon=epsilon)
    if law == "privunit" and width == 1:
        assert fitted.canary_noise is None  # one of six that are drawn: guesses show it
        return
    assert limit(fitted) > 1
    halve(monkeypatch, law)
    assert limit(fit_noisy(width, noise=law, epsilon=epsilon)) < 0.6


@pytest.mark.parametrize("width", [1, 20])
def test_limit_noise__of_sound_noise_is_above_one(width: int) -> None:
    """Standard errors are near those of a normal law: five of them never, of 100 audits."""
    fitted = fit_noisy(width, noise="knorm")
    for _ in range(100):
        kinds = toss(400)
        released = fitted.release_canaries(kinds, RANDOM.bytes(32))[0]
        assert limit_noise(released, kinds, fitted.canary_noise) > 1


def test_limit_noise__behind_a_linear_filter_knows_what_it_mixes() -> None:
    x = RANDOM.normal(size=(300, 4)) * [1, 2, 3, 4]
    options = METHODS["noisy"].options(
        epsilon=1.0,
        filter=METHODS["pca"].options(n_filtered=2),
        order="noise_then_filter",
        noise="knorm",
    )
    fitted: Any = METHODS["noisy"].fit(Records(x, public=True), options)
    for loss, most in ((1.0, 1.2), (2.0, 0.3)):
        kinds = toss(20_000)
        released = fitted.release_canaries(kinds, RANDOM.bytes(32), loss)[0]
        assert most / 1.2 < limit_noise(released, kinds, fitted.canary_noise) < most


def test_audit__of_noise_that_is_too_small_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """At epsilon .2 in 20 coordinates no guess shows it."""
    fitted = fit_noisy(20, noise="discrete", epsilon=0.2)
    monkeypatch.setattr(audit_canaries, "open_model", lambda url: fitted)
    monkeypatch.setattr(type(fitted), "n_canaries", 4_000)
    run: Any = type("FittedRun", (), {"stored_model_url": "x"})
    found = audit_canaries.audit_canaries(run)
    assert found is not None
    assert found["notices_half"]
    halve(monkeypatch, "discrete")
    with pytest.raises(GuaranteeError, match=r"the noise is at most 0\.2\d+ of what epsilon 0\.2"):
        audit_canaries.audit_canaries(run)


@pytest.mark.parametrize("law", ["discrete", "knorm", "privunit"])
def test_audit__of_a_loss_twice_as_large_is_that_of_half_the_noise(
    monkeypatch: pytest.MonkeyPatch, law: str
) -> None:
    """What the report says an audit would notice: the same is found of a fault planted below."""
    fitted, kinds = fit_noisy(1, noise=law, epsilon=1.0), toss(60_000)
    said = fitted.release_canaries(kinds, RANDOM.bytes(32), 2.0)[0]
    halve(monkeypatch, law)
    planted = fitted.release_canaries(kinds, RANDOM.bytes(32))[0]
    floors = [guess_canaries(one, kinds).epsilon_floor for one in (said, planted)]
    assert floors[0] == pytest.approx(floors[1], rel=0.1)
    assert 1.5 < min(floors) < max(floors) <= 2.05
    assert fitted.epsilon == 1.0


@pytest.mark.parametrize(("count", "is_found"), [(20_000, False), (340_000, True)])
def test_half_scale__of_twenty_coordinates_takes_as_many_canaries_as_said(
    monkeypatch: pytest.MonkeyPatch, count: int, is_found: bool
) -> None:
    """Guessed by the likelihood ratio of the declared law: DESIGN says 170,000 of epsilon 3."""
    fitted = fit_noisy(20, noise="knorm", epsilon=3.0)
    halve(monkeypatch, "knorm")
    kinds = toss(count)
    released = fitted.release_canaries(kinds, RANDOM.bytes(32))[0]
    corner = np.where(np.arange(20) % 2, -1.0, 1.0) / math.sqrt(20)
    away, near = (np.linalg.norm(released - end, axis=1) for end in (-corner, corner))
    found = guess_canaries((away - near)[:, None], kinds)
    assert (found.sure_floor > 3.0) == is_found


@pytest.mark.parametrize("width", [2, 4, pytest.param(20, marks=SLOW)])
def test_audit__finds_a_sensitivity_without_the_root_of_the_width(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A pair that differs in all coordinates: along an axis the noise would be enough."""
    monkeypatch.setattr(Lattice, "diameter_l1", property(lambda self: self.diameter))
    assert audit(fit_noisy(width, noise="discrete", epsilon=3.0)).sure_floor > 3.0


def test_audit__finds_records_that_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_noisy(3)
    monkeypatch.setattr(
        noisy_filter.bounding, "bound_records", lambda x, bound, norm, threshold: (x, 0, 0)
    )
    with pytest.raises(GuaranteeError, match="outside the unit ball"):
        audit(fitted)
    # And if no one looked at the ball either:
    monkeypatch.setattr(mechanism, "_place", place_anything)
    assert audit(fitted).sure_floor > 5


def place_anything(rows: Any, inner: float, radius: int, norm: int, out: Any) -> int:
    out[:] = np.rint(rows * inner)
    return 0


class Repeating:
    """A stream that gives many records the words of one."""

    def __init__(self, real: Any, period: int, of_all: bool) -> None:
        self._real, self._period, self._of_all = real, period, of_all
        self.n_records = real.n_records

    def _same(self, records: Any) -> Any:
        return records % self._period if self._of_all else records - records % self._period

    def tiles(self, purpose: str, n_words: int) -> Any:
        at = self._same(np.arange(self.n_records))
        yield slice(0, self.n_records), self._real.words(purpose, n_words)[at]

    def words_at(self, purpose: str, n_words: int, records: Any, places: Any = None) -> Any:
        return self._real.words_at(purpose, n_words, self._same(records), places)


@pytest.mark.parametrize("law", ["discrete", "knorm", "privunit"])
@pytest.mark.parametrize(("period", "of_all"), [(1, True), (1000, True), (4, False)])
def test_audit__finds_a_draw_that_is_repeated(law: str, period: int, of_all: bool) -> None:
    """For all records, every thousand, or for four in a row: one by one they are as promised."""
    fitted = fit_noisy(3, noise=law)
    kinds = toss(20_000)
    rows = np.where(kinds, 1.0, -1.0)[:, None] * np.full(3, 1e6)
    released = fitted.apply(rows, Repeating(stream(20_000), period, of_all))
    assert guess_canaries(released, kinds).sure_floor > 3


def test_audit__finds_a_draw_that_is_repeated_in_all_coordinates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cls, draw = discrete.DiscreteLaplaceNoise, discrete.DiscreteLaplaceNoise.draw
    monkeypatch.setattr(
        cls, "draw", lambda self, stream: np.repeat(draw(self, stream)[:, :1], self.width, axis=1)
    )
    assert audit(fit_noisy(3, noise="discrete")).sure_floor > 1.0


def fit_sums(width: int, epsilon: float, **given: Any) -> Any:
    x = RANDOM.uniform(-1, 1, (20_000, width))
    row = METHODS["masking_private"]
    usual = {"epsilon": epsilon, "delta": 1e-6, "n_surrogates": 100, "bound": {"*": (-1, 1)}}
    return row.fit(Records(x, desired=x.mean(axis=1)), row.options(**usual | given))


def audit_sums(fitted: Any) -> tuple[float, float]:
    """As the audit of a run does it: floors of epsilon at the delta that is promised."""
    found = audit_canaries._guess(fitted)
    return found.epsilon_floor, found.sure_floor


@pytest.mark.parametrize(("width", "epsilon"), [(3, 3.0), pytest.param(12, 10.0, marks=SLOW)])
def test_sums__floor_is_half_of_the_promise_and_never_above(width: int, epsilon: float) -> None:
    # The noise is another each time: of one audit in 250 the floor is below a half.
    floors, sure = zip(*(audit_sums(fit_sums(width, epsilon)) for _ in range(2)), strict=True)
    assert 0.5 * epsilon <= max(floors)
    assert max(sure) <= epsilon


def test_sums__of_less_epsilon_are_as_many_more_as_half_of_it_takes() -> None:
    """Of a tenth of an epsilon a hundred times; of an audit's time they are twelve at most."""
    counts = [fit_sums(3, epsilon).n_canaries for epsilon in (3.0, 1.0, 0.5, 0.2)]
    ratios = np.array(counts[1:]) / counts[1]
    np.testing.assert_allclose(ratios, [1, 4, 12], rtol=0.01)
    assert counts[0] <= counts[1]


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 0.5])
def test_sums__floor_is_half_of_a_promise_below_one(epsilon: float) -> None:
    fitted = fit_sums(5, epsilon)
    found = [audit_sums(fitted) for _ in range(3)]
    assert sorted(floor for floor, _ in found)[1] >= 0.5 * epsilon
    assert max(sure for _, sure in found) <= epsilon


@pytest.mark.parametrize("share", [0.2, pytest.param(1.0, marks=SLOW)])
def test_sums__of_half_the_noise_show_a_larger_loss(share: float) -> None:
    """Also of a fifth of the canaries that an audit takes."""
    fitted = fit_sums(3, 3.0)
    kinds = toss(int(share * fitted.n_canaries))
    mus = []
    for loss in (1.0, 2.0):
        released, sums = fitted.release_canaries(kinds, RANDOM.bytes(32), loss)
        mus.append(guess_canaries(released, kinds, sums).epsilon_floor)
    assert 1.5 * mus[0] < mus[1]
    assert convert_mu(mus[1], 1e-6) > 3.0


@pytest.mark.parametrize("fault", ["half the noise", "one draw", "no bounds"])
def test_sums__faults_of_the_noise_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    fitted, draw = fit_sums(3, 3.0), private_sums.draw_discrete_gaussian
    if fault == "half the noise":
        monkeypatch.setattr(private_sums, "find_slack", lambda variance, n: 0)
        monkeypatch.setattr(
            private_sums, "draw_discrete_gaussian", lambda v, s: [one // 3 for one in draw(v, s)]
        )
    elif fault == "one draw":
        monkeypatch.setattr(
            private_sums, "draw_discrete_gaussian", lambda v, s: draw(v[:1], s) * len(v)
        )
    else:
        monkeypatch.setattr(
            private_sums.PublicScale, "clip", lambda self, x, y: (x - self.origin, y)
        )
        with pytest.raises(GuaranteeError, match="outside the unit ball"):
            audit_sums(fitted)
        return
    assert audit_sums(fitted)[1] > 3.0


def test_convert__is_the_inverse_of_the_noise() -> None:
    for epsilon in (0.1, 1.0, 10.0):
        assert convert_mu(1 / find_sigma(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-5)


def test_guess__takes_kinds_that_a_generator_of_the_same_seed_drew() -> None:
    kinds = np.random.default_rng(0).random(20_000) < 0.5
    assert guess_canaries(kinds[:, None] + RANDOM.laplace(size=(20_000, 1)), kinds).n_right > 0


def test_guess__refuses_too_few() -> None:
    with pytest.raises(InputError, match="at least 200"):
        guess_canaries(np.zeros((100, 1)), toss(100))
    assert SURE > 0.999
