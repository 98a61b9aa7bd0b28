"""Categories: pooling keeps its promise, coding agrees with a loop over the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privpipe.errors import InputError, StoreError
from privpipe.records.schema import Variable
from privpipe.store.collections import survey as categories
from privpipe.store.collections.survey import POOLED, Coder, code_values, count_values, pool_rare
from privpipe.store.sources.reading.source import Coded

COUNTS = st.dictionaries(
    st.sampled_from([*"abcdefgh", "10", "9", POOLED]), st.integers(1, 20), min_size=1
)


@given(COUNTS, st.integers(1, 60))
def test_pool_rare__every_category_holds_enough_records(counts, least):
    found, n_pooled = pool_rare(counts, least, "v")
    sizes = {name: counts[name] for name in found if name != POOLED or not n_pooled}
    if n_pooled:
        assert found[-1] == POOLED
        sizes[POOLED] = n_pooled
    assert sum(sizes.values()) == sum(counts.values())
    assert all(size >= least for size in sizes.values()) or len(sizes) == 1


@given(COUNTS, st.integers(1, 20))
def test_pool_rare__pools_nothing_that_it_need_not(counts, least):
    found, n_pooled = pool_rare(counts, least, "v")
    if min(counts.values()) >= least:
        assert n_pooled == 0
        assert set(found) == set(counts)
    if n_pooled and POOLED not in counts:
        pooled = [size for name, size in counts.items() if name not in found]
        rare = [size for size in counts.values() if size < least]
        joined = len(pooled) - len(rare)
        # A value that is not rare joins only while the pool is, and then it is no more.
        assert joined == (0 if sum(rare) >= least else min(1, len(counts) - len(rare)))


def test_pool_rare__one_rare_value_takes_the_next_with_it():
    assert pool_rare({"a": 9, "b": 1, "c": 6}, 5, "v") == (("a", POOLED), 7)


def test_pool_rare__refuses_more_categories_than_codes(monkeypatch):
    monkeypatch.setattr(categories, "MAX_CATEGORIES", 3)
    with pytest.raises(InputError, match="'v' has more than 3 different values"):
        pool_rare(dict.fromkeys("abcd", 1), 1, "v")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([3, 1, 3]), ["3", "1", "3"]),
        (np.array([2.0, np.nan, 2.5]), ["2", None, "2.5"]),
        (np.array([True, False]), ["true", "false"]),
        (Coded(np.array([1, -1, 0]), ("x", "y")), ["y", None, "x"]),
    ],
)
def test_code_values__writes_each_value_as_text(values, names):
    coded = code_values(values)
    assert [coded.names[code] if code >= 0 else None for code in coded.codes] == names
    expected = {name: names.count(name) for name in names if name is not None}
    assert dict(count_values(values)) == expected


def test_encode__numbers_code_alike_in_every_block():
    coder = Coder(Variable("v", "int8", ("1", "1.5", POOLED)), has_pool=True)
    np.testing.assert_array_equal(coder.encode(np.array([1.0, np.nan, 7.0])), [0, -1, 2])
    np.testing.assert_array_equal(coder.encode(np.array([1.5, 1.0])), [1, 0])


def test_encode__a_value_that_was_not_there_before_means_the_source_changed():
    coder = Coder(Variable("v", "int8", ("a",)))
    with pytest.raises(StoreError, match="did not hold when it was read first") as caught:
        coder.encode(Coded(np.array([0]), ("secret-value",)))
    assert "secret-value" not in str(caught.value)
    assert caught.value.code == "source-changed"
