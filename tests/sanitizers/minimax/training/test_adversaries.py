"""Training against several adversaries: gradients, inner gaps, and what it is good for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import OptionError
from privpipe.numerics.minimax.filters import LinearFamily
from privpipe.numerics.minimax.fourier_features import draw_features
from privpipe.sanitizers.minimax.training.adversaries import AdversaryOptions, name_adversaries
from privpipe.sanitizers.minimax.training.labelled_moments import measure_moments
from privpipe.sanitizers.minimax.training.shard_oracle import make_objective
from privpipe.sanitizers.minimax.training.task_planning import plan_tasks
from tests.sanitizers.minimax.training.rings import draw_rings

BOTH: tuple[Any, ...] = ("logistic", "random_features")


def make_problem(n_shards: int = 1) -> Any:
    x, target, private = draw_rings(300)
    records = Records(
        x, desired=target.astype(str), confidential=private.astype(str), n_shards=n_shards
    )
    moments = measure_moments(records)
    options = AdversaryOptions(adversary=BOTH, adversary_weights=(1.0, 3.0))
    tasks = plan_tasks(options, records.schema, moments, ridge=1e-3)
    rng = np.random.default_rng(0)
    u = rng.standard_normal((x.shape[1], 2))
    drawn = draw_features(moments.mean @ u, u.T @ moments.covariance @ u, 20, rng)
    return records, name_adversaries(options, tasks, drawn), u.ravel()


def test_objective__gradient_against_random_features_is_that_of_finite_differences() -> None:
    records, tasks, u = make_problem()
    family = LinearFamily(np.zeros(records.schema.n_features), 2, with_offset=False)
    phi = make_objective(records, family, tasks, ridge=1e-3, n_penalised=0, inner_tolerance=1e-11)
    found = phi(u)
    assert found.gap <= 1e-11
    along = np.random.default_rng(1).standard_normal((3, len(u)))
    for direction in along:
        step = 1e-4
        ends = [phi(u + t * direction).value for t in (step, -step)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(
            found.gradient @ direction, rel=1e-5, abs=1e-7
        )


def test_objective__weights_are_shared_among_adversaries() -> None:
    _, tasks, _ = make_problem()
    assert [round(task.weight, 12) for task in tasks] == [10.0, -0.25, -0.75]
    assert tasks[2].label == "confidential:confidential_0 (random_features)"


def test_fit__against_random_features_hides_what_a_kernel_reads() -> None:
    """How far a record lies from the middle is private: no line tells it, a kernel does."""
    x, target, private = draw_rings(1500)
    half = len(x) // 2
    records = Records(
        x[:half], desired=target[:half].astype(str), confidential=private[:half].astype(str)
    )
    plain = MinimaxOptions(n_filtered=3, max_iterations=20)
    rates = []
    for options in (plain, replace(plain, adversary=BOTH)):
        with pytest.warns(UserWarning, match="n_filtered is 3"):
            fitted = fit_minimax_filter(records, options)
        z = fitted.apply(x)
        rates.append((attack(z, target, half, 1), attack(z, private, half, 20)))
        assert fitted.history.shape[1] == len(fitted.history_columns)
        assert np.isfinite(fitted.history).all()
        iterations = fitted.history[:, 0]
        assert (np.diff(iterations) == 1).all()
        assert (np.diff(fitted.history[:, -3]) > 0).all()
    (_, weak), (kept, strong) = rates
    assert weak > 0.8
    assert strong < 0.62
    assert kept > 0.9


def attack(z: Any, labels: Any, half: int, n_neighbours: int) -> float:
    """Accuracy of nearest neighbours trained on one half and judged by the other."""
    from sklearn.neighbors import KNeighborsClassifier

    z = (z - z.mean(axis=0)) / z.std(axis=0)
    model = KNeighborsClassifier(max(n_neighbours, 5)).fit(z[:half], labels[:half])
    return float(model.score(z[half:], labels[half:]))


def test_fit__any_sharding_gives_the_same_filter() -> None:
    options = MinimaxOptions(
        n_filtered=1, max_iterations=7, resample_every=3, adversary=BOTH, regularisation=1e-3
    )
    found = [fit_minimax_filter(make_problem(n)[0], options).weights for n in (1, 5)]
    assert np.abs(found[0] - found[1]).max() < 1e-9 * np.abs(found[0]).max()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"adversary": ("logistic", "logistic")}, "names one twice"),
        ({"adversary": BOTH, "adversary_weights": (1.0,)}, "1 entries for 2 adversaries"),
        ({"adversary": "random_features", "solver": "alternating"}, "whose adversary is logistic"),
    ],
)
def test_options__that_contradict_one_another_are_refused(given: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        fit_minimax_filter(make_problem()[0], MinimaxOptions(**given))
