"""Discrete information: against the definition, its bias, and channels of known information."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.information import Information, measure_information, measure_plug_in
from privpipe.errors import InputError
from privpipe.protocols import Column


@settings(deadline=None)  # shared machines are slow now and then
@given(seed=st.integers(0, 999), n=st.integers(2, 200))
def test_measure_plug_in__equals_sklearn_and_is_symmetric(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 3, n), random.integers(0, 5, n)
    assert measure_plug_in(a, b) == pytest.approx(mutual_info_score(a, b), abs=1e-12)
    assert measure_plug_in(a, b) == pytest.approx(measure_plug_in(b, a), abs=1e-12)


def test_measure_information__brackets_a_channel_of_known_information() -> None:
    flip, n = 0.1, 4000
    truth = np.log(2) + flip * np.log(flip) + (1 - flip) * np.log(1 - flip)
    held = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        a = random.integers(0, 2, n)
        b = np.where(random.random(n) < flip, 1 - a, a)
        row = measure_information(b, a, options=AttackOptions(seed=seed)).rows[0]
        held += row.lower <= truth <= row.upper
        assert row.corrected == pytest.approx(truth, abs=0.05)
    assert held >= 34  # nominal 38; fewer than 34 of 40 has probability .01


def test_measure_information__corrects_the_bias_of_sparse_tables() -> None:
    """Independent codes: the plug-in shows what is not there, the others do not."""
    random = np.random.default_rng(1)
    n = 2000
    rows = [
        measure_information(
            random.integers(0, 40, n), random.integers(0, 3, n), options=AttackOptions(seed=s)
        ).rows[0]
        for s in range(10)
    ]
    expected = 2 * 39 / (2 * n)
    assert np.mean([row.plug_in for row in rows]) == pytest.approx(expected, rel=0.2)
    assert abs(np.mean([row.corrected for row in rows])) < 0.2 * expected
    assert np.mean([row.shuffled for row in rows]) == pytest.approx(expected, rel=0.2)
    assert all(row.held_out < 0.005 for row in rows)
    assert all(row.lower < 0 for row in rows)


def test_measure_information__sees_jointly_what_no_attribute_tells() -> None:
    random = np.random.default_rng(2)
    b = random.integers(0, 2, (3000, 2))
    report = measure_information(
        b, b[:, 0] ^ b[:, 1], attributes=["left", "right"], columns=[Column("parity", 2)]
    )
    by_name = {row.released: row for row in report.rows}
    assert list(by_name) == ["left", "right", "joint"]
    assert by_name["left"].plug_in < 0.005
    assert by_name["joint"].plug_in == pytest.approx(np.log(2), abs=0.01)
    assert by_name["joint"].lower > 0.6
    assert by_name["joint"].n_symbols == 4


def test_measure_information__handles_missing_codes_and_states_its_schema() -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(-1, 2, 500), random.integers(-1, 3, (500, 2))
    report = measure_information(b, np.column_stack([a, b[:, 0] > 0]))
    table = report.table
    assert list(table.columns) == [one.name for one in fields(Information)]
    kinds = {"str": "str", "float": "float64", "int": "int64"}
    assert [str(d) for d in table.dtypes] == [
        kinds[getattr(one.type, "__name__", "")] for one in fields(Information)
    ]
    assert table["n_records"][0] == np.count_nonzero(a >= 0)
    assert table["n_symbols"][0] == 4
    assert (table["plug_in"] <= table["entropy"] + 1e-12).all()
    assert json.loads(report.to_json())["unit"] == "nats"
    assert len(table) == 2 * 3


@pytest.mark.parametrize(
    ("released", "confidential", "match"),
    [
        (np.zeros(9, int), np.zeros(9, int), "has 1 classes in 9 records"),
        (np.zeros(9), np.arange(9), "dtype float64"),
        (np.zeros(8, int), np.arange(9), "codes has 8 records"),
    ],
)
def test_measure_information__refuses(released, confidential, match) -> None:
    with pytest.raises(InputError, match=match):
        measure_information(released, confidential)


def test_measure_information__refuses_the_wrong_number_of_names() -> None:
    with pytest.raises(InputError, match="2 names for 1 attribute"):
        measure_information(np.arange(9), np.arange(9) % 2, attributes=["a", "b"])


def test_measure_information__what_masks_hide_is_missing() -> None:
    random = np.random.default_rng(3)
    codes, classes = random.integers(0, 3, (2, 400))
    gone = random.random((2, 400)) < 0.2
    both = (codes, gone[0]), (classes, gone[1])
    masked = [np.ma.masked_array(one, mask=hide) for one, hide in both]
    plain = [np.where(hide, -1, one) for one, hide in both]
    assert measure_information(*masked) == measure_information(*plain)
    assert measure_information(*masked) != measure_information(codes, classes)
