"""The exceptions of privpipe, one tree, each with the exit code of the command.

::

    PrivpipeError                     7  anything of ours that fits nowhere below
      OptionError(ValueError)         2  an option or a configuration file is wrong
      InputError(ValueError)          3  the data cannot be used like this
      NumericalError                  7  the arithmetic did not come out
        RankError                     3  the design does not determine the predictor
        ConvergenceError              7  an iterative solver stopped short
      StoreError                      4  a store cannot be read or written
        FormatError                   4  it is not what it says it is
        IncompleteReleaseError        4  chunks are missing, damaged or doubled
      ClusterError                    5  the cluster cannot do the work
      MemoryBudgetError               5  the plan needs more memory than the workers have
      GateError                       6  the release did not pass its gate
      GuaranteeError                  6  a promise cannot be fulfilled or shown

`PrivacyWarning` is a warning: the request is done, but protects less than it seems to.
`GuessWarning` and `LeftOutWarning` are too: something was guessed, or is left out, and is named.

No message holds a value of a record, and none a control character. A message names the thing,
what was wrong with it, what is allowed, and the remedy; `code` is a stable name for machines,
`remedy` that alone.
"""

from typing import ClassVar


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

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        # Names and paths are users' own: what they hold must not reach a terminal or a log alive.
        message, remedy = printable(message), printable(remedy)
        if message and message[-1] not in SENTENCE_ENDS:
            message += "."
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        # The default would drop the keyword arguments on the way from a worker.
        return _rebuild, (type(self), self.message, self.remedy, self.code)


def _rebuild(kind: type[PrivpipeError], message: str, remedy: str, code: str) -> PrivpipeError:
    return kind(message, remedy=remedy, code=code)


class PrivacyWarning(UserWarning):
    """The request is done, but it protects less than its name suggests."""


class GuessWarning(UserWarning):
    """Something was not said, and has been guessed; the message names the option for it."""


class LeftOutWarning(UserWarning):
    """Something of a source has no place in what is made of it; the message names it."""


class OptionError(PrivpipeError, ValueError):
    """An option, argument or configuration file is wrong."""

    exit_code = 2
    default_code = "option"


class InputError(PrivpipeError, ValueError):
    """The data cannot be used like this."""

    exit_code = 3
    default_code = "input"


class MemoryBudgetError(PrivpipeError):
    """The plan needs more memory than a worker has."""

    exit_code = 5
    default_code = "memory"


class GuaranteeError(PrivpipeError):
    """A promise of the method cannot be fulfilled or cannot be shown."""

    exit_code = 6
    default_code = "guarantee"


class NumericalError(PrivpipeError):
    """The arithmetic did not come out."""

    default_code = "numerical"


class RankError(NumericalError):
    """The training design does not determine the predictor."""

    exit_code = 3
    default_code = "rank"


class ConvergenceError(NumericalError):
    """An iterative solver stopped before its tolerance."""

    default_code = "convergence"


class StoreError(PrivpipeError):
    """A store cannot be read or written."""

    exit_code = 4
    default_code = "store"


class FormatError(StoreError):
    """A store is not of the kind, format or version it should be."""

    default_code = "format"


class IncompleteReleaseError(StoreError):
    """Chunks of a release are missing, damaged or doubled."""

    default_code = "incomplete"


class ClusterError(PrivpipeError):
    """The cluster cannot be reached or cannot finish the work."""

    exit_code = 5
    default_code = "cluster"


class GateError(PrivpipeError):
    """The release did not pass its gate."""

    exit_code = 6
    default_code = "gate"
