"""Compiled loops between processes: kept once, never confused, never in a folder of others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

from privpipe.numerics.null_space import kernel_store
from privpipe.numerics.null_space.kernel_store import compile_text, find_folder

STRICT = {"nogil": True, "error_model": "numpy"}
CLEAN = """
import sys, numpy as np
from numba.core.event import RecordingListener, install_listener
listener = RecordingListener()
rank, rule, lifted = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "records"
from privpipe.numerics.null_space.cleaning_kernel import make_kernel, make_lift
make_kernel(rank, rank, rule, lifted)
kernel = make_lift(rank)
random = np.random.default_rng(5)
b, lift, out = random.normal(size=(9, rank)), random.normal(size=(rank, 16)), np.empty((9, 16))
with install_listener("numba:compile", listener):
    kernel(b, lift, np.zeros(16), out)
print(len(listener.buffer), out.tobytes().hex())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of its own, below a folder that is nobody else's."""
    monkeypatch.setenv("PRIVPIPE_CACHE", str(tmp_path))
    find_folder.cache_clear()
    yield tmp_path / "kernels"
    find_folder.cache_clear()


def run_apart(folder: Path, seed: str) -> tuple[int, str]:
    """Compilations of another process, and what its kernel gave."""
    done = subprocess.run(
        [sys.executable, "-c", CLEAN, "3", "greedy", "records"],
        env={**os.environ, "PRIVPIPE_CACHE": str(folder.parent), "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    count, found = done.stdout.split()
    return int(count), found


@pytest.mark.slow
def test_compile_text__is_compiled_in_one_process_and_read_in_the_next(folder: Path) -> None:
    first, found = run_apart(folder, "1")
    second, again = run_apart(folder, "2")
    assert first > 0
    assert second == 0
    assert again == found


def test_compile_text__tells_kernels_of_one_text_apart(folder: Path) -> None:
    @numba.njit(nogil=True)
    def double(x: float) -> float:
        return 2 * x

    @numba.njit(nogil=True)
    def treble(x: float) -> float:
        return 3 * x

    text = "def kernel(x):\n    return use(x)\n"
    for function, expected in ((double, 8.0), (treble, 12.0)):
        kernel = compile_text([text], {"use": function}, {"kernel": STRICT})
        assert kernel(4.0) == expected
    assert len(list(folder.glob("*.py"))) == 2


@pytest.mark.parametrize("who", ["others write", "others write above", "another's link"])
def test_find_folder__refuses_where_others_could_put_code(
    folder: Path, tmp_path: Path, who: str
) -> None:
    folder.mkdir(mode=0o700)
    assert find_folder() == folder.resolve()
    if who == "others write":
        folder.chmod(0o702)
    elif who == "others write above":
        tmp_path.chmod(0o770)
    else:
        folder.rmdir()
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o777)
        folder.symlink_to(tmp_path / "shared")
    find_folder.cache_clear()
    assert find_folder() is None
    kernel = compile_text(["def kernel(x):\n    return x + 1\n"], {"np": np}, {"kernel": STRICT})
    assert kernel(1.0) == 2.0
    assert not list(folder.iterdir())


def test_find_folder__nothing_is_kept_on_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_store, "ROOM", 2**70)
    assert find_folder() is None
