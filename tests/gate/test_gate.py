"""The gate of a real run, in one thread: open, closed, corrected, overridden."""

from __future__ import annotations

import json
import math
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.threats.verdicts.outcomes import SKIPPED, Attack, AttackOutcome, is_of_release
from privpipe.cluster.passes import attack_tasks
from privpipe.errors import GateError, OptionError, PrivpipeError
from privpipe.pipeline.runs.approval import approve_release
from privpipe.pipeline.runs.resume import is_published
from privpipe.pipeline.runs.run import find_attack_options
from privpipe.pipeline.runs.run_options import AuditSection, GateSection, RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import GateNeeds, SampleFindings, check_sample
from privpipe.pipeline.stages.gate import check_gated, judge_findings, list_weaker_limits
from privpipe.store.access.workspace import has_workspace, read_state
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.account_chain import check_chain
from privpipe.store.releases.lazy_release import open_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

pytestmark = pytest.mark.usefixtures("serially")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_records(str(tmp_path / "records.zarr"), make_records())
    return tmp_path


def leaking(folder: Path, **changes: Any) -> RunOptions:
    """A copy of the secret is released by another name."""
    if not (folder / "leaky.zarr").exists():
        records = make_records()
        write_records(str(folder / "leaky.zarr"), records | {"copy": records["secret"]})
    return make_leaky_options(
        folder,
        collection={"path": str(folder / "leaky.zarr")},
        release={"include": ["copy"]},
        **changes,
    )


def read_audit(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "release.report" / "audit.json").read_text())
    return content


@pytest.mark.slow
def test_gate__lets_a_sound_release_through_and_says_so(folder: Path) -> None:
    run_serially(make_leaky_options(folder))
    header = open_release(str(folder / "release.zarr"), verify=True).attrs["privpipe"]
    assert header["audit"]["gate"]["state"] == "passed"
    assert header["audit"]["gate"]["weaker"] == list_weaker_limits(make_leaky_options(folder))
    (one,) = header["audit"]["adversaries"]["decisions"]
    assert one["verdict"] == "safe"
    assert one["gain_upper"] <= one["allowed"]


@pytest.mark.slow
def test_gate__keeps_a_leak_back_with_a_sentence_and_goes_on_with_another_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = leaking(folder)
    with pytest.raises(GateError) as caught:
        run_serially(options)
    error = caught.value
    assert (error.exit_code, error.code) == (6, "leaks")
    found = read_audit(folder)["adversaries"]
    (one,) = found["decisions"]
    for part in ("'secret'", one["strongest"].replace("_", " "), f"{one['gain']:.3g}"):
        assert part in error.message
    assert f"Allowed: {one['allowed']:.3g}" in error.message
    assert not (folder / "release.zarr").exists()
    assert not (folder / "release.model.zarr").exists()
    assert has_workspace(options.release.path)
    state = read_state(options.release.path)
    assert state is not None
    assert state.stage == "gate"
    # What leaks whatever the method has to go first; no limit is offered that says nothing.
    assert "Release without 'copy', which leaks by itself." in error.remedy
    assert "confidential_advantage_max = 1" not in error.remedy
    # The leak was certain after the quick attacks: it ended the audit, and the others are owed.
    skipped = list_attacks(found, SKIPPED)
    assert skipped
    assert list_attacks(found, "")
    on_release = [name for name in skipped if is_of_release(name.partition("-")[0])]
    assert f"{len(on_release)} attacks were skipped" in one["reason"]
    attacked, run_attack = list[str](), attack_tasks.run_attack

    @wraps(run_attack)  # results are stored under its name
    def note(evidence: Evidence, attack: Attack, options: AttackOptions) -> AttackOutcome:
        attacked.append(attack.name)
        return run_attack(evidence, attack, options)

    monkeypatch.setattr(attack_tasks, "run_attack", note)
    monkeypatch.setattr(attack_tasks, "attack_by_name", _never)
    monkeypatch.setattr(attack_tasks, "measure_retained_utility", _never)
    # Whoever wants them all has them run, and what was measured is not measured again.
    with pytest.raises(GateError) as caught:
        run_serially(options, full=True)
    assert caught.value.code == "leaks"
    assert sorted(attacked) == sorted(skipped)
    assert not list_attacks(read_audit(folder)["adversaries"], SKIPPED)
    limits = {"confidential_advantage_max": 1.0, "exposed_max": 1.0}
    run_serially(leaking(folder, gate=limits))
    assert len(attacked) == len(skipped)
    header = open_release(str(folder / "release.zarr")).attrs["privpipe"]
    assert header["run"] == state.run_id
    assert header["audit"]["gate"]["state"] == "passed"
    assert header["audit"]["gate"]["limits"]["exposed_max"] == 1.0
    # Limits set to what a leak reaches make no release safe: every reader is told.
    told = "confidential_advantage_max 1 (usually 0.1); exposed_max 1 (usually 0.01)"
    pages = [folder / "release.report" / name for name in ("report.html", "public.html")]
    for said in (str(header["audit"]["gate"]["sentence"]), *(one.read_text() for one in pages)):
        assert f"Weaker than usual: {told}" in said
    assert all("within weaker limits" in one.read_text().lower() for one in pages)
    audit = (folder / "release.report" / "audit.md").read_text()
    assert "safe within weaker limits" in audit.lower()
    audit = read_audit(folder)
    assert {one["status"] for one in audit["attacks"].values()} == {"measured"}
    assert "score" in audit["utility"]["wanted"]


