"""The line in which a report says what is promised."""

from __future__ import annotations

import pytest

from privpipe.protocols import Guarantee
from privpipe.sanitizers.minimax.linear_filter import promise_nothing
from privpipe_flows.runs.stages.publish import _say_guarantee


@pytest.mark.parametrize("method", ["minimax", "pca", "unknown"])
def test_say_guarantee__nothing_has_no_unit_and_protects_nobody(method: str) -> None:
    said = _say_guarantee(promise_nothing(method))
    assert said.startswith("no promise for single records; None")
    for claim in ("none nats", "in expectation", "protects"):
        assert claim not in said


def test_say_guarantee__a_promise_keeps_number_unit_and_scope() -> None:
    given = Guarantee("local_dp", 0.5, "epsilon, nats", "every record", "A theorem", "")
    said = _say_guarantee(given)
    assert said.startswith("local_dp 0.5 epsilon, nats; every record; A theorem; protects ")
