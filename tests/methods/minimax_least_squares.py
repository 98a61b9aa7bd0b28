"""The method `minimax_least_squares`."""

from tests.methods.example import THREE, WIDE, Example

EXAMPLE = Example({}, refused=((WIDE, THREE, "n_filtered is 300"),))
