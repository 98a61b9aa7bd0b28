"""Generations: one switch, whoever is killed, slow or second."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from privpipe.errors import FormatError, StoreError
from privpipe.store.access import generation_log, objects
from privpipe.store.access.generation_log import (
    ROOT,
    Generation,
    blank_older,
    publish_generation,
    read_newest,
    write_root,
)


def test_publish__only_one_of_two_rivals_makes_the_next(tmp_path: Path) -> None:
    url = str(tmp_path / "line")
    first = publish_generation(url, "release", {"parts": ["a"]}, None)
    publish_generation(url, "release", {"parts": ["b"]}, first)
    with pytest.raises(StoreError, match="first") as refused:
        publish_generation(url, "release", {"parts": ["c"]}, first)
    assert refused.value.code == "generation-taken"
    newest = read_newest(url, "release")
    assert newest is not None
    assert newest.content == {"parts": ["b"]}
    assert newest.previous == first.digest


def test_read__a_root_that_a_sleeper_set_back_changes_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "line")
    first = publish_generation(url, "release", {"n": 1}, None)
    second = publish_generation(url, "release", {"n": 2}, first)
    write_root(url, first)
    assert read_newest(url, "release") == second


def test_blank_older__mends_a_root_that_a_dead_writer_left_behind(tmp_path: Path) -> None:
    url = str(tmp_path / "line")
    first = publish_generation(url, "release", {"n": 1}, None)
    second = publish_generation(url, "release", {"n": 2}, first)
    root = tmp_path / "line" / ROOT
    whole = root.read_bytes()
    write_root(url, first)
    blank_older(url, second)
    assert root.read_bytes() == whole
    assert generation_log.read_generation(url, 1).content == {}
    assert read_newest(url, "release") == second


@pytest.mark.parametrize("byte", range(0, 200, 9))
def test_read__a_flipped_bit_is_noticed(tmp_path: Path, byte: int) -> None:
    url = str(tmp_path / "line")
    publish_generation(url, "release", {"n": 1}, None)
    path = tmp_path / "line" / "generations" / "00000001.json"
    content = bytearray(path.read_bytes())
    content[byte % len(content)] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError):
        read_newest(url, "release")


def test_read__what_is_another_kind_is_refused(tmp_path: Path) -> None:
    publish_generation(str(tmp_path / "line"), "collection", {}, None)
    with pytest.raises(FormatError, match="growing collection"):
        read_newest(str(tmp_path / "line"), "release")


class Killed(BaseException):
    """The process ends here."""


OWNERS = {"flush": objects, "keep_bytes": generation_log}
STEPS = ("makedirs", "fsync", "link", "unlink", *OWNERS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_publish__killed_at_any_step_shows_one_whole_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Each change of the storage, lost or done: readers see the former or the next, and the next
    writer goes on from what they see."""
    url = str(tmp_path / "line")
    first = publish_generation(url, "release", {"n": 1}, None)
    owner = OWNERS.get(step, os)
    real = getattr(owner, step)

    def dying(*args: object, **named: object) -> object:
        if after:
            real(*args, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        with pytest.raises(Killed):
            publish_generation(url, "release", {"n": 2}, first)
    seen = read_newest(url, "release")
    assert seen is not None
    assert seen.content["n"] in (1, 2)
    linked = ("link", "unlink", *OWNERS)
    assert (seen.content["n"] == 2) == (step in linked and (after or step != "link"))
    following = publish_generation(url, "release", {"n": 3}, seen)
    assert read_newest(url, "release") == following


class Line(RuleBasedStateMachine):
    """Writers that come, sleep and die, and readers at every step, against a list."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.url = f"{self.folder.name}/line"
        self.model: list[dict[str, int]] = []
        self.asleep: list[Generation | None] = []

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(value=st.integers(0, 99))
    def publish(self, value: int) -> None:
        publish_generation(self.url, "release", {"v": value}, read_newest(self.url, "release"))
        self.model.append({"v": value})

    @rule(value=st.integers(0, 99))
    def die_before_the_root(self, value: int) -> None:
        before = read_newest(self.url, "release")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generation_log, "write_root", _die)
            with pytest.raises(Killed):
                publish_generation(self.url, "release", {"v": value}, before)
        self.model.append({"v": value})

    @rule()
    def fall_asleep(self) -> None:
        self.asleep.append(read_newest(self.url, "release"))

    @precondition(lambda self: self.asleep)
    @rule(value=st.integers(0, 99))
    def wake_up(self, value: int) -> None:
        known = self.asleep.pop()
        late = (0 if known is None else known.number) < len(self.model)
        try:
            publish_generation(self.url, "release", {"v": value}, known)
        except StoreError:
            assert late
        else:
            assert not late
            self.model.append({"v": value})

    @precondition(lambda self: self.model)
    @rule(back=st.integers(0, 5))
    def set_the_root_back(self, back: int) -> None:
        number = max(1, len(self.model) - back)
        write_root(self.url, generation_log.read_generation(self.url, number))

    @invariant()
    def readers_see_the_newest(self) -> None:
        found = read_newest(self.url, "release")
        assert (found and dict(found.content)) == (self.model[-1] if self.model else None)


def _die(*_: object) -> None:
    raise Killed


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
