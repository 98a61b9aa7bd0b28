"""The method `privacy_lds`."""

from typing import Any

import numpy as np

from privpipe.protocols import RecordMap
from tests.methods.example import N_RECORDS, THREE, WIDE, Example, promises_nothing
from tests.standard import make_standard


def hides_means(fitted: RecordMap) -> None:
    """Hamm, (59)-(62): the private classes have one mean."""
    promises_nothing(fitted)
    x, labels = make_standard(N_RECORDS)
    released = fitted.apply(x)
    groups = [labels["party"] == code for code in range(3)]

    def apart(features: Any) -> float:
        means = np.array([features[group].mean(axis=0) for group in groups])
        return float((np.ptp(means, axis=0) / (features.std(axis=0) + 1e-9)).max())

    assert apart(x) > 0.5
    assert apart(released) < 1e-6


EXAMPLE = Example({}, promise=hides_means, refused=((WIDE, THREE, "n_filtered is 300"),))
