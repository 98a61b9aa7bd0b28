"""Processes that make a key and are killed, or make it at once: one whole key, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from privpipe.store.keyring.keys import forget_key, list_keys, make_key, read_key
from tests.store.release_keys import BINDING, secret_of, words


def test_make_key__killed_before_the_entry_is_repaired(keys_home):
    key = make_key("monday", BINDING)
    (keys_home / "monday.json").unlink()
    assert list_keys() == (key.entry,)
    assert words(read_key("monday", BINDING)) == words(key)
    assert words(make_key("monday", BINDING)) == words(key)
    assert (keys_home / "monday.json").exists()
    (keys_home / "monday.json").unlink()
    assert forget_key("monday").binding == BINDING


KILLED = """
import os, sys
calls = 0
def counted(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    setattr(os, name, call)
from privpipe.store.keyring.keys import KeyBinding, make_key
for name in ("open", "fsync", "link", "unlink", "rename", "fchmod"):
    counted(name)
make_key("monday", KeyBinding("a" * 64, "b" * 64, "c" * 64))
print(calls)
"""


@pytest.mark.slow
def test_make_key__killed_at_every_step_leaves_no_key_or_a_whole_one(keys_home):
    for step in range(1, 100):
        run = subprocess.run(
            [sys.executable, "-c", KILLED, str(step)], capture_output=True, text=True
        )
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        key = make_key("monday", BINDING)
        assert words(make_key("monday", BINDING)) == words(key)
        secret = bytes.fromhex(secret_of(keys_home))
        forget_key("monday")
        left = b"".join(path.read_bytes() for path in keys_home.iterdir())
        assert secret.hex().encode() not in left
        assert {path.name for path in keys_home.iterdir()} <= {".lock", "monday.json"}
        (keys_home / "monday.json").unlink()
    assert step > 12


RACE = """
import sys
from privpipe.store.keyring.keys import KeyBinding, make_key
sys.stdin.readline()
for number in range(20):
    key = make_key(f"race{number}", KeyBinding("a" * 64, "b" * 64, "c" * 64))
    print(key.stream("d" * 64, 0, 1).words("noise", 1)[0, 0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["lock", "no lock"])
def test_make_key__processes_at_once_get_one_key(keys_home, locks):
    script = RACE if locks else "import fcntl; fcntl.flock = lambda *_: None\n" + RACE
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    answers = [run.communicate(timeout=60) for run in runs]
    drawn = [out.split() for out, _ in answers]
    if locks:
        assert [run.returncode for run in runs] == [0, 0, 0], answers
        assert drawn[0] == drawn[1] == drawn[2]
        assert len(drawn[0]) == 20
        return
    # Where a file system does not lock, a process may be refused; it never gets another key.
    for mine in drawn:
        for number, word in enumerate(mine):
            key = read_key(f"race{number}", BINDING)
            assert int(word) == key.stream("d" * 64, 0, 1).words("noise", 1)[0, 0]


def test_sweep__a_leftover_link_never_destroys_the_key(keys_home):
    key = make_key("monday", BINDING)
    os.link(keys_home / "monday.key", keys_home / f".monday.{'0' * 16}.new")
    make_key("monday.x", BINDING)
    assert words(read_key("monday", BINDING)) == words(key)
    forget_key("monday")
    assert not list(keys_home.glob(".monday.*"))
