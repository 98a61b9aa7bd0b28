"""The method `privacy_mapping`."""

from typing import Any

import numpy as np
import pytest

from tests.methods.example import N_RECORDS, PROFILES, Example, name_codes
from tests.standard import make_standard


def bounds_information(fitted: Any) -> None:
    """Salamatian et al., (1): the information of the mapping itself, from counts, by hand."""
    _, labels = make_standard(N_RECORDS)
    codes = np.column_stack([labels[name] for name in PROFILES]).astype(int)
    symbols = fitted.find_symbols(name_codes(fitted, codes))
    joint = np.zeros((3, fitted.n_symbols))
    np.add.at(joint, (labels["party"].astype(int), symbols), 1 / N_RECORDS)
    together = joint @ fitted.mapping.toarray().T
    product = together.sum(axis=1, keepdims=True) * together.sum(axis=0)
    held = together > 0
    information = float((together[held] * np.log(together[held] / product[held])).sum())
    assert fitted.guarantee.kind == "information_bound"
    said = dict(fitted.guarantee.parameters)
    assert information == pytest.approx(said["plug_in"], abs=1e-3)
    assert information < fitted.guarantee.number <= np.log(3)
    assert said["distortion_at_most"] >= fitted.distortion


EXAMPLE = Example(
    {"attributes": PROFILES, "private": ("party",), "distortion_budget": 0.3, "held_out": 0.0},
    promise=bounds_information,
    refused=(
        (
            'attributes = ["height"]\nprivate = ["party"]\ndistortion_budget = 0.1',
            {"desired": "[]", "confidential": "[]"},
            "height",
        ),
    ),
    draws=True,
    few={"attributes": ("a", "b"), "private": ("s",), "distortion_budget": 0.5},
)
