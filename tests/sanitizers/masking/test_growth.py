"""Private masking of a collection that grows: one epsilon for all releases, and attacks on them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.threats.record_recovery import RECOVERED
from privpipe.errors import InputError, OptionError
from privpipe.numerics.noise.gaussian import find_sigma, find_slack
from privpipe.numerics.noise.running_sums import plan_runs
from privpipe.records.memory import GrowingRecords, Records
from privpipe.sanitizers.masking import private_sums
from privpipe.sanitizers.masking.private_masking import fit_masking_private, fit_with_key
from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
from tests.sanitizers.masking.test_private_masking import RADIUS, make, options


def cut(x: np.ndarray, y: np.ndarray, sizes: list[int], n_shards: int = 1) -> list[Records]:
    at = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(x, at), np.split(y, at), strict=True)
    return [Records(a, desired=b, n_shards=n_shards) for a, b in pairs]


def grow(parts: list[Records], key: int | None = 0, **more: Any) -> list[Any]:
    """A release after each partition, each of which continues the one before."""
    grown, models = GrowingRecords(parts[0]), []
    for n in range(len(parts)):
        if n:
            grown.append(parts[n])
        earlier = models[-1] if models else None
        chosen = options(partitions_at_most=len(parts)) if not more else options(**more)
        if key is None:
            models.append(fit_masking_private(grown, chosen, earlier=earlier))
        else:
            models.append(fit_with_key(grown, chosen, bytes([key] * 32), earlier))
    return models


def test_growth__has_the_same_bytes_as_a_fit_at_once_and_as_any_shards() -> None:
    x, y = make(6000)
    sizes = [2000, 1000, 1000, 1000, 1000]
    parts = cut(x, y, sizes)
    models = grow(parts)
    at_once = GrowingRecords(parts[0])
    for part in parts[1:]:
        at_once.append(part)
    whole = fit_with_key(at_once, options(partitions_at_most=5), bytes(32))
    assert np.array_equal(whole.moments, models[-1].moments)
    assert np.array_equal(grow(cut(x, y, sizes, 7))[-1].moments, models[-1].moments)
    # Noise that was released once is never drawn anew, whatever the key of a night.
    fresh = grow(parts, key=None)
    for before, after in pairwise(fresh):
        known, now = before.list_sums(), after.list_sums()
        assert all(np.array_equal(known[run], now[run]) for run in known.keys() & now.keys())
        assert len(now.keys() - known.keys()) == 1
    assert len({*fresh[-1].steps}) == 5


def test_growth__draws_the_noise_of_each_run_apart() -> None:
    """Of one key as well: equal noise would cancel in the difference of two runs."""
    x, y = make(4000)
    parts = [Records(x, desired=y)] * 4  # equal records: sums of two runs differ by noise alone
    sums = [model.list_sums() for model in grow(parts)]
    runs = {run: one / (run[1] - run[0]) for each in sums for run, one in each.items()}
    found = [one for run, one in runs.items() if run[1] - run[0] == 1]
    assert len(found) > 1
    assert all(not np.array_equal(found[0], one) for one in found[1:])


def test_growth__moves_by_a_record_no_more_than_its_noise_was_made_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All releases of neighbours together: exact differences, and exact sizes of the noise."""
    variances: list[int] = []
    draw = private_sums.draw_discrete_gaussian

    def note(sizes: Any, stream: Any) -> Any:
        variances.extend(sizes)
        return draw(sizes, stream)

    monkeypatch.setattr(private_sums, "draw_discrete_gaussian", note)
    n, q = 6, 2
    _, held = plan_runs(n)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-3, 3, (1200, q)), rng.uniform(-3, 3, 1200)
    worst = 0.0
    for at in range(n):
        # Products of these two are as far apart as any.
        both = []
        for sign in (1.0, -1.0):
            there = x.copy(), y.copy()
            there[0][200 * at] = [3.0, 3.0]
            there[1][200 * at] = 3.0 * sign
            if sign < 0:
                there[0][200 * at, 0] = -3.0
            models = grow(cut(*there, [200] * n), epsilon=20.0, partitions_at_most=n)
            both.append({run: one for model in models for run, one in model.list_sums().items()})
        gaps = [float(((both[0][run] - both[1][run]) ** 2).sum()) for run in both[0]]
        moved = [gap for gap in gaps if gap > 0]
        assert len(moved) <= held
        worst = max(worst, sum(moved))
    # Noise of a product of two columns has half of the variance, since it counts twice.
    assert 1.5 * RADIUS**4 * held < worst <= 2 * RADIUS**4 * held * (1 + 1e-9)
    assert min(variances) >= Fraction(find_sigma(20.0, 1e-6)) ** 2 * RADIUS**4 * held
    assert {*variances} == {min(variances), 2 * min(variances)}


