"""Kinds of attack are rows: each runs from what it needs, and says what it lacks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.attack_table import (
    ATTACKS,
    AttackRow,
    Sample,
    list_possible,
    run_by_name,
)
from privpipe.errors import InputError

OPTIONS = AttackOptions(adversaries=("least_squares",))


def make_sample(n: int = 240) -> Sample:
    random = np.random.default_rng(0)
    raw = random.normal(size=(n, 4))
    classes = (raw[:, :1] > 0).astype(np.int64)
    return Sample(
        released=raw[:, :3],
        raw=raw,
        codes=classes,
        classes=classes,
        members=raw[:, :3] + 1e-3,
        others=random.normal(size=(n, 3)),
        surrogate_responses=raw[:, 3:],
        member_responses=raw[:, 3:],
        gram=raw.T @ raw,
        earlier=(raw[1:, :3], raw[1:, 3:]),
        learned=raw[:, :3],
        fresh=raw[:, :3] + 5.0,
        published=raw[:, :3],
        judged=raw[:, :3] + 5.0,
    )


def only(sample: Sample, names: tuple[str, ...]) -> Sample:
    return Sample(**{name: getattr(sample, name) for name in names})


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks__each_row_runs_from_its_needs_alone(name: str) -> None:
    kind = ATTACKS[name]
    report = run_by_name(name, only(make_sample(), kind.needs), OPTIONS)
    assert json.loads(report.to_json())


@pytest.mark.parametrize(("name", "need"), [(k.name, n) for k in ATTACKS.values() for n in k.needs])
def test_attacks__a_missing_need_is_named(name: str, need: str) -> None:
    lacking = replace(make_sample(), **{need: None})
    assert name not in list_possible(lacking)
    with pytest.raises(InputError, match=f"{name} needs {need}"):
        run_by_name(name, lacking, OPTIONS)


def test_attacks__find_what_this_release_leaks() -> None:
    """Three of four columns as they are: every kind must see it."""
    sample = make_sample()
    assert list_possible(sample) == tuple(ATTACKS)
    found = {name: run_by_name(name, sample, OPTIONS) for name in ATTACKS}
    assert found["linkage"].strongest.top_1.estimate == 1  # type: ignore[attr-defined]
    assert found["reconstruction"].strongest.column_r2[0] > 0.99  # type: ignore[attr-defined]
    assert found["membership"].area.lower > 0.9  # type: ignore[attr-defined]
    assert found["training_membership"].strongest.advantage_lower > 0.5  # type: ignore[attr-defined]
    assert found["drift"].strongest.advantage_lower > 0.5  # type: ignore[attr-defined]
    assert found["information"].rows[0].lower > 0.5  # type: ignore[attr-defined]


def test_attacks__a_new_one_is_a_module_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Count:
        def to_json(self) -> str:
            return "3"

    module = ModuleType("privpipe.attacks.threats.counting")
    module.count = lambda raw, *, options: Count()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = AttackRow("counting", "counting:count", ("raw",))
    monkeypatch.setitem(ATTACKS, "counting", row)
    sample = Sample(raw=np.zeros((3, 1)))
    assert list_possible(sample) == ("counting",)
    assert run_by_name("counting", sample).to_json() == "3"
    with pytest.raises(InputError, match="no attack 'guessing'"):
        run_by_name("guessing", sample)
