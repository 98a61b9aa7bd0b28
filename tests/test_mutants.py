"""The list of mutants fits the code: each fault has one place, and tests that are there."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.reading import read_mutants

ROOT = Path(__file__).parents[1]


def test_read_mutants__each_has_its_place_and_its_tests() -> None:
    found = read_mutants()
    assert len(found) >= 150
    for one in found:
        assert (ROOT / one.module).read_text().count(one.old) == 1, one
        assert one.new != one.old
        assert all((ROOT / file.partition("::")[0]).exists() for file in one.tests.split()), one
