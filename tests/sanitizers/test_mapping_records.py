"""From records to a mapping and back: counts, options, release by keyed draws."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping, solve_privacy_mapping
from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import IntArray, Shard
from privpipe.sanitizers.mapping import profiles
from privpipe.sanitizers.mapping.profiles import ProfileCounts, Smoothing, make_joint
from privpipe.sanitizers.mapping.solving.law_fit import prepare_joint
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from privpipe.store.models import open_model, write_model


def draw_records(n: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Attributes (n, 3), one sometimes missing, and two private variables that depend on them."""
    rng = np.random.default_rng(seed)
    attributes = np.stack([rng.integers(0, k, n) for k in (4, 3, 3)], axis=1)
    attributes[rng.uniform(size=n) < 0.05, 2] = -1
    first = (attributes[:, 0] + rng.integers(0, 3, n) >= 3).astype(np.int64)
    second = (attributes[:, 1] + rng.integers(0, 2, n)) % 3
    return attributes, np.stack([first, second], axis=1)


def make_records(n: int = 3000, n_shards: int = 1) -> Records:
    attributes, private = draw_records(n)
    features = np.zeros((n, 1))
    return Records(
        features, confidential=private.astype(str), attributes=attributes, n_shards=n_shards
    )


def options(**changes: object) -> PrivacyMappingOptions:
    given: dict[str, object] = {
        "name": "privacy_mapping",
        "attributes": ("a", "b", "c"),
        "private": ("p", "q"),
        "distortion_budget": 0.3,
        "gap": 1e-6,
    }
    return PrivacyMappingOptions(**{**given, **changes})  # type: ignore[arg-type]


def stream_of(n: int, first: int = 0, key: bytes = bytes(32)) -> KeyedStream:
    return KeyedStream(key, partition="ab", first_record=first, n_records=n)


@settings(max_examples=20, deadline=None)
@given(n_shards=st.integers(1, 12))
def test_profile_counts__do_not_depend_on_the_shards(n_shards: int) -> None:
    whole = make_records(500).reduce(ProfileCounts.of)
    parts = make_records(500, n_shards).reduce(ProfileCounts.of)
    np.testing.assert_array_equal(parts.keys, whole.keys)
    np.testing.assert_array_equal(parts.counts, whole.counts)


def test_profile_counts__leave_unknown_private_values_out_and_refuse_numbers() -> None:
    private = np.array([[0.0], [np.nan], [1.0]])
    shard = Shard(np.zeros((3, 0)), confidential=private, attributes=np.array([[1], [1], [2]]))
    counts = ProfileCounts.of(shard)
    assert (counts.n_records, counts.n_left_out) == (2, 1)
    with pytest.raises(InputError, match="not categorical"):
        ProfileCounts.of(
            Shard(np.zeros((1, 0)), confidential=np.array([[0.5]]), attributes=np.array([[1]]))
        )


def test_make_joint__several_private_variables_become_one() -> None:
    attributes, private = draw_records(3000)
    table, codes, values = make_joint(make_records().reduce(ProfileCounts.of))
    assert len(values) == len(np.unique(private, axis=0))
    assert table.sum() == 3000
    cell = table[list(map(tuple, values)).index((1, 2)), list(map(tuple, codes)).index((3, 1, 0))]
    here = (attributes == (3, 1, 0)).all(axis=1) & (private == (1, 2)).all(axis=1)
    assert cell == here.sum()


def test_prepare_joint__frequent_profiles_and_smoothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = make_records().reduce(ProfileCounts.of)
    monkeypatch.setattr(profiles, "choose_smoothing", lambda *_: Smoothing("none", 0.0))
    full, codes = prepare_joint(counts, options())
    nearest, kept = prepare_joint(counts, options(most_frequent=10, unseen="nearest"))
    dropped, same = prepare_joint(counts, options(most_frequent=10, unseen="refuse"))
    np.testing.assert_array_equal(kept, same)
    frequent = codes[np.sort(np.argsort(-full.sum(axis=0), kind="stable")[:10])]
    np.testing.assert_array_equal(kept, frequent)
    np.testing.assert_allclose(nearest.sum(axis=1), full.sum(axis=1))  # nobody is lost
    assert dropped.sum() == pytest.approx(1.0)
    monkeypatch.setattr(profiles, "choose_smoothing", lambda *_: Smoothing("dirichlet", 1e9))
    smooth, _ = prepare_joint(counts, options())
    posterior = smooth / smooth.sum(axis=0)
    np.testing.assert_allclose(posterior, posterior[:, :1] * np.ones(len(codes)), atol=1e-5)


