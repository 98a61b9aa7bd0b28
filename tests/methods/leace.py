"""The method `leace`."""

from typing import Any

import numpy as np

from tests.methods.example import N_RECORDS, TWO, Example
from tests.standard import make_standard


def erases(fitted: Any) -> None:
    """Belrose et al.: nothing that is released is correlated with the label."""
    x, labels = make_standard(N_RECORDS)
    hot = np.eye(3)[labels["party"].astype(int)]
    sizes = np.outer(x.std(axis=0) + 1e-9, hot.std(axis=0))

    def correlation(features: Any) -> float:
        centred = features - features.mean(axis=0)
        return float(np.abs(centred.T @ (hot - hot.mean(axis=0)) / len(x) / sizes).max())

    assert fitted.guarantee.kind == "linear_erasure"
    assert fitted.guarantee.number == 0.0
    assert correlation(x) > 0.1
    assert correlation(fitted.apply(x)) < 1e-9


EXAMPLE = Example(
    {}, promise=erases, refused=(("", TWO | {"layout": "factored"}, "no factored layout"),)
)
