"""What every fitted map must do, whatever its method; a method's example makes the first of its."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pydantic import TypeAdapter

import tests.methods
from flows.reproduce.hamm_compared import fit_ddd_filter
from flows.reproduce.laplace import LaplaceMechanism
from flows.reproduce.printed_cleaner import PrintedCleaner
from privpipe.cluster.pass_checkpoints import KNOWN
from privpipe.errors import InputError, OptionError
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Guarantee, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS, RECORD_MAPS
from privpipe.sanitizers.chain import Chain, fit_standardiser
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, StratifiedMapping
from privpipe.sanitizers.minimax.baselines import PcaOptions, fit_pca_filter
from privpipe.sanitizers.minimax.custom_filter import (
    MinimaxCustomOptions,
    fit_minimax_custom_filter,
)
from privpipe.sanitizers.minimax.linear_minimax import fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner, fit_targeted_cleaner
from privpipe.sanitizers.null_space.leace import fit_leace_eraser
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from privpipe.sanitizers.null_space.target_only import fit_target_only
from privpipe.sanitizers.options import make_options
from privpipe.store.arrays.layout import PROMISED_BY
from privpipe.store.models import digest_map, open_model, write_model
from tests.sanitizers.xu_records import make_features, make_labels, make_records

EXAMPLES: dict[str, Callable[[], RecordMap]] = {
    "standardiser": lambda: fit_standardiser(make_records()),
    "null_space_cleaner": lambda: fit_null_space_cleaner(make_records(), utility_budget=0.1),
    "targeted_cleaner": lambda: fit_targeted_cleaner(make_records(), utility_budget=0.1),
    "printed_cleaner": lambda: PrintedCleaner.from_predictors(
        np.eye(7)[:, :2], np.eye(7)[:, 1:4], utility_budget=0.1
    ),
    "factored_cleaner": lambda: FactoredCleaner.of(
        fit_null_space_cleaner(make_records(), utility_budget=0.1), "float32"
    ),
    "leace_eraser": lambda: fit_leace_eraser(make_records()),
    "target_only": lambda: fit_target_only(make_records()),
    "laplace_mechanism": lambda: LaplaceMechanism.from_predictor(
        np.eye(7)[:, :2], utility_budget=0.1
    ),
    "linear_filter": lambda: fit_pca_filter(make_classes(), PcaOptions(n_filtered=2)),
    "minimax_filter": lambda: fit_minimax_filter(make_classes()),
    "neural_filter": lambda: fit_minimax_neural_filter(
        make_classes(), MinimaxNeuralOptions(n_hidden=(3, 2), max_iterations=2)
    ),
    "own_filter": lambda: fit_minimax_custom_filter(
        make_classes(), make_options(MinimaxCustomOptions, choose_few("minimax_own"), "own")
    ),
    "chain": lambda: make_chain(),
    "mask_filter": lambda: fit_ddd_filter(make_classes()),
    "noisy_filter": lambda: make_noisy(),
}
"""One fitted map of each kind, from the records of `xu_records`."""

OF_CODES = {SparseMapping.kind, StratifiedMapping.kind}
"""Maps of categorical attributes take codes; `test_mapping_records` holds them to the same."""

for method in METHODS.values():
    first = method.maps[0].kind
    if method.releases == "rows" and first not in OF_CODES:
        EXAMPLES.setdefault(first, partial(lambda name: fit_few(name), method.name))

RANDOMISED = {"laplace_mechanism", "chain", "noisy_filter"}
"""Kinds that draw: they need a stream, and the same one gives the same release."""


def make_chain() -> Chain:
    """Noise, then noise of the same kind, then a filter."""
    noise = LaplaceMechanism.from_predictor(np.eye(7)[:, :2], utility_budget=0.1)
    last = fit_pca_filter(make_classes(), PcaOptions(n_filtered=2))
    return Chain((noise, noise, last), replace(noise.guarantee, delta=0.5, protects="person"))


def make_noisy() -> RecordMap:
    """A filter that is no linear one, behind discrete noise."""
    method = METHODS["noisy"]
    given = {"name": "noisy", "epsilon": 1.0, "noise": "discrete", "threshold": 5.0}
    within = {"name": "minimax_neural", "n_hidden": (3, 2), "max_iterations": 2}
    given |= {"centre": False, "order": "noise_then_filter", "filter": within}
    options = make_options(method.options, given | {"allow_data_bound": True}, "noisy")
    return method.fit(make_classes(), options)


def make_classes() -> Records:
    """The records of `xu_records` with classes instead of numbers to keep and to hide."""
    x = make_features()
    desired, secret = make_labels(x)
    return Records(
        x,
        desired=desired[:, 0] > np.median(desired[:, 0]),
        confidential=secret[:, 1] > np.median(secret[:, 1]),
        n_shards=3,
    )


def apply(fitted: RecordMap, x: np.ndarray, first_record: int = 0) -> np.ndarray:
    """Apply with a stream that starts at a record's number; deterministic maps ignore it."""
    stream = KeyedStream(bytes(32), partition="p", first_record=first_record, n_records=len(x))
    return fitted.apply(x, stream)


