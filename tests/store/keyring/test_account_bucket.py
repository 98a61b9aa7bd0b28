"""The account in a bucket: nothing can be linked or locked there, and answers get lost.

A store is asked over a network: what it did may be unknown to who asked it, and may happen later.
The sum is never below what was given away.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from privpipe.errors import FormatError, GuaranteeError, StoreError
from privpipe.store.access import location as module
from privpipe.store.keyring import account_chain
from privpipe.store.keyring.account import Account, add_up_losses
from tests.store.keyring.test_account import charge

PUT = module.create_bytes


def read_epsilon(account: Account) -> float:
    return account.read("p").epsilon


@pytest.fixture
def account(bucket: str) -> Account:
    return Account(f"{bucket}/{uuid.uuid4().hex}/account")


@contextmanager
def storing(put: Callable[[str, bytes], bool]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "create_bytes", put)
        yield


def lose_answer(url: str, value: bytes) -> bool:
    """The object is there, and nobody says so."""
    PUT(url, value)
    raise TimeoutError("read timed out")


def ask_twice(url: str, value: bytes) -> bool:
    """A client that asks again by itself: the second answer is that it is there already."""
    PUT(url, value)
    return PUT(url, value)


def test_reserve__rivals_cannot_both_take_the_last_of_a_limit(account: Account) -> None:
    won: list[int] = []

    def take(number: int) -> None:
        with contextlib.suppress(GuaranteeError):
            account.reserve([charge(name=f"c{number}")], f"r{number}", 2.0)
            won.append(number)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 2
    assert read_epsilon(account) == 2.0


def test_reserve__a_lost_answer_is_charged_and_is_no_second_charge(account: Account) -> None:
    with storing(lose_answer), pytest.raises(StoreError, match="cannot be reached"):
        account.reserve([charge()], "r1", 1.0)
    assert read_epsilon(account) == 1.0
    account.reserve([charge()], "r1", 1.0)  # the run goes on
    assert read_epsilon(account) == 1.0


def test_reserve__a_put_that_was_sent_twice_is_one_entry(account: Account) -> None:
    with storing(ask_twice):
        account.reserve([charge()], "r1", 1.0)
    assert [entry.action for entry in account.read("p").entries] == ["reserve"]
    with pytest.raises(GuaranteeError):
        account.reserve([charge(name="b")], "r2", 1.0)
    with storing(ask_twice):
        account.record("confirm", [charge()], "r1")
    assert [entry.action for entry in account.read("p").entries] == ["reserve", "confirm"]


def test_void__that_arrives_late_takes_nothing_from_a_run_that_went_on(account: Account) -> None:
    """The store does what it was asked after who asked it has died, and started again."""
    account.reserve([charge()], "r1", 1.0)
    late: list[tuple[str, bytes]] = []

    def delay(url: str, value: bytes) -> bool:
        late.append((url, value))
        raise TimeoutError("read timed out")

    with storing(delay), pytest.raises(StoreError):
        account.record("void", [charge()], "r1")
    account.reserve([charge()], "r1", 1.0)  # goes on, and writes records
    assert not PUT(*late[0])
    assert read_epsilon(account) == 1.0


def test_void__before_the_run_goes_on_is_made_good(account: Account) -> None:
    """It arrives between what the run reads and what it writes."""
    account.reserve([charge()], "r1", 1.0)

    def overtaken(url: str, value: bytes) -> bool:
        with storing(PUT):  # every number is taken from under the first that asks for it
            if url.endswith("1.json"):
                account.record("void", [charge()], "r1")
        return PUT(url, value)

    with storing(overtaken):
        account.reserve([charge()], "r1", 1.0)
    assert read_epsilon(account) == 1.0
    assert [e.action for e in account.read("p").entries] == ["reserve", "void", "reserve"]


@pytest.mark.parametrize(
    ("harm", "most_tries"),
    [
        # Beyond a gap it asks for as many entries as it tries, one by one.
        ("gap", 20),
        pytest.param("gap", account_chain.MOST_TRIES, marks=pytest.mark.slow),
        ("bits", account_chain.MOST_TRIES),
        ("empty", account_chain.MOST_TRIES),
    ],
)
def test_read__a_damaged_account_stops_everything(
    account: Account, harm: str, most_tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_chain, "MOST_TRIES", most_tries)
    for name in "abc":
        account.reserve([charge(name=name)], "r", None)
    files, path = fsspec.core.url_to_fs(f"{account.url}/p/00000001.json")
    content = files.cat_file(path)
    if harm == "gap":
        files.rm_file(path)
    else:
        files.pipe_file(path, content.replace(b"1.0", b"0.1") if harm == "bits" else b"")
    with pytest.raises(FormatError, match="damaged at entry") as caught:
        account.reserve([charge(name="d")], "r", None)
    assert caught.value.code == "account-damaged"
    with pytest.raises(FormatError):
        list(account.read_all())


def test_reserve__over_the_limit_says_how_much_was_lost(account: Account) -> None:
    account.reserve([charge(0.75)], "r1", 1.0)
    with pytest.raises(GuaranteeError, match=r"has spent epsilon 0.75 in 1 release") as caught:
        account.reserve([charge(0.5, "b")], "r2", 1.0)
    assert caught.value.code == "account-exhausted"
    assert len(account.read("p").entries) == 1


@pytest.mark.parametrize("ask", [
    lambda a: a.reserve([charge()], "r", None),
    lambda a: a.read("p"),
    lambda a: list(a.read_all()),
])  # fmt: skip
def test_account__in_a_bucket_that_is_none_is_said(
    bucket: str, ask: Callable[[Account], Any]
) -> None:
    """A misspelt bucket is no account of no losses."""
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        ask(Account(f"s3://{uuid.uuid4().hex}/account"))
    assert caught.value.code == "unreachable"


class BucketMachine(RuleBasedStateMachine):
    """Runs, kills, repeats and rivals, whose answers are lost or whose requests arrive late."""

    url = ""

    @initialize()
    def begin(self) -> None:
        self.account = Account(f"{self.url}/{uuid.uuid4().hex}")
        self.given: dict[str, float] = {}
        self.late: list[tuple[str, bytes]] = []

    def _put(self, how: str) -> Callable[[str, bytes], bool]:
        def put(url: str, value: bytes) -> bool:
            if how == "late":
                self.late.append((url, value))
                raise TimeoutError
            return {"well": PUT, "lost": lose_answer, "twice": ask_twice}[how](url, value)

        return put

    @rule(
        name=st.sampled_from("abc"),
        run=st.sampled_from(["r1", "r2"]),
        first=st.sampled_from(["well", "well", "lost", "twice", "late"]),
        last=st.sampled_from(["well", "lost", "twice", "late"]),
        ends=st.sampled_from(["killed", "published", "failed before"]),
    )
    def work(self, name: str, run: str, first: str, last: str, ends: str) -> None:
        mine = charge(1.0 + "abc".index(name) / 7, name)
        try:
            with storing(self._put(first)):
                self.account.reserve([mine], run, 2.5)
        except GuaranteeError:
            assert add_up_losses([self.account.read("p").epsilon, mine.epsilon]) > 2.5
            return
        except StoreError:
            return  # nothing is written then
        if ends != "failed before":
            self.given[name] = mine.epsilon
        with storing(self._put(last)), contextlib.suppress(StoreError):
            if ends == "published":
                self.account.record("confirm", [mine], run)
            if ends == "failed before" and name not in self.given:
                self.account.record("void", [mine], run)

    @rule()
    def arrive(self) -> None:
        for url, value in self.late:
            PUT(url, value)
        self.late.clear()

    @invariant()
    def never_below_the_truth(self) -> None:
        if hasattr(self, "account"):
            loss = self.account.read("p").epsilon
            assert sum(self.given.values()) <= loss <= 2.5


def test_account__in_a_bucket_is_never_below_the_truth(bucket: str) -> None:
    case = type("Case", (BucketMachine,), {"url": bucket}).TestCase
    case.settings = settings(
        max_examples=4,
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    case().runTest()
