"""A refusal says what would pass: tried on records that no audit judges, and written as a file."""

from __future__ import annotations

import json
import math
import re
import tomllib
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe.attacks.threats.verdicts.outcomes import Decision
from privpipe.attacks.threats.verdicts.safeguards import MISSED, NOTHING, withdraw_safe
from privpipe.command.check_command import check_command
from privpipe.command.error_catalog import read_catalog
from privpipe.command.init_command import init_command
from privpipe.errors import GateError, InputError
from privpipe.pipeline.runs.configuration_file import read_options, write_options
from privpipe.pipeline.runs.history import list_differences, read_attempts
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.diagnosis import (
    TRIED,
    diagnose,
    find_blind,
    find_near,
    forecast_gate,
    lead_out,
    picture_trial,
    say_few,
    say_order,
    try_configured,
)
from privpipe.pipeline.stages.gate import JOINED, REMEDIES, Complaint, find_remedies, say_decision
from privpipe.pipeline.stages.trial import (
    ROOM,
    Outlook,
    Rung,
    TrialRecords,
    draw_trial,
    read_records,
)
from privpipe.protocols import Column, Shard, ShardSchema
from privpipe.records.sampling import make_split, take_records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.ladder import identify
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.gate.leaky_runs import write_records
from tests.standard import write_standard
from tests.store.serial_run import run_serially, serial_flows

N = 12_000
EQUALISED = {"variant": "equalised_odds"}


def make(folder: Path, *, reveals: bool = False, means: float = 2.0) -> RunOptions:
    """Features that hold a secret apart from the target; what is predicted reveals it or not."""
    rng = np.random.default_rng(7)
    secret = rng.integers(0, 2, N).astype(np.int8)
    x = rng.normal(size=(N, 6))
    x[:, 0] += means * secret
    score = x[:, 1] + x[:, 2] + 0.3 * rng.normal(size=N)
    if reveals:  # what can be predicted of the target is the secret, and little else
        score = x[:, 0] - 1.0 + 2.0 * rng.normal(size=N)
    target = (score > 0).astype(np.int8)
    url = str(folder / "records.zarr")
    write_records(url, {"features": x, "secret": secret, "wanted": target})
    return RunOptions(
        collection={"path": url, "desired": ["wanted"], "confidential": ["secret"]},
        method={"name": "leace"},
        release={"path": str(folder / "release.zarr")},
        cluster={"workers": 0},
        audit={"holdout": 0.5},
        gate={"confidential_advantage_max": 0.2, "exposed_max": 0.1, "must_find": 0.5},
    )


def open_training(options: RunOptions) -> Collection:
    section = options.collection
    return open_collection(section.path, desired=section.desired, confidential=section.confidential)


def draw(options: RunOptions) -> TrialRecords:
    return draw_trial(options, open_training(options))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunOptions, TrialRecords]:
    """Options and their trial, which keeps what was measured of it: no test may change it."""
    options = make(tmp_path_factory.mktemp("usual"))
    return options, draw(options)


