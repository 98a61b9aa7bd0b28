"""Private masking, attacked: what masking gives away is at chance; broken copies are found."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats as st

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.record_recovery import RECOVERED, attack_all_but_one
from privpipe.errors import GuaranteeError, InputError, OptionError
from privpipe.numerics.noise.gaussian import find_delta, find_sigma
from privpipe.numerics.noise.mechanism import Lattice
from privpipe.numerics.random.streams import KeyedStream
from privpipe.records.memory import Records
from privpipe.sanitizers.masking import private_masking
from privpipe.sanitizers.masking.masking_model import draw_masked_records
from privpipe.sanitizers.masking.private_masking import (
    MaskingPrivateOptions,
    fit_masking_private,
    fit_with_key,
)
from privpipe.sanitizers.masking.private_sums import GRID, add_noise
from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking

USUAL: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "n_surrogates": 40,
    "bound": {"*": (-3.0, 3.0)},
}
RADIUS = round(1 / GRID)


def options(**more: Any) -> MaskingPrivateOptions:
    return MaskingPrivateOptions(**(USUAL | more))


def make(n: int = 4000, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=(n, d)) @ (np.eye(d) + 0.3), -3, 3)
    return x, np.clip(x[:, 0] - 0.5 * x[:, 1] + 0.3 * rng.normal(size=n), -3, 3)


def test_fit__makes_the_same_bytes_of_any_chunks() -> None:
    x, y = make()
    one, other = (
        fit_with_key(Records(x, desired=y, n_shards=k), options(), bytes(32)) for k in (1, 7)
    )
    assert np.array_equal(one.moments, other.moments)
    assert np.array_equal(one.make_records().features, other.make_records().features)


@pytest.mark.parametrize("bound", [(-1e308, 1e308), (0.0, 1e155), (0.0, 1e-160)])
def test_fit__refuses_bounds_whose_squares_are_beyond_float64(bound: tuple[float, float]) -> None:
    """`estimate` of 1e155 ended as an overflow, "a fault of privpipe"."""
    x, y = make(200)
    with pytest.raises(OptionError, match=r"bound of .* is "):
        fit_masking_private(Records(x, desired=y), options(bound={"*": bound}))


def test_fit__draws_noise_anew_where_no_key_is_given() -> None:
    x, y = make(4000)  # of few the noisy number is refused now and then
    one, other = (fit_masking_private(Records(x, desired=y), options()) for _ in range(2))
    assert not np.array_equal(one.moments, other.moments)


def test_surrogates__carry_the_moments_in_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make()
    monkeypatch.setattr(private_masking, "TILE_BYTES", 4000)
    model = fit_masking_private(Records(x, desired=y), options(n_surrogates=300))
    assert model.n_tiles > 2
    for tile in range(model.n_tiles):
        features, responses = model.finish_records(tile)
        assert np.all(features[:, -1] == 1.0)
        found = np.linalg.lstsq(features, responses, rcond=None)[0]
        np.testing.assert_allclose(found, model.coefficients, atol=1e-9)
        scaled = (features[:, :-1] - model.origin) / model.unit
        np.testing.assert_allclose(np.cov(scaled.T, bias=True), model.root @ model.root, atol=1e-9)
    # Whoever wants more of them makes them, of the same moments and at no cost.
    more = replace(model, n_records=5000, tile_rows=5000)
    assert np.array_equal(more.moments, model.moments)
    assert more.make_records().features.shape == (5000, 6)
    with pytest.raises(OptionError, match="last tile has 1"):  # which has no such moments
        replace(model, n_records=5001, tile_rows=5000)


def test_noise__is_what_the_farthest_pair_needs() -> None:
    """All pairs of corners of the ball, in whole numbers: none is farther than the root of 2."""
    rng = np.random.default_rng(1)
    p = 7
    lattice = Lattice(GRID, p, "l2")
    rows = rng.normal(size=(300, p)) * 10.0 ** rng.integers(-3, 1, (300, p))
    rows = np.concatenate(
        [rows / np.linalg.norm(rows, axis=1, keepdims=True), np.eye(p), -np.eye(p)]
    )
    steps = lattice.place(rows).astype(object)
    worst = 0
    for one in steps[-2 * p :]:
        for other in steps:
            gap = np.outer(one, one) - np.outer(other, other)
            worst = max(worst, int((gap**2).sum()))
    assert 0.99 * 2 * RADIUS**4 < worst <= 2 * RADIUS**4
    products = np.zeros((p, p), np.int64)
    draws = np.stack([add_noise(products, 2.0, bytes([k] * 32))[0] for k in range(200)])
    diagonal = draws[:, range(p), range(p)].ravel() / RADIUS**2
    above = draws[:, *np.triu_indices(p, 1)].ravel() / RADIUS**2
    # In these coordinates a product counts twice: the norm is that of the whole matrix.
    assert st.kstest(diagonal, "norm", (0, 2.0 * np.sqrt(2))).pvalue > 1e-5
    assert st.kstest(above, "norm", (0, 2.0)).pvalue > 1e-5


def find_floor(sums: np.ndarray, gap: np.ndarray, level: float = 1e-4) -> float:
    """Lower limit of epsilon at delta 1e-6, from one run of independent canaries.

    `sums` are noisy statistics, in the first half of which the canary is in. The test is that of
    the likelihood ratio; its errors bound the curve of a Gaussian mechanism (Dong et al. 2022;
    Nasr et al. 2023), and that curve gives epsilon.
    """
    half, scores = len(sums) // 2, sums @ gap
    scores = scores / np.abs(scores).max()
    # A cut from even canaries; odd ones are counted (Clopper and Pearson).
    cut = float(np.median(scores[::2]))
    hits, alarms = (int((part[1::2] > cut).sum()) for part in (scores[:half], scores[half:]))
    n = half // 2
    low = st.beta.ppf(level, hits, n - hits + 1)
    high = st.beta.ppf(1 - level, alarms + 1, n - alarms) if alarms < n else 1.0
    mu = st.norm.ppf(low) - st.norm.ppf(high)
    if mu <= 0:
        return 0.0
    return float(scipy.optimize.brentq(lambda e: float(find_delta(1 / mu, e)) - 1e-6, 1e-9, 99))


@pytest.mark.parametrize(
    ("share", "least", "most"), [(1.0, 2.0, 4.0), (0.5, 4.0, 10.0), (0.0, 10.0, 99)]
)
def test_audit__finds_noise_that_is_too_small_and_no_other(
    share: float, least: float, most: float
) -> None:
    """At the farthest pair of records, for epsilon 4; half of the noise, or one draw for all."""
    p, n = 2, 4_000
    sigma = find_sigma(4.0, 1e-6) * (share or 1.0)
    one, other = np.zeros((2, p, p), np.int64)
    one[0, 0] = other[1, 1] = RADIUS**2
    drawn: dict[int, np.ndarray] = {}
    rows = []
    for k in range(n):
        key = k if share else 0
        if key not in drawn:
            drawn[key] = add_noise(np.zeros((p, p), np.int64), sigma, key.to_bytes(32))[0]
        rows.append((drawn[key] + (one if k < n // 2 else other)).ravel() / RADIUS**2)
    floor = find_floor(np.array(rows), (one - other).ravel() / RADIUS**2)
    assert least < floor <= most


def test_all_but_one__finds_every_record_of_masking_and_none_of_these() -> None:
    x, y = make(3000)
    records = Records(x[:2000], desired=y[:2000])
    plain = fit_masking(records, MaskingOptions(n_surrogates=200))
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=2000)
    unsafe = draw_masked_records(plain, records, stream)
    safe = fit_with_key(records, options(), bytes(32)).make_records()
    members, others = (np.column_stack([part, np.ones(len(part))]) for part in (x[:2000], x[2000:]))
    whole = np.column_stack([members, y[:2000]])
    found = [
        attack_all_but_one(
            made.features,
            made.responses,
            members,
            y[:2000, None],
            others,
            whole.T @ whole,
            options=AttackOptions(),
        )
        for made in (unsafe, safe)
    ]
    assert found[0].recovered.estimate > 0.99
    assert found[1].recovered.lower <= found[1].by_chance.upper
    # What is stored of them, the noisy moments, less all others: the strongest direction.
    model = fit_with_key(records, options(), bytes(32))
    z, v = model.clip(x[:2000], y[:2000, None])
    rows = np.column_stack([z, np.ones(2000), v])
    hits = 0
    for row in rows[:300]:
        left = model.moments - (rows.T @ rows - np.outer(row, row))
        direction = np.linalg.eigh(left)[1][:, -1]
        hits += abs(direction @ row) / np.linalg.norm(row) >= RECOVERED
    assert hits <= 15


def test_differencing__of_two_releases_is_at_chance() -> None:
    """Masking gives the record by which two releases differ; two draws of these do not."""
    x, y = make(2001)
    hits = []
    for private in (False, True):
        guessed = 0
        for at in range(20):
            keep = np.arange(2001) != at
            both = []
            for part in (slice(None), keep):
                records = Records(x[part], desired=y[part])
                made = (
                    fit_masking_private(records, options())
                    if private
                    else fit_masking(records, MaskingOptions(n_surrogates=200))
                )
                both.append(made.coefficients)
            ones = np.column_stack([x, np.ones(len(x))])
            guess = (ones.T @ ones) @ (both[0] - both[1])[:, 0]
            row = ones[at]
            cosine = abs(guess @ row) / np.linalg.norm(guess) / np.linalg.norm(row)
            guessed += cosine >= RECOVERED
        hits.append(guessed)
    assert hits[0] == 20
    assert hits[1] <= 3


def test_model__that_was_changed_to_promise_more_is_not_opened() -> None:
    x, y = make(4_000)  # so many that no draw of the noise hides their number
    model = fit_masking_private(Records(x, desired=y), options())
    with pytest.raises(GuaranteeError, match=r"breaks epsilon 0\.5"):
        replace(model, epsilon=0.5)
    with pytest.raises(GuaranteeError, match="breaks epsilon"):
        replace(model, delta=1e-9)


@pytest.mark.parametrize(
    ("n", "more", "said"),
    [
        (300, {"epsilon": 0.05}, "at least [0-9,]+ records"),
        (4, {"delta": 0.1}, "fewer than the 7 columns"),
    ],
)
def test_fit__refuses_too_few_records_with_the_number_that_works(
    n: int, more: Any, said: str
) -> None:
    x, y = make(max(n, 400))
    with pytest.raises(InputError, match=said):
        fit_masking_private(Records(x[:n], desired=y[:n]), options(**more))


def test_fit__refuses_delta_above_one_in_the_records_and_gaps() -> None:
    x, y = make(400)
    with pytest.raises(OptionError, match="above one in 400"):
        fit_masking_private(Records(x, desired=y), options(delta=0.01))
    x[3, 2] = np.nan
    with pytest.raises(InputError, match="1 of 400 records"):
        fit_masking_private(Records(x, desired=y), options())


def test_check__names_numbers_that_work_before_a_record_is_read() -> None:
    """The number of records is one that the fit then takes, and so is delta."""
    schema = replace(Records(make(400)[0], desired=make(400)[1]).schema, n_records=120)
    with pytest.raises(InputError, match="noisy number is noise") as refused:
        private_masking.check_private(options(), schema)
    least = int(re.findall(r"at least ([0-9,]+) records", str(refused.value))[0].replace(",", ""))
    private_masking.check_private(options(), replace(schema, n_records=least))
    x, y = make(least)
    for _ in range(5):
        fit_masking_private(Records(x, desired=y), options())
    for n in (400, 600, 1_000, 9_999):
        with pytest.raises(OptionError, match="above one in") as refused_delta:
            private_masking.check_private(options(delta=0.1), replace(schema, n_records=n))
        most = float(re.findall(r"Use ([0-9.e-]+) or less", str(refused_delta.value))[0])
        private_masking.check_private(options(delta=most), replace(schema, n_records=n))


def fit_adassp(z: np.ndarray, y: np.ndarray, epsilon: float, rng: Any) -> np.ndarray:
    """AdaSSP as Wang 2018 prints it (algorithm 2), norms as given; a referee, in floats."""
    d, size = z.shape[1], float(np.square(z).sum(axis=1).max())
    log = np.log(6 / 1e-6)
    share, gram = epsilon / 3, z.T @ z
    least = np.linalg.eigvalsh(gram)[0] + np.sqrt(log) / share * size * rng.normal()
    least = max(0.0, least - log / share * size)
    ridge = max(0.0, np.sqrt(d * log * np.log(2 * d**2 / 0.05)) * size / share - least)
    noise = rng.normal(size=(d, d))
    noise = np.triu(noise) + np.triu(noise, 1).T
    gram = gram + np.sqrt(log) / share * size * noise
    cross = z.T @ y + np.sqrt(log) / share * np.sqrt(size) * rng.normal(size=d)
    return np.linalg.solve(gram + ridge * np.eye(d), cross)


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_regression__is_at_least_as_good_as_adassp(epsilon: float) -> None:
    """Within two standard errors on records of one factor; the bench has real ones."""
    x, y = make(20_000, 8)
    z = np.column_stack([x / 3, np.ones(len(x))])
    z /= np.linalg.norm(z, axis=1, keepdims=True).max()
    rng, errors = np.random.default_rng(2), []
    for k in range(8):
        model = fit_with_key(Records(x, desired=y), options(epsilon=epsilon), bytes([k] * 32))
        ours = np.column_stack([x, np.ones(len(x))]) @ model.coefficients[:, 0]
        theirs = z @ fit_adassp(z, y / 3, epsilon, rng) * 3
        errors.append([np.mean((ours - y) ** 2), np.mean((theirs - y) ** 2)])
    gain = np.array(errors)[:, 1] - np.array(errors)[:, 0]
    assert gain.mean() > -2 * gain.std() / np.sqrt(8)
