"""``privpipe compare``: which method, and which budget, should I use?"""

import tomllib
from collections.abc import Sequence
from typing import Any

from privpipe.errors import OptionError
from privpipe.pipeline.operations.prefect_server import prepare_prefect
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.trusted_code import confirm_code
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.comparison_page import tabulate_comparison
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import shown
from privpipe.store.arrays.layout import companion_url


def compare_command(config: str, vary: Sequence[str] = ()) -> dict[str, Any]:
    """Compare the entries of a configuration and show one table.

    Parameters
    ----------
    config
        TOML file.
    vary
        Options of methods with values to compare, as ``utility_budget=0.01,0.1``.
    """
    prepare_prefect()
    from privpipe.flows.comparison import compare_collection

    options = read_options(config)
    confirm_code(options)
    comparison = compare_collection(options, Watch(), dict(map(_read_values, vary)))
    place = shown(companion_url(options.release.path, "compare"))
    say(tabulate(tabulate_comparison(comparison)))
    say(f"page     {place}/compare.html\njson     {place}/compare.json\nNothing was published.")
    return {"comparison": comparison, "page": f"{place}/compare.html"}


def _read_values(text: str) -> tuple[str, list[Any]]:
    """An option and its values, which are written as in the configuration.

    >>> _read_values("utility_budget=0.01,0.1"), _read_values('start="zero","rand"')
    (('utility_budget', [0.01, 0.1]), ('start', ['zero', 'rand']))
    """
    key, _, values = text.partition("=")
    try:
        found = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        found = []
    if not found:
        raise OptionError(
            f"--vary {text} names no values.",
            remedy="Write values as in the configuration: --vary utility_budget=0.01,0.1, or "
            '--vary \'start="zero","rand"\'.',
        )
    return key.strip(), found
