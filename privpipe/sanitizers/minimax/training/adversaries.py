"""How a filter is trained: against which adversaries, and until when; the tasks that they make.

Hamm, JMLR 2017, trains against a logistic adversary. Who reads more is a convex head on features of
the filter's outputs; several adversaries count alike.
"""

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
from privpipe.sanitizers.minimax.training.tasks import NonNegative, Positive, Task, TaskOptions

AdversaryKind = Literal["logistic", "kernel", "group"]

GROUP_DEALS = 4
"""Times that records of a group are dealt into sets."""
# Every row of its head is penalised, so that the gap is bounded by the slope: sum of |g_r|^2 / (2
# p_r).
RIDGE = 1e-4
"""Of every adversary but the logistic one; it also certifies how well each is solved."""

Ridge = Annotated[
    NonNegative, Field(description="Ridge of every predictor, and half of it of the filter.")
]
Iterations = Annotated[
    int,
    Field(
        ge=0,
        description="Most outer iterations; more fit the training records closer and let "
        "non-linear adversaries see more.",
    ),
]


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class FilterTraining(TaskOptions):
    """Against whom a filter is trained, and until when."""

    adversary: Annotated[
        tuple[AdversaryKind, ...],
        Field(
            min_length=1,
            description="Who the filter is trained against, one or several: logistic (the "
            "paper's), kernel (a Gaussian kernel by Nystroem's method, on k-means of the outputs, "
            "drawn anew every few iterations), group (knows several records of one group).",
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
    regularisation: Ridge = 1e-4
    with_intercept: Annotated[
        bool,
        Field(description="Predictors have an intercept. False, of linear filters: the paper's."),
    ] = True
    max_iterations: Iterations = 100
    tolerance: Annotated[
        NonNegative, Field(description="Stop when an iteration lowers Phi by less than this share.")
    ] = 1e-5
    inner_tolerance: Annotated[
        Positive, Field(description="Accuracy of the inner problems, in nats.")
    ] = 1e-6

    @field_validator("adversary", mode="before")
    @classmethod
    def _take_one(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    in_rounds: ClassVar[bool] = True

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """The groups, for the adversary that knows some."""
        return {"groups": (self.group,)} if self.group and self.reads_groups else {}

    def examine(self, shards: Shards) -> None:
        """Raise InputError for groups of which the adversary group can make no sets."""
        if self.reads_groups:
            check_groups(shards, self.group_size)

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError for adversaries named twice, or no groups; see `TaskOptions.check`."""
        super().check(schema)
        if len(set(self.adversary)) < len(self.adversary):
            raise OptionError("adversary names one twice.", remedy="Name each once.")
        if not self.reads_groups:
            return
        if not schema.groups:
            raise OptionError(
                "The adversary group knows records of one group, and no variable says whose they "
                "are.",
                remedy='Name it: [method] group = "subject"; in Python, Records(..., groups=...) '
                "or open_collection(..., groups=...).",
                code="group_missing",
            )
        numbers = [c.name for c in schema.confidential if not c.is_categorical]
        if self.confidential_task == "regression" and numbers:
            raise OptionError(
                f"The adversary group infers classes; {numbers[0]!r} is read as a number.",
                remedy='Set confidential_task = "classification", or leave the adversary group '
                "out.",
            )

    @property
    def reads_groups(self) -> bool:
        """Whether some adversary knows several records of one group."""
        return "group" in self.adversary

    @property
    def draws_features(self) -> bool:
        """Whether what some adversary reads is drawn between rounds."""
        return set(self.adversary) != {"logistic"}


def name_adversaries(
    options: FilterTraining,
    tasks: Sequence[Task],
    lifts: Mapping[str, Lift] | None = None,
    seed: int = 0,
) -> tuple[Task, ...]:
    """Every private task once for each adversary, its weight shared among them.

    Parameters
    ----------
    tasks
        With the logistic adversary each.
    lifts
        What each drawn adversary reads, by its name.
    seed
        Of the sets of a group.
    """
    # Alike: weights that users gave and the smooth maximum were tried, and went.
    share, lifts = 1.0 / len(options.adversary), lifts or {}
    pool = Pool(options.group_size, GROUP_DEALS, seed)
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
                    lift=lifts.get(name),
                    ridge=RIDGE,
                    pool=pool if name == "group" else None,
                )
            made.append(one)
    return tuple(made)
