"""The K-norm law: every rounding certified by balls, in any chunks and on any processor."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from privpipe.errors import OptionError
from privpipe.numerics.noise import knorm
from privpipe.numerics.noise.knorm import FURTHER, FURTHER_WORDS, PURPOSE, KNormNoise, round_exactly
from privpipe.numerics.noise.mechanism import plan_grid
from tests.numerics.noise.oracles import round_by_balls, stream

FULL = bool(os.environ.get("PRIVPIPE_FULL_PROOFS"))
"""The whole of the issue's 10^5 records; else a few of every width."""

RECORDS = {1: 1_500, 2: 1_000, 5: 600, 20: 250, 561: 8}


def make(width: int, epsilon: float = 1.0) -> KNormNoise:
    scale = math.nextafter(2 / epsilon, math.inf)
    return KNormNoise(scale, plan_grid(scale * math.sqrt(width + 1), width, "l2"), width)


@pytest.mark.parametrize("width", RECORDS)
def test_draw__is_what_balls_say(width: int) -> None:
    pytest.importorskip("flint")
    noise = make(width)
    n = (2_000 if width == 561 else 24_500) if FULL else RECORDS[width]
    for first in range(0, n, 500):
        rows = stream(min(500, n - first), 10**9 + first)
        head = rows.words(PURPOSE, noise.n_words)
        tail = rows.words_at(FURTHER, noise.n_further, np.arange(len(head)))
        tail = tail.reshape(len(head), noise.n_words, FURTHER_WORDS)
        expected = [round_by_balls(noise, *pair) for pair in zip(head, tail, strict=True)]
        np.testing.assert_array_equal(noise.draw(rows), expected)


@pytest.mark.parametrize("width", [1, 5, 20])
def test_round__errors_stay_within_their_bound(width: int) -> None:
    """The kernel at a grid so fine that its errors are whole steps: they never pass the bound.

    Compared is |float - truth| over the reach, which the kernel bounds by ``base`` and more.
    """
    noise = make(width)
    words = stream(300, 77).words(PURPOSE, noise.n_words)
    tail = np.zeros((noise.n_words, 3), np.uint64) + np.uint64(2**63)
    fine = 2.0**40  # at this many times the scale, floats are sure of nothing
    out, close = np.empty((300, width), np.int64), np.empty(300, bool)
    knorm._round(words, width, noise.cells_per_scale * fine, out, close)
    errors = []
    for i in np.flatnonzero(np.abs(out).max(axis=1) < 2**61)[:60]:
        rows = [[int(a), *map(int, b)] for a, b in zip(words[i], tail, strict=True)]
        truth = round_exactly(rows, width, Fraction(noise.cells_per_scale) * 2**40)
        assert truth is not None
        reach = noise.cells_per_scale * fine
        errors += [abs(int(a) - b) / reach for a, b in zip(out[i], truth, strict=True)]
    assert 0 < max(errors) < (2 * width + 32) * 2.0**-53


def test_round_one__is_that_of_any_width_and_errs_less_than_it_says() -> None:
    """Fine steps show its errors; near a boundary it says so."""
    noise, words = make(1), stream(2_000, 5).words(PURPOSE, 2)
    words[:4, 0] = [0, 1, 2**64 - 1, 2**40]
    one, any_width = np.empty((2, 2_000, 1), np.int64)
    close, closer = np.empty((2, 2_000), bool)
    knorm._round_one(words, noise.cells_per_scale, one, close)
    knorm._round(words, 1, noise.cells_per_scale, any_width, closer)
    assert close[:2].all()
    np.testing.assert_array_equal(one[~close], any_width[~close])
    fine = 2.0**27  # so fine that about every fifth record is not decided
    knorm._round_one(words, noise.cells_per_scale * fine, one, close)
    assert 0.02 < close.mean() < 0.5
    tail = np.zeros((2, 6), np.uint64) + np.uint64(2**63)
    for i in np.flatnonzero(~close)[:300]:
        rows = [[int(a), *map(int, b)] for a, b in zip(words[i], tail, strict=True)]
        assert round_exactly(rows, 1, Fraction(noise.cells_per_scale * fine)) == tuple(one[i])


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 48, 561, 5_000])
def test_add_up__errs_by_less_than_seventeen_roundings(width: int) -> None:
    rng = np.random.default_rng(width)
    # The last: sixteens that are each lost where they are added to 1, as plain sums lose them.
    worst = np.where(np.arange(width) < 16, 1.0, 0.8 * 2.0**-53) / 16
    laws = (np.exp(spread * rng.standard_normal(width)) for spread in (0.0, 1.0, 20.0))
    for values in (*laws, worst):
        exact = sum(map(Fraction, values.tolist()))
        assert abs(Fraction(knorm._add_up(values)) / exact - 1) <= Fraction(17, 2**53)


