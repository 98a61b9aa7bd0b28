"""Xu et al. 2017, Figures 4, 6 and 7, done again: our numbers beside the paper's, cell by cell.

The paper leaves open which labels are desired and how labels are coded; `READINGS` states what we
took, found by fitting readings to its tables. Any data set with features and 0/1 or numeric labels
can be put through the same measurements as a `LabelTable`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flows.reproduce.laplace import LaplaceMechanism
from flows.reproduce.null_space_privacy import NullSpacePrivacy, measure_null_space_privacy
from flows.reproduce.result import Cell, Reproduction
from flows.reproduce.steps import expect_steps, step
from flows.reproduce.xu_figures import DATASETS, FIGURE_4, FIGURE_6, FIGURE_7, NOTES, make_cell
from flows.reproduce.xu_picture import draw_complete_privacy
from privpipe.errors import InputError
from privpipe.numerics.moments import Coding
from privpipe.protocols import FloatArray, IntArray
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner, fit_targeted_cleaner
from privpipe.sanitizers.null_space.linear_cleaner import LinearCleaner
from privpipe.store.sources.formats import open_source
from privpipe.store.sources.reading.source import Coded, SourceLayout

Choice = Literal["first", "random", "last"]


@dataclass(frozen=True)
class Reading:
    """How a row of the paper's tables is read.

    Parameters
    ----------
    choice
        Which labels are desired: the first of the file, the last, or drawn in each run.
    coding
        Values of the labels: 0/1 (or as they are), or -1/+1.
    """

    choice: Choice
    coding: Coding


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Records with several labels each, as in the Mulan repository.

    Parameters
    ----------
    name
        Of the data set.
    features : (n_records, n_features)
    labels : (n_records, n_labels)
        0/1 of a multi-label classification, or numbers of several regressions.
    """

    name: str
    features: FloatArray
    labels: FloatArray


@dataclass(frozen=True, eq=False)
class Trial:
    """One run: 90 % of the records train everything, the rest are judged."""

    train: Records
    test: Records
    n_desired: int


READINGS: dict[tuple[str, int], Reading] = {
    ("scene", 1): Reading("first", "plus_minus"),
    ("scene", 3): Reading("first", "plus_minus"),
    ("scene", 5): Reading("first", "plus_minus"),
    **{("CAL500", n): Reading("first", "plus_minus") for n in (1, 87, 173)},
    ("wq", 1): Reading("first", "zero_one"),
    ("wq", 7): Reading("random", "zero_one"),
    ("wq", 13): Reading("first", "zero_one"),
    ("oes97", 1): Reading("first", "zero_one"),
    ("oes97", 8): Reading("first", "zero_one"),
    ("oes97", 15): Reading("last", "zero_one"),
}
"""By data set and number of desired labels."""


def reproduce_xu_fig4(data: Path, runs: int) -> Reproduction:
    """Figure 4: algorithms 1 and 2 without attack, e_utility, e_privacy and complete privacy.

    Parameters
    ----------
    data
        Folder with data sets of the paper; rows of others are left out.
    runs
        Runs to average; the paper has 10.
    """
    return _present(_reproduce_table(data, runs, FIGURE_4, read_direct))


def reproduce_xu_fig6(data: Path, runs: int) -> Reproduction:
    """Figure 6: the same with the attack of algorithm 3; see `reproduce_xu_fig4`."""
    return _present(_reproduce_table(data, runs, FIGURE_6, read_attacked))


def reproduce_xu_fig7(data: Path, runs: int) -> Reproduction:
    """Figure 7: Laplace noise at equal utility beside algorithm 1; see `reproduce_xu_fig4`."""
    cells: list[Cell] = []
    expect_steps(runs * sum(has_table(data, name) for name, _ in FIGURE_7))
    for (name, budget), printed in FIGURE_7.items():
        if not has_table(data, name):
            continue
        n_desired = 1 if name == "scene" else 8
        table, reading = read_table(data, name), READINGS[name, n_desired]
        row = f"{name} {budget:g}"

        measure = partial(_measure_against_laplace, table, reading, n_desired, budget)
        found = [
            step(f"Figure 7, {row}, run {run + 1}", partial(measure, run)) for run in range(runs)
        ]
        cells += make_cell_row("Figure 7", row, printed, list(zip(*found, strict=True)), name)
    return _present(cells)


