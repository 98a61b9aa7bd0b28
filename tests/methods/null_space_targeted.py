"""The method `null_space_targeted`."""

from tests.methods.example import NULL, TWO, Example, keeps_the_budget

EXAMPLE = Example(
    {"utility_budget": 0.1, "ridge": 1e-6},
    promise=keeps_the_budget,
    refused=(
        (
            f'{NULL}\nintercept = "augmented"\nrepresentative = "likely"',
            TWO,
            "cleans records as they are",
        ),
    ),
)
