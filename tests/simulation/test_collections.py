"""Commands on collections: their share of ten thousand histories of crashes, faults and rivals."""

from __future__ import annotations

import pytest

from tests.simulation.commands import COMMANDS
from tests.simulation.many import N_HISTORIES, judge_share

MINE = (
    "ingest",
    "append",
    "append-second",
    "append-replace",
    "purge",
    "erase",
    "erase-growing",
    "demo",
    "reproduce",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MINE)
def test_histories__of_a_command_end_as_if_nothing_had_been(name: str) -> None:
    found = judge_share((0, N_HISTORIES, tuple(COMMANDS), name))
    assert not found.problems, found.problems
    assert len(found.states) > found.n_histories / 50, found.describe()
