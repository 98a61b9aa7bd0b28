"""Noise of equal utility in the flow: as useful as the release, and of the raw records' place."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.equal_noise import make_equal_noise, score_least_squares
from privpipe.protocols import Column


def test_equal_noise__wanted_answers_are_read_as_well_as_from_the_release() -> None:
    random = np.random.default_rng(0)
    wanted = random.integers(0, 2, 6000)
    raw = random.normal(size=(6000, 4)) * [1, 5, 0, 1]
    raw[:, 0] += 4 * wanted
    released = raw + random.normal(size=raw.shape) * [2, 0, 0, 0]
    held = np.ones(6000, bool)
    held[:10] = False
    noisy = make_equal_noise(raw, released, wanted[:, None] * 1.0, [Column("w", 2)], rows=held)
    assert noisy is not None
    assert noisy.shape == raw.shape
    kept = [score_least_squares(x, wanted * 1.0, 2, 0) for x in (released, noisy, raw)]
    assert abs(kept[1] - kept[0]) < 0.03 < kept[2] - kept[0]
    assert np.all(noisy[:, 2] == 0)


def test_equal_noise__there_is_none_where_nothing_is_wanted() -> None:
    raw = np.zeros((100, 2))
    rows = np.ones(100, bool)
    assert make_equal_noise(raw, raw, np.empty((100, 0)), [], rows=rows) is None
    assert make_equal_noise(raw, raw, np.zeros((100, 1)), [Column("w", 2)], rows=rows) is None
