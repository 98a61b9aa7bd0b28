"""Training against several adversaries: gradients, inner gaps, and what it is good for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import InputError, OptionError
from privpipe.numerics.minimax.filters import LinearFamily
from privpipe.numerics.minimax.lifts import Lift, NystroemFeatures, OutputMoments, SetFeatures
from privpipe.sanitizers.minimax.training import adversary_rounds, shard_oracle
from privpipe.sanitizers.minimax.training.adversary_rounds import FilterTraining, name_adversaries
from privpipe.sanitizers.minimax.training.labelled_moments import measure_moments, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import Task
from privpipe.store.collections.collection import open_collection
from tests.motion import draw_windows, write_windows
from tests.sanitizers.minimax.small_adversaries import make_small
from tests.sanitizers.minimax.training.phi import make_objective
from tests.sanitizers.minimax.training.rings import draw_rings

BOTH: tuple[Any, ...] = ("logistic", "kernel")
DRAWN = ("kernel", "group")
EVERYBODY: tuple[Any, ...] = ("logistic", *DRAWN)
N_EACH = 12


def make_records(n: int = 300, n_shards: int = 1, **more: Any) -> Records:
    """Rings; groups of twelve records, each group of one private class."""
    x, target, private = draw_rings(n)
    order = np.argsort(private, kind="stable")
    x, target, private = x[order], target[order], private[order]
    group = _number_groups(private)
    return Records(
        x,
        desired=target.astype(str),
        confidential=private.astype(str),
        groups=more.get("groups", group),
        n_shards=n_shards,
    )


def _number_groups(private: Any) -> Any:
    """Twelve records each and at least, one class after the other."""
    parts = []
    for kind in np.unique(private):
        n = int((private == kind).sum())
        parts.append(np.minimum(np.arange(n) // N_EACH, n // N_EACH - 1) + 1000 * kind)
    return np.concatenate(parts)


def make_lifts(records: Records, u: Any) -> dict[str, Lift]:
    moments = measure_moments(records)
    outputs = OutputMoments.of(moments.mean @ u, u.T @ moments.covariance @ u)
    kernel = NystroemFeatures(outputs, np.random.default_rng(0).standard_normal((12, 2)))
    return {"kernel": kernel, "group": SetFeatures(kernel)}


def make_problem(
    names: tuple[Any, ...], n_shards: int = 1, **more: Any
) -> tuple[Records, tuple[Task, ...], Any, FilterTraining]:
    records = make_records(n_shards=n_shards)
    u = np.random.default_rng(0).standard_normal((6, 2))
    options = FilterTraining(adversary=names, group_size=4, **more)
    tasks = plan_tasks(options, records.schema, measure_moments(records), ridge=1e-3)
    return records, name_adversaries(options, tasks, make_lifts(records, u)), u.ravel(), options


@pytest.mark.parametrize("name", [*DRAWN, "everybody"])
def test_objective__gradient_against_every_adversary_is_that_of_finite_differences(
    name: str,
) -> None:
    records, tasks, u, _ = make_problem(EVERYBODY if name == "everybody" else (name,))
    family = LinearFamily(np.zeros(6), 2, with_offset=False)
    phi = make_objective(records, family, tasks, inner_tolerance=1e-11)
    found = phi(u)
    assert found.gap <= 1e-11
    for direction in np.random.default_rng(1).standard_normal((2, len(u))):
        ends = [phi(u + t * direction).value for t in (1e-4, -1e-4)]
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(
            found.gradient @ direction, rel=1e-5, abs=1e-7
        )


@pytest.mark.parametrize("name", DRAWN)
def test_heads__are_solved_to_the_gap_that_they_certify(name: str) -> None:
    """Coarse or precise, the loss is no further above the minimum than the gap says."""
    records, tasks, u, _ = make_problem((name,))
    family = LinearFamily(np.zeros(6), 2, with_offset=False)
    private = tuple(task for task in tasks if task.weight < 0)
    best = make_objective(records, family, private, inner_tolerance=1e-13)(u).losses[0]
    for tolerance in (1e-2, 1e-4, 1e-6):
        objective = make_objective(records, family, private, inner_tolerance=tolerance)
        (solver,) = objective.solvers
        assert solver is not None
        assert solver.certifies
        found = objective(u)
        assert -1e-12 <= found.losses[0] - best <= found.gap <= tolerance


def test_round__is_of_the_size_of_the_largest_hessians_at_6_and_15_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Motion records' shape: filter, head and both gradients, or two Hessians in one round."""
    rng = np.random.default_rng(0)
    n, width = 600, 561
    target, private = rng.integers(0, 6, n), np.sort(rng.integers(0, 15, n))
    x = rng.standard_normal((n, width)).astype(np.float32)
    x[:, :6] += 3 * np.eye(6)[target]
    x[:, 6:21] += np.eye(15)[private]
    records = Records(
        x, desired=target.astype(str), confidential=private.astype(str), groups=private
    )
    monkeypatch.setattr(adversary_rounds, "RESAMPLE_EVERY", 1)
    monkeypatch.setattr(adversary_rounds, "RIDGE", 1e-2)
    for names, most in ((("logistic",), 80_000), (EVERYBODY, 6_000_000)):
        options = MinimaxOptions(adversary=names, max_iterations=2, inner_tolerance=1e-2)
        fitted = fit_minimax_filter(records, options)
        largest = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
        assert 22_000 < largest["largest_round_bytes"] <= most


