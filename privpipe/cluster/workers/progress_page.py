"""The page /privpipe of the Dask dashboard: runs in words for people.

Imported before the scheduler serves; `distributed` takes pages from a table at that moment.
"""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from distributed.http.utils import RequestHandler

from privpipe.cluster.workers.progress import Progress, find_runs

# As often as the driver reports: more would show nothing new.
EVERY = 500
"""Milliseconds between two updates."""


def describe(now: Progress) -> dict[str, str]:
    """A run in words."""
    whole = f" of {now.total:,.0f}" if now.total else ""
    chunks = f"{now.chunks_done:,}" + (f" of {now.chunks_total:,}" if now.chunks_total else "")
    minutes, seconds = divmod(round(now.seconds_left), 60)
    return {
        "run": now.run,
        "stage": now.stage,
        "done": f"{now.done:,.0f}{whole} {now.unit}",
        "chunks": chunks,
        "speed": f"{now.per_second:,.{0 if now.per_second >= 10 else 2}f} {now.unit}/s",
        "left": f"{minutes:d} min {seconds:02d} s" if now.seconds_left else "",
        "retried": f"{now.retried:,}",
        "failed": f"{now.failed:,}",
        "withheld": f"{now.withheld:,}",
        "gate": now.gate,
    }


def tabulate_runs(runs: Sequence[Progress]) -> str:
    """A table in HTML, the newest run first.

    Bokeh's own widget for tables draws again when rows come or go, not when a cell changes.
    """
    rows = [list(describe(Progress())), *(list(describe(run).values()) for run in runs)]
    style = "padding: 2px 18px 2px 0; text-align: left; white-space: nowrap"
    lines = [
        "".join(f'<{tag} style="{style}">{escape(value)}</{tag}>' for value in row)
        for tag, row in zip(("th", *["td"] * len(runs)), rows, strict=True)
    ]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def make_document(scheduler: Any, extra: Any, doc: Any) -> None:
    """Called by Bokeh for each visitor."""
    # Here, not above: Bokeh is slow to load, and only the scheduler needs it.
    from bokeh.models import ColumnDataSource, FactorRange, Range1d
    from bokeh.models.widgets.markups import Div
    from bokeh.plotting import figure
    from distributed.dashboard.components.scheduler import env

    table = Div(sizing_mode="stretch_width")
    bars = ColumnDataSource({"run": [], "share": []})
    labels_of = FactorRange()
    chart = figure(
        title="Done of the stage under way",
        y_range=labels_of,
        x_range=Range1d(start=0, end=1),
        height=220,
        sizing_mode="stretch_width",
        toolbar_location=None,
    )
    chart.hbar(y="run", right="share", height=0.6, source=bars)

    def update() -> None:
        runs = find_runs(scheduler)
        table.text = tabulate_runs(runs)
        labels = [f"{run.run} {run.stage}" for run in runs if run.total][:6]
        labels_of.factors = labels[::-1]
        bars.data = {
            "run": labels,
            "share": [run.done / run.total for run in runs if run.total][:6],
        }

    update()
    doc.add_root(chart)
    doc.add_root(table)
    doc.add_periodic_callback(update, EVERY)
    doc.title = "privpipe"
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


class ProgressDocument(RequestHandler):
    """The same as JSON."""

    def get(self) -> None:
        """Answer."""
        self.write({"runs": [asdict(run) for run in find_runs(self.server)]})


routes: list[tuple[str, type, dict[str, Any]]] = [("privpipe.json", ProgressDocument, {})]


def add_page() -> None:
    """Let schedulers that start after this show the page."""
    import dask
    from distributed.dashboard import scheduler as pages

    pages.applications["/privpipe"] = make_document
    listed = list(dask.config.get("distributed.scheduler.http.routes"))
    if __name__ not in listed:
        dask.config.set({"distributed.scheduler.http.routes": [*listed, __name__]})
