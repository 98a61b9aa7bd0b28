"""The authors' adversary of Hamm's figures descends as SciPy's BFGS does, in less time."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize as so

from flows.reproduce.paper_adversaries import descend_bfgs, measure_papers_accuracy
from privpipe.protocols import FloatArray


@pytest.mark.parametrize("n_steps", [1, 7, 50])
def test_descend_bfgs__takes_the_steps_of_scipy(n_steps: int) -> None:
    """Also where the first trial of a line search is refused: scales 30 apart see to that."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 12)) * np.geomspace(0.1, 3.0, 12)
    y = np.where(x @ rng.standard_normal(12) + rng.standard_normal(200) > 0, 1.0, -1.0)

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        margins = y * (x @ w)
        slopes = -y / (1.0 + np.exp(margins))
        return float(np.logaddexp(0.0, -margins).mean()), x.T @ slopes / len(y)

    ours = descend_bfgs(loss, np.zeros(12), n_steps)
    asked = {"maxiter": n_steps}
    theirs = so.minimize(loss, np.zeros(12), jac=True, method="BFGS", options=asked)
    assert ours == pytest.approx(theirs.x, rel=1e-6, abs=1e-8)
    assert loss(ours)[0] < loss(np.zeros(12))[0]


def test_measure_papers_accuracy__reads_classes_that_are_there_and_none_that_are_not() -> None:
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 4, 600)
    told = np.eye(4)[classes] + 0.1 * rng.standard_normal((600, 4))
    hidden = rng.standard_normal((600, 4))
    labels = classes[:400], classes[400:]
    assert measure_papers_accuracy((told[:400], told[400:]), labels) > 0.95
    assert measure_papers_accuracy((hidden[:400], hidden[400:]), labels) < 0.4
