"""A search that was killed goes on with the next round, from what it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.passes.pass_checkpoints import Checkpoints, FitCheckpoint
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping

N_PROFILES, GAP = 2000, 3e-4


class Killed(BaseException):
    """Ends a solve wherever it is."""


def make_problem() -> tuple[FloatArray, IntArray]:
    """Profiles of five attributes, and three private values that depend on them."""
    rng = np.random.default_rng(5)
    grid = np.meshgrid(*[np.arange(size) for size in (6, 5, 5, 4, 5)])
    codes = np.stack(grid).reshape(5, -1).T
    codes = codes[rng.permutation(len(codes))[:N_PROFILES]]
    score = codes @ rng.normal(size=5) + rng.normal(size=N_PROFILES)
    posterior = np.exp(np.stack([score, -score, np.full_like(score, 0.3)]))
    joint = posterior / posterior.sum(axis=0) * rng.gamma(0.5, size=N_PROFILES)
    return joint / joint.sum(), codes


def solve(
    checkpoint: FitCheckpoint | None, dies_at: int = -1
) -> tuple[SparseMapping | None, int, float]:
    """The mapping, its rounds and its processor seconds; no mapping if it died at a round."""
    joint, codes = make_problem()
    rounds, start = 0, time.process_time()

    def count(_: object) -> None:
        nonlocal rounds
        if rounds == dies_at:
            raise Killed
        rounds += 1

    try:
        found = solve_privacy_mapping(
            joint,
            codes,
            distortion_budget=0.5,
            gap=GAP,
            on_round=count,
            checkpoint=checkpoint,
        )
    except Killed:
        found = None
    return found, rounds, time.process_time() - start


@pytest.fixture(scope="module")
def whole() -> tuple[SparseMapping | None, int, float]:
    solve(None)  # compiles
    return solve(None)


def place(folder: Path, n_records: int = 5000) -> FitCheckpoint:
    return FitCheckpoint(Checkpoints(str(folder / "kept")).about("fit", GAP), n_records)


def test_solve__goes_on_after_a_kill_to_the_same_certificate(
    whole: tuple[SparseMapping, int, float], tmp_path: Path
) -> None:
    mapping, n_rounds, _ = whole
    half = n_rounds // 2
    assert half >= 2
    assert solve(place(tmp_path), half)[0] is None
    again, rest, _ = solve(place(tmp_path))
    assert again is not None
    assert rest <= n_rounds - half + 1
    assert again.stopped == "gap reached"
    assert again.gap <= GAP * (1 + 1e-9)
    assert again.information == pytest.approx(mapping.information, abs=GAP)
    np.testing.assert_allclose(again.mapping.sum(axis=0), 1.0, atol=1e-12)


def test_solve__leaves_kilobytes_and_nothing_of_few_records(tmp_path: Path) -> None:
    solve(place(tmp_path), 4)
    (file,) = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert file.stat().st_size < 400_000
    solve(place(tmp_path / "few", n_records=999), 4)
    assert not list((tmp_path / "few").rglob("*-fit"))


def test_solve__takes_damage_for_nothing(
    whole: tuple[SparseMapping, int, float], tmp_path: Path
) -> None:
    solve(place(tmp_path), 4)
    (file,) = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-7])
    _, n_rounds, _ = solve(place(tmp_path))
    assert n_rounds == whole[1]


def test_solve__of_a_killed_process_goes_on(
    whole: tuple[SparseMapping, int, float], tmp_path: Path
) -> None:
    """SIGKILL of a real process after some rounds; the next one asks only for the rest."""
    code = (
        "import sys; from pathlib import Path; from tests.sanitizers.mapping.solving import "
        "test_solve_goes_on as t; t.solve(t.place(Path(sys.argv[1])))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    deadline, seen = time.monotonic() + 120, set[int]()
    while len(seen) < 4:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        files = [path for path in (tmp_path / "kept").rglob("*-fit") if path.is_file()]
        seen |= {file.stat().st_mtime_ns for file in files}
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    again, rest, _ = solve(place(tmp_path))
    assert again is not None
    assert again.gap <= GAP * (1 + 1e-9)
    assert rest <= whole[1] - 3
