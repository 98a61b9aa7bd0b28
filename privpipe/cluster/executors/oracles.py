"""Oracles over shards that stay on their workers: parameters down, sums up.

Shards are loaded once, on the worker that keeps them, as far as its memory allows; others are read
anew in every round, one task of them at a time. A round is one task per worker over all its
shards. What the workers hand back stays apart by block and is added in the order of the
blocks, so that the sum does not depend on which worker had which block.
"""

from __future__ import annotations

import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import dask
import numpy as np
from distributed import Client, Future

from privpipe.cluster.executors.executor import find_room
from privpipe.cluster.workers.boundary import run_sealed
from privpipe.protocols import Shard, Sums
from privpipe.records.memory import add_sums
from privpipe.store.collections.collection import Collection

T = TypeVar("T")

_PROCESS = secrets.token_hex(4)
_NUMBERS = itertools.count()

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
        Futures of the resident shards, several chunks each, in the order of the records; None
        where they are read anew.
    read
        Loads the shards of a task, given these futures.
    shared
    tasks
        Of the blocks.
    places
        Who should hold or read each block.
    resident
        Future of the keyword arguments that were sent once, by a task that can be run again.
    token
        Makes the keys of this oracle unique.
    gather
        Waits for tasks of a name, and gives their results or raises an error of ours.
    """

    client: Client
    function: Callable[..., Sums]
    blocks: tuple[Future[Any] | None, ...]
    read: Callable[..., list[Shard]]
    shared: tuple[Future[Any], ...]
    tasks: tuple[Any, ...]
    places: tuple[str | None, ...]
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
        sizes: Sequence[int],
        function: Callable[..., Sums],
        resident: Mapping[str, Any],
        token: str,
        gather: Gather,
    ) -> ResidentOracle:
        """Let the workers load the shards, as many each: the slowest one ends a round.

        Parameters
        ----------
        sizes
            Bytes of each task's shards; where they are not known, all are retained.
        """
        sent = tuple(send(client, value) for value in shared)
        sent_once = send(client, dict(resident))
        workers = client.scheduler_info(n_workers=-1)["workers"]
        limits = {address: int(one["memory_limit"] or 0) for address, one in workers.items()}
        # Placed by us: as the scheduler liked, 11 of 19 blocks lay on one of two workers,
        # and every round waited for it.
        places = spread_evenly(sorted(limits), len(tasks))
        stays = choose_resident(places, sizes or [0] * len(tasks), limits)
        blocks = tuple(
            client.submit(
                run_sealed,
                load,
                *sent,
                task,
                key=f"load_shards-{token}-{number:06d}",
                workers=places[number],
                # A preference, not a rule: a worker that died must not leave its
                # blocks without a place.
                allow_other_workers=places[number] is not None,
                pure=False,
                retries=2,
            )
            if stays[number]
            else None
            for number, task in enumerate(tasks)
        )
        return cls(
            client,
            function,
            blocks,
            load,
            sent,
            tuple(tasks),
            tuple(places),
            sent_once,
            token,
            gather,
        )

    @property
    def loaded(self) -> list[Future[Any]]:
        """Blocks that workers keep."""
        return [block for block in self.blocks if block is not None]

    def __call__(self, parameters: Any, /) -> Sums:
        """Query all workers at once and add their sums."""
        round_number = next(self._rounds)
        tasks = [
            self.client.submit(
                run_sealed,
                ask_blocks,
                self.function,
                numbers,
                [self.blocks[number] for number in numbers],
                [self.tasks[number] for number in numbers],
                self.read,
                list(self.shared),
                self.resident,
                parameters,
                key=f"{_name(self.function)}-{self.token}-{round_number:05d}-{place:03d}",
                # One task a worker and round: actors answer in 2 ms instead of
                # 11, but die with their worker.
                workers=[worker] if worker else None,
                allow_other_workers=bool(worker),
                pure=False,
                retries=2,
            )
            for place, (worker, numbers) in enumerate(self._placement().items())
        ]
        replies: list[list[tuple[int, Sums]]] = self.gather(tasks, "ask_shards")
        # In the order of the blocks, not of the workers: floating point sums depend on
        # the order.
        by_block = sorted((item for answer in replies for item in answer), key=lambda item: item[0])
        return add_sums([sums for _, sums in by_block])

    def _placement(self) -> dict[str, list[int]]:
        """Which worker answers for which blocks: the one that was to hold it, while it lives.

        The scheduler may have let an idle worker load what another was to hold: that block is sent
        on with the query, so that no worker works for more than its share. Where no one holds
        a block its worker has died, and the scheduler chooses ("").
        """
        # Looked up anew each round: workers come and go between two of them.
        holders = self.client.who_has(self.loaded) if self.loaded else {}
        alive = {worker for held in holders.values() for worker in held}
        placed: dict[str, list[int]] = defaultdict(list)
        for number, (block, place) in enumerate(zip(self.blocks, self.places, strict=True)):
            held = (place or "",) if block is None else sorted(holders.get(block.key, ()))
            planned = place if place and place in alive else ""
            placed[planned if held and planned else next(iter(held), "")].append(number)
        return dict(sorted(placed.items()))


def spread_evenly(workers: Sequence[str], n_blocks: int) -> list[str | None]:
    """Which worker should hold which block: neighbours together, numbers apart by at most one.

    None, for wherever the scheduler sees fit, while no one is there yet.

    >>> spread_evenly(["a", "b"], 5)
    ['a', 'a', 'a', 'b', 'b']
    """
    if not workers:
        return [None] * n_blocks
    return [workers[number * len(workers) // n_blocks] for number in range(n_blocks)]


def choose_resident(
    places: Sequence[str | None], sizes: Sequence[int], limits: Mapping[str, int]
) -> list[bool]:
    """Which blocks stay where they are loaded: the first ones, as far as a worker has room.

    Parameters
    ----------
    places
        Who should hold each block.
    sizes
        Bytes of each block.
    limits
        Memory of each worker; 0 where it has no limit.

    >>> choose_resident(["a", "a", "b", None], [30 << 20] * 4, {"a": 500 << 20, "b": 0})
    [True, False, True, True]
    """
    room = {name: find_room(limit) for name, limit in limits.items() if limit}
    resident = []
    for place, size in zip(places, sizes, strict=True):
        stays = place not in room or size <= room[place]
        if stays and place in room:
            room[place] -= size
        resident.append(stays)
    return resident


def load_shards(collection: Collection, chunks: list[int]) -> list[Shard]:
    """Worker side: read shards, to be retained or queried once."""
    return [collection.shard(chunk) for chunk in chunks]


def ask_blocks(
    function: Callable[..., Sums],
    numbers: list[int],
    blocks: list[list[Shard] | None],
    tasks: list[Any],
    read: Callable[..., list[Shard]],
    shared: list[Any],
    resident: Mapping[str, Any],
    parameters: Any,
) -> list[tuple[int, Sums]]:
    """Worker side: one round over the resident blocks, and those that are read for it."""
    known = {name: align(value) for name, value in resident.items()}
    aligned = align(parameters)

    def ask(block: list[Shard]) -> Sums:
        return add_sums([function(align(shard), aligned, **known) for shard in block])

    return [
        (number, ask(read(*shared, task) if block is None else block))
        for number, block, task in zip(numbers, blocks, tasks, strict=True)
    ]


def align(value: T) -> T:
    """An array, or a shard of arrays, whose numbers lie at addresses of their own size.

    What came from another worker may lie anywhere, and NumPy sums it in another order: the same
    records would not give the same bits.
    """
    if isinstance(value, np.ndarray):
        # "K": the layout decides the order of a sum too, and must stay.
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


class Broadcast:
    """Wraps a value so that nothing prints it: it is an argument that Dask may log."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Broadcast({type(self.value).__name__})"


def send(client: Client, value: Any) -> Future[Any]:
    """Future of a picklable value, for the arguments of tasks; no killed worker takes it along.

    Scattered data lives on workers only: when the last one that holds it dies, every task that
    needs it is lost. A broadcast is the result of a task, which the scheduler runs again wherever
    it is missing; it retains the value as long as a task that may be run again needs it.
    """
    key = f"send_{type(value).__name__}-{_PROCESS}-{next(_NUMBERS):06d}"
    # That the value travels with the task is the point, whatever its size.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
        return client.submit(unpack, Broadcast(value), key=key, pure=False, retries=2)


def unpack(broadcast: Broadcast) -> Any:
    """Worker side: what is inside."""
    return broadcast.value
