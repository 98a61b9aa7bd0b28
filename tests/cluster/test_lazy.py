"""Lazy application: nothing is computed before it is asked for, and then what numpy gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from privpipe.cluster.lazy import apply_dataset, apply_lazily
from privpipe.errors import InputError, OptionError
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Guarantee
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 5))
CLEANER = NullSpaceCleaner.from_predictor(RNG.normal(size=(5, 2)), utility_budget=0.1)
WIDER = NullSpaceCleaner.from_predictor(RNG.normal(size=(6, 2)), utility_budget=0.1, augmented=True)


@dataclass(frozen=True, eq=False)
class Shaker:
    """Adds one uniform number per record: enough of a map that draws."""

    kind: ClassVar[str] = "shaker"
    reads: ClassVar[str] = "features"
    n_features_in: int = 5
    n_features_out: int = 5
    guarantee: Guarantee | None = None

    def apply(self, x, stream=None):
        assert stream.n_records == len(x)
        return x + (stream.words("shake", 1) >> np.uint64(11)) * 2.0**-53


class Computes:
    """A scheduler that counts how often it is asked to compute."""

    def __init__(self):
        self.count = 0

    def __call__(self, dsk, keys, **kwargs):
        self.count += 1
        return dask.get(dsk, keys, **kwargs)


def make_dataset(chunks):
    data = da.from_array(X, chunks=chunks) if chunks else X
    return xr.Dataset(
        {"features": (("record", "feature"), data), "label": ("record", np.arange(23))},
        coords={"feature": list("abcde")},
        attrs={"kept": 1},
    )


@pytest.mark.parametrize("chunks", [(7, 5), (7, 2), (23, 5), ((1, 20, 2), 5), None])
@pytest.mark.parametrize("fitted", [CLEANER, WIDER])
def test_apply_dataset__lazy_stays_lazy_and_agrees_with_numpy(chunks, fitted):
    computes = Computes()
    raw = make_dataset(chunks)
    with dask.config.set(scheduler=computes):
        released = apply_dataset(fitted, raw)
        assert computes.count == 0
        assert isinstance(released.features.data, da.Array) == (chunks is not None)
        found = released.features.values
        assert computes.count == (1 if chunks else 0)
    np.testing.assert_allclose(found, fitted.apply(X), rtol=0, atol=1e-12)
    assert released.attrs == {"kept": 1}
    np.testing.assert_array_equal(released.label, np.arange(23))
    assert ("feature" in released.coords) == (fitted is CLEANER)
    np.testing.assert_array_equal(raw.features, X)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_apply_lazily__the_dtype_known_beforehand_is_that_of_the_result(dtype):
    x = (X * 10).astype(dtype)
    lazy = apply_lazily(CLEANER, da.from_array(x, chunks=(6, 5)))
    assert lazy.dtype == lazy.compute().dtype == CLEANER.apply(x).dtype


def test_apply_lazily__costs_one_task_per_block():
    x = da.zeros((100, 5), chunks=(1, 5))
    assert len(apply_lazily(CLEANER, x).__dask_graph__()) - len(x.__dask_graph__()) <= 101


@pytest.mark.parametrize("chunks", [(7, 5), (1, 3), (23, 5), None])
def test_apply_dataset__draws_do_not_depend_on_chunks(chunks):
    stream = KeyedStream(bytes(32), partition="ab", first_record=4, n_records=23)
    released = apply_dataset(Shaker(), make_dataset(chunks), streams=stream.part)
    found = released.features.compute(scheduler="synchronous").values
    np.testing.assert_array_equal(found, Shaker().apply(X, stream))


def test_apply_dataset__what_does_not_fit_is_told():
    raw = make_dataset((7, 5))
    with pytest.raises(OptionError, match="no variable 'feature_', did you mean 'features'"):
        apply_dataset(CLEANER, raw, features="feature_")
    with pytest.raises(InputError, match=r"shape \(23,\) do not fit"):
        apply_dataset(CLEANER, raw, features="label")
    with pytest.raises(InputError, match=r"shape \(23, 4\) do not fit a map of 5"):
        apply_lazily(CLEANER, da.from_array(X[:, :4]))
    unknown = da.from_array(X, chunks=(7, 5))
    unknown = unknown[unknown[:, 0] > 0]
    with pytest.raises(InputError, match=r"not known.*compute_chunk_sizes"):
        apply_lazily(CLEANER, unknown)
