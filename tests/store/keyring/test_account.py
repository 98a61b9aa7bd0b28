"""The account: the sum never below the truth, whoever writes, dies or repeats."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from privpipe.command.key_commands import account_command
from privpipe.errors import FormatError, GuaranteeError, OptionError, StoreError
from privpipe.numerics.noise.composition import find_rho
from privpipe.numerics.noise.gaussian import bound_epsilon, find_sigma
from privpipe.numerics.random.record_overlap import Overlap
from privpipe.store.keyring.account import (
    GAUSSIAN_SHARE,
    ORDERS,
    SUM_SHARE,
    Account,
    Charge,
    Entry,
    Loss,
    add_up_losses,
    find_account,
    join_losses,
)
from privpipe.store.keyring.account_chain import append_link
from privpipe.store.keyring.sketches import Sketches, Ties


def charge(epsilon: float = 1.0, name: str = "a", partition: str = "p") -> Charge:
    return Charge(partition, name, epsilon, 1e-40, "record")


def test_reserve__the_same_draws_are_charged_once(tmp_path: Path) -> None:
    account = Account(str(tmp_path))
    for run in ("r1", "r2"):
        account.reserve([charge()], run, 1.5)
        account.record("confirm", [charge()], run)
    loss = account.read("p")
    assert (loss.epsilon, loss.n_charges, loss.n_open) == (1.0, 1, 0)
    account.reserve([charge(0.5, "b")], "r3", 1.5)
    assert account.read("p").epsilon == 1.5
    with pytest.raises(GuaranteeError, match=r"has spent epsilon 1.5 in 2 releases"):
        account.reserve([charge(0.1, "c")], "r4", 1.5)
    account.reserve([charge()], "r5", 1.5)  # a repeat, though the limit is reached


def test_reserve__limits_the_sum_of_deltas(tmp_path: Path) -> None:
    """Without any limit of epsilon: delta is the chance that nothing holds."""
    account = Account(str(tmp_path))
    half = [Charge("p", name, 1.0, 2.0**-61, "record") for name in "abc"]
    for number, one in enumerate(half[:2]):
        account.reserve([one], f"r{number}", None)
    with pytest.raises(GuaranteeError, match=r"lost delta 1.3e-18 in 3 releases") as caught:
        account.reserve(half[2:], "r3", None)
    assert 'use noise = "discrete"' in caught.value.remedy
    account.reserve(half[:1], "r5", None)  # a repeat
    assert account.read("p").delta == 2.0**-60
    # The limit that is named is enough: of epsilon as well.
    epsilon, delta = json.loads(re.findall(r"limit = (\[.*?\])", caught.value.remedy)[0])
    account.reserve(half[2:], "r6", epsilon, delta)


def test_reserve__beyond_a_delta_that_was_lost_already_advises_no_noise_without_one(
    tmp_path: Path,
) -> None:
    account = Account(str(tmp_path))
    account.reserve([Charge("p", "a", 1.0, 1e-6, "record")], "r1", None, 1e-6)
    pure = [Charge("p", "b", 4.004, 0.0, "record")]
    with pytest.raises(GuaranteeError, match="lost delta 1e-06 in 2 releases") as caught:
        account.reserve(pure, "r2", None)
    assert "discrete" not in caught.value.remedy
    epsilon, delta = json.loads(re.findall(r"limit = (\[.*?\])", caught.value.remedy)[0])
    account.reserve(pure, "r3", epsilon, delta)


def test_reserve__over_the_limit_of_one_partition_charges_none(tmp_path: Path) -> None:
    account = Account(str(tmp_path))
    account.reserve([charge(partition="full")], "r1", 1.0)
    with pytest.raises(GuaranteeError):
        account.reserve([charge(name="b"), charge(name="b", partition="full")], "r2", 1.0)
    assert account.read("p").epsilon == 0.0


RHO = find_rho(1 / find_sigma(0.3, 1e-6))


def masked(night: int, partition: str = "p") -> Charge:
    return Charge(partition, f"night {night}", 0.3, 1e-6, "record", RHO)


def test_reserve__composes_many_small_losses(tmp_path: Path) -> None:
    """Ten nights at .3 are a loss of 1.06, not 3; and the filter stops where its limit is."""
    account = Account(str(tmp_path))
    for night in range(10):
        account.reserve([masked(night)], f"r{night}", 1.06, 1e-6)
    assert account.read("p").epsilon > 2.9
    together = account.read_joined("p").compose(1e-6)
    assert together == pytest.approx(bound_epsilon(10 * RHO, GAUSSIAN_SHARE * 1e-6), rel=1e-6)
    # Of sizes that depend on nothing seen it is 1.03: both are paid for.
    assert together < 1.03 * bound_epsilon(10 * RHO, 1e-6)
    with pytest.raises(GuaranteeError, match=r"Composed, all are epsilon 1\.11"):
        account.reserve([masked(10)], "r10", 1.06, 1e-6)
    # A larger delta has room for two more.
    for night in (10, 11):
        account.reserve([masked(night)], f"r{night}", 1.06, 1e-5)
    with pytest.raises(GuaranteeError, match=r"Composed, all are epsilon 1\.07"):
        account.reserve([masked(12)], "r12", 1.06, 1e-5)


def test_shares__are_one_delta() -> None:
    """Sums have one, and so have the chances of other draws than Gaussian ones."""
    assert math.fsum([GAUSSIAN_SHARE, *(share for share, _ in ORDERS), 2 * SUM_SHARE]) <= 1


def test_reserve__composed_takes_no_sum_whose_delta_is_nearly_all(tmp_path: Path) -> None:
    """By sums or by composition, whichever fits: both failed, each with the whole delta."""
    account = Account(str(tmp_path))
    first = Charge("p", "a", 1.0, 1e-6, "record", find_rho(1 / find_sigma(1.0, 1e-6)))
    account.reserve([first], "r1", 1.0, 1e-6)  # one draw may be all
    pure = Charge("p", "b", 1.0, 0.0, "record")
    with pytest.raises(
        GuaranteeError, match=r"limit of 2\. Composed, all are epsilon 2\.\d+ at that"
    ):
        account.reserve([pure], "r2", 2.0, 1e-6)
    account.reserve([pure], "r2", 2.0, 2e-5)


def test_reserve__without_a_delta_nothing_is_composed(tmp_path: Path) -> None:
    """The least delta stands for none: only sums hold then."""
    account = Account(str(tmp_path))
    account.reserve([charge(0.5)], "r1", 0.6)
    with pytest.raises(GuaranteeError, match=r"would be above the limit of 0\.6"):
        account.reserve([charge(0.11, "b")], "r2", 0.6)


def test_reserve__draws_of_before_count_by_their_epsilon_but_for_their_delta(
    tmp_path: Path,
) -> None:
    account = Account(str(tmp_path))
    for night in range(30):
        pure = Charge("p", f"night {night}", 0.2, 1e-9, "record")
        account.reserve([pure], f"r{night}", 5.3, 1e-5)
    total = account.read_joined("p")
    assert total.sums[4] == pytest.approx(3e-8)
    assert total.compose(1e-5) < 5.3 < 5.9 < total.epsilon
    # What may fail already is taken from what may fail in all.
    assert total.compose(3e-8) == math.inf
    entry = json.loads(next((tmp_path / "p").glob("*.json")).read_text())
    assert "rho" not in json.loads(entry["entry"])


def test_reserve__of_the_same_people_in_another_partition_counts_what_was_composed_there(
    tmp_path: Path,
) -> None:
    half = Overlap(0.5, 0.5)
    account = Account(str(tmp_path), Ties({"p": {"q": half}, "q": {"p": half}}))
    for night in range(10):
        account.reserve([masked(night, "q")], f"r{night}", 1.06, 1e-6)
    with pytest.raises(GuaranteeError, match=r"Composed, all are epsilon 1\.11"):
        account.reserve([masked(99, "p")], "r", 1.06, 1e-6)
    assert account.read("p").n_charges == 0


def test_join_losses__takes_by_each_measure_the_dearest_of_a_run() -> None:
    """By epsilon alone the one of less epsilon, and of a delta, was said to have lost no delta."""
    large = Entry(0, "reserve", "a", 1.0, 0.0, "record", "r", "")
    likely = Entry(0, "reserve", "b", 0.9, 1e-6, "record", "r", "", RHO)
    joined = join_losses([Loss("p", (large,)), Loss("q", (likely,))], lambda a, b: False)
    assert joined.sums[:5] == (1.0, 1e-6, RHO, 1.0, 0.0)
    assert sorted(joined.sums[5:])[-2:] == [find_rho(1.0), 1.0]


def test_account_command__says_what_is_left(tmp_path: Path, capsys: Any) -> None:
    account = Account(str(tmp_path))
    for night in range(10):
        account.reserve([masked(night)], f"r{night}", 3.0, 1e-6)
    (one,) = account_command(str(tmp_path), limit="1.18,1e-6")["partitions"]
    assert one["joined_epsilon"] > 2.9
    assert 1.055 < one["composed_epsilon"] < 1.056
    assert one["releases_left"] == 2  # eleven are 1.12, twelve 1.17, thirteen 1.22
    assert "1.06" in capsys.readouterr().out  # rounded up
    # At a delta below its own no sum holds of a draw that is known by its epsilon alone.
    account.reserve([Charge("q", "a", 1.0, 1e-5, "record")], "r", None, 1e-5)
    found = {each["partition"]: each for each in account_command(str(tmp_path))["partitions"]}
    assert found["q"]["composed_epsilon"] is None
    for wrong in ("x", "1,2", "-1", "1,1e-6,3", "1,0"):
        with pytest.raises(OptionError, match="--limit is"):
            account_command(str(tmp_path), limit=wrong)


def test_account_command__of_a_place_where_nothing_is(tmp_path: Path) -> None:
    """A misspelt account was one to which nothing was ever charged."""
    for place in (tmp_path / "acount", "memory://acount"):
        with pytest.raises(StoreError, match=r"no account at .*acount: nothing is there"):
            account_command(str(place))
    assert not list(tmp_path.iterdir())


def test_account__that_is_a_file_or_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was ever charged there, it was said; a folder within it may be the one."""
    (tmp_path / "file").touch()
    charge = Charge("p", "a", 1.0, 0.0, "record")
    with pytest.raises(
        StoreError, match=r"file.* is no folder that can be read \(not a directory\)"
    ):
        account_command(str(tmp_path / "file"))
    with pytest.raises(StoreError, match="PRIVPIPE_ACCOUNT"):
        Account(str(tmp_path / "file")).reserve([charge], "r", None)
    account, scan = Account(str(tmp_path / "account")), os.scandir
    account.reserve([charge], "r", None)

    def refuse(path: str) -> object:  # as to others than root, who runs tests
        if path.endswith("account/p/"):
            raise PermissionError(errno.EACCES, "no")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match=r"no folder that can be read \(permission denied\)"):
        account.read("p")


