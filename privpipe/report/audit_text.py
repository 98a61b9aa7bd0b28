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


ABOUT: Mapping[str, str] = read_texts("about.yaml")
"""Keys of ``[about]``: what only the controller knows, with what each is."""

LONGEST_ENTRY = 1000
"""Letters of an entry of ``[about]``: the sheet is one page."""


def list_unwritten(declared: Mapping[str, str]) -> list[str]:
    """Keys of ``[about]`` that say nothing yet."""
    return [key for key in ABOUT if not declared.get(key, "").strip()]


def say_unknown(found: Mapping[str, int]) -> str:
    """Categories that no training record has, by column; their names are values of records."""
    return say("unknown", found=found)


def say_judged(findings: Mapping[str, Any]) -> str:
    """Which records were judged, how many, and what the adversaries' sample is of."""
    return say("judged", found=findings)


def say_unseen(found: Mapping[str, Any]) -> str:
    """Records released as the nearest profile the fit has seen, in words; counts alone."""
    return say("unseen", found=found, say_unknown=say_unknown)


def say_canaries(found: Mapping[str, Any]) -> str:
    """The promise of differential privacy beside the floor that guesses at canaries reached."""
    return say("canaries", found=found)


def say_orders(found: Mapping[str, Any]) -> str:
    """What either order of filter and noise leaves, and which epsilon is enough."""
    return say("orders", one=found)


def say_places(found: Mapping[str, Any]) -> str:
    """How many places were compared with the rest, and what could not be, in some sentences."""
    return say("places", found=found)


def say_verdict(findings: Mapping[str, Any]) -> str:
    """The verdict with its reason in a sentence, for the last line of a run."""
    reason = findings["adversaries"].get("reason") or "no adversary succeeded"
    return f"{name_verdict(findings)}: {reason}"


def name_verdict(findings: Mapping[str, Any]) -> str:
    """The verdict in a word or some: "safe" alone is said by limits as strict as usual only."""
    verdict = str(findings["adversaries"]["verdict"])
    # A reader takes the word for the usual limits.
    is_weaker = verdict == "safe" and (findings.get("gate") or {}).get("weaker")
    return "safe within weaker limits" if is_weaker else verdict


def say_gate(findings: Mapping[str, Any]) -> str:
    """What became of the gate, in a sentence."""
    return say("gate", gate=findings["gate"], say_weaker=say_weaker)


def say_attempt(findings: Mapping[str, Any]) -> str:
    """How often these records were judged, to follow a sentence; nothing where that is unknown."""
    number = findings.get("attempt")
    if number is None:
        return ""
    return f" Attempt {number} at a release of these records: attempts share the level."


def say_weaker(gate: Mapping[str, Any]) -> str:
    """Which limits are weaker than usual, to follow a sentence; nothing where none does."""
    weaker = gate.get("weaker")
    return f" Weaker than usual: {'; '.join(weaker)}." if weaker else ""


def say_proof(found: Mapping[str, Any]) -> str:
    """What is proved of the released features in place of attacks on them."""
    return say("proof", found=found)
