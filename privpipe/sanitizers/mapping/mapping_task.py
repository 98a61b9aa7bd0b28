"""What a mapping is fitted on: counts of two sets of records, and the programme asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.numerics.mapping.pricing.pair_pricing import PriceOracle
from privpipe.protocols import FloatArray, IntArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted
from privpipe.sanitizers.mapping.assurance import assure_mapping
from privpipe.sanitizers.mapping.joint_of_records import prepare_joint
from privpipe.sanitizers.mapping.law_ball import count_cells, find_robust_radius
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions, check_programme
from privpipe.sanitizers.mapping.private_variables import assure_each_variable
from privpipe.sanitizers.mapping.profiles import ProfileCounts, number_private, split_counts
from privpipe.sanitizers.mapping.solving.budgeted import solve_budgeted_mapping
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from privpipe.sanitizers.mapping.solving.robust import solve_robust_mapping
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping


@dataclass(frozen=True, eq=False)
class MappingTask:
    """Counted once, split once; solved for any budget.

    Parameters
    ----------
    counts
        Of all training records.
    fitted, fresh
        Of those that choose the mapping, and of those that judge it.
    private : (n_private, n_private_variables)
        Combinations of private values that occur, sorted.
    joint : (n_private, n_symbols)
        From `fitted`.
    codes : (n_symbols, n_attributes)
    schema
    radius
        Of the ball that the mapping is chosen for, nats; 0 where it is chosen for the counts.
    """

    counts: ProfileCounts
    fitted: ProfileCounts
    fresh: ProfileCounts
    private: IntArray
    joint: FloatArray
    codes: IntArray
    schema: ShardSchema
    radius: float

    @classmethod
    def of(cls, shards: Shards, options: PrivacyMappingOptions) -> MappingTask:
        """Count and split.

        Raises
        ------
        InputError
            If there is nothing to count, or a variable is not categorical.
        OptionError
            If options do not go together.
        """
        check_shards(shards)
        check_unweighted(shards.schema)
        check_programme(options)
        counts = shards.reduce(ProfileCounts.of)
        fitted, fresh = split_counts(counts, options.held_out)
        private, _ = number_private(counts)
        joint, codes = prepare_joint(fitted, options, private)  # raises where nothing is known
        radius = 0.0
        if options.robust != "none":
            radius = find_robust_radius(
                count_cells(shards.schema, len(private)),
                fitted.n_records,
                fresh.n_records,
                options.held_out,
                options.confidence,
            )
        return cls(counts, fitted, fresh, private, joint, codes, shards.schema, radius)

    def solve(
        self,
        options: PrivacyMappingOptions,
        price: PriceOracle | None = None,
        start: SparseMapping | None = None,
    ) -> SparseMapping:
        """The mapping of the options, by the programme that they ask for."""
        seconds = np.inf if options.max_seconds is None else options.max_seconds
        given: dict[str, Any] = {
            "distortion_budget": options.distortion_budget,
            "gap": options.gap,
            "max_seconds": seconds,
            "unseen": options.unseen,
        }
        problem = (self.joint, self.codes, options.distortion)
        if self.radius > 0:
            return solve_robust_mapping(*problem, radius=self.radius, **given)
        if options.information_budgets is not None:
            return solve_budgeted_mapping(
                *problem,
                private=self.private,
                information_budgets=options.information_budgets,
                price=price,
                **given,
            )
        if options.max_posterior_odds is not None or options.max_leakage is not None:
            return solve_constrained_mapping(
                *problem,
                max_posterior_odds=options.max_posterior_odds,
                max_leakage=options.max_leakage,
                price=price,
                **given,
            )
        return solve_privacy_mapping(
            *problem,
            price=price,
            solver=options.solver,
            n_steps=options.steps,
            start=start,
            **given,
        )

    def assure(self, mapping: SparseMapping, options: PrivacyMappingOptions) -> SparseMapping:
        """The mapping with what it promises about the law of the records."""
        if options.information_budgets is None:
            assure = assure_mapping
        else:
            assure = assure_each_variable
        return assure(
            mapping,
            self.joint,
            self.private,
            self.fitted,
            self.fresh,
            self.schema,
            confidence=options.confidence,
            held_out=options.held_out,
        )
