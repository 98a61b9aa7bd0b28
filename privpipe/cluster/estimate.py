"""Estimates from a release: what its law, which is public, lets a reader say of the records.

A release of `noisy` or of a mapping is read block by block; of `masking_private` its model holds
all there is.
"""

import math
import tomllib
from functools import partial
from pathlib import Path
from typing import get_args

from privpipe.capabilities import Estimates, MakesRecords, Promises
from privpipe.errors import OptionError
from privpipe.numerics.noise.estimates import Estimate, Quantity
from privpipe.store.access.location import Place, as_url, shown
from privpipe.store.arrays.layout import companion_url, exists
from privpipe.store.models import open_model
from privpipe.store.releases.incremental_release import read_incremental
from privpipe.store.releases.lazy_release import open_release


def estimate(
    release: Place, of: Quantity = "means", response: str | None = None, by: str | None = None
) -> list[Estimate]:
    """Estimate numbers of the population of the records from their release.

    Parameters
    ----------
    release
        Local path or URL of a release of `noisy`, `masking_private` or `privacy_mapping`, its
        model beside it.
    of
        What is estimated. Of bounded records, where the release had bounds that bind.
    response
        Of a regression: a variable that the release includes, of a logistic one a category; or a
        response of its surrogates.
    by
        Of differences and shares: an included categorical variable, or an attribute of a mapping.

    Returns
    -------
    estimates
        Values with standard errors, which hold the sample's and the noise's.

    Raises
    ------
    OptionError
        If the release does not hold what is estimated; with the reason.
    InputError
        If the noise or the mapping leaves it undetermined.
    """
    refusals = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text("utf-8"))
    if of not in (known := get_args(Quantity)):
        said = refusals.get(of, refusals["unknown"])
        problem, remedy = (said[key].format(of=of, known=known) for key in ("problem", "remedy"))
        raise OptionError(problem, remedy=remedy, code="estimate")
    if (response if of in ("differences", "shares") else by) is not None:
        problem, remedy = f"{of} have no such column.", "Give a regression a response, groups by."
        raise OptionError(problem, remedy=remedy, code="estimate")
    url = as_url(release)
    place = companion_url(url, "model.zarr")
    if (growing := read_incremental(url)) is not None:  # its model is named after its history
        place = companion_url(url, f"{growing[1].line[:8]}.model.zarr")
    if not exists(place):
        raise OptionError(
            f"There is no {shown(place)}, by which the release would be read.",
            remedy="Estimates need the model of a release of noisy, masking_private or a mapping. "
            "Its owner may hand it out: of the first two it holds noise and public numbers.",
            code="estimate",
        )
    model = open_model(place)
    if isinstance(model, Estimates):
        return model.estimate(of, response or by, partial(open_release, url))
    why, most = "surrogates" if isinstance(model, MakesRecords) else "other", 0.0
    if isinstance(model, Promises):
        why, most = "biased", math.sqrt(model.promise.utility_budget)
    problem = f"{shown(url)} was made by {model.kind!r}: {refusals[why]['problem']}"
    remedy = refusals[why]["remedy"].format(most=most)
    raise OptionError(problem, remedy=remedy, code="estimate")