def test_account_command__says_as_many_as_a_run_allows(tmp_path: Path) -> None:
    """Without a delta a run adds epsilons up; composed it was said that 36 more fit, not 28."""

    def draw(night: int) -> Charge:
        return Charge("p", f"night {night}", 0.1, 0.0, "record")

    account = Account(str(tmp_path))
    account.reserve([draw(0)], "r0", 3.0)
    (one,) = account_command(str(tmp_path), limit="3.0")["partitions"]
    for night in range(1, 1 + one["releases_left"]):
        account.reserve([draw(night)], f"r{night}", 3.0)
    with pytest.raises(GuaranteeError, match="above the limit"):
        account.reserve([draw(99)], "r99", 3.0)
    append_link(str(tmp_path), "charge")
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(FormatError, match="is missing or was changed"):
        account_command(str(tmp_path))


def test_join_losses__of_partitions_that_meet_adds_rho_up() -> None:
    def loss(partition: str, run: str) -> Loss:
        entry = Entry(0, "reserve", partition + run, 0.1, 1e-6, "record", run, "", 0.001)
        return Loss(partition, (entry,))

    pair = [loss("p", "r"), loss("q", "r")]
    assert join_losses(pair, lambda a, b: True).sums[2] == pytest.approx(0.002)
    assert join_losses(pair, lambda a, b: False).sums[2] == 0.001


