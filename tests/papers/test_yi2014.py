"""Yi et al. 2014: School complete.

80 % missing on School is not reproduced: the reproduction shows by how much.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe_flows.reproduce.registry import run_reproduction
from privpipe_flows.reproduce.result import Reproduction

pytestmark = pytest.mark.slow


def value(found: Reproduction, cell: str) -> float:
    (one,) = [each for each in found.cells if each.cell == cell]
    return one.ours


@pytest.mark.paper
def test_yi_school__keeps_the_model_where_a_random_projection_does_not(paper_data: Path) -> None:
    found = run_reproduction("yi-school", paper_data, small=True)
    raw = value(found, "raw, ridge: RMSE")
    assert value(found, "masked, ridge: RMSE") <= 1.005 * raw
    assert value(found, "masked, ridge: eta") <= 0.06
    assert value(found, "random projection, ridge: RMSE") >= 1.05 * raw
    # What masking adds beside the coefficients and a Gaussian of the same moments: nothing here.
    assert value(found, "coefficients alone, ridge: eta") <= 0.06
