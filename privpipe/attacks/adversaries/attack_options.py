"""Options of an audit by attack: adversaries, bounds, splits, intervals and the limit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

from privpipe.attacks import adversaries as table
from privpipe.attacks.statistics.scores import EXPOSURES
from privpipe.errors import OptionError
from privpipe.option_values import Options


def _check_name(name: str) -> str:
    """Names of the rows of `ADVERSARIES`, whichever these are when a name is given."""
    if name not in table.ADVERSARIES:
        raise ValueError(f"there is no such adversary; use some of: {', '.join(table.ADVERSARIES)}")
    return name


def list_defaults() -> tuple[str, ...]:
    """Adversaries that attack where none are named."""
    return tuple(name for name, row in table.ADVERSARIES.items() if row.default)


# An enumeration, so that completion and the schema name the adversaries that there are.
_NAMES = Field(json_schema_extra=lambda schema: schema.update(enum=list(table.ADVERSARIES)))
AdversaryName = Annotated[str, AfterValidator(_check_name), _NAMES]
"""Name of an adversary."""

ScoreName = Literal["accuracy", "balanced_accuracy", "f1", "auc", "tpr_at_0.001", "tpr_at_0.01"]

MUST_FIND = 0.2

Share = Annotated[float, Field(gt=0, lt=0.8)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class AttackOptions(Options):
    """How a release is attacked and judged.

    Parameters
    ----------
    adversaries
        Which adversaries to train; those that cannot predict a variable's kind are left out.
    max_advantage
        Largest advantage allowed, as a share of the way from guessing to knowing. A variable
        is safe where no upper limit exceeds it, and leaks where a lower limit does.
    max_exposed
        Largest share of the records that may be exposed: the true-positive rate beyond the
        false-positive rate at which it is measured.
    decides
        Scores that are held against these limits (of a number always "r2", and of these the
        true-positive rates). Accuracy alone hides what is known of a rare class; the area
        under the ROC curve does not. Both hide a few records that are known for certain;
        true-positive rates do not.
    level
        Confidence of each verdict. "safe" needs every upper limit within what is allowed, each at
        this level. "leaks" needs one lower limit beyond it. Lower limits share the level: Holm over
        variables, Bonferroni over the attacks and deciding scores of each.
    max_records
        Records drawn from the collection for the audit.
    max_bytes
        Bytes of one attacked matrix; the sample shrinks until it fits.
    max_test
        Test records each adversary predicts.
    tune_share
        Share of the records that do not judge a fold which choose settings, where each fold
        chooses its own.
    min_class_records
        Classes with fewer records are too small to be judged.
    rare_classes
        "refuse" to judge a variable with such classes, or "merge" them into one, and that with
        the smallest others until it is large enough.
    seen_records
        What to do with records the sanitiser learned from: "leave_out" or "train". The latter is
        the papers' protocol, in which adversaries train on them and are tested on all others. It
        flatters the release: an eraser is exact on its own training records, so that they teach an
        adversary less than fresh ones do.
    seed
        Seed of sample, split and adversaries; no secret.
    must_find
        Share of records of which a planted leak must be found, or "safe" is "unproven"; see
        `power`.
    uninformative
        Confidential variables that raw records are known not to reveal. Of any other "safe" needs
        the raw records, where they are given, to reveal more than chance to the same adversaries.

    Examples
    --------
    >>> AttackOptions(adversaries=("logistic", "boosting")).level
    0.95
    """

    # A function: a row that is added later, by a test or a user, is seen as well.
    adversaries: tuple[AdversaryName, ...] = Field(default_factory=list_defaults)
    max_advantage: Annotated[float, Field(ge=0, le=1)] = 0.1
    max_exposed: Annotated[float, Field(ge=0, le=1)] = 0.01
    decides: tuple[ScoreName, ...] = ("accuracy", "auc", "tpr_at_0.001", "tpr_at_0.01")
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    max_records: Annotated[int, Field(ge=50)] = 30_000
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 28
    max_test: Annotated[int, Field(ge=20)] = 100_000
    tune_share: Share = 0.15
    min_class_records: Annotated[int, Field(ge=4)] = 10
    rare_classes: Literal["refuse", "merge"] = "merge"
    seen_records: Literal["leave_out", "train"] = "leave_out"
    seed: Annotated[int, Field(ge=0)] = 0
    must_find: Annotated[float, Field(gt=0, le=1)] = MUST_FIND
    uninformative: tuple[str, ...] = ()

    @field_validator("adversaries", "decides")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or len(set(names)) < len(names):
            raise ValueError("name at least one, each once")
        return names

    @staticmethod
    def check(options: Any) -> None:
        """Raise OptionError for what are none."""
        if not isinstance(options, AttackOptions):
            problem = f"options is of type {type(options).__name__}."
            raise OptionError(problem, remedy="Give privpipe.AttackOptions(...).")

    def plan_sample(self, n_records: int, n_features: int) -> int:
        """How many of the records an audit of this width can use."""
        # Matrices above a quarter of the bound are held in single precision.
        return min(n_records, self.max_records, max(self.max_bytes // (4 * max(n_features, 1)), 50))

    def without_limits(self) -> "AttackOptions":
        """What decides what is measured: a corrected limit is held against what was measured."""
        least = MUST_FIND
        return replace(self, max_advantage=1.0, max_exposed=1.0, must_find=least, uninformative=())

    def allowed(self, score: str) -> float:
        """The limit that a score is held against."""
        return self.max_exposed if score in EXPOSURES else self.max_advantage

    def deciding(self, kind: str) -> tuple[str, ...]:
        """Scores that decide for a variable of classes or of numbers."""
        if kind == "classes":
            return self.decides
        return ("r2", *(name for name in self.decides if name in EXPOSURES))

    def plan_level(self, n_compared: int, n_open: int = 1) -> float:
        """Confidence of each interval of a variable while so many variables are undecided.

        Parameters
        ----------
        n_compared
            Intervals of the variable that are to hold together.
        n_open
            Variables that share the level.
        """
        return 1 - (1 - self.level) / (max(n_compared, 1) * max(n_open, 1))

    @property
    def safe_level(self) -> float:
        """Two-sided confidence of limits whose upper one alone has the level of a verdict.

        Where one true gain is beyond what is allowed, its own limit must fail for "safe" to be
        said. However many such gains there are, the error is that of one.

        References
        ----------
        Berger 1982, Multiparameter Hypothesis Testing and Acceptance Sampling
        (intersection-union tests).
        """
        return max(1 - 2 * (1 - self.level), 1e-6)

    def plan_levels(self, n_compared: int, n_variables: int) -> tuple[float, ...]:
        """The levels that sharing it step by step may need, the strictest first, then `safe_level`.

        Of many variables not every step is listed; `Interval.at` then takes a stricter one.

        >>> [round(level, 4) for level in AttackOptions().plan_levels(5, 2)]
        [0.995, 0.99, 0.9]
        """
        # Of many variables in steps of a fifth: every level costs limits of all scores.
        steps = [n_variables]
        while steps[-1] > 1:
            steps.append(min(steps[-1] - 1, int(0.8 * steps[-1]) + 1))
        shared = tuple(self.plan_level(n_compared, n_open) for n_open in steps)
        return (*shared, *[self.safe_level] * (self.safe_level < shared[-1]))


GROUPS = "groups"
"""Source of attacks on several records that are known to be of one group."""

RAW_GROUPS = "raw groups"
"""The same of the raw records: the positive control."""

ALONE = "alone: "
"""Begins the name of a source that is one included variable by itself."""

JOINT = "together: "
"""Begins the name of a source that is this release joined with an earlier one of its records."""

_OF_SOURCE = {
    "bits": table.READS_BITS,
    "surroundings": table.READS_AROUND,
    "wanted": table.KNOWS_DESIRED,
}

_WEIGHING, _DIVIDING = ("logistic", "least_squares"), ("boosting", "naive_bayes")
"""Adversaries that read everything at once: the first that weighs columns, and the first that sees
more than weights."""


def choose_adversaries(source: str, is_class: bool, options: AttackOptions) -> tuple[str, ...]:
    """Names of the adversaries that attack a variable by a source.

    >>> choose_adversaries("bits", True, AttackOptions())
    ('bit_reader',)
    >>> choose_adversaries("surroundings", True, AttackOptions())
    ('surroundings_reader',)
    >>> choose_adversaries("everything", True, AttackOptions())
    ('logistic', 'boosting')
    >>> choose_adversaries("alone: place", True, AttackOptions())
    ('variable_reader',)
    >>> choose_adversaries("noise", True, AttackOptions())
    ('logistic', 'naive_bayes')
    """
    if source in _OF_SOURCE:
        return (_OF_SOURCE[source],)
    if source.startswith(ALONE):
        return (table.READS_VARIABLE,)
    suited = tuple(n for n in options.adversaries if is_class or table.ADVERSARIES[n].numbers)
    if source not in ("everything", "joined", "noise", "raw") and not source.startswith(JOINT):
        return suited
    # Noise fills every bin of every feature: trees take longest there, and it is a comparison.
    # The first that is suited of each: a source that is read for comparison needs no more.
    dividing = _DIVIDING[::-1] if source == "noise" else _DIVIDING
    firsts = (next((n for n in some if n in suited), None) for some in (_WEIGHING, dividing))
    return tuple(name for name in firsts if name) or suited[:1]


def check_adversaries(name: str, is_class: bool, options: AttackOptions) -> None:
    """Refuse options of which no adversary predicts a variable; OptionError."""
    if options.adversaries and not choose_adversaries("released", is_class, options):
        problem = f"None of the adversaries {', '.join(options.adversaries)} predicts numbers, as "
        able = ", ".join(one for one, row in table.ADVERSARIES.items() if row.numbers)
        raise OptionError(f"{problem}{name!r} has.", remedy=f"Add one of: {able}.")


def find_adversary(name: str, known: Mapping[str, table.Adversary]) -> table.Adversary:
    """An adversary by its name; some are none that options can leave out."""
    return table.ALWAYS[name] if name in table.ALWAYS else known[name]


USUAL = AttackOptions()
"""Of an attack that is given none."""
