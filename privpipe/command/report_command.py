"""``privpipe report``, ``open``, ``estimate``, ``runs``, ``diff A B``: what readers are shown.

The pages of an audit, again from its JSON or in a browser; numbers with error bars; attempts.
"""

import json
import os
import re
import webbrowser
from pathlib import Path
from shlex import quote
from typing import Any

import fsspec

from privpipe.cluster.estimate import estimate
from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.pipeline.runs.configuration_file import find_release, read_options
from privpipe.pipeline.runs.history import list_differences, read_attempts
from privpipe.records.schema import suggest
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import join, shown
from privpipe.store.arrays.layout import companion_url


def report_command(release: str, *, public: bool) -> dict[str, Any]:
    """Render all pages and name one; of a configuration with what its ``[about]`` says now.

    Raises
    ------
    StoreError
        If there is no audit beside the release.
    FormatError
        If it is not one that this version can read.
    """
    from privpipe.pipeline.stages.report_writing import write_pages
    from privpipe.report.release_page import FORMAT  # draws: slow to load

    declared = None
    if release.endswith(".toml"):
        options = read_options(release)
        release, declared = options.release.path, dict(options.about)
    folder = companion_url(release, "report")
    try:
        with fsspec.open(join(folder, "audit.json"), encoding="utf-8", mode="rt") as file:
            findings = json.load(file)
    except FileNotFoundError:
        problem = f"There is no audit of {shown(release)} at {shown(folder)}."
        remedy = "Run `privpipe audit` or `privpipe run` first."
        raise StoreError(problem, remedy=remedy, code="missing") from None
    except ValueError:
        raise FormatError(f"{shown(folder)}/audit.json is no JSON.", remedy="Run again.") from None
    if not isinstance(findings, dict) or findings.get("format_version") != FORMAT:
        problem = f"{shown(folder)}/audit.json is not of format {FORMAT}."
        raise FormatError(problem, remedy="Run again with this version of privpipe.")
    if declared is not None:  # written since the run
        findings["declared"] = declared
    write_pages(folder, findings)
    page = shown(_find_page(release, public))
    say(page)
    return {"release": shown(release), "page": page, "verdict": findings["adversaries"]["verdict"]}


def open_command(release: str, *, public: bool) -> dict[str, Any]:
    """Open the report of a release, or say where it is.

    Raises
    ------
    StoreError
        If the release has no report on this machine.
    """
    page = _find_page(release, public)
    path = Path(page.removeprefix("file://"))
    if not path.is_file():
        problem = f"There is no report at {shown(page)} on this machine."
        remedy = "`privpipe report RELEASE` renders it from JSON; fetch it first."
        raise StoreError(problem, remedy=remedy, code="missing")
    opened = _has_window() and webbrowser.open(path.resolve().as_uri())
    say(f"{shown(page)}" + ("" if opened else "  (no browser here: open it by hand)"))
    return {"release": shown(release), "page": shown(page), "opened": bool(opened)}


def _find_page(release: str, public: bool) -> str:
    return join(companion_url(release, "report"), "public.html" if public else "report.html")


