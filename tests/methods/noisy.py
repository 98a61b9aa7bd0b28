"""The method `noisy`."""

from typing import Any

import numpy as np

from privpipe.attacks.threats.canaries import guess_canaries
from privpipe.numerics.random.streams import KeyedStream
from tests.methods.example import TWO, Example
from tests.standard import make_standard

NOISY = "epsilon = 1.0\nthreshold = 1.0\ncentre = false"


def keeps_epsilon(fitted: Any) -> None:
    """Differential privacy: two records at the ends of the ball, told apart no better than epsilon.

    And the release is of whole steps of the grid, whose number of different values is what noise
    of that size has: it does not come from a smaller one.
    """
    promise = fitted.guarantee
    assert (promise.kind, promise.scope) == ("local_dp", "every record")
    assert 0 < promise.number < 10
    assert promise.delta < 2.0**-100
    assert dict(promise.parameters)["slack of epsilon"] < 2.0**-100
    x, n = make_standard(2)[0] * 1e9, 40_000
    # Not by the seed that chooses whose kinds are known: those would all be of one kind.
    kinds = np.random.default_rng(1).random(n) < 0.5
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=n)
    released = fitted.apply(np.where(kinds, 1, -1)[:, None] * x[0], stream)
    steps = released / fitted.grid
    np.testing.assert_array_equal(steps, np.round(steps))
    report = guess_canaries(released, kinds)
    assert 0.3 * promise.number < report.epsilon_floor
    assert report.sure_floor <= promise.number


EXAMPLE = Example(
    {"epsilon": 2.0, "filter": {"name": "pca", "n_filtered": 2}},
    promise=keeps_epsilon,
    refused=(
        (f"{NOISY}\ngrid = 0.3", TWO, "The grid is 0.3"),
        (f'{NOISY}\nnorm = "l1"', TWO, "law of the l2 norm"),
        (
            f'{NOISY}\n[method.filter]\nname = "masking"\nn_surrogates = 40',
            TWO,
            "not known; use one of: leace",
        ),
    ),
    draws=True,
    few={"epsilon": 1.0, "allow_data_bound": True},
)
