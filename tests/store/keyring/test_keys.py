"""Release keys: made once, bound, private, destroyable, and never shown."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import FormatError, OptionError, PrivpipeError, StoreError
from privpipe.store.keyring import keys as store_keys
from privpipe.store.keyring.keyfiles import KeyBinding, KeyEntry, check_keys_apart, key_folder
from privpipe.store.keyring.keys import forget_key, list_keys, make_key, read_key
from tests.store.release_keys import BINDING, secret_of, words


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_make_key__again_gives_the_same_and_another_id_another(keys_home):
    first = make_key("monday", BINDING)
    assert words(make_key("monday", BINDING)) == words(first)
    assert words(read_key("monday", BINDING)) == words(first)
    assert words(make_key("tuesday", BINDING)) != words(first)
    assert len(bytes.fromhex(secret_of(keys_home))) == 32


@pytest.mark.parametrize("part", ["source", "model", "options"])
@pytest.mark.parametrize("ask", [make_key, read_key])
def test_make_key__another_binding_is_refused_by_name(keys_home, ask, part):
    make_key("monday", BINDING)
    other = KeyBinding(**{**vars(BINDING), part: "e" * 64})
    with pytest.raises(OptionError, match=f"'monday' was made for another {part}") as caught:
        ask("monday", other)
    assert caught.value.code == "key_binding"
    assert caught.value.exit_code == 2
    assert secret_of(keys_home) not in f"{caught.value!r} {caught.value}"


def test_make_key__all_mismatches_are_named(keys_home):
    make_key("monday", BINDING)
    with pytest.raises(OptionError, match="another source and another options"):
        make_key("monday", KeyBinding("e" * 64, "b" * 64, "e" * 64))


def test_stream__depends_on_the_binding_even_with_equal_secrets(keys_home):
    key = make_key("monday", BINDING)
    moved = KeyEntry("monday", KeyBinding("a" * 64, "b" * 64, "e" * 64), key.entry.created)
    forged = store_keys.ReleaseKey(moved, key._secret, str(keys_home))
    assert not np.intersect1d(words(forged), words(key)).size


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_make_key__private_modes_under_any_umask(keys_home, umask):
    before = os.umask(umask)
    try:
        make_key("monday", BINDING)
        forget_key("monday")
        make_key("tuesday", BINDING)
    finally:
        os.umask(before)
    assert mode(keys_home) == mode(keys_home.parent) == 0o700
    assert {path.name for path in keys_home.iterdir()} == {
        ".lock",
        "monday.json",
        "tuesday.json",
        "tuesday.key",
    }
    assert all(mode(path) == 0o600 for path in keys_home.iterdir() if path.name != ".lock")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda f: f.chmod(0o750), "keys is not private.*mode 750.*chmod 700"),
        (lambda f: (f / "monday.key").chmod(0o640), "monday.key is not private.*chmod 600"),
        (lambda f: _swap_for_link(f / "monday.key"), "monday.key"),
        (lambda f: _swap_for_link(f), "cannot be used"),
    ],
)
def test_read_key__files_open_to_others_or_linked_are_refused(keys_home, spoil, match):
    make_key("monday", BINDING)
    spoil(keys_home)
    for ask in (read_key, make_key):
        with pytest.raises(StoreError, match=match):
            ask("monday", BINDING)


def _swap_for_link(path: Path) -> None:
    real = path.rename(path.with_name("elsewhere"))
    path.symlink_to(real)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_read_key__another_owner_is_refused(keys_home):
    make_key("monday", BINDING)
    os.chown(keys_home / "monday.key", 12345, 12345)
    with pytest.raises(StoreError, match="owner 12345"):
        read_key("monday", BINDING)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "x" * 101, "a\n", "a b"])
@pytest.mark.parametrize("ask", [lambda n: make_key(n, BINDING), forget_key])
def test_make_key__ids_that_are_no_plain_names_are_refused(keys_home, ask, name):
    with pytest.raises(OptionError, match="is not usable"):
        ask(name)


@pytest.mark.parametrize("digest", ["", "xyz", "A" * 64, "a" * 31, "a" * 129])
def test_key_binding__wants_digests(digest):
    with pytest.raises(OptionError, match="model digest of a key"):
        KeyBinding("a" * 64, digest, "c" * 64)


def test_read_key__never_made(keys_home):
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
def test_make_key__a_lost_key_is_never_made_anew(keys_home, ask):
    make_key("monday", BINDING)
    (keys_home / "monday.key").unlink()
    with pytest.raises(StoreError, match=r"'monday' is missing.*Restore its file"):
        ask("monday", BINDING)


@pytest.mark.parametrize("ask", [make_key, read_key])
def test_forget_key__destroys_for_good(keys_home, ask):
    make_key("monday", BINDING)
    kept = (keys_home / "monday.key").read_bytes()
    held = os.open(keys_home / "monday.key", os.O_RDONLY)
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
    (keys_home / "monday.key").write_bytes(kept)  # from a backup
    (keys_home / "monday.key").chmod(0o600)
    with pytest.raises(StoreError, match="'monday' was destroyed on"):
        ask("monday", BINDING)
    assert forget_key("monday") == entry
    assert not (keys_home / "monday.key").exists()


def test_list_keys__ids_bindings_times_and_no_secret(keys_home):
    assert list_keys() == ()
    make_key("monday", BINDING)
    make_key("a.key", BINDING)
    make_key("tuesday", BINDING)
    secrets = [secret_of(keys_home, name) for name in ("monday", "a.key", "tuesday")]
    forget_key("tuesday")
    found = list_keys()
    assert [entry.key_id for entry in found] == ["a.key", "monday", "tuesday"]
    assert [entry.forgotten is None for entry in found] == [True, True, False]
    assert all(entry.binding == BINDING for entry in found)
    assert all(entry.created.endswith("+00:00") for entry in found)
    entries = b"".join(path.read_bytes() for path in keys_home.glob("*.json")).decode()
    assert not any(secret in repr(found) + entries for secret in secrets)


@pytest.mark.parametrize("ending", ["key", "json"])
@pytest.mark.parametrize("position", [0.0, 0.3, 0.6, 0.95])
def test_read_key__damage_is_noticed_and_not_quoted(keys_home, ending, position):
    make_key("monday", BINDING)
    secret, path = secret_of(keys_home), keys_home / f"monday.{ending}"
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
    assert not (keys_home / "monday.key").exists()


def test_read_key__a_renamed_key_file_is_not_another_key(keys_home):
    make_key("monday", BINDING)
    (keys_home / "monday.key").rename(keys_home / "tuesday.key")
    with pytest.raises(FormatError, match=r"tuesday\.key is damaged"):
        read_key("tuesday", BINDING)


def shown(secret: str) -> list[str]:
    raw = bytes.fromhex(secret)
    return [secret[:16], repr(raw)[2:10], raw[:8].decode("latin1")]


def test_key__never_in_repr_log_or_ticket(keys_home, caplog, capsys):
    key = make_key("monday", BINDING)
    ticket, stream = key.ticket(), key.stream("d" * 64, 0, 1)
    caplog.set_level(logging.DEBUG)
    for thing in (key, ticket, stream, key.entry):
        logging.getLogger("worker").warning("task failed with args %r %s", (thing,), thing)
        print(thing, [thing], {"key": thing})
    text = caplog.text + capsys.readouterr().out + pickle.dumps(ticket).decode("latin1")
    derived = stream._key.hex()
    for part in shown(secret_of(keys_home)) + shown(derived):
        assert part not in text


def test_key__is_not_pickled_or_copied(keys_home):
    key = make_key("monday", BINDING)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(OptionError, match="'monday' is not pickled"):
            way(key)


def test_ticket__opens_from_the_folder(keys_home):
    key = make_key("monday", BINDING)
    ticket = pickle.loads(pickle.dumps(key.ticket()))
    assert words(ticket.open()) == words(key)
    other = store_keys.KeyTicket("monday", KeyBinding("e" * 64, "b" * 64, "c" * 64), str(keys_home))
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
