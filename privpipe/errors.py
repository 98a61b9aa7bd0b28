"""The exceptions of privpipe, one tree, each with the exit code of the command.

::

    - PrivpipeError                     7  anything of ours that fits nowhere below
      - OptionError(ValueError)         2  an option or a configuration file is wrong
      - InputError(ValueError)          3  the data cannot be used like this
      - NumericalError                  7  the arithmetic did not come out
        - RankError                     3  the design does not determine the predictor
        - ConvergenceError              7  an iterative solver stopped short
      - StoreError                      4  a store cannot be read or written
        - FormatError                   4  it is not what it says it is
          - SourceError                 3  likewise of what is to be ingested
        - IncompleteReleaseError        4  chunks are missing, damaged or doubled
      - ClusterError                    5  the cluster cannot do the work
      - MemoryBudgetError               5  the plan needs more memory than the workers have
      - GateError                       6  the release did not pass its gate
      - GuaranteeError                  6  a promise cannot be fulfilled or shown

`PrivacyWarning` is a warning: the request is done, but protects less than it seems to.
`GuessWarning` and `LeftOutWarning` are too: something was guessed, or is left out, and is named.

No message holds a value of a record, and none a control character. A message names the thing, what
was wrong with it, what is allowed, and the remedy. `code` is a stable name for machines, `remedy`
that alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar


def printable(text: str, *, keep: str = "\n\t") -> str:
    """A text in which characters that a terminal obeys or hides are shown by their code.

    Control characters, escape sequences, marks that turn the direction of writing, halves of
    characters: whatever Python calls unprintable, but for `keep`.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


# A message and its remedy are printed one after the other.
SENTENCE_ENDS = ".!?:"


class PrivpipeError(Exception):
    """Base of all errors that privpipe raises on purpose.

    Parameters
    ----------
    message
        What is wrong and where: names, shapes and counts, never a value of a record.
    remedy
        What the user can do about it, as an imperative sentence.
    code
        Stable short name for machines; the class's own when not given.
    details
        Every place of what is wrong, where the message names the first: rows, columns, counts.

    Examples
    --------
    >>> error = OptionError("utility_budget is negative.", remedy="Use 0 or more.")
    >>> print(error)
    utility_budget is negative. Use 0 or more.
    >>> error.exit_code, error.code
    (2, 'option')
    >>> print(OptionError("There is no file 'here'", remedy="Give another."))
    There is no file 'here'. Give another.
    """

    exit_code: ClassVar[int] = 7
    default_code: ClassVar[str] = "internal"

    def __init_subclass__(cls, *, code: str = "", exit_code: int = 0) -> None:
        super().__init_subclass__()
        cls.default_code = code or cls.default_code
        cls.exit_code = exit_code or cls.exit_code

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        code: str = "",
        details: Sequence[Mapping[str, str | int]] = (),
    ) -> None:
        # Names and paths are users' own: what they hold must not reach a terminal or a log alive.
        message, remedy = printable(message), printable(remedy)
        if message and message[-1] not in SENTENCE_ENDS:
            message += "."
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code
        self.details = tuple(details)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def describe(self) -> dict[str, Any]:
        """For machines."""
        return {
            "code": self.code,
            "exit_code": self.exit_code,
            "message": self.message,
            "remedy": self.remedy.strip(),
            **({"details": list(self.details)} if self.details else {}),
        }

    def __reduce__(self) -> tuple[object, ...]:
        # The default would drop the keyword arguments on the way from a worker.
        named: dict[str, Any] = {"remedy": self.remedy, "code": self.code, "details": self.details}
        return partial(type(self), self.message, **named), ()


class PrivpipeWarning(UserWarning):
    """Base of all warnings of ours; `code` and `remedy` as those of errors."""

    code: ClassVar[str]
    remedy: ClassVar[str]


class PrivacyWarning(PrivpipeWarning):
    """The request is done, but it protects less than its name suggests."""

    code = "privacy"
    remedy = "Read what the warning names."


class GuessWarning(PrivpipeWarning):
    """Something was not said, and has been guessed; the message names the option for it."""

    code = "guess"
    remedy = "Say it with the option that the warning names."


class LeftOutWarning(PrivpipeWarning):
    """Something of a source has no place in what is made of it; the message names it."""

    code = "left-out"
    remedy = "Nothing to do where it is not needed."


class OptionError(PrivpipeError, ValueError, code="option", exit_code=2):
    """An option, argument or configuration file is wrong."""


class InputError(PrivpipeError, ValueError, code="input", exit_code=3):
    """The data cannot be used like this."""


class MemoryBudgetError(PrivpipeError, code="memory", exit_code=5):
    """The plan needs more memory than a worker has."""


class GuaranteeError(PrivpipeError, code="guarantee", exit_code=6):
    """A promise of the method cannot be fulfilled or cannot be shown."""


class NumericalError(PrivpipeError, code="numerical"):
    """The arithmetic did not come out."""


class RankError(NumericalError, code="rank", exit_code=3):
    """The training design does not determine the predictor."""


class ConvergenceError(NumericalError, code="convergence"):
    """An iterative solver stopped before its tolerance."""


class StoreError(PrivpipeError, code="store", exit_code=4):
    """A store cannot be read or written."""


class FormatError(StoreError, code="format"):
    """A store is not of the kind, format or version it should be."""


class SourceError(FormatError, code="format", exit_code=3):
    """A source that is to be ingested is damaged, or no table or array such as its name says."""


class IncompleteReleaseError(StoreError, code="incomplete"):
    """Chunks of a release are missing, damaged or doubled."""


class ClusterError(PrivpipeError, code="cluster", exit_code=5):
    """The cluster cannot be reached or cannot finish the work."""


class GateError(PrivpipeError, code="gate", exit_code=6):
    """The release did not pass its gate."""
