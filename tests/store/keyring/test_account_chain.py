"""The chain of an account: each changed, removed or exchanged thing in a real one is found."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import FormatError
from privpipe.store.access import location
from privpipe.store.access.location import create_bytes
from privpipe.store.keyring import account_chain as module
from privpipe.store.keyring.account import Account
from privpipe.store.keyring.account_chain import append_link, check_chain, read_chain
from privpipe.store.keyring.registers import (
    Registered,
    note_attempt,
    read_releases,
    register_release,
)
from tests.store.keyring.test_account import charge


def register(account: str, run: str, *, time: str = "2026", place: str = "/r") -> str:
    entry = Registered(f"{place}/{run}", run, "leace", "s", time, (("p", 9),))
    return register_release(account, entry).head


def note_charges(account: str, run: str, *, name: str) -> None:
    mine = [charge(name=name), charge(name=name, partition="q")]
    Account(account).reserve(mine, run, None)
    append_link(account, "charge")
    Account(account).record("confirm", mine, run)
    append_link(account, "charge")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Two runs with charges, attempts and releases; a refusal between them."""
    for number, run in enumerate(("r1", "r2")):
        note_charges(str(tmp_path), run, name=run)
        note_attempt(str(tmp_path), f"{number + 1:08x}" * 8, "0" * 64, {"p", run})
        register(str(tmp_path), run)
        append_link(str(tmp_path), "refusal", {"run": run, "codes": ["leaks"]})
    return tmp_path


def list_objects(account: Path) -> list[Path]:
    return sorted(file for file in account.rglob("*.json") if file.is_file())


def test_chain__holds_every_object_and_is_true(account: Path) -> None:
    chain = check_chain(str(account))
    held = {str(file.relative_to(account)) for file in list_objects(account)}
    links = {name for name in held if name.startswith(".chain/")}
    assert (set(chain.entries), len(links)) == (held - links, len(chain.links))
    kinds = ["charge", "charge", "attempt", "release", "refusal"]
    assert [link.kind for link in chain.links] == kinds * 2
    assert read_chain(str(account)) == chain


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [change, Path.unlink, lambda file: file.write_bytes(b"")])
def test_chain__finds_each_object_changed_removed_or_empty(
    account: Path, harm: Callable[[Path], None]
) -> None:
    for file in list_objects(account):
        content, name = file.read_bytes(), str(file.relative_to(account))
        harm(file)
        if file.name == "00000009.json" and not file.exists():  # a lost tail: see below
            assert name.startswith(".chain/")
        elif file.name == "00000009.json" and json_is_whole(file):
            assert read_chain(str(account)).head != module._digest(content)
        else:
            with pytest.raises(FormatError) as caught:
                check_chain(str(account))
            assert caught.value.code == "account-damaged"
        file.write_bytes(content)
    check_chain(str(account))


def json_is_whole(file: Path) -> bool:
    """Whether the last link can be read, though changed: nothing is behind it."""
    try:
        return bool(json.loads(file.read_bytes())["previous"])
    except (ValueError, KeyError):
        return False


