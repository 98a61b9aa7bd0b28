"""The extras of pyproject.toml are those that messages name, and the library stands on none."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import privpipe
from privpipe import extras

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"prometheus_client": "prometheus-client", "yaml": "pyyaml"}
DISTRIBUTIONS |= {"python_calamine": "python-calamine"}
DISTRIBUTIONS |= {"opentelemetry": "opentelemetry-api", "openlineage": "openlineage-python"}


def list_required(requirements: list[str]) -> set[str]:
    return {one.partition(">")[0].partition("<")[0].partition("[")[0] for one in requirements}


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_extras__are_those_of_the_project(extra: str) -> None:
    required = list_required(PROJECT["optional-dependencies"][extra])
    named = {DISTRIBUTIONS.get(one, one) for one in extras.EXTRAS[extra]}
    # What is only pinned for others' sake, or found by a library of its own, is not imported here.
    assert named == required - {"privpipe", "tabulate"}


def test_library__requires_nothing_that_an_extra_brings() -> None:
    required = list_required(PROJECT["dependencies"])
    assert all(extras.name_extra(one) is None for one in required)


def test_public_name__of_an_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow.csv")

    monkeypatch.setattr(privpipe.importlib, "import_module", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'privpipe\[cluster\]'"):
        _ = privpipe.export_release


def test_missing_module__of_no_extra_is_itself() -> None:
    error = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert extras.explain_missing(error) is error