def test_void__gives_back_only_what_nobody_else_holds(tmp_path: Path) -> None:
    account = Account(str(tmp_path))
    account.reserve([charge()], "r1", None)
    account.reserve([charge()], "r2", None)
    account.record("void", [charge()], "r1")
    assert account.read("p").epsilon == 1.0
    account.record("void", [charge()], "r2")
    assert account.read("p").epsilon == 0.0
    account.reserve([charge()], "r1", None)
    assert account.read("p").epsilon == 1.0


def test_reserve__two_writers_cannot_both_take_the_last_of_a_limit(tmp_path: Path) -> None:
    account, won = Account(str(tmp_path)), []

    def take(number: int) -> None:
        try:
            account.reserve([charge(name=f"c{number}")], f"r{number}", 3.0)
            won.append(number)
        except GuaranteeError:
            pass

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 3
    assert account.read("p").epsilon == 3.0


@pytest.mark.parametrize("harm", ["gap", "bits", "empty", "order"])
def test_read__a_damaged_account_stops_everything(tmp_path: Path, harm: str) -> None:
    account = Account(str(tmp_path))
    for name in "abc":
        account.reserve([charge(name=name)], "r", None)
    files = sorted((tmp_path / "p").glob("*.json"))
    if harm == "gap":
        files[1].unlink()
    elif harm == "bits":
        files[1].write_bytes(files[1].read_bytes().replace(b"1.0", b"0.1"))
    elif harm == "empty":
        files[1].write_bytes(b"")
    else:
        os.rename(files[0], tmp_path / "x")
        os.rename(files[1], files[0])
        os.rename(tmp_path / "x", files[1])
    with pytest.raises(FormatError, match="damaged at entry"):
        account.reserve([charge(name="d")], "r", None)


