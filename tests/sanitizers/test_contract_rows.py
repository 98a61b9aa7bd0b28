"""What every row of `METHODS` must do from records to artifact; a new row is a line in `ROWS`.

`test_contract` holds maps of every kind to the same; here each method is fitted on a collection,
with checkpoints, as a run fits it.
"""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.threats.membership import distinguish_neighbours
from privpipe.cluster.executors.executor import LocalExecutor
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import NamedCodes
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Guarantee, RecordMap
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.models import digest_map, open_model, write_model
from tests.oracles import exact_loss
from tests.standard import make_standard, write_standard

N_RECORDS = 1_200
EXAMPLES = Path(__file__).parents[1] / "examples"
PROFILES = ("late",)

Check = Callable[[RecordMap], None]


def keeps_the_budget(fitted: Any) -> None:
    """Theorems of Xu et al.: no record's desired prediction moves by more."""
    x, _ = make_standard(N_RECORDS)
    loss = exact_loss(fitted.predictor, x, fitted.apply(x))
    assert fitted.guarantee.kind == "utility_bound"
    assert fitted.guarantee.scope == "every record"
    assert loss.max() <= fitted.guarantee.number
    assert loss.max() > 0.5 * fitted.guarantee.number  # a promise, not a slogan


def erases(fitted: Any) -> None:
    """Belrose et al.: nothing that is released is correlated with the label."""
    x, labels = make_standard(N_RECORDS)
    hot = np.eye(3)[labels["party"].astype(int)]
    sizes = np.outer(x.std(axis=0) + 1e-9, hot.std(axis=0))

    def correlation(features: Any) -> float:
        centred = features - features.mean(axis=0)
        return float(np.abs(centred.T @ (hot - hot.mean(axis=0)) / len(x) / sizes).max())

    assert fitted.guarantee.kind == "linear_erasure"
    assert fitted.guarantee.number == 0.0
    assert correlation(x) > 0.1
    assert correlation(fitted.apply(x)) < 1e-9


def name_codes(fitted: Any, x: Any) -> Any:
    """Codes with the names that they have in the collection of the fit; features as they are."""
    schema = schema_of(fitted)
    if fitted.reads == "features" or schema is None:
        return x
    return NamedCodes(x, schema.attributes)


def bounds_information(fitted: Any) -> None:
    """Salamatian et al., (1): the information of the mapping itself, from counts, by hand."""
    _, labels = make_standard(N_RECORDS)
    codes = np.column_stack([labels[name] for name in PROFILES]).astype(int)
    symbols = fitted.find_symbols(name_codes(fitted, codes))
    joint = np.zeros((3, fitted.n_symbols))
    np.add.at(joint, (labels["party"].astype(int), symbols), 1 / N_RECORDS)
    together = joint @ fitted.mapping.toarray().T
    product = together.sum(axis=1, keepdims=True) * together.sum(axis=0)
    held = together > 0
    information = float((together[held] * np.log(together[held] / product[held])).sum())
    assert fitted.guarantee.kind == "information_bound"
    said = dict(fitted.guarantee.parameters)
    assert information == pytest.approx(said["plug_in"], abs=1e-3)
    assert information < fitted.guarantee.number <= np.log(3)
    assert said["distortion_at_most"] >= fitted.distortion


def hides_means(fitted: RecordMap) -> None:
    """Hamm, (59)-(62): the private classes have one mean."""
    promises_nothing(fitted)
    x, labels = make_standard(N_RECORDS)
    released = fitted.apply(x)
    groups = [labels["party"] == code for code in range(3)]

    def apart(features: Any) -> float:
        means = np.array([features[group].mean(axis=0) for group in groups])
        return float((np.ptp(means, axis=0) / (features.std(axis=0) + 1e-9)).max())

    assert apart(x) > 0.5
    assert apart(released) < 1e-6


def promises_nothing(fitted: RecordMap) -> None:
    """No number, and no theorem of somebody else's method."""
    assert fitted.guarantee.kind == "none"
    assert fitted.guarantee.number is None
    assert fitted.guarantee.theorem.startswith(("None", "Hamm, JMLR 2017, equations"))


def tells_what_it_releases(fitted: RecordMap) -> None:
    """Yi et al.: no promise for records, and the moments that are released are named."""
    promise = fitted.guarantee
    assert (promise.kind, promise.number) == ("none", None)
    for said in ("Second moments", "coefficients", "Not differential privacy"):
        assert said in promise.assumptions


