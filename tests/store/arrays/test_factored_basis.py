"""The basis of a factored release: written, read back, lazy, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from privpipe.errors import FormatError
from privpipe.store.access.objects import open_store, write_bytes
from privpipe.store.arrays.blocks import Basis, read_basis


def make_basis() -> Basis:
    rng = np.random.default_rng(0)
    return Basis(rng.normal(size=(7, 2)), rng.normal(size=7), "float32")


def test_documents__are_read_back_as_they_were(tmp_path: Path) -> None:
    basis, store = make_basis(), open_store(str(tmp_path))
    for key, content in basis.documents().items():
        write_bytes(store, key, content)
    again = read_basis(str(tmp_path))
    np.testing.assert_array_equal(again.lift, basis.lift)
    np.testing.assert_array_equal(again.centre, basis.centre)
    assert again.dtype == "float32"
    assert basis.documents() == make_basis().documents()


def test_expand__is_lazy_and_keeps_chunks_and_withheld_rows() -> None:
    basis = make_basis()
    coordinates = np.random.default_rng(1).normal(size=(10, 2))
    coordinates[4] = np.nan
    lazy = xr.DataArray(da.from_array(coordinates, chunks=(4, 2)), dims=("record", "feature"))
    records = basis.expand(lazy)
    assert records.shape == (10, 7)
    assert records.chunks == ((4, 4, 2), (7,))
    assert isinstance(records.data, da.Array)
    expected = (basis.centre + coordinates @ basis.lift.T).astype(np.float32)
    np.testing.assert_allclose(records.values, expected, rtol=1e-6)
    assert np.isnan(records.values[4]).all()
    np.testing.assert_array_equal(records[5].values, records.values[5])


def test_read_basis__says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="basis of the factored release"):
        read_basis(str(tmp_path))
