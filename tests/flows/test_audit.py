"""What stops a release before it is published, at its very edges; and what is counted once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from privpipe.attacks.utility import UtilityLosses
from privpipe.capabilities import UtilityPromise, UtilitySummary
from privpipe.errors import GuaranteeError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.audit.audit_stage import WIDEST_GAP, _check_promise, _count_parts
from privpipe.pipeline.stages.check import check_stage
from privpipe.records.sampling import Part, make_split
from privpipe.store.collections.collection import open_collection
from tests.flows.test_pipeline import configure
from tests.standard import make_standard, write_standard

BUDGET = 0.04
N_RECORDS = 100
GAP = WIDEST_GAP * BUDGET**0.5
PROMISE = UtilityPromise(make_standard(1)[0].T, BUDGET)


def found(largest: float = 0.18, mean: float = 0.1, *, n_above: int = 0) -> UtilityLosses:
    """Losses by their roots, which is how they are compared."""
    return UtilityLosses(N_RECORDS, N_RECORDS * mean**2, largest**2, 0, n_above)


def said(n_records: int = N_RECORDS, n_withheld: int = 0) -> UtilitySummary:
    return UtilitySummary(n_records, n_withheld, N_RECORDS * 0.1**2, 0.18**2, 0)


def check(losses: UtilityLosses, cost: UtilitySummary | None, *, is_dense: bool = True) -> None:
    _check_promise(losses, PROMISE, cost, is_dense=is_dense)


@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("cost", [None, said(), said(7)])
def test_check_promise__refuses_a_single_record_above(
    cost: UtilitySummary | None, is_dense: bool
) -> None:
    with pytest.raises(GuaranteeError, match="1 of 100 records lost more") as caught:
        check(found(n_above=1), cost, is_dense=is_dense)
    assert caught.value.code == "budget-exceeded"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("which", ["largest", "mean"])
def test_check_promise__compares_largest_and_mean_from_both_sides(which: str, sign: int) -> None:
    usual = {"largest": 0.18, "mean": 0.1}[which]
    check(found(**{which: usual + sign * 0.9 * GAP}), said())
    with pytest.raises(GuaranteeError, match="another loss of utility") as caught:
        check(found(**{which: usual + sign * 1.1 * GAP}), said())
    assert caught.value.code == "audit-disagrees"


def test_check_promise__compares_where_both_speak_of_the_same_records() -> None:
    wrong = found(largest=0.15)
    with pytest.raises(GuaranteeError, match="another loss"):
        check(wrong, said(N_RECORDS + 5, n_withheld=5))
    check(wrong, said(N_RECORDS + 5))  # some were imputed: their loss is not known
    check(wrong, None)
    check(wrong, said(), is_dense=False)  # readers of a factored release round by themselves


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_standard(str(tmp_path / "records.zarr"), 300)
    return check_stage(
        read_options(
            configure(tmp_path, desired='["income"]\nsubject = "person"', audit="holdout = 0.3")
        )
    )


def test_count_parts__reads_the_collection_once(run: Run) -> None:
    parts: tuple[Part, ...] = ("fit", "attack", "test")
    first = _count_parts(run, parts)
    assert sum(part.n_records for part in first) == 300
    assert first[0].n_records > first[1].n_records + first[2].n_records > 0
    shutil.rmtree(run.training.url)
    assert _count_parts(run, parts) == first


def test_count_parts__gives_no_kept_answer_to_another_question(run: Run, tmp_path: Path) -> None:
    asked: tuple[Part, ...] = ("fit", "test")
    _count_parts(run, asked)
    write_standard(str(tmp_path / "others.zarr"), 200)
    questions: list[tuple[Run, tuple[Part, ...]]] = [
        (run, ("test", "fit")),
        (run, ("all",)),
        (replace(run, split=make_split(0.6, "person")), asked),
        (replace(run, split=make_split(0.3)), asked),
        (replace(run, training=open_collection(str(tmp_path / "others.zarr"))), asked),
    ]
    for other, parts in questions:
        assert _count_parts(other, parts) == tuple(other.training.count_parts(other.split, parts))
