"""The method `minimax_neural`."""

from tests.methods.example import BOTH, THREE, Example

EXAMPLE = Example(
    {"n_hidden": (3, 2), "max_iterations": 2},
    refused=(
        ("n_hidden = [3, 0]", THREE, "layer without outputs"),
        ("confidential_weights = [1.0]", BOTH, "confidential_weights has 1 entries for 2"),
    ),
)
