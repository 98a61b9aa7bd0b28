"""The basis of a factored release: what turns its stored coordinates into records, lazily.

A factored release stores the few coordinates of each record under `features` and, once, the basis;
whoever opens it sees records. Both layouts say exactly the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zarr
from zarr.storage import MemoryStore

from privpipe.errors import FormatError
from privpipe.numerics.null_space.cleaning import reconstruct_records
from privpipe.protocols import FloatArray
from privpipe.store.access.location import guard_read, shown
from privpipe.store.access.objects import open_store, read_all, read_whole
from privpipe.store.arrays.layout import DAMAGED

if TYPE_CHECKING:
    import xarray as xr

BASIS = "basis"


@dataclass(frozen=True, eq=False)
class Basis:
    """``record = centre + lift @ coordinates``.

    Parameters
    ----------
    lift : (n_features, rank)
    centre : (n_features,)
    dtype
        Name of the records' dtype.
    """

    lift: FloatArray
    centre: FloatArray
    dtype: str

    @property
    def n_features(self) -> int:
        """Features of a record."""
        return len(self.centre)

    def reconstruct(self, coordinates: FloatArray) -> FloatArray:
        """Records (n_records, n_features) of coordinates (n_records, rank); NaN rows stay NaN."""
        return reconstruct_records(coordinates, self.lift, self.centre, self.dtype)

    def documents(self) -> dict[str, bytes]:
        """The objects of the basis within the store of a release."""
        memory = MemoryStore()
        group = zarr.create_group(memory, path=BASIS, attributes={"dtype": self.dtype})
        # One chunk each: a basis is read whole.
        group.create_array("lift", data=self.lift, chunks=self.lift.shape)
        group.create_array("centre", data=self.centre, chunks=self.centre.shape)
        return read_all(memory, f"{BASIS}/")

    def expand(self, coordinates: "xr.DataArray") -> "xr.DataArray":
        """Records of stored coordinates as a lazy array of the same chunks along `record`."""
        import xarray as xr

        # Block by block: a release of any size opens at once.
        stored, dtype = coordinates.data, np.dtype(self.dtype)
        chunks = (stored.chunks[0], (self.n_features,))
        lazy = stored.map_blocks(self.reconstruct, dtype=dtype, chunks=chunks, name=False)
        return xr.DataArray(lazy, dims=coordinates.dims)


def read_basis(url: str) -> Basis:
    """Read the basis of a factored release.

    Raises
    ------
    FormatError
        If there is none, or it cannot be read.
    """

    def read() -> Basis:
        group = zarr.open_group(open_store(url, read_only=True), path=BASIS, mode="r")
        lift, centre = (read_whole(group.store, f"{BASIS}/{name}") for name in ("lift", "centre"))
        return Basis(lift, centre, str(group.attrs["dtype"]))

    problem = f"The basis of the factored release {shown(url)} cannot be read"
    return guard_read(read, FormatError, problem, remedy=DAMAGED)
