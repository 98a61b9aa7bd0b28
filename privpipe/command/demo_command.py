"""``privpipe demo``: the main job on real records, nothing to download, two or three minutes."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.errors import OptionError, StoreError
from privpipe.numerics.limits import fix_limits
from privpipe.pipeline.operations.prefect_server import ephemeral_server, prepare_prefect
from privpipe.protocols import AnyArray, FloatArray, IntArray
from privpipe.records.sampling import make_split
from privpipe.records.schema import CollectionSchema, Variable, plan_chunk_rows
from privpipe.report import audit_text, first_screen
from privpipe.report.console import say, tabulate
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from privpipe.store.access.objects import UNFINISHED, write_file
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.writing import write_collection
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release

N_ORIGINALS = 1797
MARK = "demo.toml"
"""Who removes a demo removes it last."""

CONFIGURATION = Path(__file__).with_name("demo.toml").read_text()
"""With places of the folder and of the number of workers."""


def load_scans() -> tuple[FloatArray, IntArray]:
    """The scans, (1797, 64) float32, and their digits, (1797,). Values of scans are 0 to 16."""
    # What `sklearn.datasets.load_digits` reads; its import alone costs seconds of processor time.
    found = find_spec("sklearn")
    assert found is not None, "scikit-learn is required"
    [folder, *_] = found.submodule_search_locations or [""]
    table = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    return table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)


def prepare_demo(folder: str, n_records: int, workers: int) -> str:
    """Write collection and configuration; return the path of the configuration.

    Raises
    ------
    OptionError
        If the number of records is not a whole number of repeats.
    StoreError
        If the folder holds something else, or the disk is too full.
    """
    if n_records < N_ORIGINALS or n_records % N_ORIGINALS:
        problem = f"{n_records} records are not whole repeats of {N_ORIGINALS} scans."
        remedy = f"Use {max(1, n_records // N_ORIGINALS) * N_ORIGINALS}, or the like."
        raise OptionError(problem, remedy=remedy)
    folder = os.path.abspath(folder)
    _clear(folder)
    _check_space(folder, n_records)
    path = os.path.join(folder, MARK)  # first: it says whose folder it is
    write_file(path, CONFIGURATION.format(folder=folder, workers=workers))
    write_digits(os.path.join(folder, "digits.zarr"), n_records)
    return path


def write_digits(url: str, n_records: int) -> CollectionSchema:
    """Write the scans, repeated whole, as a collection."""
    scans, digits = load_scans()
    schema = CollectionSchema(
        n_records=n_records,
        n_features=scans.shape[1],
        dtype="float32",
        chunk_rows=min(plan_chunk_rows(scans.shape[1], 4), n_records),
        variables=(
            Variable("zero", "int8", ("no", "yes")),
            Variable("digit", "int8", tuple("0123456789")),
            Variable("original", "int32"),
        ),
        feature_names=tuple(f"pixel_{i // 8}_{i % 8}" for i in range(64)),
    )
    write_collection(url, schema, _repeat(scans, digits, schema))
    return schema


def _repeat(
    scans: FloatArray, digits: IntArray, schema: CollectionSchema
) -> Iterator[Mapping[str, AnyArray]]:
    for start in range(0, schema.n_records, schema.chunk_rows):
        original = np.arange(start, min(start + schema.chunk_rows, schema.n_records)) % N_ORIGINALS
        yield {
            FEATURES: scans[original],
            "zero": (digits[original] == 0).astype(np.int8),
            "digit": digits[original].astype(np.int8),
            "original": original.astype(np.int32),
        }


def _clear(folder: str) -> None:
    """Remove what an earlier demo left, however it ended; refuse to touch anything else."""
    if not os.path.exists(folder):
        os.makedirs(folder, mode=0o700)
        return
    ours = {MARK, "demo.png", "digits.zarr", "release.zarr", "release.model.zarr"}
    ours |= {"release.report", "account"}
    workspaces = (".release.zarr.privpipe", ".digits.zarr.privpipe")  # also while they are removed
    unfinished = tuple(f".{name}." for name in ours)  # what a kill left of a file as it was written
    there = {
        name
        for name in os.listdir(folder)
        if not (name.startswith(unfinished) and name.endswith(UNFINISHED))
    }
    foreign = {name for name in there - ours if not name.startswith(workspaces)}
    if foreign or (there and MARK not in there):
        problem = f"{folder} holds something that is not of the demo."
        raise StoreError(problem, remedy="Give another folder with --out.", code="exists")
    for name in sorted(os.listdir(folder), key=lambda name: name == MARK):
        place = os.path.join(folder, name)
        (shutil.rmtree if os.path.isdir(place) else os.unlink)(place)


def _check_space(folder: str, n_records: int) -> None:
    """Collection and release take about 170 bytes per record, some more while written."""
    needed, free = n_records * 170, shutil.disk_usage(folder).free
    if needed > free:
        problem = f"The demo needs about {needed / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free."
        remedy = "Use --records 179700 for a small one, or --out for another disk."
        raise StoreError(problem, remedy=remedy, code="disk-full")


def draw_portrait(base: str) -> str:
    """Draw ten digits of a finished demo, as written and as released; the target score under each.

    Returns
    -------
    path
        Of the PNG, beside the report.
    """
    # Matplotlib takes a second to load, which only the end of a demo needs.
    from matplotlib.figure import Figure

    scans, digits = load_scans()
    held_out = make_split(0.5).keep("held_out", np.arange(N_ORIGINALS))
    shown = []
    for digit in range(10):  # per digit the held-out record of median ink
        rows = np.flatnonzero((digits == digit) & held_out)
        order = np.argsort(scans[rows].sum(axis=1), kind="stable")
        shown.append(int(rows[order[len(order) // 2]]))
    cleaner = open_model(os.path.join(base, "release.model.zarr"))
    assert isinstance(cleaner, NullSpaceCleaner)
    release = open_release(os.path.join(base, "release.zarr"))
    released = np.stack([release.features[i].values for i in shown])
    pictures = {"as written": scans[shown], "as released": released}
    figure = Figure(figsize=(12.8, 1.55 * len(pictures)), dpi=120, layout="constrained")
    grid = figure.subplots(len(pictures), len(shown), squeeze=False)
    for axes, (label, records) in zip(grid, pictures.items(), strict=True):
        for ax, record, score in zip(axes, records, cleaner.predict(records)[:, 0], strict=True):
            # One grey scale, that of the scans, for all rows: rescaled they would not compare.
            low, high = float(scans[shown].min()), float(scans[shown].max())
            ax.imshow(record.reshape(8, 8), cmap="gray_r", vmin=low, vmax=high)
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"{score:.2f}", fontsize=9)
        axes[0].set_ylabel(label, fontsize=9, rotation=0, ha="right", va="center")
    figure.supxlabel("under each: zero score", fontsize=9)
    path = os.path.join(base, "release.report", "digits.png")
    figure.savefig(path)
    return path


def demo_command(out: str, records: int, workers: int) -> dict[str, Any]:
    """Make the collection, run the flow, show what came out and where it is."""
    begun = time.perf_counter()
    repeats = f"{records // N_ORIGINALS:,} whole repeats of {N_ORIGINALS:,} real ones"
    say(f"{records:,} scans of digits: {repeats}.")
    say("Target: is it a zero? Confidential: which digit is it?")
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
    say(f"Verdict: {first_screen.say_line(findings)}\nGate: {audit_text.say_gate(findings)}")
    say(tabulate(_tabulate(findings)))
    best = findings["adversaries"]["strongest"]["digit"]["released"]
    limits, n = fix_limits(best["lower"], best["upper"], 2), len(AttackOptions().adversaries)
    say(audit_text.say("demo", findings=findings, best=best, limits=limits, n_adversaries=n))
    # By its path where the shell does not know it.
    call = "privpipe" if shutil.which("privpipe") else os.path.relpath(sys.argv[0])
    say(audit_text.say("demo_where", base=base, picture=picture, seconds=seconds, call=call))
    return {
        "release": f"{base}/release.zarr",
        "model": f"{base}/release.model.zarr",
        "report": f"{base}/release.report",
        "configuration": config,
        "picture": picture,
        "seconds": round(seconds, 1),
        "audit": findings,
    }


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
        for row in audit_text.read_texts("words.yaml")["demo_rows"]
    ]


def _figure(found: Mapping[str, float] | None) -> str:
    if found is None:
        return ""
    return f"{found['accuracy']:.3f}" + (f" ({found['f1']:.3f})" if "f1" in found else "")
