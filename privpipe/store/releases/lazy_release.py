"""A published release as an `xarray.Dataset`, opened without reading its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privpipe.extras import explain_missing, is_installed
from privpipe.store.access.generation_log import is_generational
from privpipe.store.access.location import Place, as_url
from privpipe.store.access.objects import open_store
from privpipe.store.arrays.factored_basis import read_basis
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.published import check_release

if TYPE_CHECKING:
    import xarray as xr


def open_release(url: Place, *, verify: bool = False) -> xr.Dataset:
    """Open a published release, lazily.

    Parameters
    ----------
    url
        Local path or URL of the release.
    verify
        Also read every stored byte and compare it with its receipt.

    Returns
    -------
    dataset
        The released features ``(record, feature)`` and the variables included by name, as
        lazy arrays of the stored chunks; the coordinate `feature` holds the features' names,
        where they have some, and ``dataset.attrs`` the header; ``dataset.privpipe`` says
        what is promised, and ``dataset.privpipe.report()`` what the audit found. Records of a
        factored release are made of its coordinates when they are computed.

    Raises
    ------
    FormatError
        If it is not a release, or of another format version.
    IncompleteReleaseError
        If chunks are missing, or something differs from the manifest.

    Examples
    --------
    >>> release = open_release("release.zarr")  # doctest: +SKIP
    >>> release.features.mean("record").compute()  # doctest: +SKIP
    """
    import xarray as xr

    import privpipe.store.releases.release_dataset  # noqa: F401  # ``dataset.privpipe``

    url = as_url(url)
    if is_generational(url):
        from privpipe.store.releases.release_dataset import open_generation

        return open_generation(url, verify=verify)
    header = check_release(url, verify=verify)
    # Without dask xarray reads lazily by itself; only joins and factored records need its chunks.
    dataset: xr.Dataset = xr.open_zarr(
        open_store(url, read_only=True),
        consolidated=False,
        chunks={} if is_installed("dask") else None,
    )
    # By allow-list: what else lies in the store was put there by another.
    allowed: xr.Dataset = dataset[list(header["arrays"])]
    if header.get("layout") == "factored":
        if not is_installed("dask"):  # records are made of coordinates chunk by chunk
            raise explain_missing(ModuleNotFoundError(name="dask"))
        allowed = allowed.drop_vars(FEATURES).assign(
            {FEATURES: read_basis(url).expand(dataset[FEATURES])}
        )
    names = list(header.get("feature_names") or ())
    if names and FEATURES in allowed:
        allowed = allowed.assign_coords(feature=names)
    allowed.attrs = {"privpipe": dict(header)}
    return allowed
