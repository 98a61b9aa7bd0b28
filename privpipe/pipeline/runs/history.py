"""Attempts at a release, side by side in the folder of its report.

A file for each configuration that was judged: what it was, what the gate said, what was gained and
retained. They hold names, options and scores, and no value of a record.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from privpipe.errors import FormatError
from privpipe.pipeline.runs.run import Run, now
from privpipe.store.access.location import guard_read, join, shown
from privpipe.store.access.objects import list_keys, open_store, read_bytes, write_file

PREFIX = "attempt-"
"""Begins the name of the file of an attempt; its run's identifier follows."""

LISTED = ("collection", "training", "method", "release", "audit", "gate")
"""Sections that say what was attempted."""


def write_attempt(run: Run, findings: Mapping[str, Any]) -> None:
    """Note what came of an attempt; the same run judged again replaces its note."""
    gate, found = findings["gate"], findings["adversaries"]
    whole = run.options.model_dump(mode="json", exclude_defaults=True)
    note = {
        "run": run.run_id,
        "attempt": findings.get("attempt"),
        "judged": now(),
        "options": {name: whole[name] for name in LISTED if name in whole}
        | {"method": {"name": run.method.name, **whole["method"]}},
        "state": gate["state"],
        "sentence": gate["sentence"],
        "ways_out": gate["ways_out"],
        "tried": gate.get("tried", []),
        "verdict": found["verdict"],
        "decisions": [{key: one.get(key) for key in DECIDED} for one in found.get("decisions", ())],
        "target": {
            name: {view: _read_score(values) for view, values in views.items()}
            for name, views in findings["desired"].items()
        },
    }
    write_file(join(run.report_url, f"{PREFIX}{run.run_id}.json"), json.dumps(note, indent=1))


DECIDED = "target verdict source strongest score gain gain_lower gain_upper allowed".split()
"""Fields of a decision that a note has."""


def _read_score(found: Mapping[str, Any] | None) -> float | None:
    """Accuracy of classes, R squared of numbers."""
    value = (found or {}).get("accuracy", (found or {}).get("r2"))
    return None if value is None else float(value)


def read_attempts(report_url: str) -> list[dict[str, Any]]:
    """All attempts at a release, the first one first; none where there is no report."""
    store = open_store(report_url, read_only=True)
    keys = [key for key in list_keys(store) if key.startswith(PREFIX) and key.endswith(".json")]
    found = []
    for key in keys:
        read = partial(json.loads, read_bytes(store, key) or b"{}")
        problem = f"{shown(join(report_url, key))} is damaged"
        remedy = "Remove it: it is a note of an attempt, and nothing else rests on it."
        found.append(guard_read(read, FormatError, problem, remedy=remedy, code="damaged"))
    # Not by the attempt's number: the same release, made again, has the number it had.
    return sorted(found, key=lambda one: one.get("judged", ""))


def list_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys of two configurations that differ, with both values; None where it is the default.

    >>> list_differences({"method": {"name": "leace"}}, {"method": {"name": "pca", "n": 2}})
    {'[method] name': ['leace', 'pca'], '[method] n': [None, 2]}
    """
    both = one, other
    places = [(section, key) for part in both for section, keys in part.items() for key in keys]
    values = {f"[{s}] {k}": [part.get(s, {}).get(k) for part in both] for s, k in places}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
