"""A law that changes in the middle of the training records: how often it is said, and of whom."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping, open_collection
from privpipe.errors import PrivacyWarning
from privpipe.protocols import IntArray, Shard, Shards
from privpipe.records.memory import GrowingRecords
from privpipe.records.sampling import Split
from privpipe.sanitizers.mapping.profiles import ProfileCounts, find_change
from tests.flows.test_methods import write_profiles

LAWS = (
    ((3, 2), 1.0, 0.5, 300),
    ((10, 8, 2), 0.2, 0.5, 300),
    ((20, 20, 2), 0.02, 0.33, 2_000),
    ((40, 40, 2), 1.0, 0.2, 500),
    ((20, 20, 2), 0.1, 0.05, 1_000),
)
"""Sizes of attributes and private variable, how even the cells are, later share, records."""


def shard_of(codes: IntArray) -> Shard:
    private = codes[:, -1:].astype(float)
    return Shard(np.empty((0, 0)), confidential=private, attributes=codes[:, :-1])


@pytest.mark.parametrize("law", LAWS)
def test_find_change__is_at_most_as_often_small_as_it_says(law: Any) -> None:
    sizes, evenness, later, n = law
    rng, chances = np.random.default_rng(11), []
    for _ in range(300):
        cells = rng.choice(np.prod(sizes), n, p=rng.dirichlet(np.full(np.prod(sizes), evenness)))
        shard = shard_of(np.stack(np.unravel_index(cells, sizes), axis=1))
        chances.append(find_change(ProfileCounts.of(shard, middle=round(n * (1 - later))))[0])
    assert np.mean(np.array(chances) < 0.05) <= 0.08
    assert np.mean(np.array(chances) < 0.001) <= 0.01
    assert min(chances) < 0.5  # and it is not 1 whatever the records are


def draw(n: int, changes: str = "", seed: int = 3) -> tuple[IntArray, IntArray]:
    """Two attributes and a private value; from the middle on another law."""
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, 4, n), rng.integers(0, 5, n)])
    private = rng.random(n) < np.where(codes[:, 0] < 2, 0.7, 0.2)
    late = np.arange(n) >= n // 2
    if changes == "attribute_1":
        codes[:, 1] = np.where(late & (rng.random(n) < 0.15), 0, codes[:, 1])
    elif changes == "the private values":
        private &= ~late | (rng.random(n) < 0.8)
    elif changes == "attribute_0":  # which of them goes with what, and no share of either
        private = np.where(late, rng.random(n) < np.where(codes[:, 0] < 2, 0.2, 0.7), private)
    return codes, private.astype(np.int64)


def make(codes: IntArray, private: IntArray, n_shards: int = 1) -> Records:
    x, words = np.zeros((len(codes), 1)), private.astype(str)
    return Records(x, attributes=codes, confidential=words, n_shards=n_shards)


def fit(shards: Shards, **more: Any) -> list[str]:
    """What was warned of while a mapping was fitted."""
    names = tuple(column.name for column in shards.schema.attributes)
    private = tuple(column.name for column in shards.schema.confidential)
    given = {"attributes": names, "private": private, "distortion_budget": 0.3, "gap": 1e-3}
    options = PrivacyMappingOptions(name="privacy_mapping", **given | more)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", PrivacyWarning)
        fit_privacy_mapping(shards, options)
    return [str(one.message) for one in found if one.category is PrivacyWarning]


@pytest.mark.parametrize("n_shards", [1, 7])
@pytest.mark.parametrize("changes", ["attribute_0", "attribute_1", "the private values"])
def test_fit__says_what_changes(changes: str, n_shards: int) -> None:
    (said,) = fit(make(*draw(3_000, changes), n_shards))
    name = repr(changes) if changes.startswith("attribute") else changes
    assert f"the law of {name} changes between" in said
    assert "--shuffle" in said


@pytest.mark.parametrize("changes", ["attribute_0", "attribute_1", "the private values"])
def test_fit__says_nothing_of_records_in_random_order(changes: str) -> None:
    codes, private = draw(3_000, changes)
    order = np.random.default_rng(5).permutation(len(codes))
    assert fit(make(codes[order], private[order])) == []
    assert fit(make(*draw(3_000))) == []


def test_fit__is_the_same_mapping_whatever_is_said() -> None:
    """The marker of the halves is in no count that a mapping is made from."""
    codes, private = draw(3_000, "attribute_1")
    order = np.random.default_rng(5).permutation(len(codes))
    options = PrivacyMappingOptions(
        name="privacy_mapping",
        attributes=("attribute_0", "attribute_1"),
        private=("s",),
        distortion_budget=0.3,
    )
    with pytest.warns(PrivacyWarning, match="second half"):
        one = fit_privacy_mapping(make(codes, private), options)
    other = fit_privacy_mapping(make(codes[order], private[order]), options)
    np.testing.assert_array_equal(one.codes, other.codes)  # type: ignore[union-attr]
    np.testing.assert_array_equal(
        one.mapping.toarray(),
        other.mapping.toarray(),  # type: ignore[union-attr]
    )


def test_fit__each_value_of_a_public_variable() -> None:
    codes, private = draw(6_000, "attribute_0")
    region = np.random.default_rng(1).integers(0, 2, (len(codes), 1))
    records = make(np.hstack([codes, region]), private)
    names = ("attribute_0", "attribute_1")
    (said,) = fit(records, attributes=names, by="attribute_2")
    assert "'attribute_0'" in said


@pytest.mark.parametrize("chunk_rows", [100, 4_000])
@pytest.mark.parametrize("turned", [0.0, 0.3])
def test_fit__knows_the_halves_of_chunks_of_which_some_records_are_held_out(
    tmp_path: Path, turned: float, chunk_rows: int
) -> None:
    write_profiles(str(tmp_path / "c"), 4_000, chunk_rows, turned=turned)
    roles = {"attributes": ("a0", "a1", "a2"), "confidential": "private"}
    kept = open_collection(str(tmp_path / "c"), **roles).keeping(Split(7, 0.3), "fit")
    assert bool(fit(kept)) == bool(turned)


def test_fit__of_one_record_and_of_partitions_that_grow_says_nothing() -> None:
    codes, private = draw(400, "attribute_0")
    grown = GrowingRecords(make(codes[:200], private[:200]))
    grown.append(make(codes[200:], private[200:]))
    assert fit(grown) == []
    assert find_change(ProfileCounts.of(shard_of(np.zeros((1, 3), np.int64)), middle=1))[0] == 1.0
    nothing = ProfileCounts.of(shard_of(np.zeros((0, 3), np.int64)), middle=1)
    assert find_change(nothing)[0] == 1.0