@pytest.mark.parametrize("most", [4, 8, 30])
def test_law__of_all_releases_together_keeps_epsilon_and_delta(most: int) -> None:
    """Exhaustive on a small grid: every outcome of every run that a record is in.

    Of one number instead of products. Without the runs that hold a record in the variance, the
    same sum is above delta.
    """
    _, held = plan_runs(most)
    epsilon, delta, step = 1.0, 1e-3, 60

    def spend(variance: int) -> float:
        reach = 12 * math.isqrt(variance) + step
        noise = np.arange(-reach, reach + 1)
        mass = np.exp(-(noise.astype(float) ** 2) / (2 * variance))
        mass /= mass.sum()
        # The log of the ratio is linear in the sum of the noise of all runs.
        total = mass
        for _ in range(held - 1):
            total = np.convolve(total, mass)
        sums = np.arange(len(total)) - held * reach
        loss = (held * step**2 + 2.0 * step * sums) / (2 * variance)
        slack = held * float(find_slack(variance, 1))
        gain = np.maximum(1 - np.exp(epsilon + slack - loss), 0.0)
        return float((total * gain).sum())

    sigma = find_sigma(epsilon, delta)
    assert spend(math.ceil(sigma**2 * step**2 * held)) <= delta * (1 + 1e-3)
    assert spend(math.ceil(sigma**2 * step**2 * (held - 1))) > 1.5 * delta


def test_error__grows_with_the_logarithm_of_the_partitions() -> None:
    """Measured over all releases of 16 and of 64 partitions, beside noise anew for each."""
    found = {}
    for n in (16, 64):
        rng = np.random.default_rng(n)
        x = rng.uniform(-3, 3, (300 * n, 1))
        y = rng.uniform(-3, 3, 300 * n)
        parts, squares = cut(x, y, [300] * n), list[float]()
        nights = [grow(parts, key, epsilon=50.0, partitions_at_most=n) for key in range(4)]
        for k, model in ((k, model) for models in nights for k, model in enumerate(models, 1)):
            z, v = model.clip(x[: 300 * k], y[: 300 * k, None])
            rows = np.column_stack([z, np.ones(len(z)), v])
            rest = (model.moments - rows.T @ rows) / np.outer(model.factors, model.factors)
            squares += [rest[i, j] ** 2 / (1 + (i == j)) for i in range(3) for j in range(i, 3)]
        sigma = find_sigma(50.0, 1e-6) * RADIUS**2
        found[n] = math.sqrt(np.mean(squares)) / sigma
        used, held = plan_runs(n)
        # Early sums have fewer runs; none has more.
        assert 0.6 * math.sqrt(used * held) < found[n] < 1.1 * math.sqrt(used * held)
    # Four times the partitions: anew it would be twice the error, and 8 deviations.
    assert found[64] < 1.7 * found[16]
    assert found[64] < 0.55 * math.sqrt(64)


def test_differencing__of_successive_releases_is_at_chance() -> None:
    """A night brings one record: masking gives it away, and the growth does not."""
    x, y = make(2030)
    hits = np.zeros(3, int)
    for at in range(30):
        newest = 2000 + at
        parts = [
            Records(x[:2000], desired=y[:2000]),
            Records(x[newest : newest + 1], desired=y[newest : newest + 1]),
        ]
        before, after = grow(parts, key=None)
        ones = np.column_stack([x[:2000], np.ones(2000)])
        row = np.append(x[newest], 1.0)
        both = np.concatenate([x[:2000], x[newest : newest + 1]])
        labels = np.append(y[:2000], y[newest])
        plain = [
            fit_masking(Records(a, desired=b), MaskingOptions(n_surrogates=200)).coefficients
            for a, b in ((x[:2000], y[:2000]), (both, labels))
        ]
        gram = ones.T @ ones
        z, v = after.clip(x[newest : newest + 1], y[newest : newest + 1, None])
        scaled = np.concatenate([z[0], [1.0], v[0]])
        left = np.linalg.eigh(after.moments - before.moments)[1]
        guesses = (
            (gram @ (plain[1] - plain[0])[:, 0], row),
            (gram @ (after.coefficients - before.coefficients)[:, 0], row),
            (left[:, -1], scaled),
        )
        for k, (guess, truth) in enumerate(guesses):
            cosine = abs(guess @ truth) / np.linalg.norm(guess) / np.linalg.norm(truth)
            hits[k] += cosine >= RECOVERED
    assert hits[0] == 30
    assert max(hits[1:]) <= 5


def test_growth__refuses_what_was_not_declared() -> None:
    x, y = make(6000)
    parts = cut(x, y, [3000, 1500, 1500])
    first, second, _ = grow(parts)
    grown = GrowingRecords(parts[0])
    grown.append(parts[1])
    with pytest.raises(OptionError, match="has 2 of 2 partitions already"):
        fit_masking_private(grown, options(partitions_at_most=3), earlier=second)
    for other in ({"epsilon": 2.0}, {"partitions_at_most": 4}, {"bound": {"*": (-2.0, 3.0)}}):
        chosen = options(**({"partitions_at_most": 3} | other))
        with pytest.raises(OptionError, match="other bounds, epsilon, delta"):
            fit_masking_private(grown, chosen, earlier=first)
    grown.append(parts[2])
    with pytest.raises(OptionError, match="There are 3 partitions"):
        fit_masking_private(grown, options(partitions_at_most=2))
    with pytest.raises(OptionError, match="above one in 6,000"):
        fit_masking_private(grown, options(partitions_at_most=3, delta=0.01))
    few = options(partitions_at_most=10**6)
    with pytest.raises(InputError, match="noisy number is noise"):
        fit_masking_private(Records(x[:300], desired=y[:300]), few)
    # Without a number of partitions all of them are one, as they were.
    assert fit_with_key(grown, options(), bytes(32)).n_partitions == 1
    assert replace(second, n_records=50, tile_rows=50).make_records().features.shape == (50, 6)
