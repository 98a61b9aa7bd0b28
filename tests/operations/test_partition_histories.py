"""Partitions that are replaced, withdrawn, erased from and brought back, in any order."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.command.ingest_command import withdraw_command
from privpipe.errors import GateError, InputError, OptionError
from privpipe.flows import increment_flow
from privpipe.pipeline.operations import promised_releases
from privpipe.pipeline.operations.erase import ErasureOptions, erase_records
from privpipe.pipeline.operations.record_removal import ChosenRecords
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import Run, Trained
from privpipe.pipeline.stages import clean
from privpipe.pipeline.stages.increment_check import check_growing
from privpipe.store.access.workspace import has_workspace
from privpipe.store.collections.growing_collection import append_partition, read_partitions
from privpipe.store.collections.ingest import IngestOptions
from privpipe.store.keyring.account import Account
from privpipe.store.releases.incremental_release import (
    PrivateLedger,
    delete_part,
    purge_parts,
    read_incremental,
)
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.release_writing import ReleasePlan
from privpipe.store.sources.reading.source import SourceLayout
from tests.operations import increments
from tests.operations.test_drift import read_parts, read_state


def draw(seed: int, n: int = 200) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 3))


class Later(datetime):
    """Two days after now."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) + timedelta(days=2)


@pytest.mark.parametrize("by", ["records", pytest.param("options", marks=pytest.mark.slow)])
def test_part__that_came_back_is_not_deleted_when_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Retired and live at once: a sweep would leave readers a generation without records."""
    options = increments.configure(tmp_path)
    url = options.release.path
    increments.append(tmp_path, "a", draw(1), 0)
    increments.append(tmp_path, "b", draw(2), 1)
    increments.release(options)
    if by == "records":
        for seed in (3, 2):
            increments.append(tmp_path, "b", draw(seed), 1, replacing=True)
            increments.release(options)
    else:
        increments.release(increments.configure(tmp_path, budget=0.1))
        increments.release(increments.configure(tmp_path))
    assert not {one.id for one in read_state(url).retired} & {p.id for p in read_state(url).parts}
    monkeypatch.setattr(increment_flow, "datetime", Later)
    monkeypatch.setattr("privpipe.store.releases.incremental_release.datetime", Later)
    increments.append(tmp_path, "c", draw(4), 2)
    increments.release(options)
    purge_parts(url)
    with open_release(url, verify=True) as opened:
        assert opened.features.shape == (600, 3)
        assert np.isfinite(opened.features.values).all()


def test_window__of_a_new_history_leaves_nothing_behind_that_readers_had(tmp_path: Path) -> None:
    options = increments.configure(tmp_path)
    for number, name in enumerate("abc"):
        increments.append(tmp_path, name, draw(number), number)
    increments.release(options)
    increments.append(tmp_path, "d", draw(9), 3)
    increments.release(increments.configure(tmp_path, budget=0.1), since=1, until=2)
    assert sorted(read_parts(options.release.path)) == ["a", "b", "c"]


def test_withdraw__means_the_records_that_the_name_has_now(tmp_path: Path) -> None:
    """The same records under another name, and other records under the same."""
    options, config = increments.configure(tmp_path), str(tmp_path / "run.toml")
    url = options.release.path
    increments.append(tmp_path, "b", draw(1, 100), 0)
    increments.release(options)
    increments.append(tmp_path, "b", draw(2, 50), 0, replacing=True)
    increments.append(tmp_path, "c", draw(1, 100), 1)
    increments.release(options)
    assert withdraw_command("c", config, 0.0)["n_records"] == 100
    with open_release(url) as opened:
        assert opened.features.shape == (50, 3)
    assert increments.release(options) == "nothing to do"
    increments.append(tmp_path, "d", draw(7, 60), 2)
    increments.release(options)
    increments.append(tmp_path, "d", draw(8, 70), 2, replacing=True)
    assert withdraw_command("d", config, 0.0)["n_records"] == 60
    assert increments.release(options) == "nothing to do"
    with open_release(url) as opened:
        assert opened.features.shape == (50, 3)


def test_withdraw__works_without_the_collection(tmp_path: Path) -> None:
    options, config = increments.configure(tmp_path), str(tmp_path / "run.toml")
    for number, name in enumerate("ab"):
        increments.append(tmp_path, name, draw(number), number)
    increments.release(options)
    assert withdraw_command("a", config, 24.0)["n_records"] == 200
    assert withdraw_command("a", config, 24.0)["n_records"] == 0  # it is done, after a kill, too
    (tmp_path / "growing.zarr").rename(tmp_path / "elsewhere.zarr")
    assert withdraw_command("b", config, 0.0)["n_records"] == 200
    for name in "ab":
        again = withdraw_command(name, config, 0.0)
        assert (again["generation"], again["n_records"]) == (3, 0)
    with pytest.raises(OptionError, match="no part of a partition 'c'"):
        withdraw_command("c", config, 0.0)


@pytest.mark.parametrize("again", ["run", "withdraw"])
def test_withdraw__that_is_killed_before_it_deletes_is_ended_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    options, config = increments.configure(tmp_path), str(tmp_path / "run.toml")
    url = options.release.path
    for number, name in enumerate("ab"):
        increments.append(tmp_path, name, draw(number), number)
    increments.release(options)
    gone = next(p.id for p in read_state(url).parts if PrivateLedger(url).read(p.id)["name"] == "b")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privpipe.store.releases.incremental_release.delete_part", die)
        with pytest.raises(KeyboardInterrupt):
            withdraw_command("b", config, 0.0)
    assert list((tmp_path / "release.zarr" / "parts" / gone).rglob("*"))
    if again == "withdraw":
        with pytest.raises(OptionError, match="no part of a partition 'c'"):
            withdraw_command("c", config, 0.0)
        withdraw_command("b", config, 0.0)
        assert not has_workspace(url)
    else:
        assert increments.release(options) == "nothing to do"
    assert not (tmp_path / "release.zarr" / "parts" / gone).exists()
    delete_part(url, gone)  # again: nothing


def test_private_parts__are_confirmed_in_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published parts stood there as charged and never confirmed, as a killed run's do."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    increments.configure(tmp_path)
    path = tmp_path / "run.toml"
    noisy = 'epsilon = 1.5\nnoise = "discrete"\nfilter = {name = "pca", n_filtered = 2}'
    text = path.read_text().replace(
        '"null_space"\nutility_budget = 0.05\nridge = 0.01', f'"noisy"\n{noisy}'
    )
    text = text.replace('training.zarr"', 'training.zarr"\npublic = true')
    path.write_text(f'{text}[privacy]\naccount = "{tmp_path}/account"\nlimit = 2.0\n')
    options = read_options(str(path))
    for number, name in enumerate("ab"):
        increments.append(tmp_path, name, draw(number), number)
    assert increments.release(options) == "published"
    losses = Account(str(tmp_path / "account")).read_all()
    assert [(loss.epsilon, loss.n_charges, loss.n_open) for loss in losses] == [(1.5, 1, 0)] * 2


def test_gaps__what_no_run_has_taken_is_not_refused_for_the_drift_of_another(
    tmp_path: Path,
) -> None:
    options = increments.configure(tmp_path, drift=0.9)
    for number, (name, far) in enumerate([("a", 0), ("b", 9), ("c", 0)]):
        increments.append(tmp_path, name, draw(number) + far, number)
    until = datetime.fromisoformat(increments.day(9))
    report = tmp_path / "release.report"
    report.mkdir()
    with pytest.raises(GateError) as refused:
        increments.release(options, until=1)
    error = {"exit_code": 6, "code": "drift", "message": refused.value.message}
    results = {"outcome": "failed", "error": error, "finished": increments.day(9)}
    (report / "run_results.json").write_text(json.dumps(results))
    found = list(promised_releases.judge_partitions(options, until))
    assert [one.outcome for one in found] == ["made", "refused", "missing"]
    newest = promised_releases.find_newest(found, str(tmp_path / "run.toml"))
    assert newest < datetime.fromisoformat(increments.day(9)).timestamp()


def add(folder: Path, name: str, seed: int, number: int, first: int, n: int = 100) -> None:
    """A partition whose records have numbers, by which one is erased."""
    x = draw(seed, n)
    np.savez(folder / "s.npz", x=x, sign=(x[:, 0] > 0).astype("int8"), serial=np.arange(n) + first)
    layout = SourceLayout(features=("x",), labels=("sign", "serial"))
    given = IngestOptions(
        layout=layout, categorical=("sign",), numeric=("serial",), chunk_bytes=20 * 3 * 8
    )
    url = str(folder / "growing.zarr")
    append_partition(str(folder / "s.npz"), url, name, increments.day(number), given)


def erase(folder: Path, *serials: int) -> None:
    chosen = ChosenRecords("serial", tuple(map(str, serials)))
    [found] = erase_records(str(folder / "growing.zarr"), chosen, ErasureOptions())
    assert found["state"] == "done"


def test_erase__leaves_a_collection_that_grows_on(tmp_path: Path) -> None:
    options = increments.configure(tmp_path)
    add(tmp_path, "a", 1, 0, 1000)
    add(tmp_path, "b", 2, 1, 2000)
    increments.release(options)
    erase(tmp_path, 1005)
    add(tmp_path, "c", 3, 2, 3000)
    erase(tmp_path, 2005)
    add(tmp_path, "d", 4, 3, 4000)
    assert increments.release(options) == "published"
    with open_release(options.release.path) as opened:
        assert opened.features.shape == (398, 3)


def test_erase__brings_back_nothing_that_was_withdrawn(tmp_path: Path) -> None:
    options, config = increments.configure(tmp_path), str(tmp_path / "run.toml")
    for number, name in enumerate("abc"):
        add(tmp_path, name, number, number, 1000 * number)
    increments.release(options, until=1)
    withdraw_command("b", config, 0.0)
    withdraw_command("c", config, 0.0)  # one that was never released
    for serial in (1005, 1006, 2005):  # and twice
        erase(tmp_path, serial)
        increments.release(options)
        assert read_parts(options.release.path) == ["a"]
    until = datetime.fromisoformat(increments.day(9))
    found = promised_releases.judge_partitions(options, until)
    assert [one.outcome for one in found] == ["made", "made", "made"]


def test_work__of_a_partition_is_named_by_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, seen, make = increments.configure(tmp_path), list[str](), clean.plan_release
    opened = list[Executor]()

    def open_one(*_: object) -> AbstractContextManager[Executor]:
        opened.append(Executor())
        return nullcontext(opened[-1])

    monkeypatch.setattr(increment_flow, "open_executor", open_one)

    def note(run: Run, trained: Trained) -> ReleasePlan:
        seen.append(opened[-1].part)
        return make(run, trained)

    monkeypatch.setattr(clean, "plan_release", note)
    for number in (1, 2):
        increments.append(tmp_path, f"SECRET-{number}", draw(number), number)
    increments.release(options)
    assert seen == ["_day02", "_day03"]


def test_run__of_a_collection_without_partitions_says_so(tmp_path: Path) -> None:
    options = increments.configure(tmp_path)
    add(tmp_path, "a", 1, 0, 0, 40)
    erase(tmp_path, *range(40))
    assert not read_partitions(options.collection.path)
    with pytest.raises(InputError, match="no partition"):
        check_growing(options)
    assert read_incremental(options.release.path) is None
