"""``privpipe compare``: which method should I use?"""

from __future__ import annotations

from typing import Any

from privpipe.pipeline.serving.prefect_home import prepare_prefect
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import companion_url


def compare_command(config: str, *, as_json: bool) -> dict[str, Any]:
    """Compare the entries of a configuration and show one table."""
    prepare_prefect()
    from privpipe.flows.comparison import compare_collection
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.pipeline.runs.trusted_code import confirm_code
    from privpipe.pipeline.serving.watch import Watch
    from privpipe.report.pages.comparison_page import tabulate_comparison

    options = read_options(config)
    confirm_code(options)
    comparison = compare_collection(options, Watch())
    place = shown(companion_url(options.release.path, "compare"))
    if not as_json:
        frame = tabulate_comparison(comparison)
        table = tabulate(*frame.columns)
        for row in frame.to_numpy().tolist():
            table.add_row(*row)
        say(table)
        say(f"page     {place}/compare.html\njson     {place}/compare.json\nNothing was published.")
    return {"comparison": comparison, "page": f"{place}/compare.html"}
