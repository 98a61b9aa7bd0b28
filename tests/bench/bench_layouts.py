"""Zarr to Zarr: cleaning against copying the same store, and both layouts; CPU of one process.

The process keeps freed memory as our workers do, for cleaning and copying alike.

``python -m tests.bench.bench_layouts [records]``
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numcodecs.blosc
import numpy as np
import zarr

from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from privpipe.store.access.objects import open_store, write_bytes
from privpipe.store.arrays.blocks import Basis
from privpipe.store.arrays.layout import ROOT_DOCUMENT, ArrayPlan, array_documents, root_document
from tests.bench.watching import keep_memory_as_workers

N_FEATURES = 294
RANK = 3
CHUNK_BYTES = 8 * 2**20


def make_array(folder: Path, n_records: int, columns: int, dtype: str) -> zarr.Array:
    rows = CHUNK_BYTES // (N_FEATURES * 4)
    plan = ArrayPlan("features", (n_records, columns), rows, dtype)
    store = open_store(str(folder))
    for key, content in array_documents([plan]).items():
        write_bytes(store, key, content)
    write_bytes(store, ROOT_DOCUMENT, root_document({}))
    return zarr.open_array(store, path="features", mode="r+").with_config(
        {"write_empty_chunks": True}
    )


def draw_records(n_records: int) -> np.ndarray:
    """Float32 features in [0, 1) with as many random digits as measured ones have."""
    rng = np.random.default_rng(0)
    return np.round(rng.random((n_records, N_FEATURES), np.float32), 6)


def make_actions(folder: Path, x: np.ndarray) -> dict[str, Callable[[], object]]:
    """Each action passes once over the store, chunk by chunk."""
    n = len(x)
    source, copied, cleaned = (
        make_array(folder / name, n, N_FEATURES, "float32")
        for name in ("source", "copied", "cleaned")
    )
    few = make_array(folder / "few", n, RANK, "float64")
    source[...] = x
    predictor = np.random.default_rng(1).normal(size=(N_FEATURES, RANK)) / np.sqrt(N_FEATURES)
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.01)
    factored = FactoredCleaner.of(cleaner, "float32")
    basis = Basis(factored.lift, factored.centre, "float32")
    step = source.chunks[0]

    def release(read: np.ndarray) -> np.ndarray:
        """As workers do it."""
        return cleaner.apply_measured(read, overwrite_x=True)[0]

    def each(action: Callable[[slice], object]) -> Callable[[], None]:
        def run() -> None:
            for start in range(0, n, step):
                action(slice(start, min(start + step, n)))

        return run

    return {
        "copy": each(lambda rows: copied.__setitem__(rows, source[rows])),
        "clean dense": each(lambda rows: cleaned.__setitem__(rows, release(source[rows]))),
        "clean factored": each(lambda rows: few.__setitem__(rows, factored.apply(source[rows]))),
        "read dense": each(lambda rows: cleaned[rows]),
        "read factored": each(lambda rows: basis.reconstruct(few[rows])),
    }


def count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(n_records: int = 100_000, rounds: int = 5) -> dict[str, float]:
    """Print and return CPU over that of the copy (or of the dense read), and bytes."""
    numcodecs.blosc.set_nthreads(1)
    keep_memory_as_workers()
    ratios: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1}),
    ):
        folder = Path(name)
        actions = make_actions(folder, draw_records(n_records))
        times: dict[str, list[float]] = {action: [] for action in actions}
        for turn in range(rounds + 1):
            for action, run in actions.items():
                begun = time.process_time()
                run()
                if turn:
                    times[action].append(time.process_time() - begun)
        ratios = {action: median(found) / median(times["copy"]) for action, found in times.items()}
        ratios["read factored / read dense"] = ratios["read factored"] / ratios["read dense"]
        ratios["bytes factored / dense"] = count_bytes(folder / "few") / count_bytes(
            folder / "cleaned"
        )
    for action, ratio in ratios.items():
        print(f"{action:28s}{ratio:8.3f}")
    return ratios


def run(small: bool) -> list[tuple[str, float, str, str, float, float]]:
    """The ratios as rows of `make bench`."""
    ratios = main(1000, 1) if small else main()
    return [
        (name, ratio, "copies", "copy of the store", 1.0, ratio) for name, ratio in ratios.items()
    ]


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
