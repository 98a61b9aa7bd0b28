"""The audit of a promise of epsilon: canaries under the noise of the release, and fresh keys."""

import secrets
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privpipe.attacks.threats.canaries import CanaryReport, guess_canaries, limit_noise
from privpipe.capabilities import TakesCanaries
from privpipe.errors import GuaranteeError
from privpipe.numerics.noise.gaussian import convert_mu
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.pipeline.runs.run import Run
from privpipe.store.models import open_model

ENOUGH = 0.999
"""Of the promised mean square: a law on a grid, or clipped far out, may have a little less."""


def audit_canaries(run: Run) -> dict[str, Any] | None:
    """Floor of epsilon beside the promise; None where no record is promised one.

    The records belong to no person, keys are fresh, and nothing of it is stored.

    Raises
    ------
    GuaranteeError
        If the floor is above the promise, or the noise smaller, so that it is broken: nothing is
        published.
    """
    fitted = open_model(run.stored_model_url)
    if not isinstance(fitted, TakesCanaries) or (promised := fitted.guarantee.number) is None:
        return None
    found, less = _guess(fitted), _guess(fitted, loss=2.0)
    problem = ""
    if (sure := found.sure_floor) > promised:
        problem = (
            f"Records of two kinds are distinguished as only a mechanism of epsilon {sure:.3g} "
        )
        problem += f"or more allows; promised is {promised:g}."
    elif (size := found.noise_upper) < ENOUGH:
        problem = f"The mean square of the noise is at most {size:.3g} of what epsilon "
        problem += f"{promised:g} needs."
    if problem:
        remedy = "Nothing was published. This is a fault of privpipe: report it."
        raise GuaranteeError(problem, remedy=remedy, code="promise-broken")
    notices_half = less.sure_floor > promised or less.noise_upper < ENOUGH
    said = {"promised": promised, "delta": fitted.guarantee.delta, "notices_half": notices_half}
    # JSON knows no NaN: where the size of the noise is not known nothing is said of it.
    return said | {key: one for key, one in asdict(found).items() if one == one}


def _guess(fitted: TakesCanaries, loss: float = 1.0) -> CanaryReport:
    """What guesses show, as floors of epsilon, of the noise or of noise that protects less."""
    seed, key = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
    kinds = np.random.default_rng(list(seed)).random(fitted.n_canaries) < 0.5
    released, sums = fitted.release_canaries(kinds, key, loss)
    found = guess_canaries(released, kinds, sums)
    if (deviation := fitted.canary_noise) is not None:
        found = replace(found, noise_upper=limit_noise(released, kinds, deviation))
    if sums is None:
        return found
    mus, delta = (found.epsilon_floor, found.sure_floor), fitted.guarantee.delta
    epsilon_floor, sure_floor = (convert_mu(mu, delta) for mu in mus)
    return replace(found, epsilon_floor=epsilon_floor, sure_floor=sure_floor)
