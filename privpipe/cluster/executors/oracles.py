"""Oracles over shards that stay on their workers: parameters down, sums up.

Shards are loaded once, on the worker that keeps them; a round is one task per worker over all
its shards. What the workers hand back is kept apart by block and added in the order of the
blocks, so that the sum does not depend on which worker had which block.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from distributed import Client, Future

from privpipe.cluster.workers.boundary import run_sealed
from privpipe.cluster.workers.broadcast import send
from privpipe.protocols import Shard, Sums
from privpipe.records.memory import add_sums
from privpipe.store.collections.collection import Collection

__all__ = ["Gather", "ResidentOracle"]

T = TypeVar("T")

Gather = Callable[[Sequence[Future[Any]], str], list[Any]]


@dataclass(frozen=True)
class ResidentOracle:
    """Answers ``sum of function(shard, parameters, **resident)`` over all shards.

    Parameters
    ----------
    client
        The cluster.
    function
        Module-level function of a shard; see `Shards.oracle`.
    blocks
        Futures of the resident shards, several chunks each, in the order of the records.
    resident
        Future of the keyword arguments that were sent once, by a task that can be run again.
    token
        Makes the keys of this oracle unique.
    gather
        Waits for tasks of a name, and gives their results or raises an error of ours.
    """

    client: Client
    function: Callable[..., Sums]
    blocks: tuple[Future[Any], ...]
    resident: Future[Any]
    token: str
    gather: Gather = field(repr=False)
    _rounds: Iterator[int] = field(default_factory=itertools.count, repr=False)

    @classmethod
    def load(
        cls,
        client: Client,
        load: Callable[..., list[Shard]],
        shared: Sequence[Any],
        tasks: Sequence[Any],
        function: Callable[..., Sums],
        resident: Mapping[str, Any],
        token: str,
        gather: Gather,
    ) -> ResidentOracle:
        """Let the workers load the shards, as many each: the slowest one ends a round."""
        sent = [send(client, value) for value in shared]
        places = spread_evenly(sorted(client.scheduler_info(n_workers=-1)["workers"]), len(tasks))
        kept = send(client, dict(resident))
        blocks = tuple(
            client.submit(
                run_sealed,
                load,
                *sent,
                task,
                key=f"load_shards-{token}-{number:06d}",
                workers=place,
                allow_other_workers=place is not None,
                pure=False,
                retries=2,
            )
            for number, (task, place) in enumerate(zip(tasks, places, strict=True))
        )
        return cls(client, function, blocks, kept, token, gather)

    def __call__(self, parameters: Any, /) -> Sums:
        """Ask all workers at once and add their answers."""
        round_number = next(self._rounds)
        tasks = [
            self.client.submit(
                run_sealed,
                ask_blocks,
                self.function,
                numbers,
                [self.blocks[number] for number in numbers],
                self.resident,
                parameters,
                key=f"{_name(self.function)}-{self.token}-{round_number:05d}-{place:03d}",
                workers=[worker] if worker else None,
                allow_other_workers=bool(worker),
                pure=False,
                retries=2,
            )
            for place, (worker, numbers) in enumerate(self._placement().items())
        ]
        answers: list[list[tuple[int, Sums]]] = self.gather(tasks, "ask_shards")
        by_block = sorted((item for answer in answers for item in answer), key=lambda item: item[0])
        return add_sums([sums for _, sums in by_block])

    def _placement(self) -> dict[str, list[int]]:
        """Which worker holds which blocks; a block on several counts for the first.

        A block whose worker has died is made again where the scheduler sees fit ("").
        """
        holders = self.client.who_has(list(self.blocks))
        placed: dict[str, list[int]] = defaultdict(list)
        for number, block in enumerate(self.blocks):
            placed[next(iter(sorted(holders.get(block.key, ()))), "")].append(number)
        return dict(sorted(placed.items()))


def spread_evenly(workers: Sequence[str], n_blocks: int) -> list[str | None]:
    """Which worker should hold which block: neighbours together, numbers apart by at most one.

    None, for wherever the scheduler sees fit, while nobody is there yet.

    >>> spread_evenly(["a", "b"], 5)
    ['a', 'a', 'a', 'b', 'b']
    """
    if not workers:
        return [None] * n_blocks
    return [workers[number * len(workers) // n_blocks] for number in range(n_blocks)]


def load_shards(collection: Collection, chunks: list[int]) -> list[Shard]:
    """Worker side: read shards, to be kept."""
    return [collection.shard(chunk) for chunk in chunks]


def ask_blocks(
    function: Callable[..., Sums],
    numbers: list[int],
    blocks: list[list[Shard]],
    resident: Mapping[str, Any],
    parameters: Any,
) -> list[tuple[int, Sums]]:
    """Worker side: one round over the resident blocks."""
    known = {name: align(value) for name, value in resident.items()}
    asked = align(parameters)
    return [
        (number, add_sums([function(align(shard), asked, **known) for shard in block]))
        for number, block in zip(numbers, blocks, strict=True)
    ]


def align(value: T) -> T:
    """An array, or a shard of arrays, whose numbers lie at addresses of their own size.

    What came from another worker may lie anywhere, and NumPy sums it in another order: the same
    records would not give the same bits.
    """
    if isinstance(value, np.ndarray):
        return value if value.flags.aligned else cast(T, value.copy(order="K"))
    if isinstance(value, Shard):
        arrays = {item.name: getattr(value, item.name) for item in fields(value)}
        moved = {
            name: array.copy(order="K")
            for name, array in arrays.items()
            if isinstance(array, np.ndarray) and not array.flags.aligned
        }
        return cast(T, replace(value, **cast(dict[str, Any], moved))) if moved else value
    return value


def _name(function: Callable[..., Any]) -> str:
    """Readable key prefix of a function or partial."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", "ask_shards")).strip("_")