@pytest.fixture(params=sorted(EXAMPLES))
def example(request) -> RecordMap:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EXAMPLES[request.param]()


def draw_inputs(fitted: RecordMap) -> np.ndarray:
    return make_features()[:, : fitted.n_features_in]


def test_examples__name_the_kind_they_make(example):
    assert type(example) is RECORD_MAPS[example.kind]


def test_map__is_frozen_and_small_and_says_what_it_reads(example):
    assert example.reads in ("features", "attributes")
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.kind_of = 1
    name = dataclasses.fields(example)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(example, name, None)
    for item in dataclasses.fields(example):
        value = getattr(example, item.name)
        assert isinstance(value, np.ndarray | np.generic | float | int | str | tuple | Guarantee)


def test_map__has_a_guarantee_that_can_be_quoted(example):
    promise = example.guarantee
    assert isinstance(promise, Guarantee)
    assert promise.theorem
    assert promise.unit or promise.number is None
    json.dumps(dataclasses.asdict(promise), allow_nan=False)
    released_by = [row.name for row in METHODS.values() if type(example) in row.maps]
    assert promise.kind == "none" or set(released_by) <= set(PROMISED_BY.get(promise.kind, ()))


def test_promises__are_those_of_methods_that_there_are():
    assert {name for names in PROMISED_BY.values() for name in names} <= set(METHODS)


def test_apply__maps_rows_to_rows_without_touching_its_input(example):
    x = draw_inputs(example)
    before = x.copy()
    released = apply(example, x)
    assert released.shape == (len(x), example.n_features_out)
    np.testing.assert_array_equal(x, before)
    x.setflags(write=False)
    np.testing.assert_array_equal(apply(example, x), released)


def test_apply__treats_each_record_alone(example):
    x = draw_inputs(example)
    whole = apply(example, x)
    starts = range(0, len(x), 37)
    parts = np.concatenate([apply(example, x[start : start + 37], start) for start in starts])
    np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-9)
    if example.kind not in RANDOMISED:
        order = np.random.default_rng(0).permutation(len(x))
        np.testing.assert_allclose(example.apply(x[order]), whole[order], rtol=1e-6, atol=1e-9)


def test_apply__takes_memory_laid_out_in_any_way(example):
    x = draw_inputs(example)
    expected = apply(example, x)
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    for other in (np.asfortranarray(x), wide, x.astype(">f8")):
        np.testing.assert_allclose(apply(example, other), expected, rtol=1e-9, atol=1e-9)


def test_apply__takes_no_record_at_all(example):
    released = apply(example, draw_inputs(example)[:0])
    assert released.shape == (0, example.n_features_out)


def test_apply__refuses_other_features_and_what_is_not_finite(example):
    x = draw_inputs(example).copy()
    with pytest.raises(InputError, match="shape"):
        apply(example, x[:, 1:])
    x[3, 1] = np.nan
    with pytest.raises(InputError, match="1 of 240 records") as caught:
        apply(example, x)
    assert not any(character in str(caught.value) for character in ("nan", "["))


def test_map__travels_whole(example, tmp_path):
    x = draw_inputs(example)
    expected = apply(example, x)
    np.testing.assert_array_equal(apply(pickle.loads(pickle.dumps(example)), x), expected)
    url = str(tmp_path / "map.zarr")
    digest = write_model(example, url)
    again = open_model(url)
    assert digest_map(again) == digest
    assert again.guarantee == example.guarantee
    np.testing.assert_array_equal(apply(again, x), expected)


