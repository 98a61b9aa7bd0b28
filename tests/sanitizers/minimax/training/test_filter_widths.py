"""More outputs than features: refused or warned of by every filter, before a record is read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import Records
from privpipe.errors import OptionError, PrivacyWarning
from privpipe.protocols import Column, ShardSchema
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options

CONVOLUTION = Path(__file__).parents[3] / "examples" / "convolution.py"

FEW = ShardSchema(3, (Column("shop", 6),), (Column("sex", 2),), public=True)

FLAT: dict[str, dict[str, Any]] = {
    "pca": {"n_filtered": 4},
    "rand": {"n_filtered": 4},
    "privacy_lds": {"n_filtered": 4},
    "minimax_least_squares": {"n_filtered": 4},
    "minimax": {"n_filtered": 4},
}


def check(name: str, given: dict[str, Any], schema: ShardSchema = FEW) -> None:
    method = METHODS[name]
    method.check(make_options(method.options, {"name": name, **given}, name), schema)


def behind_noise(name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"epsilon": 1.0, "filter": {"name": name, **given}}


@pytest.mark.parametrize("name", FLAT)
def test_check__refuses_more_outputs_of_a_linear_filter_than_features(name: str) -> None:
    match = "n_filtered is 4 for records of 3 features"
    with pytest.raises(OptionError, match=match) as found:
        check(name, FLAT[name])
    assert "1 to 3" in found.value.remedy
    with pytest.raises(OptionError, match=match):
        check("noisy", behind_noise(name, FLAT[name]))
    check(name, {"n_filtered": 3})


@pytest.mark.parametrize("given", [{}, {"desired_task": "regression"}])
def test_check__refuses_the_reduced_form_of_more_classes_than_features(
    given: dict[str, Any],
) -> None:
    """The fit refused it after a pass, by an option that nobody had set."""
    with pytest.raises(OptionError, match=r"n_filtered is not set.* need 5 outputs") as found:
        check("minimax", given)
    assert found.value.remedy == "Set n_filtered to 1 to 3."
    with pytest.raises(OptionError, match="need 5 outputs"):
        check("noisy", behind_noise("minimax", given))
    check("minimax", {"n_filtered": 3})
    rng = np.random.default_rng(0)
    x, shop = rng.normal(size=(120, 3)), np.array(list("abcdef"))[np.arange(120) % 6]
    records = Records(x, desired=shop, confidential=x[:, 0] > 0, n_shards=2)
    method = METHODS["minimax"]
    widest = make_options(method.options, {"name": "minimax", "n_filtered": 3}, "")
    assert method.fit(records, widest).n_features_out == 3  # what the remedy says can be had


def test_check__warns_of_more_outputs_of_a_network_than_features() -> None:
    for given in ({"n_hidden": [2, 4]}, {"n_hidden": [4]}):
        with pytest.warns(PrivacyWarning, match=r"4 numbers of records of 3 features.* 1 to 3"):
            check("minimax_neural", given)
        with pytest.warns(PrivacyWarning, match="4 numbers of records of 3 features"):
            check("noisy", behind_noise("minimax_neural", given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check("minimax_neural", {"n_hidden": [9, 3]})


def test_check__warns_of_more_outputs_of_ones_own_filter_than_features() -> None:
    schema = ShardSchema(96, (Column("activity", 3),), (Column("sex", 2),))
    given = {"filter": "Convolution", "module": str(CONVOLUTION), "settings": {"kernels": 97}}
    with pytest.warns(PrivacyWarning, match="97 numbers of records of 96 features"):
        check("minimax_own", given, schema)
