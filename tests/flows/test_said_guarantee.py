"""The line in which a report says what is promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe.pipeline.stages.report_writing import _name_promise, _say_guarantee
from privpipe.protocols import Guarantee
from privpipe.report.published_findings import PROOFS, name_proof
from privpipe.sanitizers.minimax.linear_filter import promise_nothing


@pytest.mark.parametrize("method", ["minimax", "pca", "unknown"])
def test_say_guarantee__nothing_has_no_unit_and_protects_nobody(method: str) -> None:
    said = _say_guarantee(promise_nothing(method))
    assert said.startswith("no promise for single records; None")
    for claim in ("none nats", "in expectation", "protects"):
        assert claim not in said


def test_say_guarantee__a_promise_keeps_number_unit_and_scope() -> None:
    given = Guarantee("local_dp", 0.5, "epsilon, nats", "every record", "A theorem", "")
    said = _say_guarantee(given)
    assert said.startswith("local_dp 0.5 epsilon, nats; the odds of any belief")


@pytest.mark.parametrize(("epsilon", "name"), [(1.0, "guarantee"), (13.9, "noise")])
def test_name_promise__what_means_nothing_is_no_guarantee(epsilon: float, name: str) -> None:
    given = Guarantee("local_dp", epsilon, "epsilon, nats", "every record", "A theorem", "")
    assert _name_promise(given) == name
    assert ("nothing is promised" in _say_guarantee(given)) == (name == "noise")
    assert _name_promise(promise_nothing("pca")) == "guarantee"


@pytest.mark.parametrize("kind", PROOFS)
def test_name_proof__of_every_promise_leads_to_a_page(kind: str) -> None:
    given = Guarantee(kind, 0.5, "nats", "every record", "A theorem", "")
    page = name_proof(given)["proof"].partition(",")[0]
    assert "**Statement" in (Path(__file__).parents[2] / page).read_text()
    assert name_proof(promise_nothing("pca")) == {}
