"""Release keys: made once, bound, private, destroyable, and never shown."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import FormatError, OptionError, PrivpipeError, StoreError
from privpipe.store import keys as store_keys
from privpipe.store.keyfiles import check_keys_apart, key_folder
from privpipe.store.keys import (
    KeyBinding,
    KeyEntry,
    forget_key,
    list_keys,
    make_key,
    read_key,
    receive_key,
)

BINDING = KeyBinding(source="a" * 64, model="b" * 64, options="c" * 64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "deep" / "keys"))
    yield tmp_path / "deep" / "keys"
    store_keys._received.clear()


def secret_of(folder: Path, key_id: str = "monday") -> str:
    return str(json.loads((folder / f"{key_id}.key").read_text())["secret"])


def words(key: store_keys.ReleaseKey) -> list[int]:
    return key.stream("d" * 64, 3, 2).words("noise", 2).ravel().tolist()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_make_key__again_gives_the_same_and_another_id_another(folder):
    first = make_key("monday", BINDING)
    assert words(make_key("monday", BINDING)) == words(first)
    assert words(read_key("monday", BINDING)) == words(first)
    assert words(make_key("tuesday", BINDING)) != words(first)
    assert len(bytes.fromhex(secret_of(folder))) == 32


@pytest.mark.parametrize("part", ["source", "model", "options"])
@pytest.mark.parametrize("ask", [make_key, read_key])
def test_make_key__another_binding_is_refused_by_name(folder, ask, part):
    make_key("monday", BINDING)
    other = KeyBinding(**{**vars(BINDING), part: "e" * 64})
    with pytest.raises(OptionError, match=f"'monday' was made for another {part}") as caught:
        ask("monday", other)
    assert caught.value.code == "key_binding"
    assert caught.value.exit_code == 2
    assert secret_of(folder) not in f"{caught.value!r} {caught.value}"


def test_make_key__all_mismatches_are_named(folder):
    make_key("monday", BINDING)
    with pytest.raises(OptionError, match="another source and another options"):
        make_key("monday", KeyBinding("e" * 64, "b" * 64, "e" * 64))


def test_stream__depends_on_the_binding_even_with_equal_secrets(folder):
    key = make_key("monday", BINDING)
    moved = KeyEntry("monday", KeyBinding("a" * 64, "b" * 64, "e" * 64), key.entry.created)
    forged = store_keys.ReleaseKey(moved, key._secret, str(folder))
    assert not np.intersect1d(words(forged), words(key)).size


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_make_key__private_modes_under_any_umask(folder, umask):
    before = os.umask(umask)
    try:
        make_key("monday", BINDING)
        forget_key("monday")
        make_key("tuesday", BINDING)
    finally:
        os.umask(before)
    assert mode(folder) == mode(folder.parent) == 0o700
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "monday.json",
        "tuesday.json",
        "tuesday.key",
    }
    assert all(mode(path) == 0o600 for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda f: f.chmod(0o750), "keys is not private.*mode 750.*chmod 700"),
        (lambda f: (f / "monday.key").chmod(0o640), "monday.key is not private.*chmod 600"),
        (lambda f: _swap_for_link(f / "monday.key"), "monday.key"),
        (lambda f: _swap_for_link(f), "cannot be used"),
    ],
)
def test_read_key__files_open_to_others_or_linked_are_refused(folder, spoil, match):
    make_key("monday", BINDING)
    spoil(folder)
    for ask in (read_key, make_key):
        with pytest.raises(StoreError, match=match):
            ask("monday", BINDING)


def _swap_for_link(path: Path) -> None:
    real = path.rename(path.with_name("elsewhere"))
    path.symlink_to(real)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_read_key__another_owner_is_refused(folder):
    make_key("monday", BINDING)
    os.chown(folder / "monday.key", 12345, 12345)
    with pytest.raises(StoreError, match="owner 12345"):
        read_key("monday", BINDING)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "x" * 101, "a\n", "a b"])
@pytest.mark.parametrize("ask", [lambda n: make_key(n, BINDING), forget_key])
def test_make_key__ids_that_are_no_plain_names_are_refused(folder, ask, name):
    with pytest.raises(OptionError, match="is not usable"):
        ask(name)


@pytest.mark.parametrize("digest", ["", "xyz", "A" * 64, "a" * 31, "a" * 129])
def test_key_binding__wants_digests(digest):
    with pytest.raises(OptionError, match="model digest of a key"):
        KeyBinding("a" * 64, digest, "c" * 64)


def test_read_key__never_made(folder):
    with pytest.raises(StoreError, match="no release key 'monday'"):
        read_key("monday", BINDING)
    with pytest.raises(StoreError, match="no release key 'monday'"):
        forget_key("monday")
    make_key("tuesday", BINDING)
    with pytest.raises(StoreError, match="no release key 'monday'"):
        read_key("monday", BINDING)
    with pytest.raises(StoreError, match="no release key 'monday'"):
        forget_key("monday")


@pytest.mark.parametrize("ask", [make_key, read_key])
def test_make_key__a_lost_key_is_never_made_anew(folder, ask):
    make_key("monday", BINDING)
    (folder / "monday.key").unlink()
    with pytest.raises(StoreError, match=r"'monday' is missing.*Restore its file"):
        ask("monday", BINDING)


@pytest.mark.parametrize("ask", [make_key, read_key])
def test_forget_key__destroys_for_good(folder, ask):
    make_key("monday", BINDING)
    kept = (folder / "monday.key").read_bytes()
    held = os.open(folder / "monday.key", os.O_RDONLY)
    entry = forget_key("monday")
    overwritten = os.read(held, 1 << 16)
    os.close(held)
    assert set(overwritten) == {0}
    assert len(overwritten) == len(kept)
    assert entry.forgotten is not None
    assert entry.binding == BINDING
    assert forget_key("monday") == entry
    with pytest.raises(StoreError, match="'monday' was destroyed on"):
        ask("monday", BINDING)
    (folder / "monday.key").write_bytes(kept)  # from a backup
    (folder / "monday.key").chmod(0o600)
    with pytest.raises(StoreError, match="'monday' was destroyed on"):
        ask("monday", BINDING)
    assert forget_key("monday") == entry
    assert not (folder / "monday.key").exists()


def test_list_keys__ids_bindings_times_and_no_secret(folder):
    assert list_keys() == ()
    make_key("monday", BINDING)
    make_key("a.key", BINDING)
    make_key("tuesday", BINDING)
    secrets = [secret_of(folder, name) for name in ("monday", "a.key", "tuesday")]
    forget_key("tuesday")
    found = list_keys()
    assert [entry.key_id for entry in found] == ["a.key", "monday", "tuesday"]
    assert [entry.forgotten is None for entry in found] == [True, True, False]
    assert all(entry.binding == BINDING for entry in found)
    assert all(entry.created.endswith("+00:00") for entry in found)
    entries = b"".join(path.read_bytes() for path in folder.glob("*.json")).decode()
    assert not any(secret in repr(found) + entries for secret in secrets)


def test_make_key__killed_before_the_entry_is_repaired(folder):
    key = make_key("monday", BINDING)
    (folder / "monday.json").unlink()
    assert list_keys() == (key.entry,)
    assert words(read_key("monday", BINDING)) == words(key)
    assert words(make_key("monday", BINDING)) == words(key)
    assert (folder / "monday.json").exists()
    (folder / "monday.json").unlink()
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
from privpipe.store.keys import KeyBinding, make_key
for name in ("open", "fsync", "link", "unlink", "rename", "fchmod"):
    counted(name)
make_key("monday", KeyBinding("a" * 64, "b" * 64, "c" * 64))
print(calls)
"""