def test_fit_privacy_mapping__is_certified_for_two_private_variables() -> None:
    mapping = fit_privacy_mapping(make_records(n_shards=3), options(held_out=0))
    assert mapping.gap <= 1e-6
    assert mapping.potentials.shape[1] == 6
    joint, codes = prepare_joint(make_records().reduce(ProfileCounts.of), options())
    again = solve_privacy_mapping(joint, codes, distortion_budget=0.3, gap=1e-6)
    np.testing.assert_array_equal(again.released, mapping.released)
    np.testing.assert_array_equal(again.probabilities, mapping.probabilities)


def test_fit_privacy_mapping__refuses_when_nothing_is_known() -> None:
    records = Records(
        np.zeros((4, 1)),
        confidential=np.full((4, 1), np.nan),
        attributes=np.zeros((4, 1), np.int64),
    )
    with pytest.raises(InputError, match="no record has a known private value"):
        fit_privacy_mapping(records, options(attributes=("a",), private=("p",)))


@pytest.fixture(scope="module")
def mapping() -> SparseMapping:
    return fit_privacy_mapping(make_records(), options(unseen="nearest"))


def test_apply__draws_from_the_columns(mapping: SparseMapping) -> None:
    sizes = np.diff(mapping.pointers)
    column = int(np.argmax(sizes))
    assert sizes[column] >= 3
    n = 20_000
    x = np.repeat(mapping.codes[column][None], n, axis=0)
    released = mapping.find_symbols(mapping.apply(x, stream_of(n)))
    inside = slice(mapping.pointers[column], mapping.pointers[column + 1])
    expected = n * mapping.probabilities[inside]
    seen = np.bincount(released, minlength=mapping.n_symbols)[mapping.released[inside]]
    assert seen.sum() == n
    often = expected >= 5
    scale = seen[often].sum() / expected[often].sum()
    # False alarms once in a million runs.
    assert stats.chisquare(seen[often], expected[often] * scale).pvalue > 1e-6


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 399), max_size=4))
def test_apply__chunks_change_nothing(mapping: SparseMapping, cuts: list[int]) -> None:
    x, _ = draw_records(400, seed=1)
    whole = mapping.apply(x, stream_of(400))
    edges = sorted({0, 400, *cuts})
    parts = [mapping.apply(x[a:b], stream_of(b - a, first=a)) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (mapping.apply(x, stream_of(400, key=b"1" * 32)) != whole).any()


def test_apply__unseen_symbols(mapping: SparseMapping) -> None:
    x = np.array([[9, 1, 1], *mapping.codes[:2]])
    found = mapping.find_symbols(x)
    near = (mapping.codes != x[0]).sum(axis=1)
    assert near[found[0]] == near.min()
    assert found[0] == int(np.argmin(near))
    np.testing.assert_array_equal(found[1:], [0, 1])
    strict = fit_privacy_mapping(make_records(), options(unseen="refuse"))
    with pytest.raises(InputError, match="1 different symbols") as error:
        strict.apply(x, stream_of(3))
    assert "9" not in str(error.value)


def test_apply__says_what_is_wrong(mapping: SparseMapping) -> None:
    with pytest.raises(OptionError, match="no stream"):
        mapping.apply(mapping.codes)
    with pytest.raises(InputError, match="shape"):
        mapping.apply(mapping.codes[:, :2], stream_of(len(mapping.codes)))


class _Words:
    """A stream whose words are given."""

    def __init__(self, words: list[int]) -> None:
        self.given = np.array(words, np.uint64)[:, None]

    def words(self, purpose: str, n_words: int) -> np.ndarray:
        return self.given


def make_mapping(mapping: SparseMapping, probabilities: list[float]) -> SparseMapping:
    """Symbol 0 becomes 0 to 3 by the given probabilities, the others stay."""
    n = mapping.n_symbols
    return replace(
        mapping,
        pointers=np.array([0, *range(4, n + 4)]),
        released=np.array([*range(4), *range(1, n)]),
        probabilities=np.array([*probabilities, *[1.0] * (n - 1)]),
    )


def test_apply__follows_the_words_and_gives_none_to_probability_0(mapping: SparseMapping) -> None:
    made = make_mapping(mapping, [0.0, 0.25, 0.0, 0.75])
    words = [0, 1, 2**62 - 1, 2**62, 2**64 - 1]
    x = np.repeat(mapping.codes[:1], len(words), axis=0)
    released = made.apply(x, _Words(words))  # type: ignore[arg-type]
    np.testing.assert_array_equal(released, mapping.codes[[1, 1, 1, 3, 3]])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), words=st.lists(st.integers(0, 2**64 - 1), min_size=9))
