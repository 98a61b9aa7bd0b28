"""The method `masking_private`."""

from functools import partial
from typing import Any

import numpy as np

from privpipe.sanitizers.masking.private_masking import fit_with_key
from tests.methods.example import TWO, Example

BOUND = 'bound = {"*" = [-4, 4]}\nepsilon = 1.0\n'


def keeps_epsilon(fitted: Any) -> None:
    """Differential privacy, and surrogates with the moments that were released and no others."""
    promise = fitted.guarantee
    assert (promise.kind, promise.number, promise.delta) == ("central_dp", 2.0, 1e-4)
    made = fitted.make_records()
    found = np.linalg.lstsq(made.features, made.responses, rcond=None)[0]
    np.testing.assert_allclose(found, fitted.coefficients, atol=1e-8)


EXAMPLE = Example(
    {"epsilon": 2.0, "delta": 1e-4, "n_surrogates": 60, "bound": {"*": (-400.0, 400.0)}},
    promise=keeps_epsilon,
    refused=(
        (f"{BOUND}delta = 0.01\nn_surrogates = 90", TWO, "above one in"),
        (f"{BOUND}delta = 1e-6\nn_surrogates = 3", TWO, "are too few for"),
        ("epsilon = 1.0\ndelta = 1e-6\nn_surrogates = 90\nbound = {}", TWO, "no range of"),
        (
            'epsilon = 1.0\ndelta = 1e-6\nn_surrogates = 90\nbound = {"*" = [1, 1]}',
            TWO,
            "is 1 to 1",
        ),
        (
            'epsilon = 1.0\ndelta = 1e-6\nn_surrogates = 90\nbound = {"*" = [0, 1], "x" = [0, 2]}',
            TWO,
            "no feature and no response",
        ),
    ),
    fit=partial(fit_with_key, key=bytes(32)),
)
