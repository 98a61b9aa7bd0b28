"""What a run keeps of its work in the workspace, named by the questions it answers.

A name is a hash of all that the answer depends on: a run that goes on finds an answer where it
asks the same question, and nothing where anything differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from dask.tokenize import TokenizationError, tokenize

from privpipe.protocols import Statistics
from privpipe.store.kept import KeptSum, read_kept, write_kept

__all__ = ["Keeper", "RunningSum"]

KEPT_SHARE = 1 / 16
"""Of the bytes that a statistic sums up; a larger one is not kept."""

FEWEST_KEPT = 1000
"""Records; a statistic of fewer is not kept: it may say too much of one, and costs little."""

S = TypeVar("S", bound=Statistics)


@dataclass(frozen=True)
class Keeper:
    """A folder of kept answers; small and picklable, so that workers keep theirs themselves.

    Parameters
    ----------
    url
        The folder, within a private workspace.
    question
        What the answers are about; see `about`.
    """

    url: str
    question: str = ""

    def about(self, *parts: Any) -> Keeper | None:
        """Keeper of the answers to one question, or to a part of it; None if it has no name.

        Parameters
        ----------
        *parts
            All that the answer depends on, beside the version of privpipe: values, arrays,
            dataclasses of these, functions of modules and partials of them.

        Examples
        --------
        >>> keeper = Keeper("/somewhere")
        >>> keeper.about("mean", 1) == keeper.about("mean", 1) != keeper.about("mean", 2)
        True
        """
        try:
            question = tokenize(
                version("privpipe"), self.question, *parts, ensure_deterministic=True
            )
        except TokenizationError:
            return None
        return replace(self, question=str(question))

    def read(self, name: str) -> Any:
        """The answer kept under a name; None where there is none, or it is damaged."""
        return read_kept(self.url, f"{self.question}-{name}")

    def write(self, name: str, answer: Any, *, most_bytes: float = math.inf) -> int:
        """Keep an answer; see `write_kept`."""
        return write_kept(self.url, f"{self.question}-{name}", answer, most_bytes=most_bytes)


class RunningSum(Generic[S]):
    """The statistic of the chunks of a task so far; kept as they come, if there is a keeper.

    Parameters
    ----------
    keeper
        About the question; None to keep nothing.
    name
        Of the task. What an earlier run kept of it is where this one begins.
    """

    def __init__(self, keeper: Keeper | None, name: str) -> None:
        self._keeper, self._name = keeper, name
        kept: KeptSum | None = keeper.read(name) if keeper is not None else None
        self.n_chunks, self._n_records = (kept.n_chunks, kept.n_records) if kept else (0, 0)
        self.statistic: S | None = kept.statistic if kept else None
        self._bytes_to_keep = 0.0
        self._size = 0

    def add(self, part: S, n_records: int, n_bytes: int) -> None:
        """Merge the statistic of the next chunk, of so many records and bytes."""
        self.statistic = part if self.statistic is None else self.statistic.merge(part)
        self.n_chunks += 1
        self._n_records += n_records
        self._bytes_to_keep += KEPT_SHARE * n_bytes
        if self._keeper is None or self._n_records < FEWEST_KEPT:
            return
        if self._size <= self._bytes_to_keep:
            total = KeptSum(self.n_chunks, self._n_records, self.statistic)
            self._size = self._keeper.write(self._name, total, most_bytes=self._bytes_to_keep)
            if self._size <= self._bytes_to_keep:
                self._bytes_to_keep = 0.0
