"""A mapping is fitted to the variables that its options name, and to no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping, open_collection
from privpipe.errors import InputError
from tests.standard import write_standard

N = 400
RNG = np.random.default_rng(4)
FRAME = pd.DataFrame({name: RNG.choice(["x", "y", "z"], N) for name in "ab"})
SECRET = np.column_stack([FRAME["a"] == "x", RNG.random(N) < 0.5])


def fit(records: Any, **changes: Any) -> Any:
    given = {"attributes": ("a", "b"), "private": ("s", "t"), "distortion_budget": 0.2}
    return fit_privacy_mapping(records, PrivacyMappingOptions(**given | changes))


def make(attributes: Any = FRAME, **roles: Any) -> Records:
    return Records(np.zeros((N, 1)), attributes=attributes, **{"confidential": SECRET} | roles)


def test_fit__without_a_confidential_variable_promises_nothing() -> None:
    records = make(confidential=None, desired=SECRET)
    with pytest.raises(InputError, match=r"\['s', 't'\] as confidential, records have none"):
        fit(records, distortion_budget=0.0, wanted_information=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attributes": ("a",)}, r"\['a'\] as attributes, records have \['a', 'b'\]"),
        ({"attributes": ("zz", "yy")}, "'zz', 'yy'. as attributes, records have .'a', 'b'"),
        ({"attributes": ("a",), "by": "c"}, "'a', 'c'. as attributes"),
        ({"private": ("s",)}, "'s'. as confidential.*'confidential_0', 'confidential_1'"),
        ({"private": ("confidential_2", "confidential_0")}, "'confidential_2', 'confidential_0'"),
    ],
)
def test_fit__refuses_records_of_other_variables(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        fit(make(), **changes)
    assert error.value.code == "missing-variable"


def test_fit__arrays_without_names_have_those_of_the_options() -> None:
    codes = np.column_stack([pd.factorize(FRAME[name], sort=True)[0] for name in FRAME])
    named, nameless = fit(make()), fit(make(codes))
    np.testing.assert_array_equal(named.codes, nameless.codes)
    with pytest.raises(InputError, match="'attribute_0', 'attribute_1'"):
        fit(make(codes), attributes=("a",))


def test_fit__what_is_confidential_besides_is_hidden_but_budgets_are_by_place() -> None:
    whole, part = fit(make()), fit(make(), private=("confidential_1",))
    assert part.guarantee.number == whole.guarantee.number
    turned = ("confidential_1", "confidential_0")
    with pytest.raises(InputError, match="in this order"):
        fit(make(), private=turned, information_budgets=(0.5, 0.1))


def test_fit__refuses_a_collection_opened_with_others(tmp_path: Path) -> None:
    url = str(tmp_path / "c.zarr")
    write_standard(url, N)
    shards = open_collection(url, attributes=("late",), confidential=("party",))
    with pytest.raises(InputError, match="'late'"):
        fit(shards, attributes=("party",), private=("party",))
    with pytest.raises(InputError, match=r"'sex'. as confidential, records have .'party'"):
        fit(shards, attributes=("late",), private=("sex",))
