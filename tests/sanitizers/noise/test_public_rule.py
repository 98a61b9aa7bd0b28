"""Nothing in a promising map was learned from records that are not public.

The sentence is attacked with two worlds: records that differ in everything. A fit either refuses
them or makes the same map of both.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.errors import OptionError, PrivpipeError
from privpipe.pipeline.runs.first_look import read_ranges
from privpipe.protocols import Method, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from privpipe.store.models import digest_map

WORLDS = ((0, 1.0, 0.0), (1, 30.0, 7.0))
"""Seed, scale and place of the records."""


def make_world(seed: int, scale: float, place: float, *, public: bool = False) -> Records:
    x = np.random.default_rng(seed).standard_normal((120, 4)) * scale + place
    wanted, hidden = x[:, 0] > place, x[:, 1] > place
    return Records(x, desired=wanted, confidential=hidden, public=public)


def try_fit(row: Method, records: Records, options: Any) -> RecordMap | str:
    """A fitted map, or the code of what refuses it."""
    try:
        return row.fit(records, options)
    except PrivpipeError as error:
        return str(error.code)


def fit_worlds(given: dict[str, Any]) -> set[str] | None:
    """Digests of what is fitted to both worlds; None if both are refused."""
    row = METHODS["noisy"]
    found = set()
    for world in WORLDS:
        options = make_options(row.options, {"name": "noisy", "epsilon": 1.0} | given, "noisy")
        fitted = try_fit(row, make_world(*world), options)
        assert isinstance(fitted, str) or fitted.guarantee.kind == "local_dp"
        found.add(fitted if isinstance(fitted, str) else digest_map(fitted))
    return None if found == {"not-public"} else found


FILTERS: list[dict[str, Any]] = [{}, {"filter": {"name": "rand", "n_filtered": 2}}]
"""None, and the one row that reads no record."""


@pytest.mark.parametrize("bound", ["hard", "soft", "normalise"])
@pytest.mark.parametrize("order", ["filter_then_noise", "noise_then_filter"])
def test_fit__refuses_two_worlds_or_makes_one_map_of_both(bound: str, order: str) -> None:
    for chosen, centre, threshold in product(FILTERS, (True, False), ({}, {"threshold": 2.0})):
        found = fit_worlds({"bound": bound, "order": order, "centre": centre} | threshold | chosen)
        learned = centre or (not threshold and bound != "normalise")
        assert (found is None) == learned, (chosen, centre, threshold)
        assert found is None or len(found) == 1


@pytest.mark.parametrize("order", ["filter_then_noise", "noise_then_filter"])
def test_fit__refuses_every_filter_that_learns(order: str) -> None:
    """Also behind the noise: a filter that was trained on what is released tells of it twice."""
    row, found = METHODS["noisy"], {}
    # Codes, and records of its own: never filters.
    drawing = {"privacy_mapping", "masking", "masking_private"}
    assert drawing | {"noisy"} == set(METHODS) - set(read_ranges()["filter.name"])
    for name in drawing:
        given = {"name": "noisy", "epsilon": 1.0, "filter": {"name": name} | _required(name)}
        with pytest.raises(OptionError):
            make_options(row.options, given, "")
    learning = {name for name, each in METHODS.items() if each.options.learns}
    for name in learning - drawing - {"noisy"}:
        given = {"name": "noisy", "epsilon": 1.0, "centre": False, "threshold": 2.0}
        given |= {"order": order, "filter": {"name": name} | _required(name)}
        found[name] = try_fit(row, make_world(*WORLDS[0]), make_options(row.options, given, ""))
    assert set(found.values()) == {"not-public"}


def _required(name: str) -> dict[str, Any]:
    """Options without which there is no row."""
    return {
        "pca": {"n_filtered": 2},
        "minimax_neural": {"n_hidden": (4, 2)},
        "null_space": {"utility_budget": 0.1},
        "null_space_targeted": {"utility_budget": 0.1},
        "minimax_own": {
            "filter": "Convolution",
            "module": str(Path(__file__).parents[2] / "examples" / "convolution.py"),
            "settings": {"axes": 1, "width": 3, "kernels": 2},
        },
        "masking": {"n_surrogates": 9},
        "masking_private": {"epsilon": 1.0, "delta": 1e-6, "n_surrogates": 9, "bound": {}},
        "privacy_mapping": {"attributes": ["a"], "private": ["b"], "distortion_budget": 0.1},
    }.get(name, {})


def test_row__that_says_it_learns_nothing_makes_one_map_of_both_worlds() -> None:
    """What the rule rests on: such a filter needs no public records."""
    blind = {name: row for name, row in METHODS.items() if not row.options.learns}
    assert blind
    for name, row in blind.items():
        options = make_options(row.options, {"name": name, "n_filtered": 2}, name)
        assert len({digest_map(row.fit(make_world(*w), options)) for w in WORLDS}) == 1
    assert METHODS["pca"].options.learns
    options = make_options(METHODS["pca"].options, {"name": "pca", "n_filtered": 2}, "pca")
    assert len({digest_map(METHODS["pca"].fit(make_world(*w), options)) for w in WORLDS}) == 2