def _has_window() -> bool:
    """Whether a browser shows a window; one of text would take over the terminal."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    # A generic browser is one of text, unless the user named it.
    return "BROWSER" in os.environ or type(found) is not webbrowser.GenericBrowser


MOST_SHOWN = 40
"""Rows of the table; ``--json`` has all."""


def estimate_command(
    release: str, *, of: Any, response: str | None, by: str | None, level: float
) -> dict[str, Any]:
    """Estimate, print a table, and give the document.

    Raises
    ------
    OptionError
        If the quantity or the level is none that there is.
    InputError
        If intervals of a regression have no end at this level.
    """
    if not 0 < level < 1:
        raise OptionError(f"--level is {level:g}.", remedy="Use a level between 0 and 1.")
    found = estimate(release, of, response or None, by or None)
    rows = []
    for one in found:
        low, high = one.find_limits(level)
        limits = {"low": low, "high": high}
        rows.append({"of": one.name, "estimate": one.value, "error": one.error, **limits})
    texts = [
        {key: value if isinstance(value, str) else f"{value:.5g}" for key, value in row.items()}
        for row in rows[:MOST_SHOWN]
    ]
    say(tabulate(texts, title=f"{of} of the records, {level:.0%} intervals of sample and noise"))
    if len(rows) > MOST_SHOWN:
        say(f"and {len(rows) - MOST_SHOWN:,} more; --json has them.")
    if (condition := max(one.condition for one in found)) > 1:
        say(f"The mapping was inverted; its condition number is {condition:.3g}.")
    if of == "regression":
        say("Of masking_private the sample's error is that of residuals of one variance.")
    say("Estimates are of records as clipped to the bounds, with values as they were imputed.")
    said = {"of": of, "level": level, "condition": condition, "estimates": rows}
    return {"release": shown(release), **said}


def runs_command(release: str) -> dict[str, Any]:
    """List all attempts at a release, in the order of their runs."""
    release = find_release(release)
    attempts, before = _read_attempts(release), dict[str, Any]()
    say(f"attempts at {shown(release)}, oldest first; each release counts once for the level")
    for one in attempts:
        say(f"{one['run']}  gate {one['state']}, {one['verdict']}; counted as {one['attempt']}")
        for what, sentence in (
            ("method", _say_options(one["options"]["method"])),
            ("changed", _say_changes(list_differences(before, one["options"])) if before else ""),
            ("gain", _say_gain(_find_worst(one))),
            ("target", _say_target(one)),
        ):
            if sentence:
                say(f"  {what:8s} {sentence}")
        before = one["options"]
    if len(attempts) > 1:
        two = " ".join(one["run"] for one in attempts[-2:])
        say(f"next     privpipe diff {two} --release {quote(shown(release))}")
    return {"release": shown(release), "attempts": attempts}


RUN = re.compile("[0-9a-f]{8}")
"""What a run is called."""


def diff_command(one: str, other: str, of: str = "privpipe.toml") -> dict[str, Any]:
    """Hold two attempts at a release side by side: configuration, verdict, gain, target.

    Raises
    ------
    OptionError
        If there is no such attempt.
    """
    for name in (one, other):
        if not RUN.fullmatch(name):
            problem = f"{shown(name)} is no run's name: eight hexadecimal digits."
            remedy = "`privpipe runs RELEASE` lists them. Its report says how far columns moved."
            raise OptionError(problem, remedy=remedy, code="no-run")
    release = find_release(of)
    known = {attempt["run"]: attempt for attempt in _read_attempts(release)}
    for name in (one, other):
        if name not in known:
            problem = f"There is no attempt {name!r} at {shown(release)}{suggest(name, known)}"
            remedy = f"`privpipe runs {quote(shown(release))}` lists them."
            raise OptionError(problem, remedy=remedy, code="missing")
    both = known[one], known[other]
    differing = list_differences(both[0]["options"], both[1]["options"])
    said = {
        "attempt": [one["attempt"] for one in both],
        **differing,
        "gate": [one["state"] for one in both],
        "verdict": [one["verdict"] for one in both],
        "gain": [_say_gain(_find_worst(one)) for one in both],
        "target": [_say_target(one) for one in both],
    }
    rows = list[dict[str, str]]()
    for name, pair in said.items():
        # Of what another method does not have nothing is a default.
        lacks = name.startswith("[method]") and "[method] name" in differing
        values = ["" if lacks and one is None else _say_value(one) for one in pair]
        rows.append({"": name, one: values[0], other: values[1]})
    say(tabulate(rows))
    return {"attempts": list(both), "differences": differing}


def _read_attempts(release: str) -> list[dict[str, Any]]:
    if not (found := read_attempts(companion_url(release, "report"))):
        raise StoreError(
            f"No attempt at {shown(release)} was judged yet.",
            remedy="`privpipe run` judges one; `privpipe status` says how far it is. Of a release "
            "that grows they are in the folder RELEASE.MARK.report beside it.",
            code="missing",
        )
    return found


def _say_options(method: dict[str, Any]) -> str:
    rest = {key: value for key, value in method.items() if key != "name"}
    return ", ".join([method["name"], *(f"{key} = {value}" for key, value in rest.items())])


def _say_changes(changed: dict[str, list[Any]]) -> str:
    """What an attempt changed beside its method."""
    others = {name: pair for name, pair in changed.items() if not name.startswith("[method]")}
    return ", ".join(f"{name} = {_say_value(pair[1])}" for name, pair in others.items())


def _say_value(value: Any) -> str:
    return "default" if value is None else str(value)


def _find_worst(attempt: dict[str, Any]) -> dict[str, Any] | None:
    """The decision that is farthest beyond its limit."""
    known = [one for one in attempt["decisions"] if one["gain_upper"] is not None]
    return max(known, key=lambda one: one["gain_upper"] / max(one["allowed"], 1e-6), default=None)


def _say_gain(worst: dict[str, Any] | None) -> str:
    if worst is None:
        return "unknown"
    limits = f"{worst['gain_lower']:.2g} to {worst['gain_upper']:.2g}"
    return f"{worst['target']}: {worst['gain']:.2g} ({limits}), allowed {worst['allowed']:g}"


def _say_target(attempt: dict[str, Any]) -> str:
    """Score of each target on raw and on released records, by whoever trains anew."""
    parts = []
    for name, views in attempt["target"].items():
        known = [v for k in ("released", "released, attack retrained") if (v := views.get(k))]
        raw, after = views.get("raw"), max(known, default=None)
        if raw is not None and after is not None:
            parts.append(f"{name}: {after:.2f} of {raw:.2f}")
    return ", ".join(parts)
