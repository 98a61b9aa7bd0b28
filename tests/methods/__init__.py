"""An example of every method, found by its name: ``tests/methods/NAME.py`` holds an `EXAMPLE`.

The contract tests fit it as a run does, measure its promise, and hold its check to what it refuses.
"""

from importlib import import_module
from importlib.util import find_spec

from privpipe.sanitizers import METHODS
from tests.methods.example import Example


def read_example(name: str) -> Example:
    """The example of a method."""
    assert find_spec(f"{__name__}.{name}"), f"a new method has an example: tests/methods/{name}.py"
    found: Example = import_module(f"{__name__}.{name}").EXAMPLE
    return found


EXAMPLES = {name: read_example(name) for name in METHODS}
