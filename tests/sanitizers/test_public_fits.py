"""Public fits take the fields of their method's options as keywords, with the same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import privpipe
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.null_space.algorithm_1 import NullSpaceOptions, fit_null_space_cleaner
from privpipe.sanitizers.null_space.algorithm_2 import TargetedOptions, fit_targeted_cleaner
from tests.sanitizers.xu_records import make_records

ARRAYS = {
    "desired_predictor",
    "desired_intercept",
    "confidential_predictor",
    "confidential_intercept",
}
"""Arrays that a caller brings; a configuration names files of them instead."""

KEYWORDS: dict[Callable[..., Any], type[Any]] = {
    fit_null_space_cleaner: NullSpaceOptions,
    fit_targeted_cleaner: TargetedOptions,
}
"""Fits that take the options one by one, and the class that holds them."""

OF_NO_METHOD = {"fit_exponential_mechanism"}
"""Fits of what methods are compared with; they have no options to differ from."""

PUBLIC = sorted({n for n in privpipe.__all__ if n.startswith("fit_")} - OF_NO_METHOD)


def list_keywords(fit: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(fit).parameters
    return {name: p for name, p in found.items() if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_fit__has_no_keyword_but_those_of_its_options(name: str) -> None:
    fit = getattr(privpipe, name)
    keywords = {k: p for k, p in list_keywords(fit).items() if k not in ARRAYS}
    kind = KEYWORDS.get(fit)
    fields = {} if kind is None else kind.__pydantic_fields__
    for keyword, parameter in keywords.items():
        field = fields[keyword]
        if field.is_required():
            assert parameter.default is inspect.Parameter.empty
        else:
            assert parameter.default == field.get_default()
        assert f"    {keyword}\n        {field.description[:30]}" in fit.__doc__
    if kind is not None:
        assert set(fields) - set(keywords) <= {"name", "predictor", "confidential_predictor"}


def test_method__fits_take_shards_options_and_files_alone() -> None:
    for method in METHODS.values():
        shards, options, *rest = inspect.signature(method.fit).parameters.values()
        assert (shards.name, options.name) == ("shards", "options")
        known = {"price"} if method.options.prices else set()
        known |= set(getattr(method.fit, "keywords", {}))  # bound by the row
        assert {p.name for p in rest if p.kind is not p.VAR_KEYWORD} == known


def test_public_fit__refuses_other_keywords_as_any_function() -> None:
    with pytest.raises(TypeError, match="utility_budgett"):
        fit_null_space_cleaner(make_records(), utility_budget=0.1, utility_budgett=0.1)
    with pytest.raises(TypeError, match="utility_budget"):
        fit_null_space_cleaner(make_records())
    with pytest.raises(TypeError, match="predictor"):
        fit_null_space_cleaner(make_records(), utility_budget=0.1, predictor="file.npy")
