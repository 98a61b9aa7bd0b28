"""A network before the noise has the same bits in any block, and is no loop over records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from privpipe.protocols import FloatArray, RecordStream
from privpipe.sanitizers.minimax.neural_minimax import NeuralFilter
from privpipe.sanitizers.noise.noisy_filter import apply_in_order


class CountingFilter(NeuralFilter):
    """Counts how often it is asked."""

    n_asked = 0

    def apply(self, x: object, stream: RecordStream | None = None) -> FloatArray:
        type(self).n_asked += 1
        return super().apply(np.asarray(x), stream)


def make_network(widths: tuple[int, ...]) -> CountingFilter:
    CountingFilter.n_asked = 0
    rng = np.random.default_rng(0)
    sizes = itertools.pairwise(widths)
    parameters = np.concatenate([rng.standard_normal((a + 1) * b) for a, b in sizes])
    return CountingFilter(
        "progress", np.zeros((0, 1)), ("phi",), (), np.zeros(0), parameters, np.array(widths)
    )


@pytest.mark.parametrize("widths", [(9, 4), (40, 20, 10), (3, 1, 2, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_apply_in_order__makes_of_a_network_the_same_bits_in_any_block(
    widths: tuple[int, ...], dtype: type
) -> None:
    network = make_network(widths)
    x = np.random.default_rng(1).standard_normal((131, widths[0])).astype(dtype)
    whole = apply_in_order(network, x)
    for rows in (1, 2, 7, 64):
        parts = [apply_in_order(network, x[at : at + rows]) for at in range(0, len(x), rows)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert network.n_asked == 0
    assert whole == pytest.approx(network.apply(x.astype(np.float64)), rel=1e-12)
    assert network.n_asked == 1
