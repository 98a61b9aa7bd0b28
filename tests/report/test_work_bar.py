"""How far long work is: a bar on a terminal, lines in a log, nothing of quick work."""

from __future__ import annotations

import io

import pytest

from privpipe.report.console import PLAIN, PlainConsole, say, tabulate
from privpipe.report.work_bar import WorkBar, showing


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def make(clock: Clock) -> tuple[WorkBar, io.StringIO]:
    file = io.StringIO()
    return WorkBar(PlainConsole(file=file), clock), file


def test_log__holds_a_line_now_and_then_with_rate_and_time_left() -> None:
    clock = Clock()
    bar, file = make(clock)
    bar.begin("clean", 1000, "records")
    for _ in range(10):
        clock.seconds += 9
        bar.advance(100)
    lines = file.getvalue().splitlines()
    assert lines[0] == "clean    200 of 1,000 records, 11.1 records/s, 72 s left"
    assert len(lines) == 3  # after 18, 54 and 90 s


def test_log__quick_work_leaves_no_trace() -> None:
    clock = Clock()
    bar, file = make(clock)
    bar.begin("clean", 10, "records")
    clock.seconds = 9.9
    bar.advance(10)
    bar.end()
    clock.seconds = 100
    bar.advance(1)
    assert file.getvalue() == ""


def test_share__is_never_more_than_the_whole() -> None:
    bar, _ = make(Clock())
    bar.begin("clean", 10, "records")
    bar.advance(8)
    bar.advance(8)  # chunks done twice after a loss
    assert "10 of 10 records" in bar.describe()
    bar.begin("fit", 0, "rounds")
    bar.advance(3)
    assert "3 rounds" in bar.describe()
    assert "left" not in bar.describe()


def test_terminal__shows_a_bar_unless_plain_output_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for plain in ("", "1"):
        monkeypatch.setenv(PLAIN, plain)
        monkeypatch.setenv("FORCE_COLOR", "1")  # what Rich takes for a terminal
        monkeypatch.setenv("TERM", "xterm-256color")
        file = io.StringIO()
        bar = WorkBar(PlainConsole(file=file))
        bar.begin("clean", 10, "records")
        bar.advance(5)
        bar.end()
        assert ("\x1b[" in file.getvalue()) == (not plain)


def test_say__tables_have_lines_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"variable": "ill", "kind": "categorical"}]
    say(tabulate(rows))
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines()] == [
        ["variable", "kind"],
        ["ill", "categorical"],
    ]
    monkeypatch.setenv("FORCE_COLOR", "1")
    say(tabulate(rows))
    assert "━" in capsys.readouterr().out


def test_showing__takes_another_whole_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, float]] = []
    monkeypatch.setattr(
        WorkBar, "begin", lambda self, label, total, unit: begun.append((label, total))
    )
    with showing("ingest") as listen:
        listen(5, 0)
        listen(5, 10)
        listen(5, 10)
    assert begun == [("ingest", 0), ("ingest", 10)]


def test_say__folds_between_words_on_a_terminal_and_not_at_all_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "with which the upper limit of even a guess is small " * 4
    say(text)
    assert capsys.readouterr().out.splitlines() == [text]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    say(text)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).split() == text.split()
