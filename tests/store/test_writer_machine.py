"""The writer of a release against a serial model: what stands, what is recorded, what is sound."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import privpipe.pipeline.stages.clean
from privpipe.cluster.executors.executor import Executor
from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.store.arrays import blocks
from privpipe.store.arrays.blocks import Receipt, write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan, chunk_key
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from privpipe.store.releases.release_writing import (
    ReleasePlan,
    prepare_release,
    publish_release,
    read_ledger,
    record_receipts,
)
from tests.store.serial_run import read_tree, serial_flows

N_RECORDS, CHUNK_ROWS = 23, 5
N_CHUNKS = 5
CHUNKS = st.integers(0, N_CHUNKS - 1)


def make_block(chunk: int) -> dict[str, np.ndarray]:
    rows = np.arange(chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, N_RECORDS))
    return {
        FEATURES: np.stack([np.sin(rows), np.cos(rows), rows.astype(float)], axis=1),
        "place": (rows % 3).astype(np.int8),
    }


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8 % len(content)] ^= 1 << position % 8
    path.write_bytes(content)


class WriterMachine(RuleBasedStateMachine):
    """Model: chunks that stand whole, chunks with a receipt, receipts still only in memory."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="writer-machine-"))
        self.plan = ReleasePlan(
            run="0a1b2c3d",
            url=str(self.folder / "release.zarr"),
            arrays=(
                ArrayPlan(FEATURES, (N_RECORDS, 3), CHUNK_ROWS, "float64"),
                ArrayPlan("place", (N_RECORDS,), CHUNK_ROWS, "int8"),
            ),
        )
        self.data = Path(self.plan.data_url)
        self.foreign = self.published = False
        self.sound: set[int] = set()
        self.recorded: set[int] = set()
        self.once_recorded: set[int] = set()
        self.in_memory: dict[int, Receipt] = {}
        prepare_release(self.plan)

    @precondition(lambda self: not self.published)
    @rule(chunks=st.sets(CHUNKS, min_size=1).map(sorted))
    def write_chunks(self, chunks: list[int]) -> None:
        for chunk in chunks:
            self.in_memory[chunk] = self._write(chunk)

    def _write(self, chunk: int) -> Receipt:
        self.sound.add(chunk)
        plan = self.plan
        return write_block(plan.data_url, plan.arrays, chunk, make_block(chunk), plan.run)

    @precondition(lambda self: self.in_memory and not self.published)
    @rule()
    def record(self) -> None:
        """As the driver does: only chunks that have no receipt are ever asked for."""
        fresh = [r for chunk, r in sorted(self.in_memory.items()) if chunk not in self.recorded]
        self.in_memory = {}
        if fresh:
            record_receipts(self.plan, fresh)
        self.recorded |= {receipt.chunk for receipt in fresh}

    @precondition(lambda self: not self.published)
    @rule(torn=st.sampled_from(["", "release/features/c", "ledger", "release"]))
    def crash(self, torn: str) -> None:
        """Memory is lost; a write in progress leaves half a temporary file."""
        self.in_memory = {}
        blocks.open_array.cache_clear()
        if torn:
            place = Path(self.plan.work_url) / torn
            place.mkdir(parents=True, exist_ok=True)
            (place / f"x.{'0' * 32}.partial").write_bytes(b'[{"run": "0a1b')

    @precondition(lambda self: self.sound and not self.published)
    @rule(place=CHUNKS, array=st.integers(0, 1), position=st.integers(0, 10**4), how=CHUNKS)
    def damage_chunk(self, place: int, array: int, position: int, how: int) -> None:
        chunk = sorted(self.sound)[place % len(self.sound)]
        path = self.data / chunk_key(self.plan.arrays[array], chunk)
        if how == 0:
            path.unlink()
        elif how == 1:
            path.write_bytes(path.read_bytes()[:-1])
        else:
            flip_bit(path, position)
        self.sound.discard(chunk)

    @precondition(lambda self: self.recorded and not self.published)
    @rule(number=st.integers(0, 10), position=st.integers(0, 10**5))
    def damage_ledger(self, number: int, position: int) -> None:
        """Whatever the damage, receipts of the damaged object count as not recorded.

        The same bit flipped again mends it, and they count as recorded again.
        """
        places = sorted((Path(self.plan.work_url) / "ledger").glob("*.json"))
        kept = {r.chunk for r in read_ledger(self.plan)}
        assert kept == self.recorded
        self.once_recorded |= kept
        flip_bit(places[number % len(places)], position)
        self.recorded = {r.chunk for r in read_ledger(self.plan)}
        assert self.recorded <= self.once_recorded

    @precondition(lambda self: not self.foreign and not self.published)
    @rule()
    def put_foreign_chunk(self) -> None:
        path = self.data / FEATURES / "c" / "99" / "0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"from elsewhere")
        self.foreign = True

    @precondition(lambda self: self.foreign and not self.published)
    @rule()
    def remove_foreign_chunk(self) -> None:
        shutil.rmtree(self.data / FEATURES / "c" / "99")
        self.foreign = False

    @precondition(lambda self: not self.published)
    @rule(do=st.booleans())
    def resume(self, do: bool) -> None:
        """What the clean stage finds is done; then what is missing is written, or not."""
        prepare_release(self.plan)
        with serial_flows():
            done = privpipe.pipeline.stages.clean.find_done(self.plan, Executor())
        assert set(done) == self.recorded & self.sound
        self.recorded = set(done)
        if do:
            missing = [chunk for chunk in range(N_CHUNKS) if chunk not in done]
            for some in (missing[:3], missing[3:]):
                if some:
                    record_receipts(self.plan, [self._write(chunk) for chunk in some])
            self.recorded |= set(missing)
            self.in_memory = {}

    @precondition(lambda self: not self.published)
    @rule()
    def prove_and_publish(self) -> None:
        whole = set(range(N_CHUNKS))
        complete = whole == self.recorded == self.sound & self.recorded and not self.foreign
        with serial_flows():
            try:
                receipts = privpipe.pipeline.stages.clean.prove_receipts(self.plan, Executor())
            except IncompleteReleaseError:
                assert not complete
                return
        assert complete
        publish_release(self.plan, receipts, {"source_digest": "0" * 64})
        self.published = True

    @precondition(lambda self: self.published)
    @rule(number=st.integers(0, 1000), position=st.integers(0, 10**6))
    def damage_release(self, number: int, position: int) -> None:
        """One bit anywhere in the release is noticed, and mending it is enough."""
        files = sorted(path for path in Path(self.plan.url).rglob("*") if path.is_file())
        path = files[number % len(files)]
        content = path.read_bytes()
        flip_bit(path, position)
        with pytest.raises(StoreError):
            check_release(self.plan.url, verify=True)
        path.write_bytes(content)

    @invariant()
    def release_is_whole_or_not_there(self) -> None:
        if not getattr(self, "published", False):
            if hasattr(self, "plan"):
                assert not Path(self.plan.url).exists()
            return
        check_release(self.plan.url, verify=True)
        with open_release(self.plan.url) as release:
            for chunk in range(N_CHUNKS):
                rows = slice(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
                expected = make_block(chunk)
                np.testing.assert_array_equal(release.features[rows], expected[FEATURES])
                np.testing.assert_array_equal(release.place[rows], expected["place"])
        assert not any(name.endswith(".partial") for name in read_tree(Path(self.plan.url)))

    def teardown(self) -> None:
        """Wherever the rules have led, one more run ends it."""
        if not hasattr(self, "folder"):
            return
        try:
            if self.foreign and not self.published:
                self.remove_foreign_chunk()
            if not self.published:
                self.resume(do=True)
                self.prove_and_publish()
            assert self.published
            self.release_is_whole_or_not_there()
        finally:
            shutil.rmtree(self.folder)


@pytest.mark.parametrize("examples", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_writer__agrees_with_a_serial_model(examples: int) -> None:
    run_state_machine_as_test(
        WriterMachine,
        settings=settings(max_examples=examples, stateful_step_count=15, deadline=None),
    )
