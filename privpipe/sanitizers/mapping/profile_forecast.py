"""How many records a mapping will not know, and what it will promise: from a few chunks."""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import numpy as np
from scipy.special import entr

from privpipe.capabilities import Preview
from privpipe.numerics.mapping.held_out_information import find_needed_records
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import IntArray, ShardSchema
from privpipe.sanitizers.grounds import read_grounds, say_grounds
from privpipe.sanitizers.mapping import mapping_options, profiles
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.solving import assurance
from privpipe.sanitizers.mapping.solving.law_fit import expect_from, prepare_joint, solve_law

# Of the records to be released: with more the mapping was learned from others.
_MANY_NEW = 0.05
# `check` answers while somebody waits; a coarser gap would do for a forecast.
_FORECAST_SECONDS = 20.0


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
    has_subjects
        Whether several records may be of one person, and so no bound is promised.
    n_new
        Of the unseen those whose profile no training record has, however rare.
    most, entropy
        About what will be promised of the value of fewest records, and what its private values
        hold in all, nats; None where nothing is promised.
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
    has_subjects: bool = False
    n_new: int = 0
    most: float | None = None
    entropy: float = 0.0

    def describe(self) -> str:
        """In words, counts alone."""
        share, new = (n / max(1, self.n_records) for n in (self.n_unseen, self.n_new))
        said = [
            say_grounds("profiles" if self.exact else "profiles_of_some", self=self, share=share)
        ]
        if self.n_unseen:
            said[0] += say_grounds(f"unseen_{self.policy}")
        if new > _MANY_NEW:
            said.append(say_grounds("many_new", new=new))
        if self.has_subjects:
            said.append(read_grounds()["promises"]["dependent"]["statement"].capitalize())
        elif self.most is not None:
            name = (
                "promise_forecast_vacuous" if self.most >= self.entropy > 0 else "promise_forecast"
            )
            said.append(say_grounds(name, self=self))
        if self.wanted_information is not None and not self.has_subjects:
            said.append(
                say_grounds("bound_fails" if self.n_needed is None else "bound_needs", self=self)
            )
        return f"{'. '.join(said)}."


def forecast_profiles(preview: Preview, options: PrivacyMappingOptions) -> ProfileForecast | None:
    """Count profiles in a few chunks as the fit will."""
    counts = reduce(ProfileCounts.merge, map(ProfileCounts.of, preview.read_training()))
    share = mapping_options.find_share(options, preview.held_out)
    fitted, _ = profiles.split_counts(counts, share)
    if fitted.n_records == 0:
        return None
    mapping_options.check_independent(options, preview.has_subjects)
    values = np.unique(fitted.keys[:, fitted.n_attributes - 1])
    parts = [fitted] if options.by is None else [fitted.select_value(one) for one in values]
    laws = [prepare_joint(part, options) for part in parts]
    codes = np.concatenate([law[1] for law in laws])
    if options.by is not None:
        codes = np.column_stack([codes, np.repeat(values, [len(law[1]) for law in laws])])
    table = preview.read_attributes()
    known = codes, fitted.keys[:, : fitted.n_attributes]
    n_unseen, n_new = (_count_unknown(one, table) for one in known)
    sizes = len(codes), fitted.n_records, len(table), n_unseen
    found = ProfileForecast(*sizes, preview.is_whole, options.unseen, n_new=n_new)
    found = replace(found, has_subjects=preview.has_subjects)
    judging = max(options.held_out, preview.held_out)
    if preview.has_subjects or not judging:
        return found
    # The value of the fewest records needs the most of all records, and is promised the least.
    fewest = min(range(len(parts)), key=lambda k: parts[k].n_records)
    (joint, few), share = laws[fewest], parts[fewest].n_records / fitted.n_records
    entropy, target = float(entr(joint.sum(axis=1)).sum()), options.wanted_information
    gap = max(options.gap, 0.1 * target if target else 1e-3 * entropy)
    # Limits and budgets cost more than what is forecast without them.
    plain = replace(options, gap=gap, information_budgets=None, solver="auto")
    plain = replace(plain, max_posterior_odds=None, max_leakage=None)
    n = share * (preview.n_training or fitted.n_records / (1 - judging))
    n_records = (1 - judging) * n, judging * n
    law = assurance.CountedLaw(joint, few, fitted, fitted, ShardSchema(0))
    charged, mapping = solve_law(law, few, plain, None, Deadline(_FORECAST_SECONDS), n_records)
    # A promise is at most what the private values could hold, whatever the records.
    most = min(expect_from(joint, *n_records)(charged.mapping), math.log(max(2, len(joint))))
    found = replace(found, most=most, entropy=entropy)
    if target is None:
        return found
    needed = find_needed_records(joint, mapping.mapping, target, options.held_out)
    return replace(found, wanted_information=target, n_needed=needed and needed / share)


def _count_unknown(profiles_: IntArray, table: IntArray) -> int:
    """Records whose profile is none of these."""
    # Profiles come first: the records whose profile occurs among these first rows are known.
    both = np.concatenate([profiles_, table])
    _, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return int((first[place.ravel()[len(profiles_) :]] >= len(profiles_)).sum())
