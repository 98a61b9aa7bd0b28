"""`privpipe compare` in one process: one sample, one table, nothing published, resumable."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import privpipe.flows.comparison
from privpipe.attacks.threats import inference
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.command import main
from privpipe.command.run_command import _read_values
from privpipe.errors import OptionError, PrivacyWarning, RankError
from privpipe.flows.comparison import compare_collection, plan_entries
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages import train as train_module
from privpipe.pipeline.stages.check import check_stage
from privpipe.report.console import PlainConsole
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.models import digest_map, open_model
from tests.flows.test_methods import write_profiles
from tests.flows.test_only_worker import Listening, kill_worker, only
from tests.gate.leaky_runs import QUICK, make_leaky_options, make_records, write_records

__all__ = ["only"]

LEACE = {"label": "eraser <b>", "method": {"name": "leace"}}
NARROW, WIDE = (
    {"method": {"name": "null_space", "utility_budget": budget, "ridge": 0.01}}
    for budget in (1e-9, 0.01)
)


def make(folder: Path, *entries: dict[str, Any]) -> RunOptions:
    options = make_leaky_options(folder, audit={"adversaries": ["logistic"]})
    content = options.model_dump() | {"compare": entries, "cluster": {"workers": 0}}
    return RunOptions(**content)


def compare(options: RunOptions, **vary: list[Any]) -> dict[str, Any]:
    return compare_collection(options, Watch(PlainConsole(file=io.StringIO())), vary)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_records(str(tmp_path / "records.zarr"), make_records(3000))
    return tmp_path


@dataclass(frozen=True)
class Compared:
    """A comparison of three, stopped before the third and begun again."""

    folder: Path
    found: dict[str, Any]
    attacked: list[Attack]
    """By the second attempt."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The first cannot be fitted."""
    folder = tmp_path_factory.mktemp("compared")
    write_records(str(folder / "records.zarr"), make_records(3000))
    options = make(folder, NARROW, LEACE, WIDE)
    measure, attacked = privpipe.flows.comparison._measure, list[Attack]()
    train, run = train_module.train_stage, inference._attack

    def fail(run: Any, executor: Any) -> Any:
        if run.options.method == options.compare[0].method:
            raise RankError("The design is singular.", remedy="Add a ridge.")
        return train(run, executor)

    def stop_at_the_third(label: str, *rest: Any) -> Any:
        if label == list(plan_entries(options, {}))[2]:
            raise KeyboardInterrupt
        return measure(label, *rest)

    def note(target: Any, outcome: AttackOutcome, **given: Any) -> AttackOutcome:
        attacked.append(outcome.attack)
        return run(target, outcome, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "train_stage", fail)
        patch.setattr(privpipe.flows.comparison, "_measure", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            compare(options)
        patch.setattr(privpipe.flows.comparison, "_measure", measure)
        patch.setattr(inference, "_attack", note)
        return Compared(folder, compare(options), attacked)


def test_compare__ranks_methods_and_goes_on_where_it_was_stopped(compared: Compared) -> None:
    folder, comparison, attacked = compared.folder, compared.found, compared.attacked
    place = folder / "release.compare"
    assert json.loads((place / "compare.json").read_text()) == comparison
    assert sorted(path.name for path in place.iterdir()) == ["compare.html", "compare.json"]
    assert not (folder / "release.zarr").exists()
    # The raw records were attacked once, and nothing that the stopped one had measured.
    assert attacked
    assert not any(attack.source == "raw" for attack in attacked)
    _, erased, kept = comparison["entries"]
    assert "&lt;b&gt;" in (place / "compare.html").read_text()
    for row in (erased, kept):
        assert row["verdict"] in ("safe", "unproven")
        assert row["gain"]["upper"] < 0.3
        assert row["loss"]["lower"] <= row["loss"]["estimate"] <= row["loss"]["upper"] < 0.1
        assert row["decisions"][0]["control_advantage"] > 0.9


def test_compare__one_entry_that_cannot_be_fitted_does_not_stop_the_others(
    compared: Compared,
) -> None:
    failed, erased, _ = compared.found["entries"]
    assert "verdict" in erased
    assert failed["error"].startswith("The design is singular")
    assert not failed["on_front"]


@pytest.mark.slow
def test_compare__is_the_same_though_the_only_worker_dies_while_it_fits(
    only: Client, tmp_path: Path
) -> None:
    """Entries are fitted as tasks."""
    killed, found = list[int](), dict[str, Any]()

    def kill(work: str) -> None:
        if work == "solve_apart":
            killed.append(kill_worker(only))

    for name, client, watch in (("here", None, Listening()), ("there", only, Listening(kill))):
        (folder := tmp_path / name).mkdir()
        write_records(str(folder / "records.zarr"), make_records(3000))
        with pytest.MonkeyPatch.context() as patch:

            def opened(_: Any, run: str, hear: Any, client: Any = client) -> Any:
                here = Executor(hear) if client is None else DaskExecutor(client, run, hear)
                return nullcontext(here)

            patch.setattr(privpipe.flows.comparison, "open_executor", opened)
            found[name] = compare_collection(make(folder, NARROW, LEACE, WIDE), watch)
        assert ("advances" in watch.heard.get("solve_apart", ())) == (name == "there")
    assert len(killed) == 1
    assert found["there"]["entries"] == found["here"]["entries"]


@pytest.mark.slow
def test_train_apart__says_what_a_fit_on_a_worker_warned_of(only: Client, tmp_path: Path) -> None:
    """A warning of a worker was in the worker's log alone."""
    write_profiles(str(tmp_path / "records.zarr"), 600)
    method = {"name": "privacy_mapping", "attributes": ["a0", "a1"], "private": ["private"]}
    options = [
        RunOptions(
            collection={"path": str(tmp_path / "records.zarr")},
            method={**method, "distortion_budget": budget, "most_frequent": 4},
            release={"path": str(tmp_path / f"release-{budget}.zarr")},
            gate={"enforce": False},
            audit={"holdout": 0.4, "adversaries": QUICK},
        )
        for budget in (0.1, 0.2)
    ]
    runs = [check_stage(one) for one in options]
    with ExitStack() as held:
        for run in runs:
            held.enter_context(hold_workspace(run.release_url))
        with pytest.warns(PrivacyWarning, match="rare profiles are released") as said:
            train_module.train_apart(runs, DaskExecutor(only, "0badcb07"))
        assert len(said) == 2
        models = [open_model(run.stored_model_url) for run in runs]
        train_module.train_apart(runs, DaskExecutor(only, "0badcb08"))  # none is left to fit
    with pytest.warns(PrivacyWarning):
        alone = [train_module._learn(run, Executor())[0] for run in runs]
    assert [digest_map(one) for one in models] == [digest_map(one) for one in alone]


@pytest.mark.parametrize(
    ("entries", "says"),
    [((), "0 \\[\\[compare\\]\\]"), ((LEACE,), "1 \\[\\[compare\\]\\]"), ((WIDE, WIDE), "same")],
)
def test_compare__refuses_what_is_nothing_to_compare(
    folder: Path, entries: tuple[dict[str, Any], ...], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        compare(make(folder, *entries))
    assert not (folder / "release.compare").exists()


@pytest.mark.slow
def test_compare__varies_options_of_the_method_or_of_entries_that_have_them(folder: Path) -> None:
    options = make(folder)
    assert list(plan_entries(options, {"utility_budget": [0.1, 1.0], "ridge": [0.0, 0.1]})) == [
        f"null_space, utility_budget {budget}, ridge {ridge}"
        for budget in (0.1, 1.0)
        for ridge in (0.0, 0.1)
    ]
    entries = plan_entries(make(folder, LEACE, WIDE), {"utility_budget": [0.1, 1.0]})
    budgets = [getattr(one.method, "utility_budget", None) for one in entries.values()]
    assert budgets == [None, 0.1, 1.0]
    for vary, says in (({"bugdet": [1]}, "no option|has an option"), ({"ridge": [-1.0]}, "ridge")):
        with pytest.raises(OptionError, match=says):
            plan_entries(options, vary)
    narrow, wide = compare(options, utility_budget=[1e-9, 0.01])["entries"]
    assert narrow["loss"]["estimate"] <= wide["loss"]["estimate"] + 0.02
    assert [one["guarantee"]["number"] for one in (narrow, wide)] == [1e-9, 0.01]
    page = (folder / "release.compare" / "compare.html").read_text()
    assert "null_space, utility_budget 0.01" in page


@pytest.mark.parametrize("name", ["frontier", "tradeoff"])
def test_compare__has_taken_in_two_commands_whose_names_say_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["privpipe", name, "my.toml", "--points", "3"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "error[moved]" in said
    assert "privpipe compare CONFIG --vary" in said


@pytest.mark.parametrize("text", ["utility_budget", "utility_budget=", "utility_budget=a b"])
def test_compare__values_to_vary_are_written_as_in_the_configuration(text: str) -> None:
    with pytest.raises(OptionError, match="names no values"):
        _read_values(text)
    assert _read_values("n_hidden=[6,2],[3]") == ("n_hidden", [[6, 2], [3]])
