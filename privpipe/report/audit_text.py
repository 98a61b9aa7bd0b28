"""The audit's findings in sentences."""

from collections.abc import Mapping
from typing import Any

ABOUT = {
    "controller": "who is responsible for the records, with an address",
    "purpose": "what the release is for",
    "recipients": "who gets it",
    "source": "where the records come from, and by what right",
    "persons": "how many people they are about, and which",
    "period": "from when to when they were recorded",
    "special_categories": "health, origin, belief and the like (GDPR Art. 9), or none",
    "trust": "who sees raw records and keys",
    "law": "under which law the promise is made",
    "threshold_set_by": "who chose the limits of [gate], and why",
    "residual_risk": "likelihood and severity of what is left, and measures against it",
    "review_date": "when the decision is looked at again",
    "advice": "what the data-protection officer advises",
}
"""Keys of ``[about]``: what only the controller knows, with what each is."""

LONGEST_ENTRY = 1000
"""Letters of an entry of ``[about]``: the sheet is one page."""


def list_unwritten(declared: Mapping[str, str]) -> list[str]:
    """Keys of ``[about]`` that say nothing yet."""
    return [key for key in ABOUT if not declared.get(key, "").strip()]


def say_unknown(found: Mapping[str, int]) -> str:
    """Categories that no training record has, by column; their names are values of records."""
    if not found:
        return ""
    each = [f"{n} of {name!r}" for name, n in found.items()]
    return f"Categories that no training record has: {', '.join(each)}."


def say_judged(findings: Mapping[str, Any]) -> str:
    """Which records were judged, how many, and what the adversaries' sample is of."""
    # Surrogates are judged as a whole: no record of theirs is anyone's.
    if "n_records" not in findings:
        return str(findings["basis"])
    groups = f" of {findings['n_groups']:,} groups" if findings.get("n_groups") else ""
    sample = findings["adversaries"].get("sample_sentence")
    return f"{findings['basis']} {findings['n_records']:,} records{groups} judged." + (
        f" Adversaries were given a sample: {sample}." if sample else ""
    )


def say_unseen(found: Mapping[str, Any]) -> str:
    """Records released as the nearest profile the fit has seen, in words; counts alone."""
    # A release may be empty when all is withheld.
    share = found["n_records"] / max(1, found["n_released"])
    return (
        f"{found['n_records']:,} of {found['n_released']:,} released records ({share:.1%}) have a "
        "profile that the mapping does not know; each was treated as the nearest one it knows. "
        + say_unknown(found.get("unknown_categories", {}))
    ).strip()


def say_neighbours(found: Mapping[str, Any]) -> str:
    """The promise of differential privacy beside what a distinguishing test reached."""
    return (
        f"Promised is a privacy loss of {found['promised']:g} for every record. A test that "
        f"separated two chosen records by {found['n_releases']:,} releases of each shows it is "
        f"at least {found['epsilon_floor']:.3g}; that it is no more rests on proof alone."
    )


def say_places(found: Mapping[str, Any]) -> str:
    """How many places were compared with the rest, and what could not be, in some sentences."""
    missing = ", ".join(repr(name) for name in found["not_looked"])
    if found["status"] != "measured":
        return f"Which places reveal more than the rest is not known: {found['reason']}."
    said = (
        f"Each of {found['n_chunks']:,} chunks, each of {found['n_partitions']:,} partitions and "
        f"neighbouring chunks together were compared with the rest, by single columns: "
        f"{found['n_found']:,} places surely reveal more."
    )
    blind = {name: n for name, n in found["blind"].items() if n}
    for name, n in blind.items():
        said += f" {n:,} chunks by themselves hold too little to show a copy of {name!r}."
    return said + (f" Of {missing} nothing is known: the released records lack it." * bool(missing))


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
    gate = findings["gate"]
    if gate["state"] == "passed":
        return f"passed: every limit holds.{say_weaker(gate)}"
    if gate["state"] == "approved":
        by = gate["approval"]
        return f"overridden by {by['name']} ({by['reason']}), {by['approved']}. {gate['sentence']}"
    if gate["state"] == "not gated":
        return f"not gated: [gate] enforce is false. {gate['sentence']}"
    return f"failed. {gate['sentence']}"


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
    return (
        "proved: the released features reveal no more than the target prediction, of which they "
        f"are a function by the model {found['model'][:16]}, for {found['theorem']}; verified bit "
        f"by bit on {found['n_records']:,} records. What the target prediction itself reveals is "
        "not proved: adversaries read it in place of the features, with the order, withheld rows "
        "and included variables, and the limits hold for that."
    )
