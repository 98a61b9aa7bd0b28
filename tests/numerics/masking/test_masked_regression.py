"""What the scaled solve keeps and the literal one loses; noise levels; exact sums with signs."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.errors import InputError
from privpipe.numerics.masking.completion import (
    FixedPointOptions,
    measure_noise,
    solve_masked_regression,
)
from privpipe.numerics.masking.sign_sums import plan_grid, round_to_grid, sum_with_signs
from privpipe.numerics.random.draws import sign_words
from privpipe.numerics.random.streams import KeyedStream


def make_gram(response: float, noise: float = 0.0, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Moments of one response of this size on six features of rank three and ones; its model."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3)) @ random.normal(size=(3, 6))
    x += noise * random.normal(size=x.shape)
    x = np.column_stack([x, np.ones(n)])
    model = random.normal(size=7)
    y = x @ model * response
    z = np.column_stack([y, x])
    return z.T @ z, model * response


@pytest.mark.parametrize("response", [0.1, 1.0, 4.0, 1000.0])
def test_solve_masked_regression__keeps_the_model_whatever_the_size_of_responses(
    response: float,
) -> None:
    gram, _ = make_gram(response)
    found = solve_masked_regression(gram / gram[1, 1], 1, 4000, 50, noise=1e-3)
    exact = np.linalg.lstsq(gram[1:, 1:], gram[1:, 0], rcond=1e-10)[0]
    np.testing.assert_allclose(found.coefficients[0], exact, rtol=1e-5, atol=1e-6 * response)
    assert found.rank == 4


@pytest.mark.parametrize("noise", [None, 0.2])
def test_solve_masked_regression__ends_early_and_is_what_a_long_solve_gives(
    monkeypatch: pytest.MonkeyPatch, noise: float | None
) -> None:
    random = np.random.default_rng(4)
    x = random.normal(size=(3000, 12)) @ (np.geomspace(1, 0.1, 12) * random.normal(size=(12, 12)))
    y = x @ random.normal(size=12) + random.normal(size=3000)
    z = np.column_stack([y, x]) / np.append(y.std(), x.std(axis=0))
    gram = z.T @ z
    found = solve_masked_regression(gram, 1, 3000, 60, noise=noise)
    assert found.completion.stopped == "change"
    assert found.completion.n_iterations < 60
    long = FixedPointOptions(tolerance=1e-12, max_iterations=2000)
    monkeypatch.setattr("privpipe.numerics.masking.completion.SCALED_OPTIONS", long)
    exact = solve_masked_regression(gram, 1, 3000, 60, noise=noise)
    assert found.rank == exact.rank
    np.testing.assert_allclose(found.mixing, exact.mixing, atol=1e-9)
    np.testing.assert_allclose(found.coefficients, exact.coefficients, atol=1e-8)


def test_solve_masked_regression__literal_loses_it_when_responses_are_large() -> None:
    gram, _ = make_gram(4.0)
    gram = gram / gram[1, 1]
    exact = np.linalg.lstsq(gram[1:, 1:], gram[1:, 0], rcond=1e-10)[0]
    literal = solve_masked_regression(gram, 1, 4000, 50, noise=1e-4, solver="literal")
    scaled = solve_masked_regression(gram, 1, 4000, 50, noise=1e-4)
    errors = [
        np.linalg.norm(found.coefficients[0] - exact) / np.linalg.norm(exact)
        for found in (literal, scaled)
    ]
    assert errors[0] > 0.2 > 1e-4 > errors[1]


def test_measure_noise__is_found_in_low_rank_and_hardly_taken_from_full_rank() -> None:
    random = np.random.default_rng(1)
    low = random.normal(size=(1000, 5)) @ random.normal(size=(5, 40))
    for noise in (0.1, 0.7):
        x = low + noise * random.normal(size=low.shape)
        assert measure_noise(np.linalg.eigvalsh(x.T @ x / 1000), 1000) == pytest.approx(
            noise, rel=0.1
        )
    assert measure_noise(np.linspace(0.3, 3.0, 12), 10**6) == 0.0
    assert measure_noise(np.ones(12), 10**6) == 0.0, "independent features are no noise"
    assert measure_noise(np.array([0.0, 1.0, 2.0]), 100) == 0.0


def test_sum_with_signs__is_exact_in_any_order_and_cut() -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(3000, 5)) * [1, 1e-3, 1, 10, 1]
    bound, step = plan_grid(float(np.abs(x).max()), len(x))
    integers = round_to_grid(x, bound, step)
    assert np.abs(integers).sum(axis=0).max() <= 2**52
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=len(x))
    words = stream.words("signs", sign_words(70))
    whole = sum_with_signs(integers, words, 70)
    for cuts in ([1, 700], [256, 512, 2999], list(range(100, 3000, 100))):
        parts = [
            sum_with_signs(a, w, 70)
            for a, w in zip(np.split(integers, cuts), np.split(words, cuts), strict=True)
        ]
        order = random.permutation(len(parts))
        assert np.array_equal(sum(parts[i] for i in order), whole)
    assert np.abs(integers * step - x).max() <= step / 2


def test_signs__have_the_identity_as_expectation_of_their_products() -> None:
    stream = KeyedStream(bytes(range(32)), partition="p", first_record=0, n_records=30)
    n_signs = 20_000
    words = stream.words("signs", sign_words(n_signs))
    p = sum_with_signs(np.eye(30), words, n_signs).T / np.sqrt(n_signs)
    np.testing.assert_allclose(p @ p.T, np.eye(30), atol=6 / np.sqrt(n_signs))
    assert np.allclose(np.diag(p @ p.T), 1.0)


def test_round_to_grid__refuses_what_no_fit_has_seen_without_a_value() -> None:
    with pytest.raises(InputError, match="beyond all records") as caught:
        round_to_grid(np.array([123.456]), 8.0, 0.5)
    assert "123" not in str(caught.value)
    with pytest.raises(InputError, match="not positive"):
        plan_grid(0.0, 10)