def keeps_epsilon(fitted: Any) -> None:
    """Differential privacy: two records at the ends of the ball, told apart no better than epsilon.

    And the release is of whole steps of the grid, whose number of different values is what noise
    of that size has: it does not come from a smaller one.
    """
    promise = fitted.guarantee
    assert (promise.kind, promise.scope) == ("local_dp", "every record")
    assert 0 < promise.number < 10
    assert promise.delta < 2.0**-100
    assert dict(promise.parameters)["slack of epsilon"] < 2.0**-100
    x, n = make_standard(2)[0] * 1e9, 40_000
    worlds = []
    for row in (x[0], -x[0]):
        stream = KeyedStream(bytes(32), partition=str(row[0]), first_record=0, n_records=n)
        worlds.append(fitted.apply(np.tile(row, (n, 1)), stream))
    steps = worlds[0] / fitted.grid
    np.testing.assert_array_equal(steps, np.round(steps))
    report = distinguish_neighbours(*worlds, level=1 - 1e-6)
    assert 0.3 * promise.number < report.epsilon_floor <= promise.number


@dataclass(frozen=True)
class Row:
    """An example of a row, and what its guarantee means in numbers."""

    options: dict[str, Any]
    true: Check
    files: dict[str, Any] = field(default_factory=dict)
    draws: bool = False


ROWS: dict[str, Row] = {
    "null_space": Row({"utility_budget": 0.1, "ridge": 1e-6}, keeps_the_budget),
    "null_space_targeted": Row({"utility_budget": 0.1, "ridge": 1e-6}, keeps_the_budget),
    "leace": Row({}, erases),
    "target_only": Row({"n_bins": 5}, promises_nothing),
    "privacy_mapping": Row(
        {
            "attributes": PROFILES,
            "private": ("party",),
            "distortion_budget": 0.3,
            "held_out": 0.0,
            "smoothing": "none",
        },
        bounds_information,
        draws=True,
    ),
    "minimax": Row({"max_iterations": 2}, promises_nothing),
    "minimax_neural": Row({"n_hidden": (3, 2), "max_iterations": 2}, promises_nothing),
    "minimax_own": Row(
        {
            "filter": "Convolution",
            "module": str(EXAMPLES / "convolution.py"),
            "settings": {"axes": 1, "width": 3, "kernels": 2},
            "max_iterations": 2,
        },
        promises_nothing,
    ),
    "minimax_least_squares": Row({}, promises_nothing),
    "privacy_lds": Row({}, hides_means),
    "pca": Row({"n_filtered": 2}, promises_nothing),
    "rand": Row({"n_filtered": 2}, promises_nothing),
    "ppls": Row({"n_filtered": 2}, promises_nothing),
    "ddd": Row({}, promises_nothing),
    "noisy": Row(
        {"epsilon": 2.0, "filter": {"name": "pca", "n_filtered": 2}}, keeps_epsilon, draws=True
    ),
    "masking": Row({"n_surrogates": 20}, tells_what_it_releases, draws=True),
}
"""A new method says here what it is fitted with, and how its promise is measured."""


class Counting(LocalExecutor):
    """Counts passes and rounds that read records."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def oracle(self, *arguments: Any, **options: Any) -> Any:
        ask = super().oracle(*arguments, **options)

        def counted(parameters: Any, /) -> Any:
            self.read += 1
            return ask(parameters)

        return counted


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same records in chunks of 100 and of 350."""
    folder = tmp_path_factory.mktemp("rows")
    found = tuple(str(folder / f"{rows}.zarr") for rows in (100, 350))
    for url, rows in zip(found, (100, 350), strict=True):
        write_standard(url, N_RECORDS, chunk_rows=rows)
    return found[0], found[1]


def open_for(name: str, url: str) -> Collection:
    confidential = ["late"] if name == "ddd" else ["party"]
    return open_collection(
        url, desired=["late"], confidential=confidential, attributes=PROFILES, public=True
    )