@pytest.mark.parametrize("folder", [".chain", ".releases", ".attempts", "p"])
def test_chain__finds_two_entries_that_changed_places(account: Path, folder: str) -> None:
    first, second = sorted((account / folder).iterdir())[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    with pytest.raises(FormatError, match="not as its chain says"):
        check_chain(str(account))


def test_read_releases__one_wrong_character_hides_no_release(account: Path) -> None:
    """The attack: an entry of the register that can be read, of other records by one character."""
    file = account / ".releases" / "r1.json"
    file.write_text(file.read_text().replace('"p"', '"q"'))
    with pytest.raises(FormatError, match=r"\.releases/r1\.json") as caught:
        read_releases(str(account))
    assert caught.value.code == "account-damaged"
    file.unlink()
    with pytest.raises(FormatError, match=r"\.releases/r1\.json"):
        read_releases(str(account))


@pytest.mark.parametrize("missed", [[3], [7, 8], [1, 8]])
def test_read__a_listing_made_while_others_write_may_miss_what_is_there(
    tmp_path: Path, missed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two files that are made meanwhile a folder on a disk may show the second alone."""
    url, whole = str(tmp_path), module.list_keys
    for number in range(5):
        note_charges(url, f"r{number}", name=f"c{number}")
    links, entries = read_chain(url), Account(url).read("p").entries
    names = {module.number_name(number) for number in missed}

    def list_some(*given: Any) -> list[str]:
        return [key for key in whole(*given) if key.rpartition("/")[2] not in names]

    monkeypatch.setattr(module, "list_keys", list_some)
    assert (len(links.links), len(entries)) == (10, 10)
    assert read_chain(url) == links
    assert Account(url).read("p").entries == entries
    (tmp_path / ".chain" / module.number_name(missed[0])).unlink()
    (tmp_path / "p" / module.number_name(missed[0])).unlink()
    for read in (lambda: read_chain(url), lambda: Account(url).read("p")):
        with pytest.raises(FormatError) as caught:
            read()
        assert caught.value.code == "account-damaged"


def test_note_attempt__an_attempt_that_was_removed_is_missed(account: Path) -> None:
    next((account / ".attempts").iterdir()).unlink()
    with pytest.raises(FormatError, match="not as its chain says"):
        note_attempt(str(account), "9" * 64, "0" * 64, {"p"})


def test_chain__yesterdays_backup_does_not_know_todays_head(tmp_path: Path) -> None:
    account, backup = tmp_path / "account", tmp_path / "backup"
    yesterday = register(str(account), "r1")
    shutil.copytree(account, backup)
    today = register(str(account), "r2")
    chain, restored = check_chain(str(account)), check_chain(str(backup))
    assert (chain.knows(today), chain.knows(yesterday)) == (True, True)
    assert (restored.knows(today), restored.knows(yesterday)) == (False, True)
    assert restored.id == chain.id


def test_append_link__the_same_note_again_is_harmless(account: Path) -> None:
    note = {"run": "r", "case": "c"}
    once = append_link(str(account), "refusal", note)
    assert append_link(str(account), "refusal", note).head == once.head
    assert append_link(str(account), "approval", note).head != once.head
    assert [link.kind for link in read_chain(str(account)).links][-2:] == ["refusal", "approval"]


def test_chain__an_old_account_is_its_start_said_once(account: Path) -> None:
    before = {str(file.relative_to(account)) for file in list_objects(account)}
    shutil.rmtree(account / ".chain")
    assert check_chain(str(account)).links == ()
    assert len(read_releases(str(account))) == 2
    chain = append_link(str(account), "charge")
    assert len(chain.links) == 1
    assert set(chain.entries) == {name for name in before if not name.startswith(".chain/")}
    assert append_link(str(account), "charge") == chain == check_chain(str(account))
    assert Account(str(account)).read("p").n_charges == 2


def test_chain__a_release_noted_again_is_one_entry(account: Path) -> None:
    head = read_chain(str(account)).head
    assert register(str(account), "r2", time="2027") == head
    assert register(str(account), "r2", time="2027", place="/elsewhere") != head
    assert [one.url for one in read_releases(str(account)) if one.run == "r2"] == [
        "/r/r2",
        "/elsewhere/r2",
    ]
    check_chain(str(account))


def append_at_once(account: str, n_writers: int) -> None:
    def write(number: int) -> None:
        Account(account).reserve([charge(name=f"c{number}")], f"r{number}", None)
        append_link(account, "refusal", {"run": f"r{number}"})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(n_writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = check_chain(account)
    assert {link.note["run"] for link in chain.links} == {f"r{n}" for n in range(n_writers)}
    assert len(chain.links) == n_writers
    assert len(chain.entries) == n_writers


def test_append__of_many_writers_loses_none(tmp_path: Path) -> None:
    append_at_once(str(tmp_path), 6)


def test_append__in_a_bucket_of_two_writers_loses_none(place: str) -> None:
    append_at_once(f"{place}/account", 3)


def test_append__a_lost_answer_is_one_link(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_twice(url: str, value: bytes) -> bool:
        create_bytes(url, value)
        return create_bytes(url, value)

    monkeypatch.setattr(location, "create_bytes", ask_twice)
    for run in ("r1", "r2"):
        append_link(f"{place}/account", "refusal", {"run": run})
    assert [one.note["run"] for one in check_chain(f"{place}/account").links] == ["r1", "r2"]


def test_append__a_link_that_arrives_late_takes_no_place(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer was told that the store does not answer; another went on."""
    late: list[tuple[str, bytes]] = []

    def delay(url: str, value: bytes) -> bool:
        late.append((url, value))
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(location, "create_bytes", delay)
        with pytest.raises(module.StoreError, match="cannot be reached"):
            append_link(f"{place}/account", "refusal", {"run": "r1"})
    chain = append_link(f"{place}/account", "refusal", {"run": "r2"})
    assert not create_bytes(*late[0])
    assert check_chain(f"{place}/account").head == chain.head
