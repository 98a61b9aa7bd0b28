"""Phi over sharded records: value against the textbook, gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize as so

from privpipe import Records
from privpipe.numerics.minimax.filters import LinearFamily, SigmoidFamily, draw_layers
from privpipe.numerics.minimax.objective import Question
from privpipe.sanitizers.minimax.training.labelled_moments import measure_moments, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions
from tests.sanitizers.labelled_data import draw_labelled
from tests.sanitizers.minimax.training.phi import make_objective

RIDGE = 1e-3


def _records(n_shards: int = 3, **more: Any) -> Records:
    x, target, private = draw_labelled(150)
    columns = {"desired": target, "confidential": private, **more}
    return Records(x, n_shards=n_shards, **columns)


def _objective(records: Records, family: Any, options: TaskOptions, **more: Any):
    moments = measure_moments(records)
    tasks = plan_tasks(
        options,
        records.schema,
        moments,
        ridge=RIDGE,
        with_intercept=more.pop("with_intercept", True),
    )
    return make_objective(
        records,
        family,
        tasks,
        ridge=RIDGE,
        n_penalised=family.n_parameters,
        inner_tolerance=1e-14,
        **more,
    )


def _logistic_minimum(z: np.ndarray, classes: np.ndarray, k: int) -> float:
    """min over K columns of the mean log-loss plus the ridge, the slow and obvious way."""

    def loss(w: np.ndarray) -> float:
        logits = z @ w.reshape(-1, k)
        total = np.log(np.exp(logits).sum(axis=1))
        return float((total - logits[np.arange(len(z)), classes]).mean() + RIDGE * (w**2).sum())

    start = np.zeros(z.shape[1] * k)
    return float(so.minimize(loss, start, method="BFGS", options={"gtol": 1e-9}).fun)


@pytest.mark.filterwarnings("ignore:.*precision loss.*")
def test_objective__is_the_papers_phi() -> None:
    x, target, private = draw_labelled(150)
    u = np.random.default_rng(0).normal(size=(9, 2)) / 3
    family = LinearFamily(x.mean(axis=0), 2, with_offset=False)
    phi = _objective(_records(), family, TaskOptions(tradeoff=3.0), with_intercept=False)(u.ravel())
    z = (x - x.mean(axis=0)) @ u
    f1 = _logistic_minimum(z, target.astype(int), 2)
    f2 = _logistic_minimum(z, private.astype(int), 3)
    np.testing.assert_allclose(phi.losses, [f1, f2], atol=1e-8)
    assert phi.value == pytest.approx(3.0 * f1 - f2 + 0.5 * RIDGE * (u**2).sum(), abs=1e-7)


FAMILIES = {
    "linear": LinearFamily(np.linspace(-3.0, 5.0, 9), 3, with_offset=False),
    "affine": LinearFamily(np.zeros(9), 3, with_offset=True),
    "network": SigmoidFamily(np.linspace(-3.0, 5.0, 9), (4, 3)),
}
NUMBERS = np.random.default_rng(5).normal(size=(150, 2))
CASES: dict[str, tuple[dict[str, Any], TaskOptions]] = {
    "classes": ({}, TaskOptions()),
    "one against rest": ({}, TaskOptions(single_out=1.0)),
    "regression": (
        {"desired": NUMBERS[:, 0] + draw_labelled(150)[1]},
        TaskOptions(confidential_task="regression"),
    ),
    "several": (
        {
            "desired": np.column_stack([draw_labelled(150)[1], NUMBERS[:, 0]]),
            "confidential": np.column_stack([draw_labelled(150)[2], NUMBERS[:, 1]]),
        },
        TaskOptions(desired_weights=(0.5, 2.0), confidential_weights=(1.0, 0.3)),
    ),
    "reconstruction": ({"desired": None}, TaskOptions(reconstruction_weight=0.5)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_objective__gradient_agrees_with_differences(family: str, case: str) -> None:
    columns, options = CASES[case]
    filters = FAMILIES[family]
    phi = _objective(_records(**columns), filters, options)
    rng = np.random.default_rng(1)
    u = 0.3 * rng.normal(size=filters.n_parameters)
    if isinstance(filters, SigmoidFamily):
        u = draw_layers(filters, 1, first=0.3, rest=1.0)
    direction = rng.normal(size=len(u))
    step = 1e-5
    slope = (phi(u + step * direction).value - phi(u - step * direction).value) / (2 * step)
    assert phi(u).gradient @ direction == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_objective__fixed_heads_have_the_same_gradient_rule() -> None:
    from dataclasses import replace

    records = _records()
    tasks = plan_tasks(TaskOptions(), records.schema, measure_moments(records))
    tasks = tuple(replace(t, ridge=RIDGE) for t in tasks)
    tasks = (replace(tasks[0], columns=(0, 1)), tasks[1])
    family = LinearFamily(np.zeros(9), 1, with_offset=True)
    phi = make_objective(records, family, tasks, inner_tolerance=1e-14)
    rng = np.random.default_rng(2)
    u, direction = 0.2 * rng.normal(size=(2, 10))
    slope = (phi(u + 1e-5 * direction).value - phi(u - 1e-5 * direction).value) / 2e-5
    assert phi(u).gradient @ direction == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("n_classes", [3, 60])
def test_objective__products_find_the_value_of_the_hessian(
    n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, target, _ = draw_labelled(600)
    rng = np.random.default_rng(3)
    private = np.arange(600) % n_classes
    x = x + rng.normal(size=(n_classes, 9))[private]
    records = Records(x, desired=target, confidential=private.astype(float), n_shards=3)
    asked: list[Question] = []
    u = 0.3 * rng.normal(size=27)
    found, rounds = [], []
    for products in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(
                Task, "uses_hessian", lambda task, *_, p=products: task.is_classification and not p
            )
            phi = _objective(records, FAMILIES["linear"], TaskOptions())
            query = phi.query
            phi.query = lambda question, query=query: (asked.append(question), query(question))[1]
            found.append(phi(u))
            rounds.append(phi.n_rounds)
    wants = {want for one in asked for want in one.wants if want}
    assert wants == {"curvature", "block", "product", "slope"}
    exact, inexact = found
    assert inexact.gap <= 1e-14
    assert inexact.value == pytest.approx(exact.value, abs=1e-10)
    np.testing.assert_allclose(inexact.gradient, exact.gradient, atol=1e-6)
    assert rounds[1] < 200


def test_objective__held_out_records_take_no_part() -> None:
    records = _records()
    u = 0.3 * np.random.default_rng(4).normal(size=27)
    phi = _objective(records, FAMILIES["linear"], TaskOptions(), held_out=0.3)
    part = phi(u)
    assert np.isfinite(part.held_out)
    assert part.held_out != pytest.approx(part.value, abs=1e-3)

    from privpipe.numerics.random.record_hash import choose_share

    x, target, private = draw_labelled(150)
    kept = ~choose_share(x, 0.3)
    assert 80 < kept.sum() < 130
    alone = Records(x[kept], desired=target[kept], confidential=private[kept])
    assert _objective(alone, FAMILIES["linear"], TaskOptions())(u).value == pytest.approx(
        part.value, abs=1e-10
    )


def test_objective__counts_rounds_and_bytes() -> None:
    phi = _objective(_records(), FAMILIES["linear"], TaskOptions())
    phi(np.ones(27))
    assert phi.n_rounds >= 2
    # Down: filter and heads. Up: counts, two losses per task, slopes, packed curvatures.
    down = 27 + 4 * 1 + 4 * 2
    curvature = down + 2 + 4 + (4 + 8) + (4 * 5 // 2 + 8 * 9 // 2 + 2 * 4 * 5 // 2)
    assert phi.largest_round == 8 * max(curvature, down + 2 + 4 + 12 + 27)
