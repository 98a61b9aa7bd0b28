"""Histories that once did not hold, each with what was wrong."""

from __future__ import annotations

import pytest

from tests.simulation.commands import COMMANDS
from tests.simulation.histories import History
from tests.simulation.many import open_simulator

FOUND = {
    History(
        377, "ingest", "power", 0.9411743100081158, 11, "again"
    ): "a collection was shown before it was flushed",
    History(
        1757, "ingest", "power", 0.9993013757166919, 9, "purge"
    ): "a collection was named, and its folder never flushed",
    History(
        95, "append", "power", 0.8894741561352373, 13, "again"
    ): "a partition was named before it was flushed",
    History(
        264, "append", "torn", 0.955854081870004, 10, "again"
    ): "an append that stood already left a root that lagged",
    History(612, "append-second", "power", 0.8972515699941283, 9, "status"): "a root was torn",
    History(
        190, "demo", "lost", 0.2320732187717316, 12, "again"
    ): "a killed demo was refused as a folder of somebody else",
    History(
        1032834, "demo", "power", 0.05351318546488082, 8, "again"
    ): "a demo killed while it wrote its first file was refused from then on",
    History(
        23, "export-folder-in-bucket", "lost", 0.7270232081930632, 1, "again"
    ): "purge removed an exported folder that was whole",
    History(
        30, "account", "power", 0.9854808464482844, 11, "again"
    ): "words of a sketch were not flushed",
    History(
        2409, "erase", "power", 0.4766436672030885, 10, "status"
    ): "a release was emptied, and its name came back",
    History(
        5523, "erase", "power", 0.5493172365092214, 4, "again"
    ): "the journal of an erasure was torn",
    History(
        7695, "erase-growing", "lost", 0.7489023230025407, 4, "purge"
    ): "a release without parts was not purged",
    History(
        395, "run", "power", 0.9370961602348168, 12, "again"
    ): "model and report were shown before they were flushed",
    History(619, "run", "power", 0.9350309923648383, 5, "status"): "the state of a run was torn",
    History(672, "run", "power", 0.5322710532164482, 2, "again"): "a frame of a sketch was torn",
    History(
        1705, "run", "power", 0.49536200862760016, 4, "again"
    ): "the model of a workspace was lost",
    History(
        3208, "run", "power", 0.7286868772108301, 12, "again"
    ): "a model was in the way of the run that had made it",
    History(
        81, "append-in-bucket", "lost", 0.8910373570914258, 15, "again"
    ): "an append that stood already left a root that lagged",
}
"""By what was drawn for their number then: other commands and weights give a number another."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({one.command for one in FOUND}))
def test_histories__that_once_did_not_hold_do(name: str) -> None:
    with open_simulator(in_bucket=COMMANDS[name].in_bucket) as simulator:
        for history, what in FOUND.items():
            if history.command == name:
                assert not simulator.judge(history)[0], what


@pytest.mark.slow
def test_purge__after_every_change_of_an_erasure_keeps_the_collection() -> None:
    """Between its two renames the workspace held all that was left, and `purge` removed it."""
    with open_simulator() as simulator:
        n_changes = len(simulator.know("erase").changes)
        for place in range(n_changes + 1):
            where = (place + 0.5) / (n_changes + 1)
            problem, _ = simulator.judge(History(place, "erase", "lost", where, 0, "purge"))
            assert not problem, place
