"""Kinds of attack are rows: each runs from what it needs, and says what it lacks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.attack_table import (
    ATTACKS,
    AttackKind,
    Sample,
    list_possible,
    run_kind,
)
from privpipe.errors import InputError

OPTIONS = AttackOptions(adversaries=("least_squares",), n_replicates=50)


def make_sample(n: int = 240) -> Sample:
    random = np.random.default_rng(0)
    raw = random.normal(size=(n, 4))
    classes = (raw[:, :1] > 0).astype(np.int64)
    return Sample(
        released=raw[:, :3],
        confidential=classes,
        raw=raw,
        codes=classes,
        classes=classes,
        members=raw[:, :3] + 1e-3,
        others=random.normal(size=(n, 3)),
        signs=random.choice([-1.0, 1.0], (n, n)),
        surrogate_responses=raw[:, 3:],
        member_responses=raw[:, 3:],
        gram=raw.T @ raw,
        earlier=(raw[1:, :3], raw[1:, 3:]),
        neighbours=(raw[:, :3], raw[:, :3] + 1.0),
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
    report = run_kind(name, only(make_sample(), kind.needs), OPTIONS)
    assert json.loads(report.to_json())
    assert kind.asks.endswith("?") or "nats" in kind.asks


@pytest.mark.parametrize(("name", "need"), [(k.name, n) for k in ATTACKS.values() for n in k.needs])
def test_attacks__a_missing_need_is_named(name: str, need: str) -> None:
    lacking = replace(make_sample(), **{need: None})
    assert name not in list_possible(lacking)
    with pytest.raises(InputError, match=f"{name} needs {need}"):
        run_kind(name, lacking, OPTIONS)


def test_attacks__find_what_this_release_leaks() -> None:
    """Three of four columns as they are: every kind must see it."""
    sample = make_sample()
    assert list_possible(sample) == tuple(ATTACKS)
    found = {name: run_kind(name, sample, OPTIONS) for name in ATTACKS}
    assert found["inference"].verdict == "leaks"  # type: ignore[attr-defined]
    assert found["linkage"].strongest.top_1.estimate == 1  # type: ignore[attr-defined]
    assert found["reconstruction"].strongest.column_r2[0] > 0.99  # type: ignore[attr-defined]
    assert found["membership"].area.lower > 0.9  # type: ignore[attr-defined]
    assert found["training_membership"].strongest.advantage_lower > 0.5  # type: ignore[attr-defined]
    assert found["drift"].strongest.advantage_lower > 0.5  # type: ignore[attr-defined]
    assert found["information"].rows[0].lower > 0.5  # type: ignore[attr-defined]


def test_attacks__a_new_kind_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Count:
        def to_json(self) -> str:
            return "3"

    monkeypatch.setitem(
        ATTACKS, "counting", AttackKind("counting", "How many?", ("raw",), lambda *_: Count())
    )
    sample = Sample(raw=np.zeros((3, 1)))
    assert list_possible(sample) == ("counting",)
    assert run_kind("counting", sample).to_json() == "3"
    with pytest.raises(InputError, match="no kind of attack 'guessing'"):
        run_kind("guessing", sample)