def test_reserve__an_account_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"read \(not a directory\)"):
        Account(str(tmp_path / "file" / "account")).reserve([charge()], "r", None)


def test_write__a_kill_between_file_and_name_leaves_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(str(tmp_path))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", die)
    monkeypatch.setattr(os, "unlink", lambda _: None)  # a kill cleans nothing up
    with pytest.raises(KeyboardInterrupt):
        account.reserve([charge()], "r", None)
    monkeypatch.undo()
    assert account.read("p").entries == ()
    account.reserve([charge()], "r", None)
    assert account.read("p").epsilon == 1.0


def test_read_all__lists_partitions_and_nothing_of_the_key(tmp_path: Path) -> None:
    account = Account(str(tmp_path / "new"))
    assert list(account.read_all()) == []
    account.reserve([charge(), charge(partition="q")], "r", None)
    assert [loss.partition for loss in account.read_all()] == ["p", "q"]
    entry = json.loads(next((tmp_path / "new" / "p").glob("*.json")).read_text())
    assert set(json.loads(entry["entry"])) == {
        "number", "action", "charge", "epsilon", "delta", "protects", "run", "time",
    }  # fmt: skip


def test_find_account__is_given_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", "s3://bucket/account")
    assert find_account() == "s3://bucket/account"
    assert find_account("/a") == "/a"


def test_add_up__is_never_below_the_exact_sum() -> None:
    for losses in ([0.1] * 10, [1e16, 1.0, 1.0], [1e-300] * 7, [0.3, 0.6, 2.0**-60]):
        assert Fraction(add_up_losses(losses)) >= sum(map(Fraction, losses))


