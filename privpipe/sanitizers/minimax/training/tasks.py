"""The tasks of a minimax filter: what allies predict, what adversaries predict, and how; widths.

A task is a variable (or the features themselves), a loss, and a signed weight. That is positive for
what is to stay, negative for what is to go (Hamm, JMLR 2017, sections 3.2-3.3, equations 10-13). A
linear filter's outputs are sums of the features: more of them than features add nothing. A curved
one may need them, for many classes of few features, and can then hold whole records.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.numerics.kinds import MOST_CODES
from privpipe.numerics.logistic import make_class_basis
from privpipe.numerics.minimax.lifts import Lift, Pool
from privpipe.protocols import Column, FloatArray, IntArray, Role, ShardSchema
from privpipe.sanitizers.grounds import say_grounds
from privpipe.sanitizers.options import MethodOptions, method_options

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
TaskKind = Literal["auto", "classification", "regression"]
MAX_AUTO_CLASSES = MOST_CODES
"""A numeric variable of integers with at most so many values is read as classes."""
# Products of the Hessian, a round each, took eight times the rounds: 787 of 1,140 (motion records,
# all three adversaries, 30 iterations).
MOST_ENTRIES = 2000
"""Of a head whose Hessian is sent: 16 MB of it."""


@method_options
class TaskOptions(MethodOptions):
    """Which tasks a filter is learned for; shared by all methods that weigh utility and privacy."""

    tradeoff: NonNegative = 10.0
    """Weight of utility against privacy (the paper's rho)."""
    desired_task: TaskKind = Field(
        default="auto",
        description="How numeric desired variables are read; auto: integers of at most "
        f"{MAX_AUTO_CLASSES} values are classes. Categorical ones are always classes.",
    )
    confidential_task: TaskKind = "auto"
    """How numeric confidential variables are read."""
    desired_weights: tuple[float, ...] = ()
    """Weight of each desired variable; empty: equal, summing to one."""
    confidential_weights: tuple[float, ...] = ()
    """Weight of each confidential variable; empty: equal, summing to one."""
    reconstruction_weight: NonNegative = 0.0
    """Weight of reconstructing the features, as utility; 0 leaves it out."""
    single_out: float | None = None
    """Number, or code of a text, of the confidential variable to separate from all: the adversary
    only infers whether a record is of this class."""

    multiplies: ClassVar[bool] = True
    scales: ClassVar[bool] = True

    def needs(self) -> frozenset[Role]:
        """The desired role, too, unless features are reconstructed."""
        if self.reconstruction_weight:
            return frozenset({"confidential"})
        return frozenset({"desired", "confidential"})

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """A record is learned from where it has all labels."""
        return (frozenset({"desired", "confidential"}),)

    def check(self, schema: ShardSchema) -> None:
        """Raise InputError or OptionError for tasks that no records of these variables have."""
        if not schema.confidential:
            problem = "There is no confidential variable."
            raise InputError(problem, remedy="Name at least one in confidential.")
        if not schema.desired and not self.reconstruction_weight:
            problem = "There is no desired variable."
            raise InputError(problem, remedy="Name one in desired, or set reconstruction_weight.")
        if both := {c.name for c in schema.desired} & {c.name for c in schema.confidential}:
            raise OptionError(
                f"{', '.join(map(repr, sorted(both)))} is desired and confidential: whoever gets "
                "the prediction of the one gets the other.",
                remedy="Leave it out of desired or of confidential.",
            )
        self.spread_weights("desired", len(schema.desired))
        self.spread_weights("confidential", len(schema.confidential))
        check_width(getattr(self, "n_filtered", None), schema.n_features)
        if self.single_out is None:
            return
        if len(schema.confidential) != 1:
            problem = f"single_out needs one confidential variable, not {len(schema.confidential)}."
            remedy = "Name one confidential variable, or leave single_out unset."
            raise OptionError(problem, remedy=remedy)
        (column,) = schema.confidential
        if column.n_categories is None and self.confidential_task == "regression":
            raise refuse_number(column)
        if column.n_categories is not None and self.single_out not in range(column.n_categories):
            raise refuse_class(column, self.single_out)

    def spread_weights(self, role: str, count: int) -> list[float]:
        """Weights of the variables of a role, equal where none are given; or OptionError."""
        given: tuple[float, ...] = getattr(self, f"{role}_weights")
        weights = [float(w) for w in given] or [1.0 / max(count, 1)] * count
        if len(weights) != count or not all(np.isfinite(w) and w > 0 for w in weights):
            problem = f"{role}_weights has {len(given)} entries for {count} variables, or one <= 0."
            remedy = "Give one positive weight per variable, or leave it empty."
            raise OptionError(problem, remedy=remedy)
        return weights


def refuse_class(column: Column, value: float) -> OptionError:
    """The error of a class to single out that does not exist."""
    problem = f"single_out is {value}, no class of {column.name!r} in the training records."
    remedy = "Give the value, or for a categorical variable the code, of one of its classes."
    return OptionError(problem, remedy=remedy)


def refuse_number(column: Column) -> OptionError:
    """The error of a class to single out of a number."""
    problem = f"single_out is set, but {column.name!r} is read as a number."
    remedy = 'Set confidential_task = "classification", or leave single_out unset.'
    return OptionError(problem, remedy=remedy)


@dataclass(frozen=True, eq=False)
class Task:
    """One prediction to keep or to spoil. Picklable; it travels to the workers once.

    Parameters
    ----------
    name
        Name of the variable, "features" for reconstruction.
    role
        "desired", "confidential", "features", or "loss" for one of the user's own.
    column
        Number of the variable, desired ones first.
    weight
        Signed weight in Phi.
    classes : (n_classes,)
        Distinct values; empty for a number.
    singled_out
        Value to separate from the rest, NaN when there is none.
    centre, scale : (n_outputs,)
        A number y is predicted as ``(y - centre) / scale``; unused for classes.
    ridge
        Weight of ``|V|**2``.
    with_intercept
        Whether the head has an intercept.
    baseline
        Loss of the best constant guess: entropy of the classes in nats, 1 for numbers. It is 1 for
        a loss of the user's own, which is in its own unit.
    columns
        First and last filter output that are the scores of a fixed head, (0, 0) for a free one.
    lift
        Features of the filter's outputs that the head reads; None for these themselves.
    adversary
        What a label says of who reads them, empty for the logistic adversary.
    pool
        How records of a group are read together; None where each is read alone.
    loss
        The user's own, a `CustomLoss` of all outputs; None for a prediction.
    """

    name: str
    role: str
    column: int = 0
    weight: float = 1.0
    classes: FloatArray = field(default_factory=lambda: np.empty(0))
    singled_out: float = np.nan
    centre: FloatArray = field(default_factory=lambda: np.zeros(1))
    scale: FloatArray = field(default_factory=lambda: np.ones(1))
    ridge: float = 0.0
    with_intercept: bool = True
    baseline: float = 1.0
    columns: tuple[int, int] = (0, 0)
    lift: Lift | None = None
    adversary: str = ""
    pool: Pool | None = None
    loss: Any = None

    @property
    def label(self) -> str:
        """Role and name, and the adversary unless it is the logistic one."""
        return f"{self.role}:{self.name}{self.adversary}"

    @property
    def is_classification(self) -> bool:
        return len(self.classes) > 0

    @property
    def is_fixed(self) -> bool:
        """Whether the scores are outputs of the filter (the reduced form)."""
        return self.columns[1] > 0

    @property
    def n_classes(self) -> int:
        return len(self.classes) if np.isnan(self.singled_out) else 2

    @property
    def n_scores(self) -> int:
        return self.n_classes - 1 if self.is_classification else len(self.centre)

    @property
    def basis(self) -> FloatArray:
        """Zero-sum basis of the classes, (n_classes, n_scores)."""
        return make_class_basis(self.n_classes)

    def n_inputs(self, n_filtered: int) -> int:
        """Rows of the head."""
        return (n_filtered if self.lift is None else self.lift.n_features) + self.with_intercept

    def uses_hessian(self, n_inputs: int) -> bool:
        """Whether the head has a Hessian of its own, small enough to send."""
        return self.is_classification and n_inputs * self.n_scores <= MOST_ENTRIES

    def read_truth(self, x: FloatArray, labels: FloatArray) -> FloatArray | IntArray:
        """Class numbers (n_records,), or standardised numbers (n_records, n_outputs), of records.

        Parameters
        ----------
        x : (n_records, n_features)
        labels : (n_records, n_variables)
            All their variables.
        """
        y = x if self.role == "features" else labels[:, self.column : self.column + 1]
        if not self.is_classification:
            return np.asarray((y - self.centre) / self.scale)
        if not np.isnan(self.singled_out):
            return np.asarray(y[:, 0] == self.singled_out, np.int64)
        # Codes, or the values that were classes when moments were taken: those are sorted.
        return np.asarray(np.searchsorted(self.classes, y[:, 0]), np.int64)


def check_width(n_filtered: int | None, n_features: int) -> None:
    """Raise OptionError unless ``1 <= n_filtered <= n_features``, or it is not set."""
    if n_filtered is not None and not 1 <= n_filtered <= n_features:
        raise _too_wide(f"n_filtered is {n_filtered} for", n_features)


def check_reduced_width(desired: Sequence[Column], n_features: int) -> None:
    """Raise OptionError if the reduced form has more outputs than records have features.

    It has one less than the classes of each desired variable, and one for a number.
    """
    n_useful = sum(max(1, (column.n_categories or 2) - 1) for column in desired)
    if n_useful > n_features:
        classes = f"the classes of {', '.join(c.name for c in desired)}"
        problem = f"n_filtered is not set, and {classes} need {n_useful} outputs of"
        raise _too_wide(problem, n_features)


def _too_wide(problem: str, n_features: int) -> OptionError:
    return OptionError(
        f"{problem} records of {n_features} features. Outputs of a linear filter are sums of the "
        f"features: more than {n_features} of them add nothing.",
        remedy=f"Set n_filtered to 1 to {n_features}.",
    )


def warn_of_outputs(n_outputs: int, n_features: int) -> None:
    """Warn of a curved filter that releases more numbers than a record has.

    It is not refused: many classes of few features may need them.
    """
    if n_outputs > n_features:
        _warn(say_grounds("many_outputs", n_outputs=n_outputs, n_features=n_features))


def warn_of_width(n_filtered: int, n_useful: int) -> None:
    """Warn of filter outputs that help no target and serve adversaries."""
    if n_filtered > n_useful:
        given = {"n_filtered": n_filtered, "n_useful": n_useful, "n_more": n_filtered - n_useful}
        _warn(say_grounds("useless_outputs", **given))


def _warn(text: str) -> None:
    warnings.warn(text, PrivacyWarning, stacklevel=4)
