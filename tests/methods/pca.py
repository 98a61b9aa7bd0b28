"""The method `pca`."""

from tests.methods.example import TWO, WIDE, Example

EXAMPLE = Example({"n_filtered": 2}, refused=((WIDE, TWO, "n_filtered is 300"),))