def test_kinds__are_all_in_this_suite():
    # Models of surrogates map no record; `tests/sanitizers/masking` holds them to what is left.
    of_surrogates = {
        each.kind for row in METHODS.values() if row.releases == "surrogate" for each in row.maps
    }
    kinds = set(RECORD_MAPS) - OF_CODES - of_surrogates
    assert set(EXAMPLES) == kinds, "a new kind of map needs an example here"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method__refuses_unknown_options_without_showing_values(name):
    with pytest.raises(ValueError, match="unexpected") as caught:
        METHODS[name].options(name=name, no_such_option="secret value")
    assert "secret value" not in str(caught.value)


def test_apply__needs_a_stream_only_where_it_draws(example):
    x = draw_inputs(example)
    if example.kind not in RANDOMISED:
        np.testing.assert_array_equal(example.apply(x), apply(example, x))
        return
    with pytest.raises(OptionError, match="stream"):
        example.apply(x)
    np.testing.assert_array_equal(apply(example, x), apply(example, x))
    assert not np.array_equal(apply(example, x), apply(example, x, first_record=1))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method__is_a_whole_row(name):
    method = METHODS[name]
    assert method.maps
    assert method.promise
    assert set(method.maps) <= set(RECORD_MAPS.values())


def test_chain__refuses_maps_that_do_not_fit():
    first = fit_pca_filter(make_classes(), PcaOptions(n_filtered=2))
    with pytest.raises(OptionError, match="of 7 features cannot follow"):
        Chain((first, first), first.guarantee)
    with pytest.raises(OptionError, match="no maps"):
        Chain((), first.guarantee)


def test_chain__gives_each_map_words_of_its_own():
    noise = LaplaceMechanism.from_predictor(np.eye(7), utility_budget=0.1)
    x = np.zeros((500, 7))
    once = apply(noise, x)
    twice = apply(Chain((noise, noise), noise.guarantee), x)
    assert not np.allclose(twice, 2 * once)
    assert abs(twice.std() / once.std() - np.sqrt(2)) < 0.1


class Watched(Records):
    """Records that remember what was summed over them."""

    sums: list[object]

    def reduce(self, summarise):
        found = super().reduce(summarise)
        self.sums.append(found)
        return found


def list_dataclasses(value: object) -> set[type]:
    """Dataclasses in a value, at any depth."""
    if isinstance(value, dict):
        return set().union(*map(list_dataclasses, value.values()))
    if isinstance(value, tuple):
        return set().union(*map(list_dataclasses, value))
    if dataclasses.is_dataclass(value):
        inner = (getattr(value, item.name) for item in dataclasses.fields(value))
        return {type(value)}.union(*map(list_dataclasses, inner))
    return set()


def choose_few(name: str) -> dict[str, object]:
    """Options of a method for the records of `xu_records`."""
    example = tests.methods.EXAMPLES[name]
    return dict(example.options if example.few is None else example.few)


def make_watched(name: str) -> Watched:
    x = make_features()
    desired, secret = make_labels(x)
    variables = {"desired": desired[:, 0] > 0, "confidential": secret[:, 1] > 0}
    codes = np.digitize(x[:, :2], [-0.5, 0.5])
    shards = Watched(x, **variables, attributes=codes, n_shards=3)
    shards.sums = []
    return shards


def fit_few(name: str, shards: Records | None = None) -> RecordMap:
    """A method fitted to the records of `xu_records`."""
    options = make_options(METHODS[name].options, {"name": name, **choose_few(name)}, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return METHODS[name].fit(shards or make_watched(name), options)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method__names_the_statistics_that_its_passes_sum_up(name):
    method, shards = METHODS[name], make_watched(name)
    fitted = fit_few(name, shards)
    assert type(fitted) in method.maps
    assert list_dataclasses(tuple(shards.sums)) <= set(method.statistics)
    assert {cls.__name__ for cls in method.statistics} <= set(KNOWN)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method__describes_every_option(name):
    properties = TypeAdapter(METHODS[name].options).json_schema()["properties"]
    bare = [key for key, about in properties.items() if not about.get("description")]
    assert bare in ([], ["name"])
