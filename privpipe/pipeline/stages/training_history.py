"""How a filter was learned, for the report of those who run the pipeline."""

from __future__ import annotations

from typing import Any

from privpipe.capabilities import Descends
from privpipe.pipeline.runs.run import Run
from privpipe.store.models.artifacts import open_model

DIGITS = 4
"""Of every number: a loss to its last bit is a function of single records."""


def describe_training(run: Run) -> dict[str, Any] | None:
    """The history of the run's model, JSON-ready; None where it was not learned by descent.

    It stands in the report, and not in what is released.
    """
    fitted: Any = open_model(run.stored_model_url)
    parts = getattr(fitted, "maps", (fitted,))
    found = next((part for part in parts if isinstance(part, Descends)), None)
    if found is None:
        return None
    bound = float(getattr(found, "generalisation_bound", -1.0))
    return {
        "stopped": found.stopped,
        "columns": list(found.history_columns),
        "history": [[_round(value) for value in row] for row in found.history.tolist()],
        "tasks": list(found.task_names),
        "baselines": [_round(value) for value in found.baselines.tolist()],
        "bound": _round(bound) if bound >= 0 else None,
    }


def _round(value: float) -> float:
    whole = value.is_integer()
    return value if whole else float(f"{value:.{DIGITS}g}")
