"""The real pipeline in one thread: no Prefect, no Dask, the same functions of store and flows.

What the flow would hand to workers is called here one after the other, so that writes have an
order that a test can count, and so that a crash can be put between any two of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe.flows.increment_flow
import privpipe.flows.release_flow
import privpipe.pipeline.stages.audit.audit_stage
import privpipe.pipeline.stages.clean
import privpipe.pipeline.stages.train
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes import loaded_map
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.check import check_stage
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.report.console import PlainConsole
from privpipe.store.arrays import blocks
from privpipe.store.collections.writing import write_collection

N_RECORDS, N_FEATURES, CHUNK_ROWS = 460, 5, 50
"""10 chunks, the last one not full: two tasks of the cleaning."""


@contextmanager
def serial_flows() -> Iterator[None]:
    """Replace what needs Prefect or a cluster; everything else stays what it is."""
    with pytest.MonkeyPatch.context() as patch:
        for flow in (privpipe.flows.release_flow, privpipe.flows.increment_flow):
            patch.setattr(flow, "open_executor", lambda *_: nullcontext(Executor()))
        yield


def run_serially(options: RunOptions, *, full: bool = False) -> str:
    """One process that runs the job once; what a process remembers is forgotten first."""
    blocks.open_array.cache_clear()
    loaded_map.load_map.cache_clear()
    return privpipe.flows.release_flow.release_collection(
        options,
        Watch(PlainConsole(file=io.StringIO())),
        checked=replace(check_stage(options), whole_audit=True) if full else None,
    )


def make_options(source: str, release: str, **more: Any) -> RunOptions:
    """The configuration of the tests: one desired, one confidential, one included variable."""
    return RunOptions(
        collection={"path": source, "desired": ["wanted"], "confidential": ["secret"]},
        method={"name": "null_space", "utility_budget": 0.05, "ridge": 0.01},
        release={"path": release, "include": ["place"]},
        # Adversaries are trained by workers; the rest of the audit is the real one.
        **{"audit": {"holdout": 0.4, "adversaries": []}, "gate": {"enforce": False}} | more,
    )


def write_small_collection(
    url: str, *, n_records: int = N_RECORDS, seed: int = 7, feature_names: tuple[str, ...] = ()
) -> None:
    """Records of 5 features; a desired, a confidential and an includable variable."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(n_records, N_FEATURES)) + np.arange(5)
    wanted = features @ [1.0, -1.0, 0.5, 0.0, 0.0] + random.normal(size=n_records) / 10
    secret = (features @ [0.0, 1.0, 1.0, -1.0, 0.3] > 1).astype(np.int8)
    schema = CollectionSchema(
        n_records=n_records,
        n_features=N_FEATURES,
        dtype="float64",
        chunk_rows=CHUNK_ROWS,
        variables=(
            Variable("wanted", "float64"),
            Variable("secret", "int8", ("no", "yes")),
            Variable("place", "int8", ("here", "there", "nowhere")),
        ),
        feature_names=feature_names,
    )
    place = random.integers(0, 3, n_records).astype(np.int8)
    write_collection(
        url,
        schema,
        (
            {
                "features": features[start : start + CHUNK_ROWS],
                "wanted": wanted[start : start + CHUNK_ROWS],
                "secret": secret[start : start + CHUNK_ROWS],
                "place": place[start : start + CHUNK_ROWS],
            }
            for start in range(0, n_records, CHUNK_ROWS)
        ),
    )


def read_tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by its name within it."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
