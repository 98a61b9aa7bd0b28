"""Cost of cleaning as multiples of copying the block, one thread, interleaved in one run.

``python -m tests.bench.bench_cleaning [records]``
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from privpipe.numerics.null_space.cleaning import (
    clean_with_kernel,
    clean_with_numpy,
    reconstruct_records,
)
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from tests.bench.bench_draws import seconds
from tests.oracles import clean_as_printed

N_FEATURES = 294
RANKS = (1, 3, 6)
LITERAL = 4
"""Records of the printed loop, which takes thousands of times as long."""


def make_actions(x: np.ndarray) -> dict[str, Callable[[], object]]:
    """Each action cleans the block once, but for the printed loop; the first is the measure."""
    out, rng = np.empty_like(x), np.random.default_rng(1)
    actions: dict[str, Callable[[], object]] = {"copy": lambda: np.copyto(out, x)}
    for rank in RANKS:
        predictor = rng.normal(size=(x.shape[1], rank)) / np.sqrt(x.shape[1])
        form = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.01)._form(x.dtype)
        few = np.empty((len(x), rank))

        def kernel(form=form) -> object:
            return clean_with_kernel(x, form, x.dtype, out=out, lifted=True)

        def coordinates(form=form, few=few) -> object:
            return clean_with_kernel(x, form, x.dtype, lifted=False, out=few)

        def reconstruct(form=form, few=few) -> object:
            return reconstruct_records(few, form.lift, form.centre, x.dtype)

        def plain(form=form) -> object:
            return clean_with_numpy(x, form, x.dtype, lifted=True, out=None)

        actions |= {f"kernel r={rank}": kernel, f"coordinates r={rank}": coordinates}
        if rank == 3:
            actions |= {"reconstruct r=3": reconstruct, "numpy r=3": plain}
            actions["printed loop"] = lambda a=predictor: clean_as_printed(a, x[:LITERAL], 0.01)
    return actions


def main(n_records: int = 65536, rounds: int = 7) -> dict[str, float]:
    """Print and return each action's seconds, per record, over those of the copy."""
    x = np.random.default_rng(0).normal(size=(n_records, N_FEATURES)).astype(np.float32)
    times = seconds(make_actions(x), rounds)
    times["printed loop"] *= n_records / LITERAL
    ratios = {name: value / times["copy"] for name, value in times.items()}
    for name, ratio in ratios.items():
        print(f"{name:20s} {ratio:10.2f} copies {1e9 * times[name] / n_records:12.1f} ns a record")
    loop = ratios["printed loop"] / ratios["kernel r=3"]
    print(f"printed loop / kernel r=3: {loop:.0f}")
    return ratios


def run(small: bool) -> list[tuple[str, float, str, str, float, float]]:
    """The ratios as rows of `make bench`."""
    ratios = main(1024, 1) if small else main()
    return [
        (name, ratio, "copies", "copy of the block", 1.0, ratio) for name, ratio in ratios.items()
    ]


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
