"""Options of a privacy mapping, and what of them does not go together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_serializer
from pydantic.dataclasses import dataclass
from pydantic.json_schema import SkipJsonSchema

from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.problem.programme import DistanceKind
from privpipe.option_values import FORBID
from privpipe.protocols import Column, IntArray, Role, ShardSchema
from privpipe.sanitizers.options import MethodOptions

# A variable with more categories names records rather than groups them.
MOST_CATEGORIES = 1000
# Profiles that a first configuration keeps: solved in seconds, and each seen often enough.
MOST_PROFILES = 2000
# Of its attributes that a first configuration lets a record change, on average.
SHARE_CHANGED = 0.1


# Nats, or a factor.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=FORBID)
class PrivacyMappingOptions(MethodOptions):
    """Options of ``[method] name = "privacy_mapping"`` (SPPM)."""

    name: Literal["privacy_mapping"] = "privacy_mapping"
    attributes: tuple[str, ...] = Field(min_length=1)
    """Categorical variables that are released, and changed."""
    private: tuple[str, ...] = Field(min_length=1)
    """Categorical variables that must not be inferred from the release; of several, their
    combination, or each within its own of information_budgets."""
    by: str | None = None
    """A public categorical variable that is released as it is. Each of its values has a mapping of
    its own, within the same budget of distortion and with a promise of its own."""
    distortion_budget: float = Field(ge=0, allow_inf_nan=False)
    """Largest mean distortion per record: with "hamming", changed attributes."""
    distortion: DistanceKind = "hamming"
    """hamming counts changed attributes; squared and absolute add up differences of codes, for
    ordered categories."""
    gap: Positive = 1e-3
    """Target of the certified gap, nats."""
    max_posterior_odds: float | None = Field(default=None, gt=1, allow_inf_nan=False)
    """No released profile multiplies the odds of two private values by more, under the law
    counted."""
    max_leakage: Positive | None = None
    """Largest maximal leakage of the mapping, nats, under the law counted."""
    information_budgets: tuple[Positive, ...] | None = None
    """One budget for each variable of private, in its order: nats of mutual information with the
    release, under the law counted. The largest share that any of them takes of its budget is the
    least possible; a run stops where it is above 1."""
    solver: Literal["auto", "frank_wolfe"] = "auto"
    """frank_wolfe is the paper's algorithm."""
    smoothing: InitVar[SkipJsonSchema[Literal["best"]]] = "best"
    """Of earlier versions; nothing else is done."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Of the bounds on information and distortion."""
    held_out: float = Field(default=0.5, ge=0, lt=1)
    """Share of the training records that the mapping is not fitted on, which bound what it reveals:
    first those that [audit] holdout holds out. Where there are none, the bound is the most there
    is."""
    wanted_information: Positive | None = None
    """Nats that the bound must not exceed: `check` says how many records that needs, and a run
    whose bound is above stops."""
    most_frequent: int | None = Field(default=None, ge=1)
    """Keep only so many profiles, the most frequent."""
    unseen: Literal["nearest", "refuse"] = "nearest"
    """What becomes of records whose profile the mapping does not know. With nearest they are
    treated as the nearest known one, and the report says how many; refuse stops."""
    pricing: Literal["auto", "cluster", "inline"] = "auto"
    """Where columns are priced."""
    max_seconds: Positive | None = None
    """Seconds of the search and of the promise, of all values of `by` together; reading records is
    apart. Then the best mapping so far is taken."""

    prices: ClassVar[bool] = True
    is_judged: ClassVar[bool] = True

    # Models and runs of earlier versions are known by digests of what these wrote.
    @model_serializer(mode="wrap")
    def _write_as_before(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {k: v for k, v in write(self).items() if k != "by" or v} | {"smoothing": "best"}

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without a private value are not counted."""
        return (frozenset({"confidential"}),)

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """What is released, `by` last, and what is private."""
        attributes = self.attributes if self.by is None else (*self.attributes, self.by)
        return {"attributes": attributes, "confidential": self.private}

    def check_names(self, schema: ShardSchema) -> None:
        """Raise InputError unless records have the variables that are named, and no others.

        Of arrays without names there are as many, in the order of the options. What is confidential
        besides `private` is hidden, too, where no budgets are counted by place.
        """
        for role, named in self.columns().items():
            given = tuple(column.name for column in getattr(schema, role))
            nameless = tuple(f"{role.removesuffix('s')}_{j}" for j in range(len(named)))
            more = role == "confidential" and not self.information_budgets
            fits = {*named} <= {*given} if more else named == given
            if not fits and (given != nameless or {*named} & {*given}):
                raise InputError(
                    f"The options name {[*named]} as {role}, records have {[*given] or 'none'}.",
                    remedy="Name what the records have, in this order, or give others.",
                    code="missing-variable",
                )

    @classmethod
    def suggest(
        cls,
        confidential: Sequence[str],
        columns: Sequence[Column],
        read: Callable[[tuple[str, ...]], IntArray],
    ) -> Mapping[str, Any]:
        """Options of a first privacy mapping; empty where nothing is categorical."""
        sizes = {column.name: column.n_categories for column in columns}
        if not confidential or any(sizes.get(name, 1) is None for name in confidential):
            return {}
        few = [name for name, size in sizes.items() if size is not None and size <= MOST_CATEGORIES]
        attributes = [name for name in few if name not in confidential]
        if not attributes:
            return {}
        found: dict[str, Any] = {
            "attributes": attributes,
            "private": list(confidential),
            "distortion_budget": round(SHARE_CHANGED * len(attributes), 2),
        }
        if len(np.unique(read(tuple(attributes)), axis=0)) > MOST_PROFILES:
            found["most_frequent"] = MOST_PROFILES
        return found


def find_share(options: PrivacyMappingOptions, apart: float) -> float:
    """Share of the records to hold out, where a share of all is held out before."""
    return max(0.0, options.held_out - apart) / (1 - apart)


def check_independent(options: PrivacyMappingOptions, grouped: bool) -> None:
    """Raise OptionError for a target of the bound where several records are of one person."""
    if options.wanted_information is not None and grouped:
        raise OptionError(
            "wanted_information is given, and records of one person are not independent.",
            remedy="Leave wanted_information out, or give one record of each person and no subject "
            "(in Python: no groups).",
            code="dependent-records",
        )
