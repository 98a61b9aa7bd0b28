"""The figures of Xu et al. on data sets of the user's own, in the files of Mulan."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from flows.reproduce.result import Cell, Reproduction, compare_cell
from flows.reproduce.steps import expect_steps, step
from flows.reproduce.xu import (
    LabelTable,
    Reading,
    Trial,
    draw_trial,
    measure_trial,
    read_attacked,
    read_direct,
    read_table,
)
from privpipe.errors import InputError

COLUMNS = (
    "e_utility",
    "e_privacy",
    "complete privacy",
    "attacked e_privacy",
    "attacked complete privacy",
)

NOTES = (
    "Ones are appended and cleaned along, the budget is .01 per desired label, labels are taken as "
    "they are, e_privacy is measured against the raw confidential prediction and complete privacy "
    "against the true label.",
    "One, half and all but one of the labels are desired, drawn anew in each run.",
)


def measure_folder(data: Path, runs: int) -> Reproduction:
    """Figures 4 and 6 for every Mulan-style .arff of a folder.

    Parameters
    ----------
    data
        Folder with ``<name>.arff`` and, for each, ``<name>.xml`` (Mulan's) or ``<name>.labels``
        (a label on each line).
    runs
        Runs to average.

    Raises
    ------
    InputError
        If there is no .arff, or one has no list of labels or fewer than two.
    """
    paths = sorted(data.glob("*.arff"))
    if not paths:
        raise InputError(
            f"There is no .arff in {data}.",
            remedy="Name a folder of Mulan data sets with --data.",
            code="missing_data",
        )
    tables = [read_table(data, path.stem) for path in paths]
    expect_steps(2 * runs * sum(len(_choose_numbers(table)) for table in tables))
    cells = [cell for table in tables for cell in _measure_table(table, runs)]
    return Reproduction(tuple(cells), NOTES)


def _choose_numbers(table: LabelTable) -> list[int]:
    """Numbers of desired labels: one, half of them, all but one."""
    n_labels = table.labels.shape[1]
    if n_labels < 2:
        raise InputError(
            f"{table.name}.arff has {n_labels} label.",
            remedy="At least two are needed: one to keep and one to hide.",
            code="missing_labels",
        )
    return sorted({1, n_labels // 2, n_labels - 1})


def _measure_table(table: LabelTable, runs: int) -> list[Cell]:
    n_labels = table.labels.shape[1]
    cells: list[Cell] = []
    for n_desired in _choose_numbers(table):
        trials = [
            draw_trial(table, n_desired, Reading("random", "zero_one"), run) for run in range(runs)
        ]
        algorithms: tuple[Literal[1, 2], ...] = (1, 2)
        for algorithm in algorithms:
            row = f"{table.name} {n_desired}/{n_labels - n_desired} algorithm {algorithm}"
            found = [
                step(f"{row}, run {run + 1}", partial(_measure, trial, algorithm))
                for run, trial in enumerate(trials)
            ]
            cells += [
                compare_cell(
                    f"{row}, {column}",
                    values,
                    paper=None,
                    tolerance=0.0,
                    unit="percent" if "complete" in column else f"{column}, squared units",
                )
                for column, values in zip(COLUMNS, zip(*found, strict=True), strict=True)
            ]
    return cells


def _measure(trial: Trial, algorithm: Literal[1, 2]) -> tuple[float, ...]:
    found = measure_trial(trial, algorithm, 0.01)
    return (*read_direct(found, trial.n_desired), *read_attacked(found, 1))