def test_objective__weights_are_shared_among_adversaries() -> None:
    _, tasks, _, _ = make_problem(BOTH)
    assert [round(task.weight, 12) for task in tasks] == [10.0, -0.5, -0.5]
    assert tasks[2].label == "confidential:confidential_0 (kernel)"


def test_group_adversary__tells_more_the_more_records_it_pools() -> None:
    """Its loss on sets is below that on single records, whose noise it averages away."""
    records, tasks, u, _ = make_problem(("kernel", "group"))
    family = LinearFamily(np.zeros(6), 2, with_offset=False)
    u = np.zeros((6, 2))
    u[0, 0] = u[1, 1] = 1.0
    losses = make_objective(records, family, tasks)(u.ravel()).losses
    assert losses[2] < 0.5 * losses[1]


@pytest.mark.parametrize("name", DRAWN)
def test_fit__any_sharding_that_keeps_groups_gives_the_same_filter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch, RESAMPLE_EVERY=3, LANDMARKS=10)
    options = MinimaxOptions(
        n_filtered=1,
        max_iterations=6,
        adversary=("logistic", name),  # type: ignore[arg-type]
        regularisation=1e-3,
        group_size=5,
    )
    found = [fit_minimax_filter(make_records(n_shards=n), options).weights for n in (1, 5)]
    assert np.abs(found[0] - found[1]).max() < 1e-9 * np.abs(found[0]).max()


def test_collection__keeps_groups_whole_where_chunks_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 130 records cut groups of 20: their edges move to where a group begins."""
    make_small(monkeypatch, RESAMPLE_EVERY=2)
    windows = draw_windows(20, 20)
    write_windows(str(tmp_path / "windows.zarr"), windows, 130)
    names: dict[str, Any] = {"desired": "activity", "confidential": "sex", "groups": "subject"}
    collection = open_collection(str(tmp_path / "windows.zarr"), **names)
    shards = list(collection.shards())
    assert [len(shard.features) for shard in shards] == [140, 120, 140, 0]
    options = MinimaxOptions(adversary=("logistic", "group"), max_iterations=4)
    roles = {name: windows[name].astype(str) for name in ("activity", "sex")}
    records = Records(
        windows["features"],
        desired=roles["activity"],
        confidential=roles["sex"],
        groups=windows["subject"],
    )
    # Codes of categories in the order of the collection, or of their names: the same filter.
    ours, theirs = (fit_minimax_filter(one, options).history for one in (collection, records))
    np.testing.assert_allclose(ours[:, 1], theirs[:, 1], atol=1e-9)


def attack(z: Any, labels: Any, half: int, n_neighbours: int) -> float:
    """Accuracy of nearest neighbours trained on one half and judged by the other."""
    from sklearn.neighbors import KNeighborsClassifier

    z = (z - z.mean(axis=0)) / z.std(axis=0)
    model = KNeighborsClassifier(max(n_neighbours, 5)).fit(z[:half], labels[:half])
    return float(model.score(z[half:], labels[half:]))


def test_fit__against_a_kernel_hides_what_no_line_tells() -> None:
    """How far a record lies from the middle is private: no line tells it, a kernel does."""
    x, target, private = draw_rings(1500)
    half = len(x) // 2
    records = Records(
        x[:half], desired=target[:half].astype(str), confidential=private[:half].astype(str)
    )
    plain = MinimaxOptions(n_filtered=3, max_iterations=15, regularisation=1e-4)
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


def test_fit__counts_every_round_and_takes_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty rounds an iteration, of products; and those of k-means were not counted."""
    make_small(monkeypatch, RESAMPLE_EVERY=3, LANDMARKS=16)
    asked: list[object] = []
    sum_over = shard_oracle.sum_over_shard
    monkeypatch.setattr(
        shard_oracle, "sum_over_shard", lambda *a, **k: (asked.append(a), sum_over(*a, **k))[1]
    )
    options = MinimaxOptions(adversary=EVERYBODY, max_iterations=12, group_size=5)
    fitted = fit_minimax_filter(make_records(), options)
    last = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
    assert last["rounds"] == len(asked)
    assert last["rounds"] <= 6 * last["iteration"]
    assert last["inner_gap"] <= options.inner_tolerance  # certified: every row has a penalty


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"adversary": ("logistic", "logistic")}, "names one twice"),
        ({"adversary": "kernel", "solver": "alternating"}, "whose adversary is logistic"),
    ],
)
def test_options__that_contradict_one_another_are_refused(given: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        fit_minimax_filter(make_records(), MinimaxOptions(**given))


def test_groups__of_which_no_set_can_be_drawn_are_refused() -> None:
    private = np.sort(draw_rings(300)[2])
    whole = _number_groups(private)
    single = np.where(np.arange(300) == 7, 5000, whole)
    cases = {
        "no variable says whose": None,
        "of one group": np.zeros(300),
        "in more than one chunk": np.random.default_rng(0).permutation(whole),
        "have fewer than 5": single,
        "differs between records of one group": np.arange(300) // 100,
    }
    for match, groups in cases.items():
        records = make_records(n_shards=3, groups=groups)
        options = MinimaxOptions(adversary="group", group_size=5)  # type: ignore[arg-type]
        with pytest.raises((InputError, OptionError), match=match):
            fit_minimax_filter(records, options)