@pytest.mark.parametrize("share", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_audit__warns_of_classes_that_are_never_predicted(share: float, folder: Path) -> None:
    """Of three classes one has a twentieth of the records, and is the likeliest of none of them."""
    rng = np.random.default_rng(5)
    x, secret = rng.normal(size=(3_000, 3)), rng.integers(0, 2, 3_000).astype(np.int8)
    wanted = np.where(rng.random(3_000) < share, 2, x[:, 0] > 0).astype(np.int8)
    url = str(folder / "rare.zarr")
    write_records(url, {"features": x, "secret": secret, "wanted": wanted})
    method, gate = {"name": "target_only"}, {"enforce": False}
    run_serially(make_leaky_options(folder, collection={"path": url}, method=method, gate=gate))
    found = read_audit(folder)
    lost = found["utility"]["wanted"]["unsaid"]
    assert lost == pytest.approx(share, abs=0.02)
    said = f"Rare classes of 'wanted': {lost:.1%} of the records are of a class"
    assert len([one for one in found["warnings"] if one.startswith(said)]) == (share > 0)
    assert (said in (folder / "release.report" / "audit.md").read_text()) == (share > 0)


def _never(*_: Any) -> Any:
    raise AssertionError("an attack ran again")


def list_attacks(found: dict[str, Any], reason: str) -> list[str]:
    """Names of the attacks whose result gives such a reason."""
    rows = [row for row in found["table"] if row["reason"] == reason]
    return list({f"{row['source']}-{row['adversary']}-{row['target']}" for row in rows})


@pytest.mark.slow
def test_gate__publishes_what_is_not_gated_and_says_so_everywhere(folder: Path) -> None:
    run_serially(leaking(folder, gate={"enforce": False}))
    header = open_release(str(folder / "release.zarr")).attrs["privpipe"]
    assert header["audit"]["gate"]["state"] == "not gated"
    assert "'secret' leaks" in header["audit"]["gate"]["sentence"]
    assert "not gated" in (folder / "release.report" / "audit.md").read_text()


@pytest.mark.slow
def test_approve__overrides_once_and_is_recorded(folder: Path) -> None:
    options = leaking(folder)
    release = options.release.path
    with pytest.raises(OptionError, match="nothing to approve"):
        approve_release(release, "A. Engineer", "Seen.")
    with pytest.raises(GateError):
        run_serially(options)
    with pytest.raises(OptionError, match="a name and a reason"):
        approve_release(release, "A. Engineer", "  ")
    approve_release(release, "A. Engineer", "The copy is public\x1b[2J.")
    run_serially(options)
    gate = open_release(release).attrs["privpipe"]["audit"]["gate"]
    assert gate["state"] == "approved"
    assert gate["approval"]["name"] == "A. Engineer"
    assert gate["approval"]["reason"] == "The copy is public\\x1b[2J."
    assert "'secret' leaks" in gate["sentence"]
    with pytest.raises(OptionError, match="nothing to approve"):
        approve_release(release, "A. Engineer", "Again.")
    # Who takes the approval out of the chain breaks it: it is noted, as the refusal is.
    notes = {link.kind: link.note for link in check_chain(find_account()).links}
    assert notes["refusal"]["case"] == notes["approval"]["case"]
    assert notes["approval"]["name"] == "A. Engineer"


@pytest.mark.slow
def test_gate__the_same_refusal_again_is_noted_once(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(GateError):
            run_serially(leaking(folder))
    kinds = [link.kind for link in check_chain(find_account()).links]
    assert kinds.count("refusal") == 1


@pytest.mark.slow
def test_approve__holds_for_what_was_found_and_for_nothing_else(folder: Path) -> None:
    options = leaking(folder)
    with pytest.raises(GateError):
        run_serially(options)
    approve_release(options.release.path, "A. Engineer", "Seen.")
    stricter = leaking(folder, gate={"utility_loss_max": 0.0, "exposed_max": 0.2})
    with pytest.raises(GateError, match="not what the gate refuses now"):
        run_serially(stricter)
    assert not (folder / "release.zarr").exists()
    run_serially(options)  # what was approved is approved still
    assert is_published(options, open_collection(options.collection.path))


@pytest.mark.parametrize(("reaches", "passes", "room"), [(0.05, 1, 1), (0.08, 1, 0), (0.2, 0, 0)])
def test_gate_needs__a_limit_just_above_a_guess_has_no_room(
    reaches: float, passes: int, room: int
) -> None:
    """Whether such a gate opens is chance: `check` warns, and `init` writes other limits."""
    needs = GateNeeds("secret", "auc", 100, 200, 4, 0.1, reaches)
    assert (needs.can_pass, needs.has_room) == (passes, room)
    warning = SampleFindings((), None, None, needs, "keys").warning
    assert ("by chance" in warning) == (passes and not room)
    assert ("hardly open" in warning) == (not passes)


@pytest.mark.parametrize("of_people", [True, False])
def test_check_sample__counts_people_where_all_records_of_one_are_alike(
    folder: Path, of_people: bool
) -> None:
    """What judges then is people: 3,000 records of 50 people show no more than 50 can."""
    records = make_records()
    person = np.random.default_rng(0).integers(0, 100, len(records["secret"])).astype(np.int8)
    secret = (person % 2).astype(np.int8) if of_people else records["secret"]
    write_records(str(folder / "people.zarr"), records | {"secret": secret, "person": person})
    where = {"path": str(folder / "people.zarr"), "subject": "person"}
    needs = check_sample(check_stage(make_leaky_options(folder, collection=where))).gate
    assert needs is not None
    assert needs.unit in needs.describe()
    if of_people:
        assert (needs.unit, needs.n_held_out, needs.can_pass) == ("subjects", 50, False)
        assert 100 < needs.n_needed < 1_000
    else:
        assert (needs.unit, needs.n_held_out, needs.can_pass) == ("records", 3_000, True)


def test_check_sample__plans_for_what_the_target_leaves(folder: Path) -> None:
    """Where the target reveals nearly all, few records of one target are left to be told apart."""
    records = make_records()
    secret = np.asarray(records["secret"])
    flipped = np.random.default_rng(0).random(len(secret)) < 0.01
    revealing = np.where(flipped, 1 - secret, secret).astype(np.int8)
    unrelated = np.random.default_rng(1).permutation(secret)
    passes = []
    for name, target in (("usual", unrelated), ("revealed", revealing)):
        write_records(str(folder / f"{name}.zarr"), records | {"wanted": target})
        where = {"path": str(folder / f"{name}.zarr"), "desired": ["wanted"]}
        needs = check_sample(check_stage(make_leaky_options(folder, collection=where))).gate
        assert needs is not None
        passes.append((needs.has_room, needs.can_pass))
    assert passes == [(True, True), (False, False)]


@pytest.mark.parametrize("failure", ["error", "nan"])
def test_gate__a_failing_adversary_is_unknown_and_keeps_it_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    # Others who fit by least squares have it by name already: the adversary alone fails.
    from privpipe.attacks import equal_noise
    from privpipe.attacks.adversaries import covert_channels, desired_baseline, ridges
    from privpipe.attacks.adversaries.problem import Fitted

    for module in (covert_channels, desired_baseline, equal_noise):
        assert module.fit_least_squares is ridges.fit_least_squares

    def fit(problem: Any) -> Fitted:
        if failure == "error":
            raise ValueError("value 4711 of a record")
        return Fitted(lambda x: x[:, :2] * float("nan"), "nothing")

    monkeypatch.setattr(ridges, "fit_least_squares", fit)
    monkeypatch.setattr("privpipe.attacks.adversaries.import_module", lambda _: ridges)
    options = make_leaky_options(folder, audit={"adversaries": ("least_squares",)})
    with pytest.raises(GateError) as caught:
        run_serially(options)
    assert caught.value.code == "unknown"
    assert "4711" not in str(caught.value)
    assert not (folder / "release.zarr").exists()


REFUSED: list[tuple[dict[str, Any], type[PrivpipeError], str]] = [
    ({"gate": {"exposed_max": 0.001}}, OptionError, "different held-out records"),
    ({"audit": {"adversaries": ()}}, OptionError, "nothing would be attacked"),
    ({"collection": {"confidential": ()}}, OptionError, "no variable is named as confidential"),
]


@pytest.mark.parametrize(("changes", "kind", "expected"), REFUSED)
def test_check__refuses_a_gate_that_cannot_be_passed(
    folder: Path, changes: dict[str, Any], kind: type[PrivpipeError], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        check_stage(make_leaky_options(folder, **changes))
    ungated = {**changes, "gate": {"enforce": False}}
    check_stage(make_leaky_options(folder, **ungated))


def findings(**changes: Any) -> dict[str, Any]:
    """Of a release that passes."""
    decision = {"target": "secret", "verdict": "safe", "reason": "", "gain_upper": 0.05}
    return {
        "adversaries": {"verdict": "safe", "reason": "", "decisions": [decision]},
        "desired": {"wanted": {"raw": {"accuracy": 0.9}, "released": {"accuracy": 0.85}}},
        "attacks": {},
    } | changes


def _tell(status: str = "measured", n_unknown: int = 0, **differs: Any) -> dict[str, Any]:
    """Who a published model learned from, as measured; by default within every limit."""
    limits = {"advantage": 0.0, "advantage_lower": -0.05, "advantage_upper": 0.05}
    one = {"adversary": "logistic", "score": "auc", "estimate": 0.5} | limits | differs
    found: dict[str, Any] = {"differences": [one], "n_unknown": n_unknown}
    return {"attacks": {"training_membership": {"status": status, "reason": "x", "report": found}}}


def _lose(**loss: Any) -> dict[str, Any]:
    return {"utility": {"wanted": {"score": "accuracy", "loss": loss}}}


@pytest.mark.parametrize(
    ("section", "changes", "codes"),
    [
        ({}, {}, []),
        ({"utility_loss_max": 0.06}, {}, []),
        ({"utility_loss_max": 0.04}, {}, ["utility"]),
        ({"utility_loss_max": 0.04}, {"desired": {}}, ["utility"]),
        ({"utility_loss_max": 0.04}, {"desired": {"wanted": {"raw": {}}}}, ["utility"]),
        ({"utility_loss_max": 0.06}, _lose(estimate=0.05, lower=0.0, upper=0.06), []),
        ({"utility_loss_max": 0.06}, _lose(estimate=0.05, lower=0.0, upper=None), ["utility"]),
        ({"utility_loss_max": 0.06}, _lose(estimate=0.05, lower=0.0, upper=0.07), ["utility"]),
        ({"utility_loss_max": 0.06}, {"utility": {"wanted": {"reason": "x"}}}, ["utility"]),
        ({}, _tell(), []),
        ({}, _tell(advantage_upper=0.11), ["membership"]),
        ({}, _tell(score="tpr_at_0.01", advantage_upper=0.02), ["membership"]),
        ({}, _tell(advantage_upper=None), ["membership"]),
        ({}, _tell(advantage=math.nan), ["membership"]),
        ({}, _tell(status="unknown"), ["membership"]),
        ({}, _tell(n_unknown=1), ["membership"]),
        ({}, {"adversaries": {"verdict": "unknown", "reason": "x", "decisions": []}}, ["unknown"]),
    ],
)  # fmt: skip
def test_judge_findings__unknown_never_passes(
    section: dict[str, Any], changes: dict[str, Any], codes: list[str]
) -> None:
    found = judge_findings(findings(**changes), GateSection(**section))
    assert [one.code for one in found] == codes


def test_check_gated__wants_a_gate_at_all() -> None:
    with pytest.raises(GateError, match="did not go through"):
        check_gated(findings())


def test_weaker_limits__are_all_that_ask_less_than_the_defaults() -> None:
    base: dict[str, Any] = {
        "collection": {"path": "c"},
        "method": {"name": "leace"},
        "release": {"path": "r"},
    }
    assert list_weaker_limits(RunOptions(**base)) == []
    stricter = {"confidential_advantage_max": 0.05, "exposed_max": 0.0, "drift_max": 0.1}
    assert list_weaker_limits(RunOptions(**base, gate=stricter, audit={"level": 0.99})) == []
    weaker = RunOptions(
        **base,
        gate={"must_find": 0.5, "drift_max": None},
        audit={"level": 0.5, "adversaries": ["logistic"]},
    )
    found = list_weaker_limits(weaker)
    assert found[:3] == [
        "must_find 0.5 (usually 0.2)",
        "drift_max none (usually 0.5)",
        "level 0.5 (usually 0.95)",
    ]
    assert "boosting" in found[3]
    assert len(found) == 4
    audit: dict[str, Any] = {"max_records": 500, "holdout": 0.05}
    base["collection"] = base["collection"] | {"subject": "person"}
    told = list_weaker_limits(RunOptions(**base, audit=audit))
    assert sorted(one.partition(" ")[0] for one in told) == sorted([*audit, "subject"])
    assert AuditSection().max_records == AttackOptions().max_records


def test_find_attack_options__has_the_defaults_of_the_audit() -> None:
    """Whoever audits in Python is held to what a run is held to."""
    base: dict[str, Any] = {
        "collection": {"path": "c"},
        "method": {"name": "leace"},
        "release": {"path": "r"},
    }
    assert find_attack_options(RunOptions(**base)) == AttackOptions()
