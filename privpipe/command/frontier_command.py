"""``privpipe frontier``: how much privacy can be had at which accuracy of the wanted prediction."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from functools import partial
from typing import Any

from privpipe.cluster.executors.open_executor import open_executor
from privpipe.errors import OptionError
from privpipe.flows.frontier import (
    find_frontier_folder,
    measure_frontier,
    plan_points,
    plot_frontier,
)
from privpipe.numerics.limits import fix_limits
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import cluster_options
from privpipe.pipeline.runs.trusted_code import confirm_code
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.steps import Steps, follow_steps
from privpipe.report.console import say, say_raw
from privpipe.store.access.text import write_file

ADVERSARIES: tuple[tuple[str, ...], ...] = (("logistic",), ("logistic", "kernel"))


def frontier_command(
    config: str, *, out: str, widths: str, tradeoffs: str, as_json: bool
) -> dict[str, Any]:
    """Learn and audit the filters, and write JSON and PNG."""
    options = read_options(config)
    confirm_code(options)
    # Nothing is published, and so no gate has to be passable.
    open_gate = options.gate.model_copy(update={"enforce": False})
    options = options.model_copy(update={"gate": open_gate})
    checked = check_stage(options)
    n_features = checked.training.schema.n_features
    given = [int(one) for one in _numbers(widths, "--widths")] if widths else None
    points = plan_points(
        n_features,
        given or sorted({min(width, n_features) for width in (2, 5, 10)}),
        _numbers(tradeoffs, "--tradeoffs"),
        ADVERSARIES,
    )
    folder = find_frontier_folder(options)
    models = folder / "models"
    models.mkdir(exist_ok=True, mode=0o700)
    steps = Steps(folder, partial(say, stderr=True))
    # There is no release here, and so no workspace beside it.
    cluster = replace(cluster_options(options), scratch=str(folder / "dask"))
    with (
        follow_steps(steps),
        open_executor(cluster, checked.run_id, lambda _: None) as executor,
    ):
        found = measure_frontier(options, points, executor, models)
        content = io.BytesIO()
        plot_frontier(found).savefig(content, format="png")
        write_file(f"{out}/frontier.json", json.dumps(found, indent=1))
        write_file(f"{out}/frontier.png", content.getvalue())
        shutil.rmtree(models)
    if not as_json:
        for point in found["points"]:
            say_raw(_describe(point))
        say(f"frontier in {out}")
    return found


def _numbers(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{name} is not a list of numbers.", remedy=f"Write it as {name} 2,5,10."
        ) from None


def _describe(point: dict[str, Any]) -> str:
    if point["status"] != "measured":
        return f"{point['name']}: unknown, {point['reason']}"
    parts = [
        f"{name} {said['estimate']:.3f} ({fix_limits(said['lower'], said['upper'], 3)}, "
        f"{said['adversary']})"
        for role in ("target", "private")
        for name, sources in point[role].items()
        for said in sources.values()
    ]
    return f"{point['name']}: {'; '.join(parts)}"
