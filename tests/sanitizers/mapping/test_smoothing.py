"""Smoothing earns its place: it is chosen where it brings the law nearer, and only there."""

from __future__ import annotations

import numpy as np

from privpipe.sanitizers.mapping.profiles import Smoothing, choose_smoothing, smooth_table
from tests.laws_of_records import make_grid


def draw(kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, codes and true posteriors: additive in the attributes, or each its own."""
    rng, codes = np.random.default_rng(8), make_grid(5, 4, 4)
    if kind == "additive":
        score = sum(rng.normal(size=4 + (k == 0))[codes[:, k]] for k in range(3))
    else:
        score = 2 * rng.normal(size=len(codes))
    posterior = np.stack([1 / (1 + np.exp(score)), 1 / (1 + np.exp(-score))])
    law = posterior / len(codes)
    return rng.multinomial(n, law.ravel()).reshape(law.shape).astype(float), codes, posterior


def test_choose_smoothing__by_what_the_law_is_like() -> None:
    table, codes, _ = draw("additive", 1500)
    assert choose_smoothing(table, codes).kind == "hierarchical"
    table, codes, _ = draw("own", 400)
    assert choose_smoothing(table, codes).kind != "none"
    table, codes, _ = draw("own", 500_000)
    chosen = choose_smoothing(table, codes)
    assert chosen.pseudo_records <= 20  # of about 6,000 records per profile


def test_smooth_table__brings_posteriors_nearer_and_keeps_records_per_profile() -> None:
    table, codes, truth = draw("additive", 400)
    chosen = choose_smoothing(table, codes)
    smooth = smooth_table(table, codes, chosen)
    np.testing.assert_allclose(smooth.sum(axis=0), table.sum(axis=0))
    raw = table / np.maximum(table.sum(axis=0), 1)
    known = table.sum(axis=0) > 0
    near = np.abs(smooth[:, known] / smooth.sum(axis=0)[known] - truth[:, known]).mean()
    assert near < 0.75 * np.abs(raw[:, known] - truth[:, known]).mean()
    np.testing.assert_array_equal(smooth_table(table, codes, Smoothing("none", 0.0)), table)
