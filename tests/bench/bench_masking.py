"""Masking: the Gram recursion beside dense shrinkage, signs beside their product, records, fit.

``python -m tests.bench masking``; processor time, ratios within one run.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from privpipe.attacks.utility import summarise_completed
from privpipe.numerics.masking.completion import FixedPointOptions, WeightedBlock, solve_completion
from privpipe.numerics.masking.sign_sums import BLOCK_RECORDS, plan_grid, round_to_grid
from privpipe.numerics.random.draws import draw_signs, sign_words
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import FloatArray, Shard
from privpipe.records.memory import Records
from privpipe.sanitizers.masking.masking_model import draw_masked_records
from privpipe.sanitizers.masking.record_survey import code_responses
from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
from tests.oracles import complete_literally

Row = tuple[str, float, str, str, float, float]


def spend(action: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    begun = time.process_time()
    action()
    return time.process_time() - begun


def compare_solvers(small: bool) -> Row:
    """A whole solve of problem (3), both with the same steps; the results are compared too."""
    p, n, m, t = (12, 600, 100, 2) if small else (40, 20_000, 2_000, 4)
    random = np.random.default_rng(0)
    z = random.normal(size=(p, 5)) @ random.normal(size=(5, n)) + 0.1 * random.normal(size=(p, n))
    masked = z @ random.choice([-1.0, 1.0], (n, m)) / math.sqrt(m)
    masked[:t] = 0.0
    weights = [np.ones(p), np.append(np.zeros(t), np.ones(p - t))]
    penalty, steps = 0.1 * (math.sqrt(p) + math.sqrt(n + m)), 3 if small else 6
    options = FixedPointOptions(tolerance=-1, early_tolerance=-1, gap=-1, max_iterations=steps)
    made: list[np.ndarray] = []

    def by_gram() -> None:
        blocks = [WeightedBlock(d @ d.T, w) for d, w in zip((z, masked), weights, strict=True)]
        found = solve_completion(blocks, penalty, options)
        made.append(np.hstack([f @ d for f, d in zip(found.factors, (z, masked), strict=True)]))

    def densely() -> None:
        entries = np.hstack([np.tile(w[:, None], k) for w, k in zip(weights, (n, m), strict=True)])
        made.append(complete_literally(np.hstack([z, masked]), entries, penalty, steps))

    fast, slow = spend(by_gram), spend(densely)
    gap = float(np.abs(made[0] - made[1]).max() / np.abs(z).max())
    assert gap < 1e-10, gap
    name = f"Gram recursion, {p} x {n:,}, difference {gap:.0e}"
    return (name, fast, "s", "dense shrinkage", slow, slow / fast)


def compare_signs(small: bool) -> Row:
    """Words and signs of records beside the product X P of 31 columns."""
    n, m = (2_000, 200) if small else (20_000, 2_000)
    x = np.random.default_rng(0).normal(size=(n, 31))
    bound, step = plan_grid(float(np.abs(x).max()), n)
    integers = round_to_grid(x, bound, step)
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=n)
    signs = draw_signs(stream.words("s", sign_words(m))[:BLOCK_RECORDS], m).astype(np.float64)
    rounds = 1 if small else 5

    def draw() -> None:
        words = stream.words("s", sign_words(m))
        for at in range(0, n, BLOCK_RECORDS):
            draw_signs(words[at : at + BLOCK_RECORDS], m)

    def multiply() -> None:
        for at in range(0, n, BLOCK_RECORDS):
            rows = integers[at : at + BLOCK_RECORDS]
            signs[: len(rows)].T @ rows

    drawn = median(spend(draw) for _ in range(rounds))
    product = median(spend(multiply) for _ in range(rounds))
    return (f"signs of {m} surrogates", drawn, "s", "product X P", product, drawn / product)


def make_records(n: int, d: int) -> Records:
    random = np.random.default_rng(1)
    x = random.normal(size=(n, d))
    return Records(
        x, desired=x @ random.normal(size=d) + random.normal(size=n), n_shards=-(-n // 8192)
    )


def compare_fit(small: bool, n: int) -> Row:
    """The fit beside one pass of `reduce` that sums the co-moments of features and responses.

    The solve takes as long whatever the number of records: .02 s.
    """
    records = make_records(5_000 if small else n, 30)
    options = MaskingOptions(n_surrogates=200)
    schema = records.schema

    def read(shard: Shard) -> tuple[FloatArray, FloatArray]:
        bias = np.ones(len(shard.features))
        return np.column_stack([shard.features, bias]), code_responses(shard, schema)

    def sum_moments() -> None:
        records.reduce(partial(summarise_completed, complete=read))

    rounds = 1 if small else 5
    once = median(spend(sum_moments) for _ in range(rounds))
    whole = median(spend(lambda: fit_masking(records, options)) for _ in range(rounds))
    name = f"fit of {records.n_records:,} records"
    return (name, whole, "s", "one pass of reduce", once, whole / once)


def compare_records(small: bool) -> Row:
    """Drawing of ten times as many records: a tenth of the ratio is what a record costs more."""
    few, m = (2_000, 64) if small else (20_000, 2_000)
    times = []
    for n in (few, 10 * few):
        records = make_records(n, 30)
        model = fit_masking(records, MaskingOptions(n_surrogates=m))
        stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=n)
        times.append(spend(lambda r=records, f=model, s=stream: draw_masked_records(f, r, s)))
    name = f"drawing of {10 * few:,} records x 30"
    return (name, times[1], "s", f"of {few:,}", times[0], times[1] / times[0])


def compare_size(small: bool) -> list[Row]:
    """Ten million records, summed chunk by chunk as a worker does: time and memory."""
    n, m, chunk = (40_000, 256, 1_000) if small else (10_000_000, 2_000, 8_192)
    records = make_records(20 * chunk, 30)
    model = fit_masking(records, MaskingOptions(n_surrogates=m))
    model = replace(model, step=model.step * 1024)  # the grid of more records
    shard = next(iter(make_records(chunk, 30).shards()))

    def draw(n_records: int) -> None:
        total = None
        for first in range(0, n_records, chunk):
            stream = KeyedStream(bytes(32), partition="p", first_record=first, n_records=chunk)
            part = model.sum_records(shard, records.schema, stream, np.arange(chunk), 0)
            total = part if total is None else total.merge(part)

    draw(chunk)  # what the first chunk alone takes
    few, few_peak = spend(lambda: draw(n // 10)), measure_peak()
    many, many_peak = spend(lambda: draw(n)), measure_peak()
    return [
        (f"{n:,} records x 30, {m} surrogates", many, "s", "a tenth of them", few, many / few),
        ("peak memory", many_peak, "MiB", "of a tenth", few_peak, many_peak / few_peak),
    ]


def measure_peak() -> float:
    """Largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(small: bool) -> list[Row]:
    """The rows of ``make bench``; memory is measured first, before anything larger was held."""
    size = compare_size(small)
    fits = [partial(compare_fit, n=n) for n in (400_000, 4_000_000)]
    measures = (compare_solvers, compare_signs, *fits, compare_records)
    return [*size, *(measure(small) for measure in measures)]
