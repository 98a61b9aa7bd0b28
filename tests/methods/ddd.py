"""The method `ddd`."""

from tests.methods.example import THREE, TWO, Example

EXAMPLE = Example(
    {},
    refused=(
        ("", THREE, "two classes only"),
        ('desired_task = "regression"', TWO | {"desired": '["height"]'}, "two classes only"),
        ("reconstruction_weight = 1.0", TWO, "two classes only"),
    ),
)
