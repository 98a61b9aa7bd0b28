"""The audit of a promise of epsilon: canaries under the noise of the release, and fresh keys."""

import secrets
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privpipe.attacks.threats.canaries import CanaryReport, guess_canaries
from privpipe.capabilities import TakesCanaries
from privpipe.errors import GuaranteeError
from privpipe.numerics.noise.gaussian import convert_mu
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.pipeline.runs.run import Run
from privpipe.store.models import open_model


def audit_canaries(run: Run) -> dict[str, Any] | None:
    """Floor of epsilon beside the promise; None where no record is promised one.

    The records belong to no person, keys are fresh, and nothing of it is stored.

    Raises
    ------
    GuaranteeError
        If the floor is above the promise, so that it is broken: nothing is published.
    """
    fitted = open_model(run.stored_model_url)
    if not isinstance(fitted, TakesCanaries) or fitted.guarantee.number is None:
        return None
    promise = fitted.guarantee
    found = _guess(fitted)
    if (sure := found.sure_floor) > fitted.guarantee.number:
        raise GuaranteeError(
            f"Records of two kinds are distinguished as only a mechanism of epsilon {sure:.3g} or "
            f"more allows; promised is {promise.number:g}.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="promise-broken",
        )
    notices_half = _guess(fitted, loss=2.0).sure_floor > fitted.guarantee.number
    said = {"promised": promise.number, "delta": promise.delta, "notices_half": notices_half}
    return said | asdict(found)


def _guess(fitted: TakesCanaries, loss: float = 1.0) -> CanaryReport:
    """What guesses show, as floors of epsilon, of the noise or of noise that protects less."""
    seed, key = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
    kinds = np.random.default_rng(list(seed)).random(fitted.n_canaries) < 0.5
    released, sums = fitted.release_canaries(kinds, key, loss)
    found = guess_canaries(released, kinds, sums)
    if sums is None:
        return found
    mus, delta = (found.epsilon_floor, found.sure_floor), fitted.guarantee.delta
    epsilon_floor, sure_floor = (convert_mu(mu, delta) for mu in mus)
    return replace(found, epsilon_floor=epsilon_floor, sure_floor=sure_floor)
