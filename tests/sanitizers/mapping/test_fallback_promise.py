"""What a mapping promises where its records are too few to be measured by."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from privpipe.errors import InputError
from privpipe.protocols import Column
from privpipe.records.memory import Records
from privpipe.sanitizers.method_table import METHODS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("held_out", [0.0, 0.5])
@pytest.mark.parametrize("n", [8, 12, 20, 40])
def test_promise__of_too_few_records_counts_values_that_none_has(n: int, held_out: float) -> None:
    """The law may have all hundred values that are declared, not the few that were seen."""
    codes = np.random.default_rng(0).integers(0, 100, n)
    given = Records(
        np.zeros((n, 1)), attributes=codes[:, None], confidential=codes, categorical="confidential"
    )
    names = tuple(map(str, range(100)))
    shard = replace(next(iter(given.shards())), confidential=codes[:, None].astype(float))
    schema = replace(
        given.schema, confidential=(Column("S", 100, names),), attributes=(Column("x", 100, names),)
    )
    row = METHODS["privacy_mapping"]
    options = row.options(
        name="privacy_mapping",
        attributes=("x",),
        private=("S",),
        distortion_budget=0.0,
        held_out=held_out,
    )
    fitted = row.fit(Records.of_shard(shard, schema), options)
    assert fitted.guarantee.number == pytest.approx(math.log(100))


def test_fit__of_one_private_value_is_refused() -> None:
    """A bound of 0 would be false of a law whose rare value no record has."""
    given = Records(np.zeros((40, 1)), attributes=[["a"], ["b"]] * 20, confidential=["well"] * 40)
    row = METHODS["privacy_mapping"]
    options = row.options(
        name="privacy_mapping",
        attributes=("attribute_0",),
        private=("confidential_0",),
        distortion_budget=0.1,
    )
    with pytest.raises(InputError, match="have one value of 'confidential_0'"):
        row.fit(given, options)


def test_promise__of_codes_without_names_bounds_no_distance() -> None:
    """Among two thousand records of codes 0 to 3 a law may have a code of a million."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 4, 2_000)
    given = Records(
        np.zeros((2_000, 1)), attributes=codes[:, None], confidential=np.where(codes > 1, "a", "b")
    )
    row = METHODS["privacy_mapping"]
    options = row.options(
        name="privacy_mapping",
        attributes=("attribute_0",),
        private=("confidential_0",),
        distortion="absolute",
        distortion_budget=0.5,
    )
    promised = dict(row.fit(given, options).guarantee.parameters)
    assert "distortion_at_most" not in promised
    with pytest.raises(InputError, match="codes below -1"):
        Records(np.zeros((3, 1)), attributes=[[-5], [0], [1]])
