"""Which adversaries a filter is trained against: options, and the tasks that they make.

Hamm, JMLR 2017, trains against a logistic adversary. Who reads more is a convex head on features of
the filter's outputs; several adversaries count by their weights or by their smooth maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import OptionError
from privpipe.numerics.minimax.lifts import Lift, Pool
from privpipe.numerics.minimax.objective import SmoothMaximum
from privpipe.option_values import FORBID
from privpipe.protocols import Role, Shards, ShardSchema
from privpipe.sanitizers.minimax.training.group_pooling import check_groups
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions

AdversaryKind = Literal["logistic", "random_features", "kernel", "network", "group"]


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class AdversaryOptions(TaskOptions):
    """Who a filter is trained against."""

    adversary: Annotated[
        tuple[AdversaryKind, ...],
        Field(
            min_length=1,
            description="Who the filter is trained against, one or several: logistic (the "
            "paper's), random_features (a Gaussian kernel by random Fourier features, drawn anew "
            "every few iterations), kernel (the same by Nystroem's method, on k-means of the "
            "outputs), network (one hidden layer, trained anew every few iterations), group "
            "(knows several records of one group).",
        ),
    ] = ("logistic",)
    adversary_weights: Annotated[
        tuple[float, ...],
        Field(description="Weight of each adversary; empty: equal, summing to one."),
    ] = ()
    combine_adversaries: Annotated[
        Literal["sum", "maximum"],
        Field(
            description="How several adversaries count: by their weights, or by the smooth "
            "maximum of what they find, the strongest most."
        ),
    ] = "sum"
    temperature: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Of the smooth maximum, in nats: adversaries that are this much weaker "
            "than the strongest count a third of it.",
        ),
    ] = 0.05
    random_features: Annotated[
        int, Field(ge=2, multiple_of=2, description="Features of the adversary random_features.")
    ] = 72
    landmarks: Annotated[
        int, Field(ge=2, description="Points on which the adversary kernel stands.")
    ] = 64
    hidden_units: Annotated[int, Field(ge=1, description="Of the adversary network.")] = 32
    network_steps: Annotated[
        int, Field(ge=1, description="Steps that train the hidden layer each time.")
    ] = 40
    group: Annotated[
        str | None,
        Field(
            description="Variable that says whose records belong together; needed by the "
            "adversary group."
        ),
    ] = None
    group_size: Annotated[
        int, Field(ge=2, description="Records of one group that the adversary group knows.")
    ] = 10
    group_deals: Annotated[
        int, Field(ge=1, description="Times that records of a group are dealt into sets.")
    ] = 4
    adversary_regularisation: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Ridge of every adversary but the logistic one; it also certifies how "
            "well each is solved.",
        ),
    ] = 1e-4
    resample_every: Annotated[
        int, Field(ge=1, description="Iterations after which adversaries are drawn anew.")
    ] = 5
    adversary_seed: Annotated[int, Field(ge=0, description="Of what is drawn.")] = 0

    @field_validator("adversary", mode="before")
    @classmethod
    def _take_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    in_rounds: ClassVar[bool] = True

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """The groups, for the adversary that knows some."""
        asks = self.group is not None and "group" in self.adversary
        return {"groups": (self.group or "",)} if asks else {}

    def examine(self, shards: Shards) -> None:
        """Raise InputError for groups of which the adversary group can make no sets."""
        if "group" in self.adversary:
            check_groups(shards, self.group_size)

    @property
    def draws_features(self) -> bool:
        """Whether some adversary is drawn or trained between rounds."""
        return any(name != "logistic" for name in self.adversary)


def check_adversaries(options: AdversaryOptions, schema: ShardSchema) -> None:
    """Raise OptionError for adversaries named twice, weights that do not match, or no groups."""
    names, weights = options.adversary, options.adversary_weights
    if len(set(names)) < len(names):
        raise OptionError("adversary names one twice.", remedy="Name each once.")
    if weights and (len(weights) != len(names) or not all(0 < w < np.inf for w in weights)):
        raise OptionError(
            f"adversary_weights has {len(weights)} entries for {len(names)} adversaries, or one is "
            "not positive.",
            remedy="Give one positive weight per adversary, or leave it empty.",
        )
    if "group" in names and not schema.groups:
        raise OptionError(
            "The adversary group knows records of one group, and no variable says whose they are.",
            remedy='Name it: [method] group = "subject"; in Python, Records(..., groups=...) or '
            "open_collection(..., groups=...).",
            code="group_missing",
        )
    numbers = [c.name for c in schema.confidential if not c.is_categorical]
    if "group" in names and options.confidential_task == "regression" and numbers:
        raise OptionError(
            f"The adversary group infers classes; {numbers[0]!r} is read as a number.",
            remedy='Set confidential_task = "classification", or leave the adversary group out.',
        )


def name_adversaries(
    options: AdversaryOptions,
    tasks: Sequence[Task],
    lifts: Mapping[tuple[str, str], Lift] | None = None,
    seed: int = 0,
) -> tuple[Task, ...]:
    """Every private task once for each adversary, its weight shared among them.

    Parameters
    ----------
    tasks
        With the logistic adversary each.
    lifts
        What each drawn adversary reads, by its name and the task's label.
    seed
        Of the sets of a group.
    """
    given = options.adversary_weights or (1.0,) * len(options.adversary)
    shares = np.array(given) / sum(given)
    made: list[Task] = []
    for task in tasks:
        if task.weight >= 0:
            made.append(task)
            continue
        for name, share in zip(options.adversary, shares.tolist(), strict=True):
            one = replace(task, weight=share * task.weight)
            if name != "logistic":
                one = replace(
                    one,
                    adversary=f" ({name})",
                    lift=(lifts or {}).get((name, task.label)),
                    ridge=options.adversary_regularisation,
                    pool=Pool(options.group_size, options.group_deals, seed)
                    if name == "group"
                    else None,
                )
            made.append(one)
    return tuple(made)


def find_maxima(options: AdversaryOptions, tasks: Sequence[Task]) -> tuple[SmoothMaximum, ...]:
    """Adversaries of one variable that count by their maximum."""
    if options.combine_adversaries == "sum":
        return ()
    private: dict[int, list[int]] = {}
    for t, task in enumerate(tasks):
        if task.weight < 0:
            private.setdefault(task.column, []).append(t)
    return tuple(
        SmoothMaximum(tuple(mine), options.temperature)
        for mine in private.values()
        if len(mine) > 1
    )