def _present(found: Iterable[Cell]) -> Reproduction:
    cells = tuple(found)
    return Reproduction(cells, NOTES, partial(draw_complete_privacy, cells))


def has_table(folder: Path, name: str) -> bool:
    """Whether a folder holds a data set."""
    return any((folder / f"{name}.{kind}").is_file() for kind in ("npz", "arff"))


def read_table(folder: Path, name: str) -> LabelTable:
    """Read ``<name>.npz`` with arrays X and Y, or ``<name>.arff`` with its list of labels.

    The list is Mulan's ``<name>.xml``, or ``<name>.labels`` with a name on each line.

    Raises
    ------
    InputError
        If neither is there, an array is missing, or there is no list of labels.
    """
    path = folder / f"{name}.npz"
    if not path.exists() and has_table(folder, name):
        return _read_arff(folder, name)
    try:
        with np.load(path, allow_pickle=False) as stored:
            x, y = stored["X"].astype(np.float64), stored["Y"].astype(np.float64)
    except (OSError, KeyError) as error:
        problem = type(error).__name__
    else:
        return LabelTable(name, x, y)
    raise InputError(
        f"{path} cannot be read ({problem}).",
        remedy="Name the folder of the papers' data sets; files hold X and Y, records as rows.",
        code="missing_data",
    )


def _read_arff(folder: Path, name: str) -> LabelTable:
    """The whole table: data sets of this repository are small."""
    listed = folder / f"{name}.labels"
    if listed.is_file():
        names = tuple(line.strip() for line in listed.read_text().splitlines() if line.strip())
    elif (folder / f"{name}.xml").is_file():
        names = None
    else:
        raise InputError(
            f"There is no list of the labels of {name}.arff.",
            remedy=f"Put Mulan's {name}.xml beside it, or {name}.labels with a name on each line.",
            code="missing_labels",
        )
    source = open_source(str(folder / f"{name}.arff"), SourceLayout(labels=names))
    blocks = list(source.read(2**16, True))
    labels = [
        np.column_stack([_as_numbers(values) for values in block.variables.values()])
        for block in blocks
    ]
    features = np.concatenate([block.features.astype(np.float64) for block in blocks])
    return LabelTable(name, features, np.concatenate(labels))


def _as_numbers(values: npt.NDArray[Any] | Coded) -> FloatArray:
    """A label of a Mulan file, whose nominal values are the texts of numbers."""
    if not isinstance(values, Coded):
        return values.astype(np.float64)
    return np.array([*values.names, "nan"], np.float64)[values.codes]


def draw_trial(table: LabelTable, n_desired: int, reading: Reading, run: int) -> Trial:
    """Split the records 90/10 and choose the desired labels, by the number of the run.

    Parameters
    ----------
    table
        The records.
    n_desired
        Desired labels; all others are confidential.
    reading
        Choice of labels and their coding.
    run
        Number of the run; the same number gives the same trial.
    """
    n, n_labels = table.labels.shape
    if not 0 < n_desired < n_labels:
        raise InputError(
            f"{n_desired} of {n_labels} labels are to be desired.",
            remedy=f"Use 1 to {n_labels - 1}: at least one label stays confidential.",
        )
    rng = np.random.default_rng(1000 + run)
    order, drawn = rng.permutation(n), rng.permutation(n_labels)
    chosen: IntArray = {
        "first": np.arange(n_labels),
        "last": np.arange(n_labels)[::-1],
        "random": drawn,
    }[reading.choice]
    coded = 2 * table.labels - 1 if reading.coding == "plus_minus" else table.labels
    labels = np.asarray(coded, np.float64)  # numbers, as the paper has them
    cut = round(0.9 * n)

    def part(rows: IntArray) -> Records:
        return Records(
            table.features[rows],
            desired=labels[np.ix_(rows, chosen[:n_desired])],
            confidential=labels[np.ix_(rows, chosen[n_desired:])],
        )

    return Trial(part(order[:cut]), part(order[cut:]), n_desired)


def measure_trial(trial: Trial, algorithm: Literal[1, 2], budget: float) -> NullSpacePrivacy:
    """Fit a cleaner as the paper does and measure it on the records left out.

    A column of ones is appended and cleaned along, and the budget is per desired label.
    """
    fit: Callable[..., LinearCleaner] = (
        fit_null_space_cleaner if algorithm == 1 else fit_targeted_cleaner
    )
    cleaner = fit(trial.train, utility_budget=budget, budget="per_label", intercept="augmented")
    return measure_null_space_privacy(cleaner, trial.train, trial.test)


