"""Public fits take the fields of their method's options as keywords, and refuse others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import privpipe
from privpipe.errors import OptionError
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner
from tests.sanitizers.xu_records import make_records

ARRAYS = {
    "desired_predictor",
    "desired_intercept",
    "confidential_predictor",
    "confidential_intercept",
}
"""Arrays that a caller brings; a configuration names files of them instead."""

RESUMED = {"fit_minimax_filter": {"earlier"}, "fit_masking_private": {"earlier"}}
"""Maps that a fit resumes from: no key of a configuration, since a run trains once."""

PUBLIC = sorted(n for n in privpipe.__all__ if n.startswith("fit_"))


def list_keywords(fit: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(fit).parameters
    return {name: p for name, p in found.items() if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_fit__has_no_keyword_but_arrays_and_those_of_its_options(name: str) -> None:
    assert set(list_keywords(getattr(privpipe, name))) <= ARRAYS | RESUMED.get(name, set())


def test_method__fits_take_shards_options_and_files_alone() -> None:
    for method in METHODS.values():
        shards, options, *rest = inspect.signature(method.fit).parameters.values()
        assert (shards.name, options.name) == ("shards", "options")
        known = {"price"} if method.options.prices else set()
        known |= {"judges"} if method.options.is_judged else set()
        known |= set(getattr(method.fit, "keywords", {}))  # bound by the row
        known |= {"earlier"} if method.name in ("minimax", "masking_private") else set()
        given = {p.name for p in rest if p.kind is not p.VAR_KEYWORD}
        assert given == known


def test_public_fit__refuses_other_keywords() -> None:
    for given, said in (
        ({"utility_budget": 0.1, "utility_budgett": 0.1}, "utility_budgett is 0.1: Unexpected"),
        ({}, "utility_budget.* required"),
        ({"utility_budget": 0.1, "predictor": "file.npy"}, "predictor names a file"),
    ):
        with pytest.raises(OptionError, match=said):
            fit_null_space_cleaner(make_records(), **given)
