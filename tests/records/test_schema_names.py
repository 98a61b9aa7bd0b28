"""A name that is none of the variables: what it is, or what comes near it."""

from __future__ import annotations

import pytest

from privpipe.errors import InputError
from privpipe.records.schema import CollectionSchema


def test_variable__that_is_a_feature_is_said_to_be_one() -> None:
    schema = CollectionSchema(10, 2, "float64", 10, (), ("fraud", "age"))
    with pytest.raises(InputError, match=r"no variable, but a feature .*--labels.* 'fraud'"):
        schema.variable("fraud")
    with pytest.raises(InputError, match="no variable 'other'"):
        schema.variable("other")