@pytest.mark.parametrize("draws", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_noise__is_what_limits_are_wide_and_no_accident_of_its_draw(
    draws: int, usual: tuple[RunOptions, TrialRecords]
) -> None:
    """A draw that gains by chance moves neither limits that are written nor what is advised."""
    options, trial = usual
    # As `init` writes them: with room, in hundredths.
    wide = {o.key: math.ceil(100 * ROOM * o.upper) / 100 for o in trial.noise.outlooks}
    assert {one.gain for one in trial.noise.outlooks} == {0.0}
    held = open_training(options).keeping(make_split(0.5), "held_out")
    judged = replace(trial, judge=read_records(held, N))
    found = []
    for seed in range(draws):
        drawn = np.random.default_rng(50 + seed).standard_normal((len(judged.judge.features), 1))
        found += [one.upper / wide[one.key] for one in judged.foresee(drawn)]
    # Within the limit, which is no twice of what is needed.
    assert max(found) < 1.0
    assert np.mean(found) > 0.55


@pytest.mark.parametrize("n_rungs", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_try_method__expects_nothing_to_pass_more_surely_than_noise(
    n_rungs: int | None, usual: tuple[RunOptions, TrialRecords]
) -> None:
    """On numbers of Adult a lucky trial foresaw .0063 of a method where noise needs .009."""
    _, trial = usual
    least = {one.key: one.upper for one in trial.noise.outlooks}
    ladder = islice(trial.list_ladder(), n_rungs)
    rungs = [trial.try_method(one, standardise=std) for one, std in ladder]
    found = [one for rung in rungs for one in rung.outlooks]
    assert found
    assert all(one.upper >= least[one.key] for one in found)


@pytest.mark.parametrize("holdout", [0.0, 0.1, 0.5])
def test_draw_trial__has_no_record_that_an_audit_may_judge(tmp_path: Path, holdout: float) -> None:
    """Not even one that a later attempt holds out, which the advice may be to do."""
    options = make(tmp_path).change("audit", holdout=holdout)
    trial = draw(options)
    rows = np.concatenate([trial.learn.features, trial.judge.features])
    assert len(np.unique(rows[:, 1])) == len(rows)
    training = open_training(options)
    for share in (0.1, 0.5):
        held = training.keeping(make_split(share), "held_out")
        judged = np.concatenate([held.shard(c).features[:, 1] for c in range(held.plan.n_chunks)])
        assert not np.isin(rows[:, 1], judged).any()


def test_diagnose__writes_what_passed_as_a_file_that_reads(
    tmp_path: Path, usual: tuple[RunOptions, TrialRecords]
) -> None:
    """Whatever was tried passed: the first that is tried is written."""
    options, trial = usual[0], copy(usual[1])
    near = Outlook("secret", "boosting", "auc", 0.0, -0.02, 0.02, 0.2)
    tried = {"try_method": lambda method, *, standardise: Rung(method, standardise, (near,), 0.9)}
    vars(trial).update(tried)
    check_written(options, trial, tmp_path / "next.toml")


@pytest.mark.slow
def test_diagnose__writes_what_would_pass_as_a_file_that_reads(
    tmp_path: Path, usual: tuple[RunOptions, TrialRecords]
) -> None:
    options, trial = usual
    assert trial.noise.passes()
    assert not trial.raw.passes()
    check_written(options, trial, tmp_path / "next.toml")


def check_written(options: RunOptions, trial: TrialRecords, place: Path) -> None:
    found = diagnose(options, trial)
    assert found.case == "method"
    assert found.following is not None
    place.write_text(found.write("After a test."))
    again = read_options(str(place))
    assert again.method == found.following.method
    assert again.gate == options.gate
    assert again.release == options.release
    assert tomllib.loads(place.read_text())["method"]["name"] in found.text


@pytest.mark.slow
def test_diagnose__says_that_the_target_reveals_it_where_nothing_passes(tmp_path: Path) -> None:
    options = make(tmp_path, reveals=True)
    found = diagnose(options, draw(options))
    assert found.case == "target"
    assert found.following is None
    assert not any(
        rung.passes({"confidential_advantage_max": 0.2, "exposed_max": 0.1}) for rung in found.tried
    )
    assert "the predicted target itself reveals 'secret'" in found.text


def test_diagnose__says_that_the_order_reveals_it_before_any_method(
    usual: tuple[RunOptions, TrialRecords],
) -> None:
    """Records sorted by the secret: whatever is released of them, their places reveal it."""
    options, trial = usual
    assert say_order(trial, {"confidential_advantage_max": 0.1, "exposed_max": 0.05}) == ""
    rows = np.argsort(trial.judge.confidential[:, 0], kind="stable")
    ordered = replace(trial, judge=take_records(trial.judge, rows), drawn=None)
    found = diagnose(options, ordered)
    assert (found.case, found.following) == ("order", None)
    assert found.text.startswith("The order of the records reveals 'secret'")
    assert forecast_gate(ordered.noise, ordered)[0] == "closed"


@pytest.mark.parametrize(
    ("lower", "upper", "is_said"), [(0.02, 0.25, True), (0.02, 0.15, False), (-0.01, 0.25, False)]
)
def test_say_order__a_weak_leak_is_named_where_it_closes_the_gate(
    lower: float, upper: float, is_said: bool, usual: tuple[RunOptions, TrialRecords]
) -> None:
    trial = copy(usual[1])
    weak = Outlook("secret", "boosting", "auc", 0.1, lower, upper, 0.2)
    vars(trial)["order"] = Rung({"name": "order"}, False, (weak,))
    limits = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
    assert ("The order of the records reveals 'secret'" in say_order(trial, limits)) == is_said
    # A random order reveals nothing but by chance, and shuffling it again is no advice.
    assert say_order(replace(trial, shuffled=True), limits) == ""


def test_order__is_judged_by_all_records_that_were_drawn(tmp_path: Path) -> None:
    """Runs of twenty alike: of every fourth record the neighbours are too far to say anything.

    Of couples in a panel a trial foresaw .08, and the audit of more of them found .18.
    """
    rng = np.random.default_rng(2)
    drawn, runs = rng.random(N), rng.choice([-1, 1], N // 20 + 1)
    secret = (drawn < 0.5 + 0.25 * np.repeat(runs, 20)[:N]).astype(np.int8)
    arrays = {"features": rng.normal(size=(N, 3)), "secret": secret}
    url = str(tmp_path / "other.zarr")
    write_records(url, arrays | {"wanted": rng.integers(0, 2, N).astype(np.int8)})
    trial = draw(make(tmp_path).change("collection", path=url))
    limits = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
    assert "reveals 'secret'" in say_order(trial, limits)
    assert say_order(replace(trial, drawn=None), limits) == ""
    assert trial.drawn is not None
    assert not trial.drawn.features.size, "records are not held twice"


@pytest.mark.parametrize(("shuffle", "n_files"), [(True, 1), (True, 2), (False, 1)])
def test_draw_trial__knows_a_collection_whose_order_is_random(
    shuffle: bool, n_files: int, tmp_path: Path
) -> None:
    """Of two files the records of the first still come before those of the second."""
    rng = np.random.default_rng(1)
    (tmp_path / "parts").mkdir()
    for k in range(n_files):
        table = pd.DataFrame(rng.normal(size=(N // n_files, 3)), columns=["a", "b", "c"])
        table["secret"] = np.where(rng.random(len(table)) < 0.5, "yes", "no")
        table["wanted"] = np.where(rng.random(len(table)) < 0.5, "yes", "no")
        table.to_csv(tmp_path / "parts" / f"{k}.csv", index=False)
    options, layout = make(tmp_path), SourceLayout(labels=("secret", "wanted"))
    url = str(tmp_path / "other.zarr")
    ingest(str(tmp_path / "parts"), url, IngestOptions(layout=layout, shuffle=shuffle))
    assert draw(options.change("collection", path=url)).shuffled == (shuffle and n_files == 1)


def test_try_method__equalised_odds_pass_where_the_prediction_alone_reveals(tmp_path: Path) -> None:
    """The target says nothing of the secret, but a feature of the secret helps to predict it."""
    rng = np.random.default_rng(3)
    secret = rng.integers(0, 2, N).astype(np.int8)
    x = rng.normal(size=(N, 6))
    hidden = rng.normal(size=N)
    x[:, 0] = hidden + 2.0 * secret
    x[:, 1] += 0.5 * hidden
    target = (hidden + x[:, 2] + 0.3 * rng.normal(size=N) > 0).astype(np.int8)
    options, url = make(tmp_path), str(tmp_path / "other.zarr")
    write_records(url, {"features": x, "secret": secret, "wanted": target})
    trial = draw(options.change("collection", path=url))
    plain, equalised = ({"name": "target_only"} | more for more in ({}, EQUALISED))
    limits = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
    assert not trial.try_method(plain, standardise=False).passes(limits)
    assert trial.try_method(equalised, standardise=False).passes(limits)


def test_try_method__asks_who_reads_bits(usual: tuple[RunOptions, TrialRecords]) -> None:
    """A predicted wage was advised, and refused: years and schooling say a third thing by digits.

    Where the steps of one feature are larger than what another adds, what is left over is the
    other. Trees see it in no band of numbers; of eight bins nothing is left.
    """
    rng = np.random.default_rng(3)
    secret = rng.integers(0, 2, N)
    x = np.column_stack([rng.integers(0, 2_000, N), 0.4 * secret]).astype(np.float64)
    whole = Shard(x, desired=x.sum(axis=1, keepdims=True), confidential=secret[:, None] * 1.0)
    schema = ShardSchema(2, desired=(Column("wanted"),), confidential=(Column("secret", 2),))
    parts = {"learn": take_records(whole, np.arange(0, N, 2))}
    parts["judge"] = take_records(whole, np.arange(1, N, 2))
    trial = replace(usual[1], schema=schema, **parts)
    exact = trial.try_method({"name": "target_only", "ridge": 1e-9}, standardise=False)
    found = {one.key: one for one in exact.outlooks}["confidential_advantage_max"]
    assert found.adversary == "bit_reader"
    assert found.lower > 0.5
    binned = trial.try_method({"name": "target_only", "n_bins": 8}, standardise=False)
    assert binned.passes(), binned.outlooks


@pytest.mark.parametrize("n_classes", [2, 3])
def test_try_method__says_what_classes_are_never_predicted(n_classes: int, tmp_path: Path) -> None:
    """One in twenty is of a class that is the likeliest of no record: the commonest is said of
    all, or of all such. What is said of all alike retains nothing, also where nothing could."""
    rng = np.random.default_rng(5)
    x, secret = rng.normal(size=(N, 3)), rng.integers(0, 2, N).astype(np.int8)
    target = (x[:, 0] > 0).astype(np.int8) if n_classes == 3 else np.zeros(N, np.int8)
    target[(rng.random(N) < 0.05) & (x[:, 1] > -1.0)] = n_classes - 1
    options, url = make(tmp_path), str(tmp_path / "other.zarr")
    write_records(url, {"features": x, "secret": secret, "wanted": target})
    trial = draw(options.change("collection", path=url))
    rung = trial.try_method({"name": "target_only"}, standardise=False)
    assert rung.unsaid == pytest.approx((target == n_classes - 1).mean(), abs=0.01)
    assert "never predicts the classes of 4." in rung.describe()
    assert rung.is_useful == (n_classes == 3)
    if n_classes == 2:
        others = [("null_space", "plain"), ("minimax_least_squares", "plain")]
        found = diagnose(options, trial, others)
        assert found.following is None
        assert "no release keeps half of what raw records show" in found.text


def test_diagnose__says_how_many_records_are_needed_where_noise_fails(
    usual: tuple[RunOptions, TrialRecords],
) -> None:
    options, trial = usual[0], copy(usual[1])
    beyond = Outlook("secret", "boosting", "auc", 0.0, -0.4, 0.4, 0.2)
    vars(trial)["noise"] = Rung({"name": "noise"}, False, (beyond,))
    found = diagnose(options, trial)
    assert (found.case, found.following) == ("few", None)
    assert "31,740 would have to judge" in found.text  # 6,000 * (1.15 * .4 / .2)**2


@pytest.mark.slow
def test_diagnose__does_not_propose_the_method_that_was_refused(tmp_path: Path) -> None:
    options = make(tmp_path)
    trial = draw(options)
    first = diagnose(options, trial).following
    assert first is not None
    second = diagnose(first, trial)
    assert second.following is None or second.following.method.name != first.method.name


def test_diagnose__proposes_none_that_was_refused_before(
    usual: tuple[RunOptions, TrialRecords],
) -> None:
    options, trial = usual
    found = diagnose(options, trial, {identify(method) for method, _ in trial.list_ladder()})
    assert (found.case, found.following, found.tried) == ("target", None, ())
    assert "Tried: none, since all were refused." in found.text


@pytest.mark.slow
def test_lead_out__does_not_go_back_to_what_an_earlier_attempt_was_refused_with(
    tmp_path: Path,
) -> None:
    """Adult's countries: null-space, least squares, and null-space again, within one limit."""
    options = make(tmp_path)
    options = options.model_copy(
        update={"method": METHODS["pca"].options(name="pca", n_filtered=6)}
    )
    first = diagnose(options, draw(options)).following
    assert first is not None
    limits = {"confidential_advantage_max": 0.2, "exposed_max": 0.1, "must_find": 0.5}
    note = {"options": {"method": {"name": first.method.name}, "gate": limits}, "state": "failed"}
    folder = tmp_path / "release.report"
    folder.mkdir()
    (folder / "attempt-00000000.json").write_text(json.dumps(note))
    with serial_flows(), pytest.raises(GateError):
        run_serially(options)
    following = folder / "next.toml"
    assert not following.exists() or read_options(str(following)).method.name != first.method.name


@pytest.mark.parametrize("why", [MISSED, NOTHING])
def test_lead_out__tries_no_method_where_the_audit_is_blind(why: str, tmp_path: Path) -> None:
    """Forty countries: none of three methods made an audit find a planted leak of any size."""
    lost = withdraw_safe(Decision("age", "safe", "'age' is safe: all."), f"But {why}.")
    found = {
        "decisions": [{"verdict": "unproven", "reason": lost.reason}],
        "power": [{"size": None, "finds": False}],
        "included": (),
    }
    run: Any = SimpleNamespace(options=make(tmp_path), method=METHODS["leace"])
    said = lead_out(run, {"adversaries": found}, [Complaint("unproven", "-")])
    assert said["tried"] == []
    way = "say so by name" if why == NOTHING else "misses planted leaks of 0.5"
    assert way in said["ways_out"]


@pytest.mark.parametrize("target", ["order", "leace 01234567"])
def test_lead_out__tries_no_method_where_none_is_what_is_refused(
    target: str, tmp_path: Path
) -> None:
    """The order of records that the fit saw: `target_only` was advised, and refused likewise."""
    decision = {"target": target, "verdict": "unproven", "reason": "it was not attacked"}
    found = {"decisions": [decision], "power": [], "included": ()}
    run: Any = SimpleNamespace(options=make(tmp_path), method=METHODS["leace"])
    said = lead_out(run, {"adversaries": found}, [Complaint("unproven", "-")])
    assert said["tried"] == []
    assert "Another method changes nothing" in said["ways_out"]


@pytest.mark.slow
def test_lead_out__says_that_no_method_helps_where_raw_records_show_nothing(tmp_path: Path) -> None:
    """A whole run; without one, of the same decision, the test before."""
    options = make(tmp_path, means=0.0).change("audit", adversaries=("least_squares",))
    with serial_flows(), pytest.raises(GateError, match="find nothing in the raw records") as found:
        run_serially(options)
    assert "[audit] uninformative" in found.value.remedy
    assert "What would pass" not in found.value.remedy
    assert not (tmp_path / "release.report" / "next.toml").exists()


def test_forecast_gate__is_not_open_where_raw_records_show_nothing(tmp_path: Path) -> None:
    """The run says so and refuses; by name it is told that there is nothing, and goes on."""
    options = make(tmp_path, means=0.0)
    rung = try_configured(options, draw(options))
    assert rung is not None
    for known, case in ((), "unsure"), (("secret",), "open"):
        trial = draw(options.change("audit", uninformative=known))
        found, said = forecast_gate(rung, trial)
        assert found == case
        assert ('uninformative = ["secret"]' in said) == (not known)


def test_diagnose__what_is_expected_within_the_weakest_limits_may_pass(
    usual: tuple[RunOptions, TrialRecords],
) -> None:
    """Without room to spare it is proposed as what it is, with no limit beyond those."""
    options, trial = usual[0], copy(usual[1])
    near = Outlook("secret", "boosting", "auc", 0.14, 0.05, 0.19, 0.2)
    vars(trial)["noise"] = Rung({"name": "noise"}, False, (replace(near, gain=0.0, upper=0.05),))
    tried = {"try_method": lambda method, *, standardise: Rung(method, standardise, (near,), 0.9)}
    vars(trial).update(tried)
    found = diagnose(options, trial)
    assert "What may pass" in found.text
    assert found.following is not None
    assert found.following.gate.confidential_advantage_max == 0.2
    # Of the fewer records of a trial more is expected than an audit of all finds.
    for upper, is_proposed in ((0.22, True), (0.24, False)):
        near = replace(near, upper=upper)
        assert (diagnose(options, trial).following is not None) == is_proposed


@pytest.mark.parametrize(
    ("limit", "retained", "name", "written"),
    [
        (0.16, 0.65, "minimax_least_squares", 0.17),
        (0.16, 0.85, "null_space", 0.16),  # too little more of the target
        (0.1, 0.65, "null_space", 0.1),  # a limit that is as usual stays
    ],
)
def test_diagnose__weakens_a_weak_limit_a_little_for_much_more_of_the_target(
    usual: tuple[RunOptions, TrialRecords], limit: float, retained: float, name: str, written: float
) -> None:
    options, trial = usual[0], copy(usual[1])
    limits = {"confidential_advantage_max": limit, "exposed_max": 0.01}
    options = options.change("gate", **limits)
    low = Outlook("secret", "boosting", "auc", 0.04, -0.05, limit / ROOM - 0.002, limit)
    high = replace(low, upper=(limit + 0.009) / ROOM)
    vars(trial)["noise"] = Rung({"name": "noise"}, False, (replace(low, gain=0.0, upper=0.05),))

    def try_method(method: dict[str, Any], *, standardise: bool) -> Rung:
        is_first = method["name"] == "null_space"
        outlooks, kept = ((low,), retained) if is_first else ((high,), 1.0)
        return Rung(method, standardise, outlooks, kept)

    vars(trial)["try_method"] = try_method
    found = diagnose(options, trial)
    assert found.following is not None
    assert found.following.method.name == name
    assert found.following.gate.confidential_advantage_max == written
    assert ("It needs weaker limits" in found.text) == (written > limit)
    # Whoever decides otherwise reads what it would take.
    assert f"needs confidential_advantage_max = {limit + 0.01:g}" in found.text


def test_rung__useless_releases_are_never_proposed() -> None:
    good = Outlook("a", "boosting", "auc", 0.0, -0.01, 0.01, 0.1)
    assert Rung({"name": "x"}, False, (good,), 0.9).passes()
    assert not Rung({"name": "x"}, False, (good,), 0.4).passes()
    assert not Rung({"name": "x"}, False, (replace(good, upper=float("nan")),), 0.9).passes()
    assert not Rung({"name": "x"}, False, failed="no").passes()
    assert not Rung({"name": "x"}, False, (), 0.9).passes()


@pytest.mark.slow
def test_picture__has_noise_target_raw_and_what_is_configured(tmp_path: Path) -> None:
    options = make(tmp_path)
    trial = draw(options)
    rows = picture_trial(trial, try_configured(options, trial))
    gains = {row["who sees"]: float(row["gain"].partition(",")[0]) for row in rows}
    assert set(gains) == {"noise", "configured", "raw", "allowed"}
    assert gains["noise"] < 0.1 < gains["raw"]
    assert gains["allowed"] == 0.2
    assert forecast_gate(trial.noise, trial)[0] == "open"
    assert forecast_gate(trial.raw, trial)[0] == "closed"


def same(folder: Path, other: float, n: int = 3_000) -> RunOptions:
    """A secret that is the target under another name, but for a share of the records."""
    options, rng = make(folder), np.random.default_rng(8)
    wanted = rng.integers(0, 2, n).astype(np.int8)
    secret = np.where(rng.random(n) < other, wanted, 1 - wanted).astype(np.int8)
    x = rng.normal(size=(n, 4)) + wanted[:, None]
    write_records(str(folder / "same.zarr"), {"features": x, "secret": secret, "wanted": wanted})
    return options.change("collection", path=str(folder / "same.zarr"))


def test_draw_trial__of_a_secret_that_is_the_target_under_another_name(tmp_path: Path) -> None:
    options = same(tmp_path, 0.0)
    with pytest.raises(InputError, match="Whoever knows 'wanted' knows 'secret'") as caught:
        draw(options)
    assert "Take 'secret' out of confidential" in caught.value.remedy
    Path(tmp_path / "run.toml").write_text(write_options(options, ""))
    for command in (
        lambda: check_command(str(tmp_path / "run.toml")),
        lambda: init_command(
            options.collection.path,
            str(tmp_path / "new.toml"),
            method="",
            desired=["wanted"],
            confidential=["secret"],
            release="",
        ),
    ):
        with pytest.raises(InputError) as caught:
            command()
        assert caught.value.code == "target-reveals"


def test_lead_out__of_a_secret_that_is_the_target_says_what_to_leave_out(tmp_path: Path) -> None:
    options = same(tmp_path, 0.0)
    run: Any = SimpleNamespace(
        options=options,
        method=METHODS["leace"],
        training=open_training(options),
        report_url=str(tmp_path / "release.report"),
    )
    found = {"adversaries": {"decisions": []}, "attempt": 1}
    said = lead_out(run, found, [Complaint("unknown", "-")])["ways_out"]
    assert "Whoever knows 'wanted' knows 'secret'" in said
    assert "Take 'secret' out of confidential" in said


@pytest.mark.parametrize("method", ["masking_private", "masking", "null_space"])
def test_init__writes_limits_that_can_be_shown_whatever_is_still_to_fill_in(
    method: str, tmp_path: Path
) -> None:
    """Of noisy surrogates it wrote none, and the filled file was refused: a gate for no one."""
    options, new = make(tmp_path), tmp_path / "new.toml"
    init_command(
        options.collection.path,
        str(new),
        method=method,
        desired=["wanted"],
        confidential=["secret"],
        release="",
    )
    text = new.read_text()
    assert "FILL IN" in text or method == "null_space"
    assert re.search(r"(?m)^holdout = 0\.5$", text)
    assert re.search(r"(?m)^exposed_max = 0\.0\d$", text)


def test_init__of_answers_alone_proposes_a_mapping_and_its_refusal_a_larger_budget(
    tmp_path: Path,
) -> None:
    """With a target it proposed null-space cleaning of no feature, which was to be refused."""
    rng = np.random.default_rng(3)
    answers = rng.integers(0, 4, (3000, 3))
    secret = (rng.random(3000) < 1 / (1 + np.exp(1.5 - answers[:, 0]))).astype(int)
    buys = (rng.random(3000) < 0.2 + 0.2 * answers[:, 1]).astype(int)
    table = pd.DataFrame(answers, columns=["a", "b", "c"]).assign(buys=buys, secret=secret)
    table.to_csv(tmp_path / "answers.csv", index=False)
    layout = SourceLayout(labels=("buys", "secret"), categorical=("a", "b", "c"))
    url, new = str(tmp_path / "answers.zarr"), tmp_path / "new.toml"
    ingest(str(tmp_path / "answers.csv"), url, IngestOptions(layout=layout))
    init_command(url, str(new), method="", desired=["buys"], confidential=["secret"], release="")
    options: Any = read_options(str(new))
    assert options.method.name == "privacy_mapping"
    assert set(options.method.attributes) == {"a", "b", "c", "buys"}
    found = diagnose(options, draw_trial(options, check_stage(options).training))
    assert "larger [method] distortion_budget" in found.text


def test_draw_trial__of_a_number_that_no_two_records_share_accuses_no_target(
    tmp_path: Path,
) -> None:
    """Each value of such a target has one record, and so one class."""
    url = str(tmp_path / "number.zarr")
    write_standard(url, 3_000)
    draw_trial(make(tmp_path), open_collection(url, desired=("height",), confidential=("party",)))


def test_draw_trial__of_a_secret_that_is_nearly_the_target_is_tried(tmp_path: Path) -> None:
    assert draw(same(tmp_path, 0.02)).noise.outlooks


def test_draw_trial__of_a_class_that_its_sample_lacks_accuses_no_target(tmp_path: Path) -> None:
    options, rng = make(tmp_path), np.random.default_rng(8)
    secret, wanted = np.zeros(3_000, np.int8), rng.integers(0, 2, 3_000).astype(np.int8)
    secret[0] = 1  # of the first chunk, which the trial may or may not draw
    for place in (0, 1_500, 2_999):
        x = rng.normal(size=(3_000, 4))
        url = str(tmp_path / f"rare{place}.zarr")
        write_records(url, {"features": x, "secret": np.roll(secret, place), "wanted": wanted})
        draw(options.change("collection", path=url))


def test_draw_trial__of_too_few_records_says_how_many(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    url = str(tmp_path / "few.zarr")
    few = {"features": rng.normal(size=(900, 3)), "secret": rng.integers(0, 2, 900).astype(np.int8)}
    write_records(url, few)
    options = make(tmp_path)
    with pytest.raises(InputError, match="needs 1,000 records"):
        draw_trial(options, open_collection(url, confidential=("secret",)))


def test_say_decision__never_speaks_of_a_score_within_its_limit() -> None:
    one = {
        "target": "sex",
        "verdict": "leaks",
        "reason": "-",
        "strongest": "boosting",
        "source": "joined",
        "score": "auc",
        "gain": 0.64,
        "gain_lower": 0.57,
        "gain_upper": 0.72,
        "allowed": 0.19,
        "n_needed": None,
    }
    said = say_decision(one, 5000)
    assert said.startswith(
        "'sex' leaks: boosting on all that is released and the target gains 0.64"
    )
    assert said.endswith("Allowed: 0.19. More records will not help.")
    near = one | {"verdict": "unproven", "gain": 0.1, "gain_lower": 0.0}
    needed = "With about 9 held-out groups instead of 5 the limits would decide."
    assert say_decision(near, 5000).endswith("within it; 5,000 records judge.")
    assert say_decision(near | {"needed": needed}, 5000).endswith(f"5,000 records judge. {needed}")
    # Withdrawn for want of power: its limits hold, and nothing else may be claimed.
    assert say_decision(near | {"gain_upper": 0.15}, 5000) == "-"


@pytest.mark.parametrize(
    ("size", "reason", "proposed"),
    [
        (0.4, "", 0.4),
        (None, "", None),  # none that was tried was found
        (0.8, "", None),
        (0.4, "'age' is unproven: its limit is beyond what is allowed.", None),
    ],
)
def test_find_blind__writes_the_leak_that_would_be_found(
    size: float | None, reason: str, proposed: float | None, tmp_path: Path
) -> None:
    options = make(tmp_path).change("gate", must_find=0.2)
    lost = withdraw_safe(
        Decision("age", "safe", "'age' is safe: all."), "But " + f"{MISSED} of 0.2 (bits)."
    )
    found = {
        "decisions": [
            {"verdict": "unproven", "reason": reason or lost.reason},
            {"verdict": "safe", "reason": "'sex' is safe."},
        ],
        "power": [{"size": size, "finds": False}, {"size": 0.1, "finds": True}],
    }
    blind = find_blind(options, {"adversaries": found})
    assert (blind is None) == (proposed is None)
    if blind is not None:
        assert blind.following is not None
        assert blind.following.gate.must_find == proposed
        assert "of 0.2 of the records. It finds one of 0.4" in blind.text
        assert tomllib.loads(blind.write("x"))["gate"]["must_find"] == proposed


@pytest.mark.parametrize(
    ("verdict", "score", "upper", "raised"),
    [
        ("unproven", "auc", 0.15, {"confidential_advantage_max": 0.18}),
        ("unproven", "auc", 0.19, {"confidential_advantage_max": 0.2}),
        ("unproven", "tpr_at_0.01", 0.05, {"exposed_max": 0.06}),
        ("unproven", "auc", 0.21, None),  # beyond what means anything
        ("unproven", "auc", None, None),
        ("unproven", "auc", 0.09, None),  # within: something else keeps the gate closed
        ("leaks", "auc", 0.15, None),
        ("safe", "auc", 0.05, None),
    ],
)
def test_find_near__raises_a_limit_as_far_as_the_audit_found_it(
    verdict: str, score: str, upper: float | None, raised: dict[str, float] | None, tmp_path: Path
) -> None:
    options = make(tmp_path).change("gate", confidential_advantage_max=0.1, exposed_max=0.02)
    found = [{"verdict": verdict, "score": score, "gain_upper": upper}]
    found += [{"verdict": "safe", "score": "auc", "gain_upper": 0.03}]
    near = find_near(options, {"adversaries": {"decisions": found}})
    assert (near is None) == (raised is None)
    if near is not None and raised is not None:
        assert near.following == options.change("gate", **raised)
        assert all(f"{key} = {limit}" in near.text for key, limit in raised.items())


def test_say_few__of_groups_counts_groups(usual: tuple[RunOptions, TrialRecords]) -> None:
    options, trial = usual
    n = len(trial.judge.features)
    grouped = replace(trial, groups=np.arange(n) // 100, n_audited=n)
    weakest = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
    said = say_few(options.change("collection", subject="person"), grouped, weakest)
    assert f"Too few groups of 'person' to compare methods: {-(-n // 100)} would judge" in said
    assert f"Too few records to compare methods: {trial.n_audited:,} would" in say_few(
        options, trial, weakest
    )


def test_foresee__pools_records_of_a_person_as_the_audit_will(
    usual: tuple[RunOptions, TrialRecords],
) -> None:
    """On a panel `target_only` was proposed three times: records by themselves reveal little."""
    _, trial = usual
    rng, n = np.random.default_rng(3), len(trial.judge.features)
    persons = np.arange(n) // 8
    secret = rng.integers(0, 2, n)[persons]
    # Rounded: who reads bits sees by the last digits of a sum what was added, and gains .43.
    released = np.round(0.35 * secret[:, None] + rng.normal(size=(n, 1)), 3)
    judge = replace(
        trial.judge, confidential=secret[:, None].astype(trial.judge.confidential.dtype)
    )
    single, known = (
        {one.key: one for one in replace(trial, judge=judge, groups=groups).foresee(released)}[
            "confidential_advantage_max"
        ]
        for groups in (None, persons)
    )
    assert single.gain < 0.25
    assert known.adversary == "together_all"
    assert known.gain > single.upper + 0.1


def test_find_remedies__every_complaint_of_no_ladder_has_one_and_explain_says_the_same() -> None:
    catalog = read_catalog()
    for code, remedy in REMEDIES.items():
        found = {"adversaries": {"included": ()}}
        assert find_remedies(found, [Complaint(code, "-"), Complaint(code, "-")]) == [remedy]
        assert {one.remedy for one in catalog[code] if one.message != "-"} >= {remedy}
    joined = {"verdict": "leaks", "source": "together: null_space 0a1b2c3d"}
    found = {"adversaries": {"included": (), "decisions": (joined,)}}
    assert find_remedies(found, [Complaint("leaks", "-")]) == [JOINED]
    judged = {code for code, all_of in catalog.items() for one in all_of if one.kind == "GateError"}
    assert {*TRIED, *REMEDIES} <= judged
    for code in TRIED:
        assert any("next.toml" in one.remedy for one in catalog[code])


@pytest.mark.slow
def test_gate__a_refusal_is_followed_without_a_purge_and_attempts_stand_side_by_side(
    tmp_path: Path,
) -> None:
    options = make(tmp_path)
    method = METHODS["pca"].options(name="pca", n_filtered=6)  # all directions: a rotated copy
    options = options.model_copy(update={"method": method})
    with serial_flows():
        with pytest.raises(GateError) as caught:
            run_serially(options)
        place = tmp_path / "release.report" / "next.toml"
        assert f"Next: privpipe run {place}" in caught.value.remedy
        run_serially(read_options(str(place)))
    assert (tmp_path / "release.zarr").exists()
    first, second = read_attempts(str(tmp_path / "release.report"))
    assert (first["state"], second["state"]) == ("failed", "passed")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    changed = list_differences(first["options"], second["options"])
    assert changed["[method] name"][0] == "pca"
