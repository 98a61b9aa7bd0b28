"""What metadata and a few chunks say of the profiles that a privacy mapping will know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privpipe.protocols import IntArray


@dataclass(frozen=True)
class ProfileForecast:
    """How many records a mapping will not know.

    Parameters
    ----------
    n_profiles
        Different profiles it will know.
    n_fitted
        Training records they come from.
    n_records, n_unseen
        Records looked at for the release, and those of other profiles.
    exact
        Whether these are all records; otherwise a few chunks, and more training records know
        more profiles.
    policy
        What the configuration says becomes of them.
    wanted_information
        Nats that the bound must not exceed; None without such a target.
    n_needed
        Training records that bring the bound down to it; None where no number does.
    """

    about: ClassVar[str] = "profiles"

    n_profiles: int
    n_fitted: int
    n_records: int
    n_unseen: int
    exact: bool
    policy: str
    wanted_information: float | None = None
    n_needed: float | None = None

    def describe(self) -> str:
        """In words, counts alone."""
        return " ".join(filter(None, [self._describe_profiles(), self._describe_target()]))

    def _describe_target(self) -> str:
        if self.wanted_information is None:
            return ""
        target = f"A bound of {self.wanted_information:g} nats"
        if self.n_needed is None:
            return (
                f"{target} is out of reach of any number of records at this distortion_budget: "
                "raise it, or wanted_information."
            )
        return f"{target} needs about {self.n_needed:,.0f} training records."

    def _describe_profiles(self) -> str:
        share = self.n_unseen / max(1, self.n_records)
        how = "" if self.exact else "at most about "
        basis = "all records" if self.exact else f"{self.n_records:,} records looked at"
        unknown = (
            f"{self.n_profiles:,} profiles known from {self.n_fitted:,} training records; "
            f"{how}{share:.1%} of {basis} have another one"
        )
        if not self.n_unseen:
            return f"{unknown}."
        if self.policy == "refuse":
            return f'{unknown}, and unseen = "refuse" will stop the run at the first of them.'
        return f'{unknown}: each is treated as the nearest known one (unseen = "nearest").'


def forecast_profiles(
    known: IntArray, n_fitted: int, table: IntArray, *, exact: bool, policy: str
) -> ProfileForecast:
    """Count records of profiles that a mapping will not know.

    Parameters
    ----------
    known : (n_profiles, n_attributes)
        Profiles that the fit keeps, each once.
    n_fitted
        Training records they come from.
    table : (n_records, n_attributes)
        Attributes of records to release.
    exact, policy
        See `ProfileForecast`.
    """
    both, inverse = np.unique(np.concatenate([known, table]), axis=0, return_inverse=True)
    is_known = np.zeros(len(both), bool)
    is_known[inverse.ravel()[: len(known)]] = True
    unseen = int((~is_known[inverse.ravel()[len(known) :]]).sum())
    return ProfileForecast(len(known), n_fitted, len(table), unseen, exact, policy)
