"""An adversary is one module and one row: options, configuration, schema and report follow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from privpipe.attacks.adversaries import ADVERSARIES, Adversary
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.problem import Fitted, Problem
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.pipeline.runs.run_options import AuditSection, RunOptions


def fit_first_column(problem: Problem) -> Fitted:
    """Guesses by the sign of the first column."""

    def decide(x: np.ndarray) -> np.ndarray:
        return np.column_stack([np.zeros(len(x)), x[:, 0]])

    return Fitted(decide, "first column")


def test_registry__a_row_is_all_that_an_adversary_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="no such adversary; use some of: least_squares"):
        AttackOptions(adversaries=("first_column",))
    monkeypatch.setitem(
        ADVERSARIES, "first_column", Adversary(fit_first_column, 1_000, numbers=False)
    )
    # An audit that names no adversaries is the same as before.
    assert "first_column" not in AttackOptions().adversaries
    assert "first_column" not in AuditSection().adversaries
    assert len(AttackOptions().adversaries) == len(ADVERSARIES) - 1
    assert AuditSection(adversaries=("first_column",)).adversaries == ("first_column",)
    schema = RunOptions.model_json_schema()["$defs"]["AuditSection"]["properties"]["adversaries"]
    assert schema["items"]["enum"] == list(ADVERSARIES)

    random = np.random.default_rng(0)
    secret = random.integers(0, 2, 600)
    released = random.normal(size=(600, 1)) + 4 * secret[:, None]
    options = AttackOptions(adversaries=("first_column",))
    report = measure_attacks(released, secret, options=options)
    assert report.verdict == "leaks"
    name, value = report.strongest(report.outcomes[0].attack.target, "accuracy", "released")
    assert name == "first_column"
    assert value.interval.estimate > 0.9
    assert "first_column" in report.to_json()


def test_registry__a_name_outside_the_table_is_refused_by_the_configuration() -> None:
    with pytest.raises(ValidationError, match="no such adversary"):
        AuditSection(adversaries=("oracle",))


def test_registry__no_list_of_names_stands_elsewhere() -> None:
    rooms = [
        Path(import_module(f"privpipe.{name}").__path__[0])
        for name in ("attacks", "command", "flows", "pipeline")
    ]
    modules = [path for room in rooms for path in room.rglob("*.py")]
    for path in modules:
        if path.parent.name != "adversaries":
            assert '"nearest_neighbours"' not in path.read_text(), path
