"""An account that has forgotten, and an earlier release that nobody can reach: whole runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import FormatError, GateError, GuaranteeError
from privpipe.pipeline.runs.earlier import find_earlier
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.gate import list_weaker_limits
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.registers import read_releases, register_release
from privpipe.store.releases.lazy_release import open_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially, write_small_collection
from tests.store.test_noisy_crash_points import make_noisy

DEAD = "http://127.0.0.1:1/release.zarr"
"""Nobody listens there: the client's own exception."""


pytestmark = pytest.mark.usefixtures("serially")


def test_noisy_run__on_yesterdays_account_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    write_small_collection(str(tmp_path / "records.zarr"))
    write_small_collection(str(tmp_path / "public.zarr"), seed=8)
    options = make_noisy(tmp_path, tmp_path / "out")

    def run(name: str) -> None:
        release = options.release.model_copy(update={"path": str(tmp_path / "out" / name)})
        run_serially(options.model_copy(update={"release": release}))

    run("monday.zarr")
    account, backup = tmp_path / "out" / "account", tmp_path / "backup"
    shutil.copytree(account, backup)
    run("tuesday.zarr")
    header = open_release(str(tmp_path / "out" / "tuesday.zarr")).attrs["privpipe"]
    assert set(header["account"]) == {"chain", "head"}
    shutil.rmtree(account)
    shutil.copytree(backup, account)
    with pytest.raises(GuaranteeError, match=r"does not know the release .*tuesday") as caught:
        run("wednesday.zarr")
    assert (caught.value.code, caught.value.exit_code) == ("account-behind", 6)
    assert not (tmp_path / "out" / "wednesday.zarr").exists()
    shutil.rmtree(account)  # not even yesterday's: begun anew, the limit would be there again
    with pytest.raises(GuaranteeError, match="does not know the release"):
        run("thursday.zarr")


@pytest.mark.slow
def test_gate__names_an_earlier_release_in_a_dead_bucket(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    write_records(str(tmp_path / "records.zarr"), make_records(2000))

    def make(place: str, **audit: Any) -> Any:
        return make_leaky_options(
            tmp_path,
            method={"name": "leace"},
            release={"path": f"{tmp_path}/{place}"},
            audit={"adversaries": ()} | audit,
            gate={"enforce": False},
        )

    run_serially(make("a.zarr"))
    account = find_account()
    (entry,) = read_releases(account)
    register_release(account, replace(entry, run="01234567", url=DEAD))
    found = find_earlier(check_stage(make("b.zarr")))
    (unread,) = found.unread
    assert unread.target == "leace 01234567"
    assert "cannot be read (unreachable)" in unread.reason
    enforced = make_leaky_options(
        tmp_path, method={"name": "leace"}, release={"path": f"{tmp_path}/b.zarr"}
    )
    with pytest.raises(GateError, match="leace 01234567"):
        run_serially(enforced)
    assert not (tmp_path / "b.zarr").exists()
    disowned = make("c.zarr", disowned=("01234567",))
    known = find_earlier(check_stage(disowned))
    assert (known.unread, len(known.warnings)) == ((), 1)
    assert "earlier releases disowned: 01234567" in list_weaker_limits(disowned)
    file = Path(account) / ".releases" / "01234567.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rows": False}))
    with pytest.raises(FormatError, match="01234567"):  # it was dropped in silence
        run_serially(make("d.zarr"))