def test_round__what_floats_cannot_decide_is_flagged() -> None:
    """Words at the ends of their range, where logarithm or angle lose everything."""
    noise, top = make(2), 2**64 - 1
    half = 2**63
    cases = [[0, half, half], [1, half, half], [top, half, half], [half, half, 0], [top, top, top]]
    words = np.array(cases, np.uint64)
    out, close = np.empty((len(cases), 2), np.int64), np.empty(len(cases), bool)
    knorm._round(words, 2, noise.cells_per_scale, out, close)
    assert close[:2].all()
    tail = np.full((3, FURTHER_WORDS), half, np.uint64)
    pytest.importorskip("flint")
    for i, case in enumerate(words):
        found = noise.decide_record(case, tail)
        assert found == round_by_balls(noise, case, tail)
        assert close[i] or tuple(out[i]) == found


def test_draw__rare_records_are_read_further_and_fit_in() -> None:
    """At a fine grid many records are undecided: the same bytes in any chunks."""
    noise = KNormNoise(2.0**30, 1.0, 20)
    words = stream(4_000).words(PURPOSE, noise.n_words)
    out, close = np.empty((4_000, 20), np.int64), np.empty(4_000, bool)
    knorm._round(words, 20, noise.cells_per_scale, out, close)
    assert 1 <= close.sum() <= 400
    whole = noise.draw(stream(4_000))
    np.testing.assert_array_equal(out[~close], whole[~close])
    for rows in (57, 1_500):
        parts = [noise.draw(stream(min(rows, 4_000 - a), a)) for a in range(0, 4_000, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_draw__has_the_law_at_a_declared_rate_of_false_alarms() -> None:
    noise, n = make(20), 60_000
    xi = noise.draw(stream(n)) * noise.grid
    radius = np.linalg.norm(xi, axis=1)
    assert stats.kstest(radius, stats.gamma(20, scale=2).cdf).pvalue > 1e-5
    for j in (0, 19):
        share = (1 + xi[:, j] / radius) / 2
        assert stats.kstest(share, stats.beta(9.5, 9.5).cdf).pvalue > 1e-5
    assert abs(xi.std() / (noise.scale * math.sqrt(21)) - 1) < 0.02
    assert abs(stats.spearmanr(radius, xi[:, 3]).statistic) < 5 / math.sqrt(n)
    one = make(1)
    laplace = one.draw(stream(n)).ravel() * one.grid
    assert stats.kstest(laplace, stats.laplace(scale=2).cdf).pvalue > 1e-5


def test_undecided__is_far_below_what_is_promised() -> None:
    for width in (1, 20, 561, 2**20):
        noise = KNormNoise(2.0, 2.0**-13, 5) if width > 561 else make(width)
        assert noise.undecided < 2.0**-140


@pytest.mark.parametrize(
    ("scale", "grid", "width"), [(0.0, 0.5, 1), (math.inf, 0.5, 1), (2.0, 2.0, 1), (1e18, 1e-3, 9)]
)
def test_knorm__refuses_what_it_cannot_round(scale: float, grid: float, width: int) -> None:
    with pytest.raises(OptionError):
        KNormNoise(scale, grid, width)


SCRIPT = """
import hashlib, sys
from tests.numerics.noise.oracles import stream
from tests.numerics.noise.test_knorm import draw_both
print(hashlib.sha256(draw_both(int(sys.argv[1]))).hexdigest())
"""


def draw_both(n: int = 3_000) -> bytes:
    """Noise of all laws, and a projection that was bounded, as bytes."""
    from privpipe.numerics.noise.bounding import bound_records, project_in_order
    from privpipe.numerics.noise.discrete import DiscreteLaplaceNoise
    from privpipe.numerics.noise.privunit import PrivUnitNoise

    x = (np.arange(40 * 30.0).reshape(40, 30) * 7.0 % 11.0 - 5.0) / 3.0
    bounded, _, _ = bound_records(project_in_order(x, x.T[:, :7], x[0, :7]), "soft", "l2", 50.0)
    return b"".join(
        part.tobytes()
        for part in (
            make(20).draw(stream(n)),
            DiscreteLaplaceNoise(1.0, 2**16, 20).draw(stream(n)),
            PrivUnitNoise(4.0, 7).draw(bounded, stream(len(bounded))),
            bounded,
        )
    )


WEAKEST = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
}
"""NumPy without AVX2 and Numba for any x86: each such process compiles for a minute."""

PROCESSORS = [WEAKEST] + FULL * [
    {"NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX AVX512_ICL X86_V4"},
    {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"},
]


@pytest.mark.slow
@pytest.mark.parametrize("variables", PROCESSORS)
def test_draw__has_the_same_bytes_on_other_processors(variables: dict[str, str], tmp_path) -> None:
    assert hash_elsewhere(variables, tmp_path, 3_000) == hashlib.sha256(draw_both()).hexdigest()


@pytest.mark.slow
def test_draw__has_the_same_bytes_without_a_compiler(tmp_path) -> None:
    """The kernels as Python runs them, on NumPy's own numbers: nothing was contracted or moved."""
    found = hash_elsewhere({"NUMBA_DISABLE_JIT": "1"}, tmp_path, 100)
    assert found == hashlib.sha256(draw_both(100)).hexdigest()


def hash_elsewhere(variables: dict[str, str], folder: Path, n: int) -> str:
    """Digest of what another process draws."""
    root = str(Path(__file__).parents[3])
    places = {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(n)],
        env={**os.environ, **variables, **places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
