"""The method `minimax_own`."""

from pathlib import Path

from tests.methods.example import THREE, Example

CONVOLUTION = Path(__file__).parents[1] / "examples" / "convolution.py"

EXAMPLE = Example(
    {
        "filter": "Convolution",
        "module": str(CONVOLUTION),
        "settings": {"axes": 1, "width": 3, "kernels": 2},
        "max_iterations": 2,
    },
    refused=(
        ('filter = "Nobody"', THREE, "No installed package declares a filter 'Nobody'"),
        ('filter = "Any"\nmodule = "no.py"', THREE, "module 'no.py' of the filter cannot be read"),
    ),
)