@pytest.mark.slow
def test_make_key__killed_at_every_step_leaves_no_key_or_a_whole_one(folder):
    for step in range(1, 100):
        run = subprocess.run(
            [sys.executable, "-c", KILLED, str(step)], capture_output=True, text=True
        )
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        key = make_key("monday", BINDING)
        assert words(make_key("monday", BINDING)) == words(key)
        secret = bytes.fromhex(secret_of(folder))
        forget_key("monday")
        left = b"".join(path.read_bytes() for path in folder.iterdir())
        assert secret.hex().encode() not in left
        assert {path.name for path in folder.iterdir()} <= {".lock", "monday.json"}
        (folder / "monday.json").unlink()
    assert step > 12


RACE = """
import sys
from privpipe.store.keys import KeyBinding, make_key
sys.stdin.readline()
for number in range(20):
    key = make_key(f"race{number}", KeyBinding("a" * 64, "b" * 64, "c" * 64))
    print(key.stream("d" * 64, 0, 1).words("noise", 1)[0, 0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False], ids=["lock", "no lock"])
def test_make_key__processes_at_once_get_one_key(folder, locks):
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


def test_sweep__a_leftover_link_never_destroys_the_key(folder):
    key = make_key("monday", BINDING)
    os.link(folder / "monday.key", folder / f".monday.{'0' * 16}.new")
    make_key("monday.x", BINDING)
    assert words(read_key("monday", BINDING)) == words(key)
    forget_key("monday")
    assert not list(folder.glob(".monday.*"))


@pytest.mark.parametrize("ending", ["key", "json"])
@pytest.mark.parametrize("position", [0.0, 0.3, 0.6, 0.95])
def test_read_key__damage_is_noticed_and_not_quoted(folder, ending, position):
    make_key("monday", BINDING)
    secret, path = secret_of(folder), folder / f"monday.{ending}"
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"monday.{ending} is damaged") as caught:
        read_key("monday", BINDING)
    assert caught.value.__context__ is None
    assert secret[:16] not in f"{caught.value!r}"
    if ending == "json":
        with pytest.raises(FormatError, match="is damaged"):
            forget_key("monday")
    else:
        forget_key("monday")
    assert not (folder / "monday.key").exists()


def test_read_key__a_renamed_key_file_is_not_another_key(folder):
    make_key("monday", BINDING)
    (folder / "monday.key").rename(folder / "tuesday.key")
    with pytest.raises(FormatError, match=r"tuesday\.key is damaged"):
        read_key("tuesday", BINDING)


def shown(secret: str) -> list[str]:
    raw = bytes.fromhex(secret)
    return [secret[:16], repr(raw)[2:10], raw[:8].decode("latin1")]


def test_key__never_in_repr_log_or_ticket(folder, caplog, capsys):
    key = make_key("monday", BINDING)
    carried, ticket, stream = key.carry(), key.ticket(), key.stream("d" * 64, 0, 1)
    caplog.set_level(logging.DEBUG)
    for thing in (key, carried, ticket, stream, key.entry):
        logging.getLogger("worker").warning("task failed with args %r %s", (thing,), thing)
        print(thing, [thing], {"key": thing})
    text = caplog.text + capsys.readouterr().out + pickle.dumps(ticket).decode("latin1")
    derived = stream._key.hex()
    for part in shown(secret_of(folder)) + shown(derived):
        assert part not in text


def test_key__is_not_pickled_or_copied_but_by_carry(folder):
    key = make_key("monday", BINDING)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(OptionError, match="'monday' is not pickled"):
            way(key)
    travelled = pickle.loads(pickle.dumps(key.carry()))
    assert words(travelled.open()) == words(key)
    assert "monday" in repr(travelled)


def test_ticket__opens_from_the_folder_or_from_memory(folder):
    key = make_key("monday", BINDING)
    ticket = pickle.loads(pickle.dumps(key.ticket()))
    assert words(ticket.open()) == words(key)
    receive_key(pickle.loads(pickle.dumps(key.carry())))
    (folder / "monday.key").rename(folder / "away")
    assert words(ticket.open()) == words(key)
    other = store_keys.KeyTicket("monday", KeyBinding("e" * 64, "b" * 64, "c" * 64), str(folder))
    with pytest.raises(PrivpipeError):
        other.open()
    forget_key("monday")
    with pytest.raises(StoreError, match="was destroyed"):
        ticket.open()


def test_key_folder__default_and_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("PRIVPIPE_KEYS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert key_folder() == tmp_path / "privpipe" / "keys"
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "mine"))
    assert key_folder() == tmp_path / "mine"
    assert key_folder(tmp_path / "given") == tmp_path / "given"


def test_make_key__folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be used.*PRIVPIPE_KEYS"):
        make_key("monday", BINDING, folder=tmp_path / "file" / "keys")


def test_check_keys_apart__either_inside_the_other_and_through_links(tmp_path):
    release, keys = tmp_path / "release", tmp_path / "keys"
    check_keys_apart(release, keys)
    for left, right in ((release, release / "keys"), (keys / "r", keys), (keys, keys)):
        with pytest.raises(OptionError, match="hold one another"):
            check_keys_apart(left, right)
    release.mkdir()
    (tmp_path / "link").symlink_to(release)
    with pytest.raises(OptionError, match="hold one another"):
        check_keys_apart(release, tmp_path / "link" / "keys")
