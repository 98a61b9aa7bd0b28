"""A search that was killed takes only the steps that were left, to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.pass_checkpoints import Checkpoints, StoredSteps
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from privpipe.store.models.artifacts import digest_map

Problem = tuple[FloatArray, IntArray, dict[str, Any]]


def make_profiles(n: int, gap: float) -> Problem:
    """Profiles of five attributes, and three private values that depend on them."""
    rng = np.random.default_rng(5)
    grid = np.meshgrid(*[np.arange(size) for size in (6, 5, 5, 4, 5)])
    codes = np.stack(grid).reshape(5, -1).T
    codes = codes[rng.permutation(len(codes))[:n]]
    score = codes @ rng.normal(size=5) + rng.normal(size=n)
    posterior = np.exp(np.stack([score, -score, np.full_like(score, 0.3)]))
    joint = posterior / posterior.sum(axis=0) * rng.gamma(0.5, size=n)
    return joint / joint.sum(), codes, {"distortion_budget": 0.5, "gap": gap}


def make_line(n: int) -> Problem:
    """Uneven positions on a line, and two private values."""
    rng = np.random.default_rng(7)
    x = np.cumsum(rng.exponential(size=n))
    chance = 1 / (1 + np.exp(-np.sin(x / x[-1] * 9)))
    joint = np.stack([chance, 1 - chance]) * rng.uniform(0.2, 1.8, n)
    options = {"distortion": "squared", "distortion_budget": n / 4, "gap": 1e-4}
    return joint / joint.sum(), x[:, None], options


def make_steps(n: int, n_steps: int) -> Problem:
    """Few profiles, for so many steps of the paper's algorithm."""
    joint, codes, options = make_profiles(n, 1e-9)
    return joint, codes, options | {"solver": "frank_wolfe", "n_steps": n_steps}


PROBLEMS = {
    "unordered": lambda: make_profiles(1400, 1e-3),
    "unordered and polished": lambda: make_profiles(150, 1e-6),
    "ordered": lambda: make_line(1500),
    "the paper's": lambda: make_steps(120, 6),
}


class Killed(BaseException):
    """Ends a solve wherever it is."""


class Dying(StoredSteps):
    """Counts the steps that are taken, and dies before one of them is left."""

    def __init__(self, folder: Path | None, dies_at: int = -1, n_records: int = 5000) -> None:
        about = None if folder is None else Checkpoints(str(folder / "kept")).about("fit")
        super().__init__(about, n_records)
        self.dies_at, self.steps = dies_at, 0

    def write(self, question: tuple[Any, ...], answer: tuple[Any, ...]) -> None:
        if self.steps == self.dies_at:
            raise Killed
        self.steps += 1
        super().write(question, answer)


def solve(name: str, known: StoredSteps | None) -> SparseMapping:
    joint, codes, options = PROBLEMS[name]()
    return solve_privacy_mapping(joint, codes, known=known, **options)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_solve__goes_on_after_a_kill_to_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = Dying(None)
    expected = solve(name, whole)
    assert expected.stopped in ("gap reached", "6 steps")
    half = whole.steps // 2
    assert half >= 2
    with pytest.raises(Killed):
        solve(name, Dying(tmp_path, half))
    rest = Dying(tmp_path)
    assert digest_map(solve(name, rest)) == digest_map(expected)
    assert rest.steps == whole.steps - half
    again = Dying(tmp_path)
    assert digest_map(solve(name, again)) == digest_map(expected)
    assert again.steps == 0


def test_solve__leaves_kilobytes_a_step_and_nothing_of_few_records(tmp_path: Path) -> None:
    known = Dying(tmp_path)
    solve("unordered", known)
    sizes = [path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert len(sizes) == known.steps
    assert np.median(sizes) < 100_000
    assert max(sizes) < 400_000
    solve("unordered and polished", Dying(tmp_path / "few", n_records=999))
    assert not (tmp_path / "few").exists()


def test_solve__takes_damage_for_nothing(tmp_path: Path) -> None:
    whole = Dying(tmp_path)
    expected = digest_map(solve("unordered and polished", whole))
    files = sorted(path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    files[0].write_bytes(files[0].read_bytes()[:-7])
    files[1].write_bytes(b"")
    again = Dying(tmp_path)
    assert digest_map(solve("unordered and polished", again)) == expected
    assert again.steps == 2


def test_solve__another_problem_finds_no_old_steps(tmp_path: Path) -> None:
    solve("unordered and polished", Dying(tmp_path))
    joint, codes, options = make_profiles(150, 1e-6)
    other = np.roll(joint, 1, axis=1)
    again = Dying(tmp_path)
    found = solve_privacy_mapping(other, codes, known=again, **options)
    assert again.steps > 0
    assert digest_map(found) == digest_map(solve_privacy_mapping(other, codes, **options))


def test_solve__of_a_killed_process_goes_on(tmp_path: Path) -> None:
    """SIGKILL of a real process after some steps; the next one takes only the rest."""
    code = (
        "import sys; from pathlib import Path; from tests.sanitizers.mapping.solving import "
        "test_solve_goes_on as t; t.solve('unordered', t.Dying(Path(sys.argv[1])))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    deadline, seen = time.monotonic() + 120, 0
    while seen < 6:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        seen = len([path for path in (tmp_path / "kept").rglob("*-step") if path.is_file()])
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    whole, rest = Dying(None), Dying(tmp_path)
    assert digest_map(solve("unordered", rest)) == digest_map(solve("unordered", whole))
    assert rest.steps <= whole.steps - 6
