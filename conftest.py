"""Fixtures for all tests: threads pinned, Prefect's home of its own, the standard records."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Speed is no property of an example: a busy machine may take as long as it likes.
settings.register_profile(
    "privpipe", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("privpipe")

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

# A shell without job control starts background jobs with SIGINT ignored, nohup with SIGHUP. Their
# children inherit that, and commands obey it, as programs do: here those that tests signal are to
# end.
if threading.current_thread() is threading.main_thread():
    for _number, _handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(_number) is signal.SIG_IGN:
            signal.signal(_number, _handler)


# Imported only where the extra `torch` is installed; its tests are skipped without it.
collect_ignore = [] if find_spec("torch") else ["privpipe/sanitizers/minimax/torch_filter.py"]


@pytest.fixture(autouse=True, scope="session")
def _data_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An account, keys and databases for what modules share: a user's stay as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path_factory.mktemp("account")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _account_of_a_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An account of losses and releases for the fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path_factory.mktemp("account")))
        yield


@pytest.fixture(autouse=True)
def _account_of_a_test(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one for each test: others' releases of the same records are no business of it."""
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path_factory.mktemp("account")))
    monkeypatch.setenv("PRIVPIPE_TRUSTED_CODE", str(tmp_path_factory.mktemp("code")))


@pytest.fixture(autouse=True, scope="session")
def _one_sample() -> Iterator[None]:
    """Audits of this process draw the same records each time: verdicts near a limit would vary."""
    from privpipe.cluster.passes import sample_drawing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_drawing, "_draw_key", lambda: b"s" * sample_drawing.KEY_BYTES)
        yield


@pytest.fixture
def serially() -> Iterator[None]:
    """Flows of this process run without a cluster."""
    from tests.store.serial_run import serial_flows

    with serial_flows():
        yield


@pytest.fixture(autouse=True, scope="session")
def _lasting_folders() -> Iterator[None]:
    """Accounts of tests are thrown away: whether a container keeps its folders is not asked."""
    from privpipe.store.access import mounts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounts, "TABLE", os.devnull)
        yield


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace: dict[str, Any]) -> None:
    import numpy as np

    doctest_namespace["np"] = np


FIRST = ("papers", "flows", "cluster", "store", "bench")
"""Rooms of tests whose files run for minutes, the longest files first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How CI keeps its time: a share of the long files, another one for each commit."""
    parser.addoption("--share", type=float, default=1.0, help="of the files that have slow tests")
    parser.addoption("--draw", default="", help="word that draws the share, such as a commit")


def draw_files(files: Iterable[Path], share: float, word: str) -> set[Path]:
    """A share of some files; every process that is given the same word draws the same."""
    order = sorted(files, key=lambda file: sha256(f"{word}{file.name}".encode()).digest())
    return set(order[: math.ceil(share * len(order))])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first, so that the workers end together; a room's files together.

    What a room shares, such as a cluster, then ends when its last file has: idle, it would go on
    taking a share of the processor.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    drawn = draw_files(slow, config.option.share, config.option.draw)
    left = [item for item in items if item.path in slow - drawn and item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]

    def place(item: pytest.Item) -> tuple[int, bool]:
        room = item.nodeid.removeprefix("tests/").partition("/")[0]
        return FIRST.index(room) if room in FIRST else len(FIRST), item.path not in slow

    items.sort(key=place)


@pytest.fixture(scope="session")
def paper_data() -> Path:
    """The folder of the papers' data sets, or a skip where the variable names none."""
    folder = os.environ.get("PRIVPIPE_PAPER_DATA")
    if not folder:
        pytest.skip("PRIVPIPE_PAPER_DATA is not set")
    return Path(folder)


MISSING = {
    "PRIVPIPE_PAPER_DATA": "the papers' data sets, in the folder that PRIVPIPE_PAPER_DATA names",
    "no Python 3": "a Python that is not here",
}
"""What tests may want, by a word of the reason for which they were skipped."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count in one line what was skipped for want of each thing that a machine may lack."""
    if terminalreporter.config.option.markexpr == "not slow":
        terminalreporter.write_line("Tests that take long were left out: `make test-slow`.")
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for word, need in MISSING.items():
        if count := sum(word in reason for reason in skipped):
            terminalreporter.write_line(f"{count} tests were skipped: they need {need}.")
