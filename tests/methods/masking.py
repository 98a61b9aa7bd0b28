"""The method `masking`."""

from privpipe.protocols import RecordMap
from tests.methods.example import TWO, Example


def tells_what_it_releases(fitted: RecordMap) -> None:
    """Yi et al.: no promise for records, and the moments that are released are named."""
    promise = fitted.guarantee
    assert (promise.kind, promise.number) == ("none", None)
    for said in ("Second moments", "coefficients", "Not differential privacy"):
        assert said in promise.assumptions


EXAMPLE = Example(
    {"n_surrogates": 20},
    promise=tells_what_it_releases,
    refused=(
        ("n_surrogates = 3", TWO, "at least as many"),
        (
            'n_surrogates = 40\nsolver = "literal"\nthreshold = 3.0',
            TWO,
            "threshold works on standardised",
        ),
        ("n_surrogates = 40", TWO | {"layout": "factored"}, "no factored layout"),
    ),
    draws=True,
    few={"n_surrogates": 20, "threshold": 2.2},
)
