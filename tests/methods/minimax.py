"""The method `minimax`."""

from tests.methods.example import BOTH, THREE, TWO, WIDE, Example

EXAMPLE = Example(
    {"max_iterations": 2},
    refused=(
        (WIDE, THREE, "n_filtered is 300 for records of 9 features"),
        ("reconstruction_weight = 1.0", THREE, "no reduced form"),
        ('reconstruction_weight = 1.0\nn_filtered = 3\nstart = "zero"', THREE, "stationary point"),
        ("single_out = 1", BOTH, "one confidential variable, not 2"),
        ("single_out = 7", THREE, "single_out is 7.0, no class of 'party'"),
        ('single_out = 1\nconfidential_task = "regression"', TWO, "read as a number"),
        ("desired_weights = [1.0, 2.0]", THREE, "desired_weights has 2 entries for 1 variables"),
    ),
)
