"""What the page of each method says of missing values is what its fit and its check do."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest

from docs.making.method_pages import MISSING, say_missing
from privpipe.errors import InputError
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options

FEATURES = [name for name, one in METHODS.items() if name not in ("privacy_mapping", "minimax_own")]


def make_records() -> Records:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(300, 5))
    target, secret = x[:, 0] > 0, np.where(x[:, 1] + x[:, 0] > 0, "f", "m")
    x[::9, 2] = np.nan
    return Records(x, desired=target.astype(str), confidential=secret, public=True)


@pytest.mark.parametrize("name", FEATURES)
def test_page__of_a_method_says_what_a_fit_does_with_missing_values(name: str) -> None:
    example = importlib.import_module(f"tests.methods.{name}").EXAMPLE
    given = dict(example.options) | (dict(example.few) if example.few else {})
    given |= {"n_filtered": 1} if "n_filtered" in given else {}
    options = make_options(METHODS[name].options, given | {"name": name}, name)
    said, records = say_missing(name), make_records()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "nothing is read" in said:
            METHODS[name].fit(records, options)
            return
        assert said.startswith("refused")
        if name == "noisy":  # where nothing is learned no record is read
            return
        with pytest.raises(InputError) as caught:
            METHODS[name].fit(records, options)
    assert caught.value.code == "nonfinite"
    remedies = {"masking": '[method] missing = "complete"', "masking_private": "eave them out"}
    assert remedies.get(name, '[release] nonfinite = "impute" or "withhold"') in caught.value.remedy


def test_page__names_methods_that_there_are() -> None:
    assert set(MISSING) <= set(METHODS)
    assert say_missing("rand").count("withhold") == say_missing("pca").count("withhold")


def test_mapping__of_a_missing_attribute_is_that_of_a_category() -> None:
    """Records without a value are mapped, and keep to the budget as those with one do."""
    rng = np.random.default_rng(5)
    values = rng.choice(np.array(["a", "b", None], object), size=(400, 1))
    secret = np.where(values[:, 0] == "a", "f", "m")
    records = Records(np.empty((400, 0)), attributes=values, confidential=secret)
    given = {"attributes": ("attributes_0",), "private": ("confidential_0",)}
    given |= {"distortion_budget": 0.3, "name": "privacy_mapping", "held_out": 0.0}
    fitted = METHODS["privacy_mapping"].fit(
        records, make_options(METHODS["privacy_mapping"].options, given, "privacy_mapping")
    )
    assert fitted.n_symbols == 3
