"""A published release as an `xarray.Dataset`, opened without reading its records."""

from typing import TYPE_CHECKING

from privpipe.store.access.location import Place, as_url

if TYPE_CHECKING:
    import xarray as xr


def open_release(url: Place, *, verify: bool = False) -> "xr.Dataset":
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
        The released features ``(record, feature)`` and the variables included by name, as lazy
        arrays of the stored chunks. The coordinate `feature` holds the features' names, where they
        have some, and ``dataset.attrs`` the header. ``dataset.privpipe`` says what is promised, and
        ``dataset.privpipe.report()`` what the audit found. Records of a factored release are made
        of its coordinates when they are computed.

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
    # Only now: xarray takes longer to load than the first use of a public name may take.
    from privpipe.store.releases.release_dataset import open_dataset

    return open_dataset(as_url(url), verify=verify)
