"""``privpipe demo``: the main job on real records, nothing to download, two minutes at most."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.flows.demo import N_ORIGINALS, draw_portrait, prepare_demo
from privpipe.numerics.limits import fix_limits
from privpipe.pipeline.operations.prefect_server import ephemeral_server, prepare_prefect
from privpipe.report.audit_text import say_gate, say_verdict
from privpipe.report.console import say, tabulate

ROWS = (
    "raw",
    "raw, strongest adversary",
    "released",
    "released, attack retrained",
    "released, strongest adversary",
    "knowing only the target",
    "guessing",
)


def demo_command(out: str, records: int, workers: int) -> dict[str, Any]:
    """Make the collection, run the flow, show what came out and where it is."""
    begun = time.perf_counter()
    say(
        f"{records:,} scans of digits: {records // N_ORIGINALS:,} whole repeats of "
        f"{N_ORIGINALS:,} real ones.\nTarget: is it a zero? Confidential: which digit is it?"
    )
    config = prepare_demo(out, records, workers)
    prepare_prefect()
    from privpipe.flows.release_flow import run_pipeline

    with ephemeral_server():
        run_pipeline(config)
    base = os.path.dirname(config)
    with open(os.path.join(base, "release.report", "audit.json"), encoding="utf-8") as file:
        findings = json.load(file)
    picture = draw_portrait(base)
    seconds = time.perf_counter() - begun
    say(f"Verdict: {say_verdict(findings)}\nGate: {say_gate(findings)}")
    _say_what(findings)
    _say_where(base, picture, seconds)
    return {
        "release": f"{base}/release.zarr",
        "model": f"{base}/release.model.zarr",
        "report": f"{base}/release.report",
        "configuration": config,
        "picture": picture,
        "seconds": round(seconds, 1),
        "audit": findings,
    }


def _say_what(findings: Mapping[str, Any]) -> None:
    say(tabulate(_tabulate(findings)))
    best = findings["adversaries"]["strongest"]["digit"]["released"]
    say(
        f"Accuracies rest on {findings['n_groups']} different scans the fit never saw; the "
        f"adversaries' on {findings['adversaries']['n_records']}. Strongest of "
        f"{len(AttackOptions().adversaries)} adversaries: {best['adversary']}, "
        f"{fix_limits(best['lower'], best['upper'], 2)}."
    )


def _tabulate(findings: Mapping[str, Any]) -> list[dict[str, str]]:
    target, confidential = findings["desired"]["zero"], findings["confidential"]["digit"]
    for source in ("raw", "released"):
        best = findings["adversaries"]["strongest"]["digit"][source]
        confidential |= {f"{source}, strongest adversary": {"accuracy": best["estimate"]}}
    return [
        {
            "predicted from": row,
            "zero: accuracy (F1)": _figure(target.get(row)),
            "which digit: accuracy (F1)": _figure(confidential.get(row)),
        }
        for row in ROWS
    ]


def _figure(found: Mapping[str, float] | None) -> str:
    if found is None:
        return ""
    return f"{found['accuracy']:.3f}" + (f" ({found['f1']:.3f})" if "f1" in found else "")


def _say_where(base: str, picture: str, seconds: float) -> None:
    say(
        f"release  {base}/release.zarr\nmodel    {base}/release.model.zarr\n"
        f"report   {base}/release.report/report.html\npicture  {picture}\n"
        f"Took {seconds:.0f} s. Look at it, then take records of your own:",
        f"  {_call()} open {base}/release.zarr",
        f"  {_call()} ingest people.csv people.zarr --labels TARGET,SECRET",
        f"  {_call()} init people.zarr my.toml --desired TARGET --confidential SECRET",
        f"  {_call()} run my.toml",
    )


def _call() -> str:
    """How this command is called from here: by its path where the shell does not know it."""
    if shutil.which("privpipe"):
        return "privpipe"
    return os.path.relpath(sys.argv[0])
