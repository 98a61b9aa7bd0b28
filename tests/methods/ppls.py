"""The method `ppls`."""

from tests.methods.example import BOTH, THREE, WIDE, Example

EXAMPLE = Example(
    {"n_filtered": 2},
    refused=(
        (WIDE, THREE, "n_filtered is 300"),
        ("n_filtered = 2\nsingle_out = 1", BOTH, "one confidential variable, not 2"),
    ),
)
