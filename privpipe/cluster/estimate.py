"""Estimates from a release: what its noise law, which is public, lets a reader say of the records.

A release of `noisy` is read block by block; of `masking_private` its model holds all there is.
"""

from functools import partial

from privpipe.capabilities import Estimates
from privpipe.errors import OptionError
from privpipe.numerics.noise.estimates import Estimate, Quantity
from privpipe.store.access.location import Place, as_url, shown
from privpipe.store.arrays.layout import companion_url, exists
from privpipe.store.models import open_model
from privpipe.store.releases.incremental_release import read_incremental
from privpipe.store.releases.lazy_release import open_release


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
    place = companion_url(url, "model.zarr")
    if (growing := read_incremental(url)) is not None:  # its model is named after its history
        place = companion_url(url, f"{growing[1].line[:8]}.model.zarr")
    if not exists(place):
        raise OptionError(
            f"There is no {shown(place)}, by which the release would be read.",
            remedy="Estimates need the model of a release of noisy or masking_private. Its owner "
            "may hand it out: it holds noise and numbers of public records.",
            code="estimate",
        )
    model = open_model(place)
    if isinstance(model, Estimates):
        return model.estimate(of, response, partial(open_release, url))
    raise OptionError(
        f"{shown(url)} was made by {model.kind!r}, whose error is no noise of a known law.",
        remedy="Estimate from a release of noisy or of masking_private; surrogates of masking "
        "have the coefficients of the records as they are.",
        code="estimate",
    )
