"""Readers of a mapping's release estimate shares of raw values, and others are refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.errors import LeftOutWarning, OptionError, PrivacyWarning
from privpipe.numerics.random.streams import KeyedStream

N = 4_000
TABLES = {"attribute_0": ["red", "green", "blue"], "attribute_1": ["s", "m"], "attribute_2": "nw"}


def draw() -> tuple[np.ndarray, np.ndarray]:
    """Attributes, of which the first depends on the private value, which is the second result."""
    rng = np.random.default_rng(0)
    private = rng.integers(0, 2, N)
    colour = np.where(rng.random(N) < 0.4, private, rng.choice(3, N, p=(0.2, 0.3, 0.5)))
    codes = np.column_stack([colour, rng.choice(2, N), rng.choice(2, N, p=(0.7, 0.3))])
    tables = zip(TABLES.values(), codes.T, strict=True)
    return np.column_stack([np.array(list(t), object)[c] for t, c in tables]), private.astype(str)


def release(by: str | None) -> tuple[Any, Any, np.ndarray]:
    """A mapping, how its release is opened, and the raw attributes.

    Categories are numbered as in `TABLES`, not in the order of the mapping.
    """
    raw, private = draw()
    names = tuple(TABLES)[: 2 + (by is None)]
    options = PrivacyMappingOptions(
        name="privacy_mapping", attributes=names, private=("s",), by=by, distortion_budget=0.15
    )
    records = Records(np.zeros((N, 1)), attributes=raw, confidential=private)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        mapping = fit_privacy_mapping(records, options)
    stream = KeyedStream(bytes(32), partition="ab", first_record=0, n_records=N)
    drawn = mapping.apply(raw, stream)
    arrays = {}
    for (name, table), values in zip(TABLES.items(), drawn.T, strict=True):
        codes = np.array([list(table).index(value) for value in values], np.int8)
        arrays[name] = ("record", codes, {"categories": list(table)})
    return mapping, lambda: xr.Dataset(arrays), raw


@pytest.mark.parametrize("by", [None, "attribute_2"])
def test_estimates__of_a_mapping_are_of_raw_values(by: str | None) -> None:
    mapping, opened, raw = release(by)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOutWarning)
        found = mapping.estimate("shares", None, opened)
    distances = []
    for one in found:
        name, value = one.name.split(" = ")
        j = list(TABLES).index(name)
        truth = np.mean(raw[:, j] == value)
        plain = np.mean(opened()[name].values == list(TABLES[name]).index(value))
        assert abs(one.value - truth) < 4.5 * one.error
        distances.append((abs(plain - truth), abs(one.value - truth)))
    assert len(found) >= 4
    assert found[0].condition > 1
    assert {one.name for one in found} >= {"attribute_2 = n", "attribute_2 = w"}
    if by is None:
        as_released, inverted = np.max(distances, axis=0)
        assert as_released > 0.015 > 0.01 > inverted
        [s, m] = mapping.estimate("shares", "attribute_1", opened)
        assert s.value + m.value == pytest.approx(1.0)


def test_estimates__of_a_mapping_are_shares_alone() -> None:
    mapping, opened, _ = release(None)
    with pytest.raises(OptionError, match=r"Of a mapping with 12 symbols there are no means") as no:
        mapping.estimate("means", None, opened)
    assert no.value.code == "estimate"
    with pytest.raises(OptionError, match="attribute 'town' is none of the release"):
        mapping.estimate("shares", "town", opened)
