"""The method `target_only`."""

from tests.methods.example import TWO, Example

EXAMPLE = Example(
    {"n_bins": 5}, refused=(("", TWO | {"layout": "factored"}, "no factored layout"),)
)
