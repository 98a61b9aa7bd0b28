"""``privpipe tradeoff``: what a method tells against what it costs, as a curve."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from privpipe.cluster.executors.executor import LocalExecutor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import Run, digest_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.protocols import RecordMap
from privpipe.report.console import say
from privpipe.store.access.location import local_path, shown
from privpipe.store.access.text import write_file
from privpipe.store.arrays.headers import companion_url, exists
from privpipe.store.models.artifacts import open_model, write_model


def tradeoff_command(config: str, n_points: int, out: str, *, as_json: bool) -> dict[str, Any]:
    """Trace the curve of a configuration; points of an interrupted tracing are not solved again.

    Raises
    ------
    OptionError
        If the method has no curve, or the folder is not on this machine.
    """
    run = check_stage(read_options(config))
    if run.method.trace is None:
        raise OptionError(
            f"The method {run.method.name!r} has no trade-off curve.",
            remedy='Use [method] name = "privacy_mapping".',
            code="no-curve",
        )
    folder = _find_folder(run, out)
    points = folder / _name_points(run, n_points)
    points.mkdir(parents=True, exist_ok=True, mode=0o700)

    def kept(number: int) -> RecordMap | None:
        place = str(points / f"{number:04d}.model.zarr")
        return open_model(place) if exists(place) else None

    def keep(number: int, fitted: RecordMap) -> None:
        write_model(fitted, str(points / f"{number:04d}.model.zarr"))
        if not as_json:
            say(f"point {number + 1} of {n_points}")

    shards = ShardedCollection(run.training.keeping(run.split, "fit"), LocalExecutor())
    curve = run.method.trace(shards, run.options.method, n_points, kept, keep)
    answer: dict[str, Any] = {
        "method": run.method.name,
        "options": run.method_options(),
        "training_digest": run.training.digest,
        "points": [dict(point) for point in curve],
    }
    write_file(str(folder / "tradeoff.json"), json.dumps(answer, indent=1))
    _draw(folder / "tradeoff.png", answer["points"])
    if not as_json:
        say(f"{shown(str(folder))}/tradeoff.png")
    return answer | {"folder": shown(str(folder))}


def _find_folder(run: Run, out: str) -> Path:
    path = local_path(out or companion_url(run.release_url, "tradeoff"))
    if path is None:
        raise OptionError(
            "The folder of the curve is not on this machine.", remedy="Name one with --out."
        )
    return Path(path)


def _name_points(run: Run, n_points: int) -> str:
    """A folder per question: other options or records have other points."""
    content = f"{digest_options(run.options)} {run.training.digest} {n_points}"
    return f"points-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _draw(path: Path, points: list[dict[str, float]]) -> None:
    from privpipe.report.style import render_png  # Matplotlib is slow to load
    from privpipe.report.tradeoff_curve import plot_tradeoff

    path.write_bytes(render_png(plot_tradeoff(points)))