class AccountMachine(RuleBasedStateMachine):
    """Runs, kills, repeats and rivals against a list of what was truly given away."""

    @initialize(folder=st.uuids())
    def begin(self, folder: object) -> None:
        import tempfile

        self.account = Account(tempfile.mkdtemp(prefix="privpipe-account-"))
        self.given: dict[str, float] = {}
        self.limit = 4.0

    @rule(
        name=st.sampled_from("abcdef"),
        run=st.sampled_from(["r1", "r2", "r3"]),
        ends=st.sampled_from(["killed before", "killed after", "published", "failed before"]),
    )
    def work(self, name: str, run: str, ends: str) -> None:
        """A run reserves, and then is killed, fails, or writes and publishes."""
        mine = charge(1.0 + "abcdef".index(name) / 7, name)
        try:
            self.account.reserve([mine], run, self.limit)
        except GuaranteeError:
            held = self.account.read("p").epsilon  # at least what was given away
            assert add_up_losses([held, mine.epsilon]) > self.limit
            return
        if ends in ("published", "killed after"):
            self.given[name] = mine.epsilon
        if ends == "published":
            self.account.record("confirm", [mine], run)
        if ends == "failed before" and name not in self.given:
            self.account.record("void", [mine], run)

    @invariant()
    def never_below_the_truth(self) -> None:
        if hasattr(self, "account"):
            loss = self.account.read("p").epsilon
            assert Fraction(loss) >= sum(map(Fraction, self.given.values()))
            assert loss <= self.limit


TestAccount = AccountMachine.TestCase
TestAccount.settings = settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


TIED = Ties({"a" * 64: {"b" * 64: Overlap(1.0, 1.0)}, "b" * 64: {"a" * 64: Overlap(1.0, 1.0)}})


@pytest.mark.parametrize("delta", [0.0, 2.0**-100])
@pytest.mark.parametrize("where", ["a" * 64, "b" * 64])
def test_reserve__a_delta_that_the_same_records_lost_elsewhere_counts(
    tmp_path: Path, where: str, delta: float
) -> None:
    account = Account(str(tmp_path / "account"), TIED)
    account.reserve([Charge("a" * 64, "first", 0.5, 1e-6, "record")], "one", 3.0, 1e-6)
    with pytest.raises(GuaranteeError, match="would have lost delta"):
        account.reserve([Charge(where, "next", 0.5, delta, "record")], "two", 3.0)


def sketch_same_people(url: str, *partitions: str) -> None:
    """Each with the same ten people, sketched one after the other."""
    people = np.random.default_rng(0).integers(1, 2**64, (10, 4), dtype=np.uint64)
    Sketches(url).key()
    for one in partitions:
        Sketches(url).write({one * 64: {"frame": people}})


def test_reserve__of_two_runs_whose_partitions_share_people_one_is_refused(tmp_path: Path) -> None:
    """Each looked for what partitions have in common before the other had sketched its own."""
    url, (one, other) = str(tmp_path), (charge(1.0, k, k * 64) for k in "ab")
    sketch_same_people(url, "a")
    early = Account(url, Sketches(url).ties())
    sketch_same_people(url, "b")
    late = Account(url, Sketches(url).ties())
    late.reserve([other], "late", 1.5)
    with pytest.raises(GuaranteeError, match=r"in 1 partitions with records of it\); another 1"):
        early.reserve([one], "early", 1.5)
    assert late.read_joined("a" * 64).epsilon == 1.0
    early.reserve([one], "early", 2.0)
    assert late.read_joined("a" * 64).epsilon == 2.0


@pytest.mark.parametrize(("limit", "rho"), [(None, 0.01), (None, None), (3.0, None)])
def test_reserve__of_two_rivals_one_is_refused_for_delta(
    tmp_path: Path, limit: float | None, rho: float | None
) -> None:
    """The other reserves the same records, in another partition, between our look and our entry."""
    url = str(tmp_path / "account")
    theirs, mine = (Charge(k * 64, k, 1.0, 1e-6, "record", rho) for k in "ba")

    class Late(Account):
        def _write(self, action: Any, charge: Charge, run: str, number: int) -> bool:
            if not Account(url).read("b" * 64).entries:
                Account(url, TIED).reserve([theirs], "theirs", limit, 1e-6)
            return super()._write(action, charge, run, number)

    sketch_same_people(url, "a", "b")
    with pytest.raises(GuaranteeError, match="would be above"):
        Late(url, TIED).reserve([mine], "mine", limit, 1e-6)
    assert Account(url, TIED).read_joined("a" * 64).delta <= 1e-6
