"""The audit against what it rests on: its price, its errors, its page, and comparisons.

Processor seconds of this process, all in one run; simulations are in `audit_errors`. The five
figures: (1) an audit against three cleanings and one fit of every adversary, and what of it is no
attack; (2) error rates; (3) an eraser before a linear adversary and before all; (4) the page of
thirty variables; (5) a comparison of four methods against four runs.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privpipe import Records, fit_leace_eraser
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Target
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import measure_attacks, train_adversary
from privpipe.attacks.threats.power import LEAKS
from privpipe.cluster.executors.executor import Executor
from privpipe.flows.comparison import compare_collection
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run import find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.audit.audit_stage import audit_stage
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import clean_stage, plan_release
from privpipe.pipeline.stages.gate import gate_stage
from privpipe.pipeline.stages.train import train_stage
from privpipe.protocols import Column
from privpipe.report.console import PlainConsole
from privpipe.report.release_page import render_release_page
from privpipe.store.access.workspace import hold_workspace
from tests.bench import audit_errors, audit_power
from tests.gate.leaky_runs import make_records, write_records

Row = tuple[str, float, str, str, float, float]
T = TypeVar("T")

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "leace"},
    *(
        {"name": "null_space", "utility_budget": budget, "ridge": 0.01}
        for budget in (0.001, 0.1, 1)
    ),
)


def run(small: bool) -> list[Row]:
    """All rows; the large size takes some ten minutes."""
    n_records, n_features = (3_000, 4) if small else (100_000, 300)
    n_audits = 1 if small else 100
    with tempfile.TemporaryDirectory(prefix="bench-audit-") as folder:
        rows, findings = measure_audit(Path(folder), n_records, n_features, small=small)
        rows += measure_page(findings)
        rows += measure_compare(Path(folder), small=small)
    rows += measure_errors(n_audits)
    rows += measure_statements(2 if small else 200)
    return [*rows, *([] if small else measure_eraser())]


def _row(name: str, value: float, unit: str, reference: str, against: float) -> Row:
    return name, value, unit, reference, against, value / against if against else 0.0


def _spend(function: Callable[[], T]) -> tuple[T, float]:
    begun = time.process_time()
    found = function()
    return found, time.process_time() - begun


def make_options(folder: Path, **more: Any) -> RunOptions:
    """Sections of a run in this process whose gate judges nothing."""
    quick = {"adversaries": ["least_squares", "naive_bayes"]} if more.pop("small") else {}
    sections: dict[str, Any] = {
        "collection": {
            "path": str(folder / "records.zarr"),
            "desired": ["wanted"],
            "confidential": ["secret"],
        },
        "method": METHODS[1],
        "release": {"path": str(folder / "release.zarr")},
        "audit": {"holdout": 0.5, **quick},
        "gate": {"enforce": False},
        "cluster": {"workers": 0},
    }
    return RunOptions(**sections | more)


def run_stages(options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train, clean, audit and gate; the findings, and processor seconds of each."""
    run, executor, spent = check_stage(options), Executor(), {}
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        trained, spent["train"] = _spend(lambda: train_stage(run, executor))
        plan = plan_release(run, trained)
        cleaned, spent["clean"] = _spend(lambda: clean_stage(run, trained, plan, executor))
        found, spent["audit"] = _spend(lambda: audit_stage(run, trained, cleaned, executor))
        found = gate_stage(run, cleaned, found)
    about = {"format_version": 1, "about": {}, "unseen": None}
    return json.loads(json.dumps({**about, **found})), spent


