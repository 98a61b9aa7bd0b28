"""Kept values come back to the last bit, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.moment_audit import AuditSums, PairMoments
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.threats.verdicts.safeguards import Detection
from privpipe.attacks.utility import UtilityLosses
from privpipe.cluster.pass_checkpoints import (
    KNOWN,
    JointSums,
    PartialSum,
    read_checkpoint,
    write_checkpoint,
)
from privpipe.numerics.moments import CoMoments
from privpipe.numerics.tsqr import TriangularFactor
from privpipe.protocols import Shard
from privpipe.records.sampling import DrawnSample, PartCount
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.masking.private_sums import PrivateSums
from privpipe.sanitizers.masking.record_survey import RecordSurvey
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LabelledMoments,
    LabelMoments,
    Radius,
)
from privpipe.sanitizers.noise.noisy_filter import FilteredMean, NormCounts
from privpipe.sanitizers.null_space.predictors import DesignMoments

ROWS = np.random.default_rng(0).normal(size=(50, 4)) / 3
MOMENTS = CoMoments.of(ROWS)
LABEL = LabelMoments.of(ROWS, (ROWS[:, 0] > 0).astype(float))
VALUES = (
    MOMENTS,
    TriangularFactor.of(ROWS),
    DesignMoments(3, {"desired": 1}, {("desired",): MOMENTS, (): MOMENTS}),
    PairMoments(MOMENTS, (None, np.arange(6).reshape(2, 3))),
    AuditSums(3, {"e/privacy": ROWS[0], "nothing": np.empty((0, 2))}),
    UtilityLosses(3, 1 / 3, math.inf, 2, 1),
    RecordSurvey(1, 3, 0, ROWS[0], ROWS[1], ROWS[2], ROWS[0] > 0, ROWS[3], ROWS[4], {"1": MOMENTS}),
    FilteredMean(50, ROWS.sum(axis=0)),
    NormCounts(np.arange(5)),
    LABEL,
    LabelledMoments(MOMENTS, 2, (LABEL,)),
    Radius(1 / 3),
    ProfileCounts(np.arange(6).reshape(2, 3), np.array([4, 5]), 2, 1),
    JointSums((MOMENTS, UtilityLosses(3, 1 / 3, 0.5, 2, 1))),
    PartialSum(2000, MOMENTS),
    DrawnSample(Shard(ROWS), np.arange(50, dtype=np.uint64), np.arange(50), np.ones(50, int), 90),
    PrivateSums(np.arange(9).reshape(3, 3), 5, 1, 2),
    PartCount(3, None),
    PartCount(3, 2),
    Detection("a", "bits", math.nan, "bit_reader", False),
    AttackOutcome(
        Attack("a/b", "classes", "raw", "rbf"),
        "measured",
        scores=(Score("auc", Interval(0.1, math.nan, 0.3, 0.95, "wilson"), 0.5),),
        seconds=1 / 3,
    ),
)


def equal(one: Any, other: Any) -> bool:
    """To the last bit, NaN equal to NaN, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if is_dataclass(one):
        return all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other or one != one)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_checkpoint__comes_back_to_the_last_bit(tmp_path: Path, value: Any) -> None:
    assert write_checkpoint(str(tmp_path), "answer", value) > 0
    assert equal(read_checkpoint(str(tmp_path), "answer"), value)


def test_checkpoint__knows_every_class_that_the_values_hold() -> None:
    assert KNOWN.keys() - {type(value).__name__ for value in VALUES} == {
        "Attack",
        "Interval",
        "LearningCurve",
        "PersonLeverage",
        "PlaceSums",
        "Score",
        "Shard",
    }


def test_checkpoint__notices_every_damaged_byte(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), "answer", TriangularFactor.of(ROWS[:2]))
    file = tmp_path / "answer"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_checkpoint(str(tmp_path), "answer") is None
    file.write_bytes(whole[: len(whole) // 2])
    assert read_checkpoint(str(tmp_path), "answer") is None
    assert read_checkpoint(str(tmp_path), "another") is None


def seal_and_put(file: Path, document: Any, *arrays: Any) -> None:
    """Whole, but not written by this version."""
    held, named = io.BytesIO(), {f"value.{i}": array for i, array in enumerate(arrays)}
    np.savez(held, document=np.array(json.dumps(document)), **named)
    content = held.getvalue()
    sealed = f"{file.name}\n".encode() + content
    file.write_bytes(hashlib.blake2b(sealed, digest_size=32).digest() + content)


def test_checkpoint__exchanged_for_another_is_found_out_anew(tmp_path: Path) -> None:
    write_checkpoint(str(tmp_path), "sums", MOMENTS)
    write_checkpoint(str(tmp_path), "outcome", PartCount(3, 2))
    sums, outcome = (tmp_path / name for name in ("sums", "outcome"))
    sums.rename(tmp_path / "third")
    outcome.rename(sums)
    (tmp_path / "third").rename(outcome)
    assert read_checkpoint(str(tmp_path), "sums") is None
    assert read_checkpoint(str(tmp_path), "outcome") is None


@pytest.mark.parametrize(
    "document",
    [
        {"map": "Unknown", "fields": {}},
        {"map": "PartCount", "fields": {"n_records": 3}},
        {"map": "PartCount", "fields": {"n_records": 3, "n_groups": 1, "n_more": 2}},
        {"tuple": [{"array": 7}]},
        {"neither": 1},
        {},
    ],
)
def test_checkpoint__of_another_version_counts_as_not_kept(tmp_path: Path, document: Any) -> None:
    seal_and_put(tmp_path / "answer", document)
    assert read_checkpoint(str(tmp_path), "answer") is None


def test_checkpoint__keeps_numbers_of_numpy_as_they_are(tmp_path: Path) -> None:
    answer = (np.float64(1 / 3), np.int32(2), 1.5, np.array(2.0))
    write_checkpoint(str(tmp_path), "answer", answer)
    assert equal(read_checkpoint(str(tmp_path), "answer"), answer)


def test_checkpoint__is_never_unpickled(tmp_path: Path) -> None:
    document = {"tuple": [{"array": 0}]}
    seal_and_put(tmp_path / "answer", document, np.arange(3))
    np.testing.assert_array_equal(read_checkpoint(str(tmp_path), "answer")[0], np.arange(3))
    seal_and_put(tmp_path / "answer", document, np.array([{}, None], object))
    assert read_checkpoint(str(tmp_path), "answer") is None


@dataclass(frozen=True)
class Foreign:
    """A statistic that nobody said may be kept."""

    rows: Any


@pytest.mark.parametrize("value", [Foreign(ROWS), PartialSum(5000, Foreign(ROWS))])
def test_checkpoint__leaves_out_classes_that_are_not_listed(tmp_path: Path, value: Any) -> None:
    assert write_checkpoint(str(tmp_path), "answer", value) == 0
    assert not list(tmp_path.iterdir())


def test_checkpoint__leaves_out_what_is_too_large(tmp_path: Path) -> None:
    size = write_checkpoint(str(tmp_path), "answer", MOMENTS, most_bytes=10)
    assert size > 10
    assert not list(tmp_path.iterdir())
    write_checkpoint(str(tmp_path), "answer", MOMENTS, most_bytes=size)
    assert [file.stat().st_size - 32 for file in tmp_path.iterdir()] == [size]
