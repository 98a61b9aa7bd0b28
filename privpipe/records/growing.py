"""Partitions of records that come one after the other, as one set of `Shards`.

What was summed up of a partition is remembered. A fit to all of them reads the new ones alone where
its question is the same as before: so do closed forms of one pass.
"""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from privpipe.described import described
from privpipe.errors import InputError
from privpipe.protocols import Oracle, S, Shard, Shards, ShardSchema, Sums
from privpipe.records.memory import add_sums, facts_of_shards


@described(facts_of_shards)
class GrowingRecords:
    """Partitions, each of which any `Shards` may be; implements `Shards`.

    Only sums over partitions are remembered, in this process. Rounds of an iterated fit read all
    partitions: it resumes with ``earlier``, the map that was fitted before.

    Parameters
    ----------
    first
        The first partition; all others have its variables, categories and features: each class
        is in every one of them.

    Examples
    --------
    >>> import numpy as np
    >>> from privpipe import Records
    >>> grown = GrowingRecords(Records(np.eye(3), desired=[0.0, 1.5, 2.5]))
    >>> grown.append(Records(np.ones((2, 3)), desired=[0.5, 2.5]))
    >>> grown.n_records
    5
    """

    def __init__(self, first: Shards) -> None:
        self.partitions = [first]
        self._known: dict[bytes, tuple[int, Any]] = {}

    @property
    def n_records(self) -> int:
        return sum(one.n_records for one in self.partitions)

    @property
    def schema(self) -> ShardSchema:
        # Without the number of records, which would make every question a new one.
        return replace(self.partitions[0].schema, n_records=0)

    def append(self, partition: Shards) -> None:
        """Add a partition.

        Raises
        ------
        InputError
            If its variables, categories or features are not those of the first.
        """
        if replace(partition.schema, n_records=0) != self.schema:
            problem = "A partition has other variables, categories or features than the first."
            remedy = "Ingest all partitions with one schema; in Python each needs every class."
            raise InputError(problem, remedy=remedy, code="schema-drift")
        self.partitions.append(partition)

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise the partitions that came since this question; see `Shards.reduce`."""
        question = pickle.dumps(summarise)
        n_known, known = self._known.get(question, (0, None))
        for one in self.partitions[n_known:]:
            found = one.reduce(summarise)
            known = found if known is None else known.merge(found)
        self._known[question] = len(self.partitions), known
        return cast(S, known)

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Sum over all partitions at each call; see `Shards.oracle`."""
        oracles = [one.oracle(function, **resident) for one in self.partitions]
        return lambda parameters: add_sums([ask(parameters) for ask in oracles])