def measure_laplace(
    table: LabelTable, trial: Trial, reading: Reading, budget: float, run: int
) -> tuple[float, float]:
    """e_privacy and complete privacy of Laplace noise on the features, at equal utility.

    The paper's figures come out only with the confidential predictor fitted to all records.
    """
    whole = Records(
        np.concatenate([_features(trial.train), _features(trial.test)]),
        confidential=np.concatenate([_secrets(trial.train), _secrets(trial.test)]),
    )
    cleaner = fit_null_space_cleaner(trial.train, utility_budget=0.0)
    mechanism = LaplaceMechanism.from_predictor(
        cleaner.predictor, utility_budget=budget * trial.n_desired
    )
    key = hashlib.sha256(f"{table.name} {reading.choice} {budget} {run}".encode()).digest()
    found = measure_null_space_privacy(mechanism, whole, trial.test, noise_key=key)
    assert found.direct is not None, "noise keeps all features"
    return found.direct.e_privacy, 100 * found.direct.complete_privacy


def _measure_against_laplace(
    table: LabelTable, reading: Reading, n_desired: int, budget: float, run: int
) -> tuple[float, ...]:
    trial = draw_trial(table, n_desired, reading, run)
    laplace = measure_laplace(table, trial, reading, budget, run)
    ours = measure_trial(trial, 1, budget)
    return (*laplace, *read_direct(ours, n_desired)[1:], *read_attacked(ours, 1))


def _measure_and_read(
    table: LabelTable,
    reading: Reading,
    n_desired: int,
    which: Literal[1, 2],
    read: Callable[[NullSpacePrivacy, int], tuple[float, ...]],
    run: int,
) -> tuple[float, ...]:
    trial = draw_trial(table, n_desired, reading, run)
    return read(measure_trial(trial, which, 0.01), n_desired)


def _reproduce_table(
    data: Path,
    runs: int,
    printed: dict[tuple[str, int, int], tuple[float, ...]],
    read: Callable[[NullSpacePrivacy, int], tuple[float, ...]],
) -> Iterator[Cell]:
    expect_steps(runs * sum(has_table(data, name) for name, _, _ in printed))
    for (name, n_desired, algorithm), values in printed.items():
        if not has_table(data, name):
            continue
        table, reading = read_table(data, name), READINGS[name, n_desired]
        which: Literal[1, 2] = 1 if algorithm == 1 else 2
        row = f"{name} {n_desired}/{table.labels.shape[1] - n_desired} algorithm {algorithm}"
        figure = "Figure 4" if len(values) == 3 else "Figure 6"

        measure = partial(_measure_and_read, table, reading, n_desired, which, read)
        found = [
            step(f"{figure}, {row}, run {run + 1}", partial(measure, run)) for run in range(runs)
        ]
        columns = list(zip(*found, strict=True))
        yield from make_cell_row(figure, row, values, columns, name, n_desired)


def make_cell_row(
    figure: str,
    row: str,
    printed: Sequence[float],
    found: Sequence[Sequence[float]],
    name: str,
    n_desired: int = 0,
) -> list[Cell]:
    """The cells of one row of a table, in the order of its columns."""
    columns = DATASETS[figure]
    return [
        make_cell(f"{figure}, {row}, {column}", column, runs, paper, name, n_desired)
        for column, runs, paper in zip(columns, found, printed, strict=True)
    ]


def read_direct(found: NullSpacePrivacy, n_desired: int) -> tuple[float, float, float]:
    """A row of Figure 4: e_utility per desired label, e_privacy, complete privacy in percent."""
    assert found.direct is not None, "the cleaned record has the ones column of the predictor"
    assert found.e_utility is not None, "the cleaner holds its predictor"
    return (
        found.e_utility / n_desired,
        found.direct.e_privacy,
        100 * found.direct.complete_privacy,
    )


def read_attacked(found: NullSpacePrivacy, n_desired: int) -> tuple[float, float]:
    """A row of Figure 6: e_privacy and complete privacy in percent; `n_desired` plays no part."""
    return found.attacked.e_privacy, 100 * found.attacked.complete_privacy


def _features(records: Records) -> FloatArray:
    return np.concatenate([shard.features for shard in records.shards()])


def _secrets(records: Records) -> FloatArray:
    return np.concatenate([shard.confidential for shard in records.shards()])
