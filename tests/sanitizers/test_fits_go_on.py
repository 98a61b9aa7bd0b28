"""An iterative fit that was killed goes on: the same map, bit for bit, and only the rest asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.passes import reduce as sharded
from privpipe.numerics.minimax.filters import LinearFamily
from privpipe.protocols import RecordMap, Shards
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    FamilyFit,
    FamilyOptions,
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
    train_family,
)
from privpipe.sanitizers.minimax.training.tasks import Task
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.models import digest_map
from tests.sanitizers.minimax.small_adversaries import make_small
from tests.standard import write_standard

FITS: dict[str, Callable[[Shards], RecordMap | FamilyFit]] = {
    "linear": partial(fit_minimax_filter, options=MinimaxOptions(max_iterations=6)),
    "alternating": partial(
        fit_minimax_filter, options=MinimaxOptions(max_iterations=6, solver="alternating")
    ),
    "adversaries": partial(
        fit_minimax_filter,
        options=MinimaxOptions(max_iterations=3, adversary=("logistic", "kernel")),
    ),
    "neural": partial(
        fit_minimax_neural_filter, options=MinimaxNeuralOptions(n_hidden=(3,), max_iterations=4)
    ),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def fit_own_family(shards: Shards) -> FamilyFit:
    """A family of the user's own: linear filters of width 2, from a start of theirs."""
    family = LinearFamily(np.zeros(9), 2, with_offset=False)
    start = np.random.default_rng(1).normal(size=family.n_parameters)
    options = FamilyOptions(max_iterations=5)
    return train_family(shards, options.measure_tasks(shards)[1], family, start, options)


FITS["own family"] = fit_own_family


def fit_by_products(shards: Shards) -> RecordMap:
    """Heads as too many classes would have them: a product with the Hessian a round."""
    with patch.object(Task, "uses_hessian", lambda *_: False):
        return fit_minimax_filter(shards, MinimaxOptions(max_iterations=3))


FITS["products"] = fit_by_products


def digest(found: RecordMap | FamilyFit) -> str:
    """Of all that was learned."""
    if isinstance(found, FamilyFit):
        return (found.parameters.tobytes() + found.history.tobytes()).hex()
    return digest_map(found)


class Killed(BaseException):
    """Ends a fit wherever it is."""


class Dying(Executor):
    """Counts rounds over the records, and dies before one of them."""

    def __init__(self, dies_at: int = -1) -> None:
        super().__init__()
        self.dies_at, self.rounds = dies_at, 0

    def oracle(self, *arguments: Any, **options: Any) -> Any:
        ask = super().oracle(*arguments, **options)

        def counted(parameters: Any, /) -> Any:
            if self.rounds == self.dies_at:
                raise Killed
            self.rounds += 1
            return ask(parameters)

        return counted


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    url = str(tmp_path_factory.mktemp("fits") / "standard.zarr")
    write_standard(url, 4_000, chunk_rows=500)
    return open_collection(url, desired=["late"], confidential=["party"])


def fit(
    name: str, collection: Collection, executor: Dying, checkpoints: Checkpoints | None
) -> RecordMap | FamilyFit:
    return FITS[name](sharded.ShardedCollection(collection, executor, checkpoints=checkpoints))


@pytest.mark.parametrize("name", sorted(FITS))
def test_fit__goes_on_after_a_kill(
    name: str, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.CHECKPOINTED_SHARE", 1.0)
    whole = Dying()
    expected = digest(fit(name, collection, whole, None))
    checkpoints, half = Checkpoints(str(tmp_path / "kept")), whole.rounds // 2
    with pytest.raises(Killed):
        fit(name, collection, Dying(half), checkpoints)
    rest = Dying()
    assert digest(fit(name, collection, rest, checkpoints)) == expected
    assert rest.rounds <= whole.rounds - half + 1
    assert rest.rounds > 0
    again = Dying()
    assert digest(fit(name, collection, again, checkpoints)) == expected
    assert again.rounds == 0


def test_fit__another_question_gets_no_old_answer(collection: Collection, tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    fit("linear", collection, Dying(), checkpoints)
    other = Dying()
    options = MinimaxOptions(max_iterations=6, tradeoff=3.0)
    fit_minimax_filter(
        sharded.ShardedCollection(collection, other, checkpoints=checkpoints), options
    )
    assert other.rounds > 0


def test_fit__keeps_nothing_of_few_records(tmp_path: Path) -> None:
    url = str(tmp_path / "few.zarr")
    write_standard(url, 600, chunk_rows=100)
    few = open_collection(url, desired=["late"], confidential=["party"])
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    fit("linear", few, Dying(), checkpoints)
    assert not list((tmp_path / "kept").glob("*")) if (tmp_path / "kept").exists() else True


def test_answers__are_small(collection: Collection, tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "kept"))
    executor = Dying()
    fit("linear", collection, executor, checkpoints)
    sizes = [path.stat().st_size for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert len(sizes) >= executor.rounds
    assert np.median(sizes) < 20_000
