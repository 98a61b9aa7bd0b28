"""Which adversaries a filter is trained against: options, and the tasks that they make.

Hamm, JMLR 2017, trains against a logistic adversary. Who reads more is a convex head on features of
the filter's outputs; several adversaries count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import OptionError
from privpipe.numerics.minimax.lifts import Lift, Pool
from privpipe.option_values import FORBID
from privpipe.protocols import Role, Shards, ShardSchema
from privpipe.sanitizers.minimax.training.group_pooling import check_groups
from privpipe.sanitizers.minimax.training.tasks import Task, TaskOptions

AdversaryKind = Literal["logistic", "random_features", "kernel", "network", "group"]

GROUP_DEALS = 4
"""Times that records of a group are dealt into sets."""
RIDGE = 1e-4
"""Of every adversary but the logistic one; it also certifies how well each is solved."""


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

    seed: Annotated[int, Field(ge=0, description="Of what is drawn: the start, adversaries.")] = 0

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
    """Raise OptionError for adversaries named twice, or no groups."""
    names = options.adversary
    if len(set(names)) < len(names):
        raise OptionError("adversary names one twice.", remedy="Name each once.")
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
    share = 1.0 / len(options.adversary)
    made: list[Task] = []
    for task in tasks:
        if task.weight >= 0:
            made.append(task)
            continue
        for name in options.adversary:
            one = replace(task, weight=share * task.weight)
            if name != "logistic":
                one = replace(
                    one,
                    adversary=f" ({name})",
                    lift=(lifts or {}).get((name, task.label)),
                    ridge=RIDGE,
                    pool=Pool(options.group_size, GROUP_DEALS, seed) if name == "group" else None,
                )
            made.append(one)
    return tuple(made)