def measure_audit(
    folder: Path, n_records: int, n_features: int, *, small: bool
) -> tuple[list[Row], dict[str, Any]]:
    """Figure 1."""
    random = np.random.default_rng(0)
    records = make_records(n_records)
    more = random.normal(size=(n_records, n_features - records["features"].shape[1]))
    records["features"] = np.hstack([records["features"], more])
    write_records(str(folder / "records.zarr"), records)
    options = make_options(folder, small=small)
    findings, spent = run_stages(options)
    attacks = find_attack_options(options)
    few = min(n_records // 2, attacks.max_records)
    evidence = prepare_evidence(
        records["features"][:few], records["secret"][:few].astype(np.int64), options=attacks
    )
    fits = 0.0
    for name in attacks.adversaries:
        _, seconds = _spend(
            lambda name=name: train_adversary(  # type: ignore[misc]
                Target(evidence, 0, attacks), "released", name
            )
        )
        fits += seconds
    table = findings["adversaries"]["table"]
    own = {(r["source"], r["adversary"], r["target"]): r["seconds"] for r in table}
    rest = max(spent["audit"] - sum(own.values()), 0.0)
    size = f"{n_records:,} x {n_features}"
    return [
        _row(
            f"audit, {size}",
            spent["audit"],
            "s CPU",
            "3 cleanings and a fit of every adversary",
            3 * spent["clean"] + fits,
        ),
        _row(
            "audit beside its inference attacks", rest, "s CPU", "3 cleanings", 3 * spent["clean"]
        ),
        _row("a fit of every adversary", fits, "s CPU", "audit", spent["audit"]),
    ], findings | {"spent": spent["audit"]}


def measure_page(findings: dict[str, Any]) -> list[Row]:
    """Figure 4: thirty variables, each with the attacks of one."""
    found = findings["adversaries"]
    wide = found | {
        "decisions": [
            one | {"target": f"{one['target']} {k}"}
            for k in range(30)
            for one in found["decisions"]
        ],
        "table": [
            row | {"target": f"{row['target']} {k}"} for k in range(30) for row in found["table"]
        ],
        "roc": found["roc"]
        | {
            "curves": [
                one | {"target": f"{one['target']} {k}"}
                for k in range(30)
                for one in found["roc"]["curves"]
            ]
        },
    }
    render_release_page(findings)  # imports
    _, once = _spend(lambda: render_release_page(findings))
    page = render_release_page(findings | {"adversaries": wide})
    return [
        _row("page of 30 variables", len(page.encode()) / 1e6, "MB", "1.5 MB", 1.5),
        _row("rendering", once, "s CPU", "a twentieth of the audit", findings["spent"] / 20),
    ]


def _repeat(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one variable as those of thirty."""
    return [row | {"target": f"{row['target']} {k}"} for k in range(30) for row in rows]


def measure_compare(folder: Path, *, small: bool) -> list[Row]:
    """Figure 5: four methods on 6,000 records."""
    home = folder / "compare"
    write_records(str(home / "records.zarr"), make_records(2_000 if small else 6_000))
    seconds = 0.0
    methods = METHODS[:2] if small else METHODS
    for k, method in enumerate(methods):
        alone = {"method": method, "release": {"path": str(home / f"release-{k}.zarr")}}
        seconds += sum(run_stages(make_options(home, small=small, **alone))[1].values())
    entries = [{"label": str(k), "method": method} for k, method in enumerate(methods)]
    options = make_options(home, small=small, compare=entries)
    _, spent = _spend(lambda: compare_collection(options, Watch(PlainConsole(file=io.StringIO()))))
    return [_row("compare of four methods", spent, "s CPU", "four runs", seconds)]


def measure_errors(n_audits: int) -> list[Row]:
    """Figure 2; at full size by ``python -m tests.bench.audit_errors``."""
    rows = []
    for grouped in (False, True):
        word = "grouped" if grouped else "single"
        noise = audit_errors.measure_false_leaks(n_audits, grouped=grouped)
        law = "grouped" if grouped else "single"
        limit, twice = (audit_errors.measure_verdicts(n_audits, law, k) for k in (1.0, 2.0))
        rows += [
            _row(f"noise said to leak, {word}", noise["leaks"], "share", "1 - level", 0.05),
            _row(f"intervals hold the truth, {word}", noise["covers"], "share", "level", 0.95),
            _row(f"at the limit said safe, {word}", limit["safe"], "share", "1 - level", 0.05),
            _row(f"twice the limit said safe, {word}", twice["safe"], "share", "none", 0.0),
        ]
    return rows


def measure_statements(n_trials: int) -> list[Row]:
    """Figure 2: stated leaks that are found, per kind; all laws by `tests.bench.audit_power`."""
    rows = []
    for leak in LEAKS:
        trials = [audit_power.try_statement(leak, "classes", seed) for seed in range(2 * n_trials)]
        share, _ = audit_power.hold_statement(trials)
        name = f"stated leak found: {leak} ({share.lower:.3f} to {share.upper:.3f})"
        rows.append(_row(name, share.estimate, "share", "wanted", 0.95))
    return rows


def measure_eraser() -> list[Row]:
    """Figure 3, where the data of the papers are: LEACE on faces and on motion."""
    data = Path(os.environ.get("PRIVPIPE_PAPER_DATA", ""))
    secrets = {"genki": "gender", "har": "activity"}
    return [
        _erase(data / f"{name}.npz", secret)
        for name, secret in secrets.items()
        if (data / f"{name}.npz").exists()
    ]


def _erase(place: Path, secret: str) -> Row:
    """Advantage of the whole set behind LEACE, against that of a linear adversary alone.

    Of records with subjects the eraser learns from half of them, and others are attacked, with
    intervals and splits by subject. By what the features tell; their bits are another matter.
    """
    content, random = np.load(place), np.random.default_rng(0)
    x, y = np.asarray(content["X"], np.float64), content[secret].astype(np.int64)
    y, subject = np.unique(y, return_inverse=True)[1], np.arange(len(x))
    if "subject" in content:
        subject = content["subject"].astype(np.int64)
    names = random.permutation(np.unique(subject))
    learns = np.isin(subject, names[: len(names) // 2])
    rest = random.permutation(np.flatnonzero(~learns))[:3000]
    given: dict[str, Any] = {"columns": [Column(secret, int(y.max()) + 1)]}
    if "subject" in content:
        given["groups"] = subject[rest]
    codes = np.array([f"class {code}" for code in y])
    fitted = fit_leace_eraser(Records(x[learns], confidential=codes[learns]))
    released = np.asarray(fitted.apply(x[rest]), np.float32)
    options = AttackOptions(adversaries=("logistic", "boosting", "quadratic", "polynomial"))
    found = {}
    for adversaries in (("logistic",), options.adversaries):
        report = measure_attacks(
            released, y[rest], options=replace(options, adversaries=adversaries), **given
        )
        found[adversaries] = report.strongest(secret, "accuracy")[1]
    alone, every = found.values()
    name = f"{place.stem} behind LEACE, all ({every.advantage_lower:.2f} at least)"
    against = f"logistic alone ({alone.advantage_lower:.2f} at least)"
    return _row(name, every.advantage, "advantage", against, alone.advantage)
