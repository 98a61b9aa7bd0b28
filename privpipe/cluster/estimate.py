"""Estimates from a release: what its noise law, which is public, lets a reader say of the records.

A release of `noisy` is read block by block; of `masking_private` its model holds all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.noise import estimates
from privpipe.numerics.noise.estimates import Estimate
from privpipe.protocols import FloatArray
from privpipe.sanitizers.masking.private_model import PrivateMaskingModel
from privpipe.sanitizers.noise.noisy_filter import NoisyFilter
from privpipe.store.access.location import Place, as_url, shown
from privpipe.store.arrays.layout import companion_url
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release

BLOCK_RECORDS = 2**16

Quantity = Literal["means", "covariances", "regression"]


def estimate(release: Place, of: Quantity = "means", response: str | None = None) -> list[Estimate]:
    """Estimate means, covariances or a regression of the records from their release.

    Parameters
    ----------
    release
        Local path or URL of a release of `noisy` or `masking_private`, its model beside it.
    of
        What is estimated. Of bounded records, where the release had bounds that bind.
    response
        Of a regression: a variable that the release includes, or a response of its surrogates.

    Returns
    -------
    estimates
        Values with standard errors, which hold the sample's and the noise's.

    Raises
    ------
    OptionError
        If the release does not hold what is estimated; with the reason.
    InputError
        If the noise leaves it undetermined.
    """
    url = as_url(release)
    model = open_model(companion_url(url, "model.zarr"))
    if isinstance(model, PrivateMaskingModel):
        return _estimate_moments(model, of, response)
    if isinstance(model, NoisyFilter):
        return _estimate_noisy(url, model, of, response)
    raise OptionError(
        f"{shown(url)} was made by {model.kind!r}, whose error is no noise of a known law.",
        remedy="Estimate from a release of noisy or of masking_private; surrogates of masking "
        "have the coefficients of the records as they are.",
        code="estimate",
    )


def _choose(response: str | None, names: Sequence[str]) -> int:
    if response is None and len(names) == 1:
        return 0
    if response not in names:
        raise OptionError(
            f"The response {response!r} is none of the release.",
            remedy=f"Choose one of: {', '.join(names) or 'those of [release] include'}.",
            code="estimate",
        )
    return names.index(response)


def _estimate_moments(
    model: PrivateMaskingModel, of: Quantity, response: str | None
) -> list[Estimate]:
    q, names = len(model.origin), model.response_names
    offsets = np.concatenate([model.origin, [0.0], model.response_origin])
    units = np.concatenate([model.unit, [1.0], model.response_unit])
    if of == "covariances":
        raise OptionError(
            "How far covariances of a sample are off rests on fourth moments, which were not "
            "released.",
            remedy="Estimate means or a regression; the model's moments hold sums of products.",
            code="estimate",
        )
    if of == "means":
        columns = [*model.feature_names[:q], *names]
        found = estimates.estimate_moment_means(model.moments, model.deviations, columns, q)
        places = [j for j in range(len(units)) if j != q]
        return [
            Estimate(one.name, one.value * units[j] + offsets[j], one.error * units[j])
            for one, j in zip(found, places, strict=True)
        ]
    at = q + 1 + _choose(response, names)
    scaled = estimates.estimate_moment_regression(
        model.moments, model.deviations, model.feature_names, q, at
    )
    return _unscale(scaled, model, at - q - 1)


def _unscale(scaled: Sequence[Estimate], model: PrivateMaskingModel, at: int) -> list[Estimate]:
    """Slopes in the units of the records; the intercept where features are at their origins."""
    unit = float(model.response_unit[at])
    slopes = [
        Estimate(one.name, one.value * unit / each, one.error * unit / each)
        for one, each in zip(scaled[:-1], model.unit.tolist(), strict=True)
    ]
    last, level = scaled[-1], float(model.response_origin[at])
    # Of features whose range has no zero in it, zero is nowhere near the records.
    name = "response at centre" if model.origin.any() else "intercept"
    return [*slopes, Estimate(name, last.value * unit + level, last.error * unit)]


def _estimate_noisy(
    url: str, model: NoisyFilter, of: Quantity, response: str | None
) -> list[Estimate]:
    if model.after:
        raise OptionError(
            "The filter came after the noise, and mixed it: its law is no longer that of columns.",
            remedy='Release with [method] order = "filter_then_noise".',
            code="estimate",
        )
    opened: Any = open_release(url)
    width = model.n_bounded
    names = [str(one) for one in opened.coords.get("feature", np.arange(width)).values]
    included = [
        str(name)
        for name, array in opened.data_vars.items()
        if array.ndim == 1 and np.issubdtype(array.dtype, np.floating)
    ]
    chosen = [included[_choose(response, included)]] if of == "regression" else []
    # Placing records on the grid shrank them by a factor that is known.
    factor = model.threshold / (model.mechanism.lattice.inner * model.grid)
    if model.bound != "hard":
        factor = 1.0 / (model.mechanism.lattice.inner * model.grid)
    # Without a filter, the centre that was subtracted is added again.
    plain = not model.before and not model.projection.size and model.bound == "hard"
    offset = -model.shift if plain else np.zeros(width)
    noise = np.zeros(width + len(chosen))
    noise[:width] = (factor * model.mechanism.spread) ** 2
    blocks = partial(_read_blocks, opened, chosen, factor, offset)
    if of == "means":
        return estimates.estimate_means(blocks, names)
    if of == "covariances":
        return estimates.estimate_covariances(blocks, names, noise)
    return estimates.estimate_regression(blocks, [*names, *chosen], noise)


def _read_blocks(
    opened: Any, chosen: Sequence[str], factor: float, offset: FloatArray
) -> Iterator[FloatArray]:
    """Records of a release as they were before the noise, but for it; withheld ones left out."""
    n = opened["features"].shape[0]
    for start in range(0, n, BLOCK_RECORDS):
        part = slice(start, start + BLOCK_RECORDS)
        features = np.asarray(opened["features"][part].values, np.float64) * factor + offset
        rows = np.column_stack([features, *(opened[name][part].values for name in chosen)])
        whole = rows[np.isfinite(rows).all(axis=1)]
        if len(whole):
            yield whole
