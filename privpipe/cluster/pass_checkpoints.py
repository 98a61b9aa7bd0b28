"""What a run checkpoints of its work in the workspace, named by the questions it answers.

A name is a hash of all that the answer depends on: a run that resumes finds an answer where it
poses the same question, and nothing where anything differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from dask.tokenize import TokenizationError, tokenize

from privpipe.protocols import Statistics, Sums
from privpipe.store.access.checkpoints import PartialSum, read_checkpoint, write_checkpoint

# A sixteenth: what is written is at most that share of what is read.
CHECKPOINTED_SHARE = 1 / 16
"""Of the bytes that a statistic sums up; a larger one is not stored."""

FEWEST_CHECKPOINTED = 1000
"""Records; a statistic of fewer is not stored: it may say too much of one, and costs little."""

S = TypeVar("S", bound=Statistics)


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpointed answers; small and picklable: workers write theirs themselves.

    Parameters
    ----------
    url
        The folder, within a private workspace.
    question
        What the answers are about; see `about`.
    """

    url: str
    question: str = ""

    def about(self, *parts: Any) -> Checkpoints | None:
        """Checkpoints of the answers to one question, or to a part of it; None if it has no name.

        Parameters
        ----------
        *parts
            All that the answer depends on, beside the version of privpipe: values, arrays,
            dataclasses of these, functions of modules and partials of them.

        Examples
        --------
        >>> some = Checkpoints("/somewhere")
        >>> some.about("mean", 1) == some.about("mean", 1) != some.about("mean", 2)
        True
        """
        try:
            question = tokenize(
                # The version too: sums of another one may have other shapes, or
                # other bits.
                version("privpipe"),
                self.question,
                *parts,
                ensure_deterministic=True,
            )
        # A closure or an open file has no name that is the same tomorrow: nothing is
        # stored.
        except TokenizationError:
            return None
        return replace(self, question=str(question))

    def read(self, name: str) -> Any:
        """The answer stored under a name; None where there is none, or it is damaged."""
        return read_checkpoint(self.url, f"{self.question}-{name}")

    def write(self, name: str, answer: Any, *, most_bytes: float = math.inf) -> int:
        """Store an answer; see `write_checkpoint`."""
        return write_checkpoint(self.url, f"{self.question}-{name}", answer, most_bytes=most_bytes)


class KnownResponses:
    """Answers of an oracle to the questions of a fit; stored, if there is a place for them.

    A fit is a function of the answers to its questions: one that was interrupted poses the same
    again, finds what is known, and resumes where it stopped, to the same map, bit for bit.

    Parameters
    ----------
    checkpoints
        About the oracle; None to store nothing.
    n_records, n_bytes
        What it sums over: answers that may say too much of few records, or are large beside
        them, are not stored.
    """

    def __init__(self, checkpoints: Checkpoints | None, n_records: int, n_bytes: int) -> None:
        self._checkpoints = checkpoints if n_records >= FEWEST_CHECKPOINTED else None
        self._most_bytes = CHECKPOINTED_SHARE * n_bytes

    def find(self, question: Any, ask: Callable[[Any], Sums]) -> Sums:
        """The known answer, or the one that `ask` gives, which is known from now on."""
        checkpoints = self._checkpoints and self._checkpoints.about(question)
        if checkpoints is None:
            return ask(question)
        known: Sums | None = checkpoints.read("answer")
        if known is not None:
            return known
        answer = ask(question)
        checkpoints.write("answer", answer, most_bytes=self._most_bytes)
        return answer


def remember_whole(
    checkpoints: Checkpoints | None, n_bytes: int, ask: Callable[[], PartialSum]
) -> PartialSum:
    """The statistic of all chunks as it was stored, or as `ask` gives it, which is stored then.

    What is too large beside the records of a task may be small beside all of them, of `n_bytes`.
    """
    known: PartialSum | None = checkpoints.read("whole") if checkpoints else None
    if known is not None:
        return known
    whole = ask()
    if checkpoints and whole.n_records >= FEWEST_CHECKPOINTED:
        checkpoints.write("whole", whole, most_bytes=CHECKPOINTED_SHARE * n_bytes)
    return whole


class RunningSum(Generic[S]):
    """The statistic of the chunks of a task so far; stored as it grows, if there is a place for it.

    Parameters
    ----------
    checkpoints
        About the question; None to store nothing.
    name
        Of the task. What an earlier run stored of it is where this one begins.
    """

    def __init__(self, checkpoints: Checkpoints | None, name: str) -> None:
        self._checkpoints, self._name = checkpoints, name
        begun: PartialSum | None = checkpoints.read(name) if checkpoints is not None else None
        self.n_chunks, self._n_records = (begun.n_chunks, begun.n_records) if begun else (0, 0)
        self.statistic: S | None = begun.statistic if begun else None
        self._bytes_allowed = 0.0
        self._size = 0

    @property
    def total(self) -> PartialSum:
        """So far; of one chunk at least."""
        assert self.statistic is not None, "a task has chunks"
        return PartialSum(self.n_chunks, self._n_records, self.statistic)

    def add(self, part: S, n_records: int, n_bytes: int) -> None:
        """Merge the statistic of the next chunk, of so many records and bytes."""
        self.statistic = part if self.statistic is None else self.statistic.merge(part)
        self.n_chunks += 1
        self._n_records += n_records
        self._bytes_allowed += CHECKPOINTED_SHARE * n_bytes
        if self._checkpoints is None or self._n_records < FEWEST_CHECKPOINTED:
            return
        # Written again only once as much was read as the last one took: a statistic that
        # grows with each chunk would otherwise cost the square of their number.
        if self._size <= self._bytes_allowed:
            most = self._bytes_allowed
            self._size = self._checkpoints.write(self._name, self.total, most_bytes=most)
            if self._size <= self._bytes_allowed:
                self._bytes_allowed = 0.0
