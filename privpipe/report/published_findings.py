"""What a release says of its audit and its promise: what its public page says, and nothing else.

The whole audit is beside the release, for those who run the pipeline. It holds counts of a few
records, which the header of something published may not. Digits are a channel too: header and page
round alike, limits upwards.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from privpipe.numerics.limits import say_upper
from privpipe.protocols import Guarantee
from privpipe.report.audit_text import read_texts, say_weaker
from privpipe.report.suppression import SMALL, coarsen, coarsen_limit, find_shown_size

# More digits than any promise means.
DIGITS = 6
"""Of a promised number."""

EXACT = ("grid",)
"""Parameters of a promise that readers compute with, and that the records show as they are."""

PROOFS: Mapping[str, str] = read_texts("words.yaml")["proofs"]
"""The wing whose page proves a kind of promise."""


def name_proof(promise: Guarantee) -> dict[str, str]:
    """The page that proves a promise; nothing where a paper's proof is cited alone."""
    wing = PROOFS.get(promise.kind)
    page = f"privpipe/numerics/{wing}/PROOF.md, installed with privpipe and part of its site"
    return {} if wing is None else {"proof": page}


def say_promised(number: float) -> str:
    """A promised number for everybody, never less than it is.

    >>> say_promised(0.5), say_promised(0.12345678)
    ('0.5', '0.123457')
    """
    # Upwards: a promise that is rounded down was never made.
    return say_upper(number, digits=DIGITS)


def say_parameter(name: str, value: float) -> str:
    """A number beside the promised one; as that, where it is a limit."""
    return say_promised(value) if name.endswith("_at_most") else f"{value:.{DIGITS}g}"


def publish_guarantee(promise: Guarantee) -> dict[str, Any]:
    """The promise as the header holds it: its fields, numbers as `say_promised` says them."""
    return asdict(promise) | {
        "number": None if promise.number is None else float(say_promised(promise.number)),
        "delta": float(say_promised(promise.delta)),
        "parameters": [
            (name, value if name in EXACT else float(say_parameter(name, value)))
            for name, value in promise.parameters
        ],
    }


def publish_findings(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The findings for everybody: verdicts, limits, utility, rounded as on the public page.

    Parameters
    ----------
    findings
        What ``audit.json`` holds.

    Returns
    -------
    published
        In the same places: ``about``, ``basis``, and ``desired``, rounded. Of ``adversaries`` the
        verdict, and the decisions with what decides. Of ``gate`` state, limits, what is weaker,
        approval.
    """
    found = findings.get("adversaries") or {"verdict": "unknown", "decisions": []}
    about = findings.get("about") or {}
    published: dict[str, Any] = {
        "format_version": findings.get("format_version", 1),
        "about": {name: about[name] for name in ("method", "guarantee") if name in about},
        "basis": findings.get("basis", ""),
        "adversaries": _publish_verdicts(found),
        "desired": _publish_predictions(findings),
    }
    if gate := findings.get("gate"):
        published["gate"] = _publish_gate(gate, published["adversaries"])
    return published


def hide_small_count(count: int | None) -> int | None:
    """A count of records, or None where it is of a few.

    >>> hide_small_count(0), hide_small_count(3), hide_small_count(4501)
    (0, None, 4501)
    """
    return None if count is not None and 0 < count < SMALL else count


def _publish_verdicts(found: Mapping[str, Any]) -> dict[str, Any]:
    # Rounding to the steps of a count that is left out would give it away.
    n_records = find_shown_size(found)
    decisions = [
        {
            "target": one["target"],
            "verdict": one["verdict"],
            "reason": _say_verdict(one),
            "gain_upper": _read(
                coarsen_limit(one.get("gain_upper"), one.get("allowed"), n_records)
            ),
            "allowed": one.get("allowed"),
        }
        for one in found.get("decisions", ())
    ]
    verdict = str(found.get("verdict", "unknown"))
    reason = " ".join(one["reason"] for one in decisions) or f"The audit is {verdict}."
    return {"verdict": verdict, "reason": reason, "decisions": decisions}


def _say_verdict(one: Mapping[str, Any]) -> str:
    verdict = one["verdict"] if one["verdict"] == "leaks" else f"is {one['verdict']}"
    return f"{one['target']!r} {verdict}."


def _publish_predictions(findings: Mapping[str, Any]) -> dict[str, Any]:
    n_records = int(findings.get("n_groups") or findings.get("n_records") or 0)
    rounded: dict[str, Any] = {}
    for name, views in (findings.get("desired") or {}).items():
        for view, figures in views.items():
            rounded.setdefault(name, {})[view] = {
                score: value
                for score in ("accuracy", "r2")
                if (value := _read(coarsen(figures.get(score), n_records))) is not None
            }
    return rounded


def _publish_gate(gate: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    weaker, less = list(gate.get("weaker") or ()), say_weaker(gate)
    # Codes, not reasons: these quote counts.
    codes = sorted({one["code"] for one in gate.get("complaints", ())} - {*VERDICTS})
    others = f" Beyond its limits: {', '.join(codes)}." if codes else ""
    closed = f"The gate stays closed. {found['reason']}{others}"
    is_open = not gate.get("complaints") and gate["state"] in ("passed", "not gated")
    said = {key: gate.get(key) for key in ("limits", "approval")}
    sentence = f"The gate is open: every limit holds.{less}" if is_open else closed
    return {"state": gate["state"], "sentence": sentence, "weaker": weaker, **said}


VERDICTS = ("leaks", "unproven", "unknown")
"""Complaints that the verdicts say already."""


def _read(shown: str) -> float | None:
    return None if shown == "-" else float(shown)
