"""Records of one person are not independent: no bound is promised of them, and all pages say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.errors import OptionError, PrivacyWarning
from privpipe.sanitizers.mapping.sparse_mapping import StratifiedMapping

OPTIONS = PrivacyMappingOptions(
    attributes=("attribute_0",), private=("s",), distortion_budget=0.2, gap=1e-2
)


def draw_people(n_people: int, each: int, *, named: bool = True) -> Records:
    """Equal records of each person, of a law of 2 private values and 20 profiles."""
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.full(40, 0.7))
    s, x = np.divmod(np.repeat(rng.choice(40, n_people, p=law), each), 20)
    codes = np.column_stack([x, s ^ (rng.random(len(s)) < 0.3)])
    who = np.repeat(np.arange(n_people), each).astype(str) if named else None
    x = np.zeros((len(s), 1))
    return Records(x, attributes=codes, confidential=s.astype(str), groups=who)


@pytest.mark.parametrize("by", [None, "attribute_1"])
def test_fit__promises_no_bound_where_groups_are_given(by: str | None) -> None:
    options = (
        replace(OPTIONS, by=by)
        if by
        else replace(OPTIONS, attributes=("attribute_0", "attribute_1"))
    )
    mixed = draw_people(1_800, 1, named=False)  # the same number of records
    plain = fit_privacy_mapping(mixed, options)
    found = fit_privacy_mapping(draw_people(60, 30), options)
    assert plain.guarantee.kind == "information_bound"
    maps = found.maps if isinstance(found, StratifiedMapping) else ()
    for one in (found, *maps):
        assert (one.guarantee.kind, one.guarantee.number) == ("none", None)
        assert "records of one person are not independent" in one.guarantee.statement
        names = " ".join(name for name, _ in one.guarantee.parameters)
        assert "plug_in" in names
        assert not any(word in names for word in ("at_most", "held_out ", "odds", "confidence"))


def test_fit__refuses_a_wanted_bound_of_groups() -> None:
    options = replace(OPTIONS, attributes=("attribute_0", "attribute_1"), wanted_information=0.6)
    with pytest.raises(OptionError, match="not independent") as error:
        fit_privacy_mapping(draw_people(60, 30), options)
    assert error.value.code == "dependent-records"


def test_fit__warns_where_the_promise_says_nothing() -> None:
    options = replace(OPTIONS, attributes=("attribute_0", "attribute_1"))
    with pytest.warns(PrivacyWarning, match="promise says nothing: its bound of"):
        found = fit_privacy_mapping(draw_people(60, 1, named=False), options)
    assert found.guarantee.number == pytest.approx(np.log(2), rel=0.1)
    fit_privacy_mapping(
        draw_people(60, 1, named=False), replace(options, held_out=0.0)
    )  # by choice
