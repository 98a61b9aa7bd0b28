"""Records without a label: each method learns from those that its row says, and from no other."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from tests.methods import EXAMPLES
from tests.sanitizers.xu_records import make_features, make_labels

CONVOLUTION = Path(__file__).parents[1] / "examples" / "convolution.py"

OPTIONS: dict[str, dict[str, Any]] = {
    "null_space": {"utility_budget": 0.1, "ridge": 1e-6},
    "null_space_targeted": {"utility_budget": 0.1, "ridge": 1e-6},
    "privacy_mapping": {"attributes": ("a", "b"), "private": ("s",), "distortion_budget": 0.5},
    "minimax": {"max_iterations": 2},
    "minimax_neural": {"n_hidden": (3, 2), "max_iterations": 1, "held_out": 0.0},
    "minimax_own": {
        "filter": "Convolution",
        "module": str(CONVOLUTION),
        "settings": {"axes": 1, "width": 3},
        "max_iterations": 1,
        "held_out": 0.0,
    },
    "pca": {"n_filtered": 2},
    "rand": {"n_filtered": 2},
    "masking": {"n_surrogates": 20, "threshold": 2.2},
    "masking_private": {
        "epsilon": 9.0,
        "delta": 1e-3,
        "n_surrogates": 20,
        "bound": {"*": (-9.0, 9.0)},
    },
    "noisy": {
        "epsilon": 1.0,
        "allow_data_bound": True,
        "threshold": 1.0,
        "centre": False,
        "filter": {"name": "pca", "n_filtered": 2},
    },
}
"""Without a part of the records that a method holds out by their place."""

CASES = [(name, {}) for name in sorted(METHODS)]
CASES += [
    ("masking", {"missing": "complete"}),
    ("noisy", {"filter": {"name": "leace"}}),
    ("noisy", {"filter": {"name": "minimax", "max_iterations": 1}}),
]
ROLES = ("desired", "confidential")
GONE = np.arange(300) % 7 == 3


def fit(name: str, more: dict[str, Any], *, lacks: str = "", keep: Any = slice(None)) -> Any:
    """A fit to records some of which lack a role, or to some of the records."""
    x = make_features(300)
    desired, secret = make_labels(x)
    given = {"desired": (desired[:, 0] > 0) * 1.0, "confidential": (secret[:, 1] > 0) * 1.0}
    if lacks:
        given[lacks] = np.where(GONE, np.nan, given[lacks])
    codes = np.digitize(x[:, :2], [-0.5, 0.5])
    names = [f"{role}_0" for role in ROLES]
    records = Records(
        x[keep],
        **{role: values[keep] for role, values in given.items()},
        attributes=codes[keep],
        categorical=names if name == "privacy_mapping" else (),
        n_shards=3,
    )
    method = METHODS[name]
    options = make_options(method.options, {"name": name, **OPTIONS.get(name, {}), **more}, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (EXAMPLES[name].fit or method.fit)(records, options), options.needs_labels()


def is_same(one: Any, other: Any) -> bool:
    """Whether two maps hold the same numbers."""
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(
            is_same(getattr(one, item.name), getattr(other, item.name))
            for item in dataclasses.fields(one)
            if "seconds" not in item.name
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray) and one.dtype.kind == "f":
        return one.shape == other.shape and np.allclose(one, other, 1e-6, 1e-8, equal_nan=True)
    if isinstance(one, float):
        return bool(np.isclose(one, other, 1e-3, equal_nan=True))
    return True


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "more"), CASES)
def test_fit__learns_from_the_records_that_its_row_says(
    name: str, more: dict[str, Any], role: Any
) -> None:
    fitted, sets = fit(name, more, lacks=role)
    asked = any(role in one for one in sets)
    completed = (name, more, role) == ("masking", {"missing": "complete"}, "desired")
    others, whole = fit(name, more, keep=~GONE)[0], fit(name, more)[0]
    # Two predictors, each of its own records; scales of all records and a regression of some.
    in_part = (asked and (len(sets) > 1 or name == "masking")) or completed
    if is_same(whole, others):  # a random projection: labels decide too little
        assert is_same(fitted, whole)
        return
    assert is_same(fitted, whole) == (not asked and not completed)
    assert is_same(fitted, others) == (asked and not in_part)


def test_is_same__tells_what_was_learned_from_fewer_records() -> None:
    """Else the test above could not fail."""
    for name in ("leace", "null_space", "minimax", "pca", "masking", "privacy_mapping"):
        assert not is_same(fit(name, {})[0], fit(name, {}, keep=~GONE)[0]), name


def test_row__of_every_method_says_what_it_needs() -> None:
    for method in METHODS.values():
        if method.options.learns and method.name not in OPTIONS:
            options = make_options(method.options, {"name": method.name}, method.name)
            assert options.needs_labels(), method.name
