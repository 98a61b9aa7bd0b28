"""Runs of private masking: what is charged, what is used again, and what a killed run leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.command.key_commands import account_command
from privpipe.errors import GuaranteeError, OptionError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages import clean
from privpipe.pipeline.stages.audit import audit_surrogates
from privpipe.store.keyring.account import Account
from privpipe.store.models import open_model
from privpipe.store.releases.published import check_release
from tests.standard import write_standard
from tests.store.serial_run import run_serially, serial_flows


def options(folder: Path, name: str, **more: Any) -> RunOptions:
    method = {
        "name": "masking_private",
        "epsilon": 1.0,
        "delta": 1e-5,
        "n_surrogates": 60,
        "bound": {"*": (-400, 400)},
    } | more.pop("method", {})
    return RunOptions(
        collection={"path": str(folder / "records.zarr"), "desired": ["late"]},
        method=method,
        release={"path": str(folder / f"{name}.zarr")},
        audit={"holdout": 0.3},
        privacy={"account": str(folder / "account")} | more.pop("privacy", {}),
        gate=more.pop("gate", {}),
        cluster={"workers": 0},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    write_standard(str(tmp_path / "records.zarr"), 2000, chunk_rows=300)
    return tmp_path


def release(chosen: RunOptions) -> np.ndarray:
    with serial_flows():
        run_serially(chosen)
    import zarr

    return np.asarray(zarr.open_group(chosen.release.path, mode="r")["features"])


def read_losses(folder: Path) -> list[tuple[float, float, int]]:
    account = Account(str(folder / "account"))
    return [(loss.epsilon, loss.delta, loss.n_charges) for loss in account.read_all()]


@pytest.mark.slow
def test_run__charges_once_whatever_is_made_of_the_moments(folder: Path) -> None:
    first = release(options(folder, "one"))
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    header = check_release(str(folder / "one.zarr"))
    promise = dict(header["guarantee"])
    assert (promise["kind"], promise["number"], promise["delta"]) == ("central_dp", 1.0, 1e-5)
    # The same again is the same noise, and costs nothing.
    assert np.array_equal(release(options(folder, "two")), first)
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    other = options(folder, "three", method={"epsilon": 0.5})
    with pytest.raises(GuaranteeError, match=r"lost delta 2e-05 in 2 releases"):
        release(other)
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    release(options(folder, "three", method={"epsilon": 0.5}, privacy={"limit": (2.0, 1e-4)}))
    assert {round(epsilon, 9) for epsilon, _, _ in read_losses(folder)} == {1.5}
    # The sum is 2.2, and what it means together is less.
    release(options(folder, "four", method={"epsilon": 0.7}, privacy={"limit": (2.0, 1e-4)}))
    (found, *_) = account_command(str(folder / "account"), limit="2.0,1e-4")["partitions"]
    assert found["joined_epsilon"] == pytest.approx(2.2)
    assert 1.2 < found["composed_epsilon"] < 1.5
    assert found["releases_left"] == 2
    with pytest.raises(GuaranteeError, match="above"):
        release(options(folder, "five", method={"epsilon": 1.9}, privacy={"limit": (2.0, 1e-4)}))


# Canaries take most of the time, and have keys of their own: the account knows nothing of them.
@pytest.mark.parametrize("canaries", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run__that_was_killed_ends_with_the_same_noise_and_one_charge(
    folder: Path, monkeypatch: pytest.MonkeyPatch, canaries: bool
) -> None:
    if not canaries:
        monkeypatch.setattr(audit_surrogates, "audit_canaries", lambda _: None)
    seen: list[Any] = []

    def die(*_: Any, **__: Any) -> None:
        [model] = folder.glob("**/model.zarr")
        seen.append(open_model(str(model)).moments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(clean.cleaning_pass, "draw_surrogates", die)
        with pytest.raises(KeyboardInterrupt):
            release(options(folder, "one"))
    # Nothing of it was visible: the loss was given back.
    assert set(read_losses(folder)) == {(0.0, 0.0, 0)}
    release(options(folder, "one"))
    stored = open_model(str(folder / "one.model.zarr"))
    assert np.array_equal(stored.moments, seen[0])
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}


@pytest.mark.parametrize("limit", [(1.0, 1.5), (1.0,), (-1.0, 1e-5), "3"])
def test_limit__takes_one_number_or_two(folder: Path, limit: Any) -> None:
    with pytest.raises((OptionError, ValueError)):
        options(folder, "one", privacy={"limit": limit})