def fit(
    name: str, url: str, checkpoints: Checkpoints | None = None, executor: Any = None
) -> RecordMap:
    """As the training stage does."""
    method, row = METHODS[name], ROWS[name]
    options = make_options(method.options, {"name": name, **row.options}, name)
    shards = ShardedCollection(
        open_for(name, url), executor or LocalExecutor(), checkpoints=checkpoints
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.fit(shards, options, **row.files)


Fits = Callable[[str], RecordMap]


@pytest.fixture(scope="module")
def fits(urls: tuple[str, str]) -> Fits:
    """Each row fitted once."""
    return cache(lambda name: fit(name, urls[0]))


@pytest.fixture(scope="module", params=sorted(METHODS))
def fitted(request: pytest.FixtureRequest, fits: Fits) -> tuple[str, RecordMap]:
    assert request.param in ROWS, "a new method needs an example in ROWS"
    return request.param, fits(request.param)


@pytest.fixture(
    scope="module", params=sorted(name for name in METHODS if METHODS[name].releases == "rows")
)
def mapped(request: pytest.FixtureRequest, fits: Fits) -> tuple[str, RecordMap]:
    """Of those that map records; `tests/sanitizers/masking` draws surrogates in any chunks."""
    return request.param, fits(request.param)


def draw_inputs(fitted: RecordMap) -> Any:
    x, labels = make_standard(N_RECORDS)
    if fitted.reads == "features":
        return x
    return np.column_stack([labels[name] for name in PROFILES]).astype(np.int8)


def release(fitted: RecordMap, x: Any, first: int = 0) -> Any:
    stream = KeyedStream(bytes(32), partition="p", first_record=first, n_records=len(x))
    return fitted.apply(name_codes(fitted, x), stream)


def test_rows__are_all_here() -> None:
    assert set(ROWS) == set(METHODS), "a new method needs an example in ROWS"


def test_row__makes_one_of_its_maps(fitted: tuple[str, RecordMap]) -> None:
    name, found = fitted
    assert type(found) in METHODS[name].maps
    assert found.draws == ROWS[name].draws


def test_row__has_a_digest_of_all_that_it_holds_and_nothing_else(
    fitted: tuple[str, RecordMap], urls: tuple[str, str]
) -> None:
    name, found = fitted
    assert digest_map(fit(name, urls[0])) == digest_map(found)
    for item in fields(found):  # type: ignore[arg-type]
        value = getattr(found, item.name)
        other = alter(value)
        if other is not value:
            changed = copy.copy(found)
            object.__setattr__(changed, item.name, other)  # no matter if it is allowed
            assert digest_map(changed) != digest_map(found), item.name


def alter(value: Any) -> Any:
    """The same with one thing changed as little as can be; itself where there is nothing in it."""
    if isinstance(value, np.ndarray) and value.size:
        changed = value.copy()
        place = np.unravel_index(value.size - 1, value.shape)
        if value.dtype.kind == "f":
            was = changed[place] if np.isfinite(changed[place]) else 0.0
            changed[place] = np.nextafter(was, np.inf)
        else:
            changed[place] = not changed[place] if value.dtype.kind == "b" else changed[place] + 1
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + " "
    if isinstance(value, tuple) and value:
        return (*value[:-1], alter(value[-1]))
    if isinstance(value, Guarantee):
        return replace(value, assumptions=value.assumptions + " ")
    return value


def test_row__travels_whole(fitted: tuple[str, RecordMap], tmp_path: Path) -> None:
    name, found = fitted
    sent = pickle.loads(pickle.dumps(found))
    digest = write_model(found, str(tmp_path / "map.zarr"))
    again = open_model(str(tmp_path / "map.zarr"))
    assert digest == digest_map(again) == digest_map(sent) == digest_map(found)
    assert again.guarantee == found.guarantee
    if METHODS[name].releases == "rows":
        x = draw_inputs(found)
        expected = release(found, x)
        np.testing.assert_array_equal(release(sent, x), expected)
        np.testing.assert_array_equal(release(again, x), expected)


def test_row__releases_the_same_in_any_chunks(mapped: tuple[str, RecordMap]) -> None:
    name, found = mapped
    x = draw_inputs(found)
    whole = release(found, x)
    for rows in (1, 37, 500):
        starts = range(0, len(x) if rows > 1 else 40, rows)
        parts = np.concatenate([release(found, x[at : at + rows], at) for at in starts])
        if found.draws:
            np.testing.assert_array_equal(parts, whole[: len(parts)])
        else:
            np.testing.assert_allclose(parts, whole[: len(parts)], rtol=1e-6, atol=1e-9)
    if found.draws:
        assert (release(found, x, 1) != whole).any(), name


def test_row__learns_the_same_from_other_chunks(
    mapped: tuple[str, RecordMap], urls: tuple[str, str]
) -> None:
    """To rounding: sums are added in another order. What stops early may differ by a step."""
    name, found = mapped
    other = fit(name, urls[1])
    x = draw_inputs(found)
    scale = np.abs(release(found, x)).max()
    np.testing.assert_allclose(release(other, x), release(found, x), atol=1e-4 * scale)


def test_row__has_a_guarantee_that_is_true(fitted: tuple[str, RecordMap]) -> None:
    name, found = fitted
    promise = found.guarantee
    assert promise.theorem
    assert promise.unit or promise.number is None
    json.dumps(asdict(promise), allow_nan=False)
    assert METHODS[name].promise
    ROWS[name].true(found)


def test_row__reads_nothing_again_of_what_is_checkpointed(
    fitted: tuple[str, RecordMap],
    urls: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, found = fitted
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.CHECKPOINTED_SHARE", 100.0)
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.FEWEST_CHECKPOINTED", 1)
    n_read, shard = [0], Collection.shard

    def counted(collection: Collection, chunk: int) -> Any:
        n_read[0] += 1
        return shard(collection, chunk)

    monkeypatch.setattr(Collection, "shard", counted)
    checkpoints, first, second = Checkpoints(str(tmp_path / "kept")), Counting(), Counting()
    assert digest_map(fit(name, urls[0], checkpoints, first)) == digest_map(found)
    assert (n_read[0] >= 12) == (name != "rand")  # which is drawn, not learned
    n_read[0] = 0
    assert digest_map(fit(name, urls[0], checkpoints, second)) == digest_map(found)
    assert second.read == 0
    assert n_read[0] == 0
