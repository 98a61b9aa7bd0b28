"""Incremental releases walk at random, with a reader at every step, against a serial model."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import privpipe
from privpipe.errors import OptionError, StoreError
from privpipe.flows import increment_flow
from privpipe.pipeline.stages import publish
from privpipe.store.access.generation_log import publish_generation
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.keyring.account import find_account
from privpipe.store.models import open_model
from privpipe.store.releases import incremental_release
from privpipe.store.releases.incremental_release import withdraw_partition
from tests.operations.increments import append, configure, release

SMALL = "PRIVPIPE_TEST_LONG" not in os.environ

RECORDS = [np.random.default_rng(n).normal(size=(41 + n, 3)).round(4) for n in range(6)]
"""What partitions may hold; more than one chunk each."""

NAMES = st.sampled_from(["a", "b", "c", "d"])
CONTENTS = st.integers(0, len(RECORDS) - 1)


class Killed(BaseException):
    """The process ends here."""


class Machine(RuleBasedStateMachine):
    """The model: partitions (name, content, day), what is released in order, what is withdrawn."""

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.options = configure(self.folder)
        self.url = self.options.release.path
        self.partitions: dict[str, tuple[int, int]] = {}
        self.released: list[int] = []
        self.names: dict[int, str] = {}
        self.withdrawn: set[int] = set()
        self.days = 0

    def teardown(self) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    @rule(name=NAMES, content=CONTENTS, replacing=st.booleans())
    def append(self, name: str, content: int, replacing: bool) -> None:
        self.days += 1
        there = {c: n for n, (c, _) in self.partitions.items()}
        known = self.partitions.get(name)
        try:
            changed = append(self.folder, name, RECORDS[content], self.days, replacing=replacing)
        except StoreError:
            assert (content in there and there[content] != name) or (known and not replacing)
            return
        assert changed == (known is None or known[0] != content)
        if changed:
            self.partitions.pop(name, None)
            self.partitions[name] = content, self.days

    def expect(self, since: int, until: int) -> list[int]:
        """What a run over a span leaves released."""
        current = {c for c, _ in self.partitions.values()}
        kept = [c for c in self.released if c in current]
        new = [
            c
            for c, d in self.partitions.values()
            if since <= d <= until and c not in self.withdrawn and c not in kept
        ]
        return kept + new

    def note(self, released: list[int]) -> None:
        names = {c: n for n, (c, _) in self.partitions.items()}
        for content in released:
            if content not in self.released:
                self.names[content] = names[content]
        self.released = released

    @precondition(lambda self: self.partitions)
    @rule(back=st.integers(0, 3), span=st.integers(0, 4))
    def run(self, back: int, span: int) -> None:
        until = max(self.days - back, 0)
        since = max(until - span, 0)
        wanted = self.expect(since, until)
        outcome = release(self.options, since, until)
        assert (outcome == "nothing to do") == (wanted == self.released)
        self.note(wanted)
        assert release(self.options, since, until) == "nothing to do"

    @precondition(lambda self: self.partitions and self.expect(0, self.days) != self.released)
    @rule(moment=st.sampled_from(["sweep_parts", "publish_release", "switch", "switched"]))
    def run_and_die(self, moment: str) -> None:
        wanted = self.expect(0, self.days)

        def die(*_: object, **__: object) -> None:
            raise Killed

        def switch_and_die(*values: Any, **named: Any) -> None:
            publish_generation(*values, **named)
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            if moment == "publish_release":
                patch.setattr(publish, moment, die)
            elif moment == "sweep_parts":
                patch.setattr(incremental_release, moment, die)
            else:
                how = die if moment == "switch" else switch_and_die
                patch.setattr(increment_flow, "publish_generation", how)
            try:
                release(self.options, 0, self.days)
            except Killed:
                died = True
            else:
                died = False
        if moment == "switched" or not died:
            self.note(wanted)

    @precondition(lambda self: self.partitions)
    @rule()
    def find_a_rival(self) -> None:
        with hold_workspace(self.url), pytest.raises(StoreError) as refused:
            release(self.options)
        assert refused.value.code == "busy"

    @rule(name=NAMES)
    def withdraw(self, name: str) -> None:
        gone = {c for c in self.released if self.names[c] == name}
        try:
            withdraw_partition(self.url, name, timedelta(0), find_account(), (), ())
        except OptionError:
            assert not gone
            return
        # A withdrawal that is repeated ends well.
        assert gone or name in {self.names[c] for c in self.withdrawn}
        self.withdrawn |= gone
        self.released = [c for c in self.released if c not in gone]

    @invariant()
    def a_reader_sees_exactly_the_released(self) -> None:
        if not hasattr(self, "released"):
            return
        found = read(self.url)
        if found is None:
            assert not self.released
            return
        [model] = self.folder.glob("release.*.model.zarr")
        fitted = open_model(str(model))
        parts = [fitted.apply(RECORDS[c].copy()) for c in self.released]
        wanted = np.concatenate(parts) if parts else np.empty((0, 3))
        np.testing.assert_array_equal(found, wanted)


def read(url: str) -> npt.NDArray[np.float64] | None:
    """The released features as any reader sees them."""
    try:
        dataset = privpipe.open_release(url)
    except StoreError:
        return None
    return np.asarray(dataset.features.values)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=3 if SMALL else 60, stateful_step_count=8 if SMALL else 30, deadline=None
)
