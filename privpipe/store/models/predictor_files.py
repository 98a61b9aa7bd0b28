"""Predictors given as files: .npy, .npz or a Zarr group of arrays."""

from __future__ import annotations

import io
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import zarr

from privpipe.errors import FormatError, InputError
from privpipe.store.access.location import shown
from privpipe.store.access.objects import open_store

NAMES = ("coefficients", "intercept")


def read_predictor(url: str) -> dict[str, npt.NDArray[Any]]:
    """Read a linear predictor.

    Parameters
    ----------
    url
        A .npy file holds the coefficients alone; a .npz file or a Zarr group holds an array
        ``coefficients (n_features, n_desired)`` and optionally ``intercept (n_desired,)``.

    Raises
    ------
    FormatError
        If it cannot be read.
    InputError
        If there are no coefficients.
    """
    try:
        found = _read(url)
    except Exception as error:  # many kinds, depending on the file
        problem = type(error).__name__
    else:
        if "coefficients" in found:
            return found
        raise InputError(
            f"{shown(url)} has no array 'coefficients'.",
            remedy="Store coefficients (n_features, n_desired) and optionally intercept.",
        )
    raise FormatError(
        f"The predictor {shown(url)} cannot be read ({problem}).",
        remedy="Give a .npy or .npz file without pickles, or a Zarr group.",
    )


def _read(url: str) -> dict[str, npt.NDArray[Any]]:
    if not url.endswith((".npy", ".npz")):
        group = zarr.open_group(open_store(url, read_only=True), mode="r")
        return {name: np.asarray(array[...]) for name, array in group.arrays() if name in NAMES}
    with fsspec.open(url, "rb") as file:
        content = np.load(io.BytesIO(file.read()), allow_pickle=False)
    if isinstance(content, np.ndarray):
        return {"coefficients": content}
    return {name: content[name] for name in content.files if name in NAMES}