def test_apply__draws_as_releases_made_before(
    mapping: SparseMapping, seed: int, words: list[int]
) -> None:
    """Until 2**-64 the law is that of the thresholds models were released with."""
    shares = np.random.default_rng(seed).dirichlet(np.ones(4))
    before = np.searchsorted(np.cumsum(shares)[:-1] * 2.0**64, np.array(words, float), "right")
    made = make_mapping(mapping, shares.tolist())
    x = np.repeat(mapping.codes[:1], len(words), axis=0)
    released = made.apply(x, _Words(words))  # type: ignore[arg-type]
    near = np.abs(np.cumsum(shares)[:-1, None] * 2.0**64 - np.array(words, float)).min(axis=0)
    sure = near > 2.0**12  # words that float64 cannot tell from an edge
    np.testing.assert_array_equal(released[sure], mapping.codes[before[sure]])


def test_apply_measured__counts_records_not_profiles(mapping: SparseMapping) -> None:
    x = np.array([[9, 1, 1], *mapping.codes[:2], [9, 1, 1], [8, 1, 1]])
    released, n_unseen = mapping.apply_measured(x, stream_of(5))
    assert n_unseen == 3
    np.testing.assert_array_equal(released, mapping.apply(x, stream_of(5)))


def test_sparse_mapping__is_stored_and_read_whole(mapping: SparseMapping, tmp_path: Path) -> None:
    write_model(mapping, str(tmp_path / "mapping.zarr"))
    read = open_model(str(tmp_path / "mapping.zarr"))
    assert isinstance(read, SparseMapping)
    x, _ = draw_records(200, seed=2)
    np.testing.assert_array_equal(read.apply(x, stream_of(200)), mapping.apply(x, stream_of(200)))
    assert read.guarantee == mapping.guarantee
    assert (read.gap, read.stopped, read.unseen) == (mapping.gap, mapping.stopped, "nearest")


@pytest.mark.parametrize("unseen", ["nearest", "refuse"])
def test_fit__what_rare_profiles_change_is_counted_and_said(unseen: str) -> None:
    given = {"most_frequent": 10, "distortion_budget": 0.1, "held_out": 0.0, "gap": 1e-2}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", PrivacyWarning)
        mapping = fit_privacy_mapping(make_records(), options(unseen=unseen, **given))
    spent = dict(mapping.guarantee.parameters)["plug_in_distortion"]
    codes, _ = draw_records(3000)
    if unseen == "refuse":
        codes = codes[mapping.find_known(codes)]
    changed = (mapping.apply(codes, stream_of(len(codes))) != codes).sum(axis=1)
    assert abs(changed.mean() - spent) < 5 * changed.std() / np.sqrt(len(codes))
    said = [str(one.message) for one in heard if "most_frequent" in str(one.message)]
    assert len(said) == (spent > 0.1 + 1e-9) == (unseen == "nearest")
    assert all(f"the mean distortion is {spent:.3g}, and distortion_budget" in one for one in said)


@pytest.mark.parametrize("kind", ["absolute", "squared"])
def test_fit__to_plain_codes_bounds_no_distance_and_is_stored(kind: str, tmp_path: Path) -> None:
    fitted = fit_privacy_mapping(make_records(), options(distortion=kind, gap=1e-2))
    assert "distortion_at_most" not in dict(fitted.guarantee.parameters)
    write_model(fitted, str(tmp_path / "m.zarr"))
    assert open_model(str(tmp_path / "m.zarr")).guarantee == fitted.guarantee


def test_fit__a_gap_that_is_not_reached_is_said() -> None:
    with pytest.warns(PrivacyWarning, match=r"stopped \(time limit\).*gap is 1e-12"):
        fit_privacy_mapping(make_records(), options(gap=1e-12, max_seconds=1e-3))
