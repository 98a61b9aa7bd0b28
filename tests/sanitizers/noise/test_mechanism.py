"""What epsilon may be: by construction no release is a constant, and no delta is large."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privpipe.errors import OptionError
from privpipe.numerics.noise.bounding import Norm
from privpipe.numerics.noise.discrete import DiscreteLaplaceNoise
from privpipe.numerics.noise.mechanism import Law, find_epsilons, plan_mechanism, plan_promised
from privpipe.numerics.random.streams import KeyedStream
from privpipe.promises import say_odds


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize("epsilon", [0.1, 10, 31, 64, 287, 1e3])
def test_release__of_a_large_epsilon_is_near_the_record(
    norm: Norm, width: int, epsilon: float
) -> None:
    """It was clipped to a constant, from epsilon 64 of a coordinate and 287 of twenty on."""
    mechanism = plan_mechanism(epsilon, width, norm, "discrete")
    assert mechanism.limit >= mechanism.lattice.radius
    n, bounded = 400, np.zeros((400, width))
    bounded[:, 0] = np.linspace(-0.99, 0.99, n)
    stream = KeyedStream(bytes(32), partition="a", first_record=0, n_records=n)
    released = mechanism.release(bounded, stream)
    assert released.std(axis=0).min() > 0
    if epsilon >= 31 * width:
        assert np.corrcoef(bounded[:, 0], released[:, 0])[0, 1] > 0.9
        assert np.abs(released[:, 0] - bounded[:, 0]).max() < 30 * mechanism.spread + 0.01


def test_plan_mechanism__draws_as_before_where_nothing_was_wrong() -> None:
    """The digits decide the words of every value: models of earlier versions repeat their noise."""
    for epsilon in (0.1, 1.0, 10.0, 30.0):
        for width in (1, 20):
            noise = plan_mechanism(epsilon, width, "l2", "discrete").noise
            assert isinstance(noise, DiscreteLaplaceNoise)
            assert noise.n_digits == math.ceil(math.log2(32 / noise.rate))


@pytest.mark.parametrize(
    ("law", "norm"), [("knorm", "l2"), ("discrete", "l1"), ("discrete", "l2"), ("privunit", "l2")]
)
@pytest.mark.parametrize("width", [1, 20])
def test_plan_release__refuses_with_the_epsilons_that_are_allowed(
    law: Law, norm: Norm, width: int
) -> None:
    least, most = find_epsilons(width, norm, law)
    for allowed in (least, 1.0, 10.0, min(most, 25.0), most):
        planned = plan_promised(allowed, width, norm, law)
        assert max(planned.delta, planned.noise.slack) <= 2.0**-100
    for refused in (least / 1.02, most * 1.02):
        with pytest.raises(OptionError, match=r"epsilon is .* for .* coordinates") as caught:
            plan_promised(refused, width, norm, law)
        low, _, high = caught.value.remedy.removeprefix("Use ").split(",")[0].partition(" to ")
        for named in (float(low), float(high.rstrip("."))):
            assert plan_promised(named, width, norm, law).epsilon == named


@pytest.mark.parametrize("epsilon", [35.0, 100.0, 1000.0])
def test_plan_release__refuses_a_delta_that_grows_with_epsilon(epsilon: float) -> None:
    """2e-29 at 35, .38 at 100, 1 at 1000: it was still called below 2**-100."""
    assert plan_mechanism(epsilon, 20, "l2", "knorm").delta > 2.0**-100
    with pytest.raises(OptionError, match="its delta would be"):
        plan_promised(epsilon, 20, "l2", "knorm")


@pytest.mark.parametrize("epsilon", [0.1, 10.0, 13.8, 13.9, 100.0, 1e5])
def test_say_odds__promises_nothing_from_a_millionfold_on(epsilon: float) -> None:
    assert ("nothing is promised" in say_odds(epsilon)) == (math.exp(min(epsilon, 700)) >= 1e6)


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 6.5])
def test_say_odds__rounds_the_share_of_right_guesses_up(epsilon: float) -> None:
    """Bayes: a prior of a half becomes at most 1 / (1 + exp(-epsilon))."""
    said = float(say_odds(epsilon).split("at most ")[2].split(" %")[0])
    assert 100 / (1 + math.exp(-epsilon)) <= said + 1e-9
    assert said <= 100 / (1 + math.exp(-epsilon)) + 0.1


def test_release__is_clipped_where_noise_is_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = plan_mechanism(1.0, 2, "l2", "discrete")
    noise = mechanism.noise
    assert isinstance(noise, DiscreteLaplaceNoise)
    deviation = math.sqrt(2) * noise.sensitivity * mechanism.grid
    assert mechanism.spread == pytest.approx(deviation, rel=1e-3)
    monkeypatch.setattr(DiscreteLaplaceNoise, "draw", lambda *_: np.full((3, 2), 2**45))
    stream = KeyedStream(bytes(32), partition="a", first_record=0, n_records=3)
    released = mechanism.release(np.zeros((3, 2)), stream)
    np.testing.assert_array_equal(released, mechanism.limit * mechanism.grid)
