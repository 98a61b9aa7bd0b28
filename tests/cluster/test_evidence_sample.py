"""The adversaries' sample: bounded, by weight, the same for whole repeats of what is grouped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.cluster.passes.evidence_sample import AuditSources, sample_evidence
from privpipe.cluster.passes.loaded_map import StoredMap
from privpipe.cluster.passes.sample_drawing import Published, make_sample_key
from privpipe.command.demo_command import N_ORIGINALS, write_digits
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from privpipe.store.collections.collection import open_collection
from privpipe.store.models import digest_map, write_model


def draw(folder: Path, repeats: int, most: int) -> np.ndarray:
    url = str(folder / f"digits-{repeats}.zarr")
    write_digits(url, repeats * N_ORIGINALS)
    cleaner = NullSpaceCleaner.from_predictor(np.ones((64, 1)), utility_budget=0.01)
    model = str(folder / f"model-{repeats}.zarr")
    write_model(cleaner, model)
    (folder / "place").mkdir(exist_ok=True)
    (folder / "place" / "key").write_bytes(bytes(32))
    place = (str(folder / "place"), make_sample_key(str(folder / "place")))
    evidence = sample_evidence(
        AuditSources(
            open_collection(url, confidential=["digit"]),
            StoredMap(model, digest_map(cleaner)),
            Published(group="original"),
            place=place,
        ),
        AttackOptions(max_records=most),
    )
    return np.column_stack([evidence.truth, evidence.sources["raw"].values])


def test_sample_evidence__is_the_same_for_whole_repeats(tmp_path: Path) -> None:
    once, often = draw(tmp_path, 1, 500), draw(tmp_path, 40, 500)
    assert len(once) == 500
    assert np.array_equal(once, often)


def test_sample_evidence__takes_every_record_when_it_may(tmp_path: Path) -> None:
    assert len(draw(tmp_path, 2, 10_000)) == N_ORIGINALS  # each group's two are the same
