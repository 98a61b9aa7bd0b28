"""The audit's findings in sentences, most of them those of ``templates/sentences.yaml``."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template


@cache
def read_texts(name: str) -> Any:
    """What a YAML file among the templates holds; it is shared, and must not be changed."""
    import yaml

    return yaml.safe_load(files("privpipe.report").joinpath(f"templates/{name}").read_text("utf-8"))


@cache
def sentences() -> "Environment":
    """Templates of sentences; their values are escaped where a page is rendered: they are data."""
    # Here, not at the top: a configuration is read without templates.
    from jinja2 import Environment, StrictUndefined

    made = Environment(undefined=StrictUndefined, autoescape=False)
    made.globals["say"] = say
    made.filters["count"] = "{:,}".format
    made.filters["mib"] = lambda n_bytes: f"{n_bytes / 2**20:,.0f}"
    made.filters["quoted"] = repr
    made.filters["words"] = lambda name: str(name).replace("_", " ")
    return made


@cache
def _compile(text: str) -> "Template":
    return sentences().from_string(text)


def fill(text: str, given: Mapping[str, Any]) -> str:
    """A template of a sentence, with what it names."""
    return _compile(text).render(given).strip()


def say(name: str, /, **given: Any) -> str:
    """A sentence of ``templates/sentences.yaml``."""
    return fill(read_texts("sentences.yaml")[name], given)


Findings = Mapping[str, Any]
"""What an audit found, as in ``audit.json``."""

ABOUT: Mapping[str, str] = read_texts("about.yaml")
"""Keys of ``[about]``: what only the controller knows, with what each is."""

LONGEST_ENTRY = 1000
"""Letters of an entry of ``[about]``: the sheet is one page."""


def list_unwritten(declared: Mapping[str, str]) -> list[str]:
    """Keys of ``[about]`` that say nothing yet."""
    return [key for key in ABOUT if not declared.get(key, "").strip()]


def say_verdict(findings: Findings) -> str:
    """The verdict with its reason in a sentence, for the last line of a run."""
    reason = findings["adversaries"].get("reason") or "no adversary succeeded"
    return f"{name_verdict(findings)}: {reason}"


def name_verdict(findings: Findings) -> str:
    """The verdict in a word or some: "safe" alone is said by limits as strict as usual only."""
    verdict = str(findings["adversaries"]["verdict"])
    # A reader takes the word for the usual limits.
    is_weaker = verdict == "safe" and (findings.get("gate") or {}).get("weaker")
    return "safe within weaker limits" if is_weaker else verdict


def say_gate(findings: Findings) -> str:
    """What became of the gate, in a sentence."""
    return say("gate", gate=findings["gate"], say_weaker=say_weaker)


def say_attempt(findings: Findings) -> str:
    """How often these records were judged, to follow a sentence; nothing where that is unknown."""
    number = findings.get("attempt")
    if number is None:
        return ""
    return f" Attempt {number} at a release of these records: attempts share the level."


def say_weaker(gate: Mapping[str, Any]) -> str:
    """Which limits are weaker than usual, to follow a sentence; nothing where none does."""
    weaker = gate.get("weaker")
    return f" Weaker than usual: {'; '.join(weaker)}." if weaker else ""
