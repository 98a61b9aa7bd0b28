"""Unrounded float noise keeps no differential privacy: no such promise for floats rests on it.

`draw_laplace` and `LaplaceMechanism` are for comparisons, in a reproduction. Asked twice: of the
imports, and of what is called when every row of `METHODS` releases records.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe
from flows.reproduce import laplace, xu
from flows.reproduce.laplace import LaplaceMechanism
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Guarantee, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.chain import Chain
from privpipe.sanitizers.options import make_options

HOUSE = Path(privpipe.__file__).parent
LAPLACE = laplace.__name__
FLOAT_LAWS = {(LAPLACE, "draw_laplace"), (LAPLACE, "LaplaceMechanism")}


@cache
def read_house() -> Mapping[str, ast.Module]:
    """Every module of the package, and the reproductions that draw so, by its full name."""
    drawing = {one.__name__: ast.parse(inspect.getsource(one)) for one in (laplace, xu)}
    return drawing | {
        ".".join(("privpipe", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): ast.parse(path.read_text())
        for path in HOUSE.rglob("*.py")
    }


@cache
def list_uses(tree: ast.Module) -> set[tuple[str, str]]:
    """Module and name of all that a module takes from the house, by import or attribute."""
    found, aliases, modules = set(), {}, read_house()
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                if whole in modules:  # from package import module
                    aliases[name.asname or name.name] = whole
                    found.add((whole, ""))
                else:
                    found.add((node.module, name.name))
        elif isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name] = name.name
                found.add((name.name, ""))
    for node in nodes:
        if isinstance(node, ast.Attribute) and (module := aliases.get(ast.unparse(node.value))):
            found.add((module, node.attr))
    return found


def reach(start: str, modules: Mapping[str, ast.Module]) -> set[tuple[str, str]]:
    """All that a module uses, and what that uses in turn."""
    found: set[tuple[str, str]] = set()
    seen, left = {start}, [start]
    while left:
        for module, name in list_uses(modules[left.pop()]):
            found.add((module, name))
            if module in modules and module not in seen:
                seen.add(module)
                left.append(module)
    return found


def list_promising(modules: Mapping[str, ast.Module]) -> set[str]:
    """Modules that write a promise of local differential privacy."""
    return {
        name
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "kind"
        and isinstance(node.value, ast.Constant)
        and node.value.value == "local_dp"
    }


def find_breaches(modules: Mapping[str, ast.Module]) -> set[str]:
    """Modules that promise it for floats, and reach a law of floats."""
    promising = list_promising(modules)
    return {name for name in promising if reach(name, modules) & FLOAT_LAWS}


@pytest.mark.slow
def test_imports__no_promise_for_floats_reaches_float_noise() -> None:
    modules = read_house()
    assert list_promising(modules) == {"privpipe.numerics.noise.mechanism"}
    assert find_breaches(modules) == set()
    wing = {n for n in modules if n.startswith(("privpipe.sanitizers.noise", "privpipe.numerics.noise"))}  # fmt: skip # noqa: E501
    assert len(wing) >= 8
    assert not [name for name in wing if reach(name, modules) & FLOAT_LAWS]


PROMISE = 'from privpipe.protocols import Guarantee\nx = Guarantee(kind="local_dp", number=1.0)\n'


@pytest.mark.parametrize(
    "source",
    [
        f"from {LAPLACE} import draw_laplace\n",
        f"from {LAPLACE} import draw_laplace as g\n",
        "from flows.reproduce import laplace as d\nd.draw_laplace(1)\n",
        f"import {LAPLACE}\n{LAPLACE}.draw_laplace(1)\n",
        f"def f():\n    from {LAPLACE} import LaplaceMechanism\n",
        "from flows.reproduce.xu import measure_laplace\n",
    ],
)
def test_imports__a_planted_promise_on_float_noise_is_caught(source: str) -> None:
    modules = {**read_house(), "privpipe.planted": ast.parse(source + PROMISE)}
    assert find_breaches(modules) == {"privpipe.planted"}


@contextmanager
def watch_calls() -> Iterator[set[str]]:
    """Names of the float laws that were called, by whatever name they were imported."""
    codes = {
        laplace.draw_laplace.__code__: "draw_laplace",
        # Within its decorator, which the methods `apply` of all maps share.
        inspect.unwrap(LaplaceMechanism.apply).__code__: "LaplaceMechanism",
    }
    called: set[str] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            called.add(codes[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(before)


def find_float_laws(fitted: RecordMap) -> set[str]:
    """Float laws that a map draws from, where it promises differential privacy of floats."""
    if fitted.guarantee.kind != "local_dp" or fitted.reads != "features":
        return set()
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=300)
    x = np.random.default_rng(0).standard_normal((300, fitted.n_features_in))
    with watch_calls() as called:
        fitted.apply(x, stream)
    return called


NOISY: list[dict[str, Any]] = [
    {"noise": "knorm"},
    {"noise": "discrete"},
    {"noise": "discrete", "norm": "l1"},
    {"noise": "privunit", "filter": {"name": "pca", "n_filtered": 2}},
    {"noise": "knorm", "bound": "soft", "filter": {"name": "pca", "n_filtered": 2}},
    {"noise": "knorm", "order": "noise_then_filter", "filter": {"name": "rand", "n_filtered": 2}},
]
GIVEN: dict[str, list[dict[str, Any]]] = {
    "noisy": [{"epsilon": 1.0} | each for each in NOISY],
    "privacy_mapping": [],  # releases codes
    "masking": [],  # maps no record, and promises nothing
}
"""Options of every row that draws; a new one that draws must say here what it is tried with."""


def test_methods__rows_that_draw_are_all_tried() -> None:
    drawing = {name for name, row in METHODS.items() if any(_draws(each) for each in row.maps)}
    assert drawing == set(GIVEN)


def _draws(kind: type[Any]) -> bool:
    found = getattr(kind, "draws", True)
    return found is not False  # a property: it may


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods__no_row_that_promises_it_for_floats_calls_float_noise(name: str) -> None:
    row = METHODS[name]
    x = np.random.default_rng(1).standard_normal((200, 3))
    for given in GIVEN.get(name, []):
        options = make_options(row.options, {"name": name} | given, name)
        fitted = row.fit(Records(x, desired=x[:, 0] > 0, public=True), options)
        assert fitted.guarantee.kind == "local_dp"
        assert find_float_laws(fitted) == set()


def test_methods__a_planted_row_is_caught() -> None:
    """A promise by the name of one on Laplace noise in floats, alone or within a chain."""
    noise = LaplaceMechanism.from_predictor(np.eye(3), utility_budget=1.0)
    promise = Guarantee(
        kind="local_dp",
        number=1.0,
        unit="epsilon, nats",
        scope="every record",
        theorem="Laplace mechanism",
        assumptions="",
    )

    def fit(shards: Any, options: Any) -> RecordMap:
        planted = Chain((noise,), noise.guarantee)
        object.__setattr__(planted, "guarantee", promise)  # to be made with it is refused
        return planted

    row = replace(METHODS["noisy"], fit=fit)
    assert find_float_laws(row.fit(None, None)) == {"draw_laplace", "LaplaceMechanism"}
    assert find_float_laws(Chain((noise,), noise.guarantee)) == set()  # promises none
