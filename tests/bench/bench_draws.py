"""Cost of keyed words and draws as ratios to numpy's own, interleaved in one run.

``python -m tests.bench.bench_draws [number of words]``
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from flows.reproduce.laplace import draw_laplace
from privpipe.numerics.random import draws
from privpipe.numerics.random.categorical import draw_categories, tabulate_categories
from privpipe.numerics.random.streams import JoinedStream, KeyedStream


def seconds(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each action, all of them once per round after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def make_actions(count: int) -> dict[str, Callable[[], object]]:
    """Each action makes `count` values or words; the first is what the others are divided by."""
    generator = np.random.default_rng(1)
    stream = KeyedStream(bytes(32), partition="ab", first_record=10**9, n_records=count)
    few = KeyedStream(bytes(32), partition="ab", first_record=0, n_records=count // 64)
    fair = tabulate_categories(np.array([0, 100]), np.arange(100), np.full(100, 0.01))
    laws = np.zeros(count, np.int64)
    codes = np.empty(count, np.int64)

    def tiled(draw: Callable[[np.ndarray], object]) -> Callable[[], None]:
        def run() -> None:
            for _, words in stream.tiles("bench", 1):
                draw(words)

        return run

    def categorical() -> None:
        for rows, words in stream.tiles("bench", 1):
            codes[rows] = draw_categories(words, fair, laws[rows])

    return {
        "numpy laplace": lambda: generator.laplace(size=count),
        "keyed words, tiles": tiled(lambda words: None),
        "keyed words, fresh memory": lambda: stream.words("bench", 1),
        "keyed uniform": tiled(draws.draw_uniform),
        "keyed laplace": tiled(draw_laplace),
        "keyed categorical, 100 categories": categorical,
        "keyed signs, 64 per word": lambda: draws.draw_signs(few.words("bench", 1), 64),
        "PCG64 words": lambda: generator.integers(0, 2**64, count, np.uint64, endpoint=False),
    }


def join(count: int, size: int) -> JoinedStream:
    """Streams of partitions of a size, each with a key of its own, as a run makes them."""
    return JoinedStream(
        [
            KeyedStream(
                (at + 1).to_bytes(32, "big"),
                partition=f"{at:064x}",
                first_record=0,
                n_records=min(size, count - at),
            )
            for at in range(0, count, size)
        ]
    )


def compare_partitions(
    count: int, sizes: tuple[int, ...], widths: tuple[int, ...], rounds: int
) -> list[tuple[str, float, str, str, float, float]]:
    """Words of records in partitions of some sizes against the same number within one.

    What a partition costs is the derivation of its key and the start of its cipher, some 20
    microseconds in the library: as much as 1,000 records of 8 words.
    """
    rows = []
    for width in widths:
        few = count // width
        joined = {size: join(few, size) for size in (few, *sizes)}

        def draw(stream: JoinedStream, width: int = width) -> None:
            for _ in stream.tiles("bench", width):
                pass

        times = seconds({str(n): partial(draw, stream) for n, stream in joined.items()}, rounds)
        base = times[str(few)]
        for size in sizes:
            name = f"words, {width} a record, partitions of {size}"
            found = times[str(size)]
            rows.append(
                (name, found / few * 1e9, "ns/record", "one", base / few * 1e9, found / base)
            )
    return rows


def main(count: int = 2**20, rounds: int = 9) -> dict[str, float]:
    """Print and return the ratios."""
    times = seconds(make_actions(count), rounds)
    base = times["numpy laplace"]
    ratios = {name: found / base for name, found in times.items()}
    print(f"time / numpy laplace, {count} values, median of {rounds}")
    for name, ratio in ratios.items():
        print(f"{name:42s}{ratio:7.3f}")
    return ratios


def run(small: bool) -> list[tuple[str, float, str, str, float, float]]:
    """The ratios as rows of `make bench`."""
    count = 2**14 if small else 2**20
    times = seconds(make_actions(count), 1 if small else 9)
    base = times["numpy laplace"]
    rows = [
        (name, found / count * 1e9, "ns/value", "numpy laplace", base / count * 1e9, found / base)
        for name, found in times.items()
    ]
    sizes = (100,) if small else (1_000, 10_000, 100_000)
    return rows + compare_partitions(2**14 if small else 2**22, sizes, (1, 8), 1 if small else 9)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
