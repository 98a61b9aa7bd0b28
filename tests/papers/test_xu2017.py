"""Xu et al. 2017: the toy example, Figures 4, 6 and 7, and where they cannot agree."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from flows.reproduce.null_space_privacy import measure_null_space_privacy
from flows.reproduce.printed_cleaner import PrintedCleaner
from flows.reproduce.registry import run_reproduction
from flows.reproduce.xu import (
    LabelTable,
    Reading,
    draw_trial,
    measure_laplace,
    measure_trial,
    read_table,
    reproduce_xu_fig4,
    reproduce_xu_fig6,
    reproduce_xu_fig7,
)
from flows.reproduce.xu_figures import FIGURE_4, FIGURE_6
from flows.reproduce.xu_folder import measure_folder
from privpipe.errors import InputError, OptionError
from privpipe.sanitizers.null_space.algorithms import (
    NullSpaceCleaner,
    fit_null_space_cleaner,
    fit_targeted_cleaner,
)
from tests.oracles import exact_loss

FIRST = Reading("first", "zero_one")


def make_table(n_records=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_records, 10)) + 1
    labels = (x @ rng.normal(size=(10, 4)) + 0.3 * rng.normal(size=(n_records, 4)) > 0).astype(
        float
    )
    return LabelTable("made", x, labels)


def test_toy_example__is_the_paper_s_table():
    cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    released = cleaner.apply(np.array([[3, 1], [4, 2], [5, 1], [6, 5]]))
    np.testing.assert_allclose(released, [[1, -1], [1, -1], [2, -2], [0.5, -0.5]], atol=1e-12)


def test_draw_trial__is_the_same_for_the_same_run_and_parts_the_labels():
    table = make_table()
    first, again, other = (draw_trial(table, 3, FIRST, run) for run in (0, 0, 1))
    x, y = (next(iter(t.train.shards())) for t in (first, again))
    np.testing.assert_array_equal(x.features, y.features)
    assert (first.train.n_records, first.test.n_records) == (270, 30)
    assert (x.desired.shape[1], x.confidential.shape[1]) == (3, 1)
    assert not np.array_equal(x.features, next(iter(other.train.shards())).features)
    with pytest.raises(InputError, match="4 of 4 labels"):
        draw_trial(table, 4, FIRST, 0)


def test_measure_trial__takes_any_table_of_labels():
    table = make_table()
    trial = draw_trial(table, 2, Reading("random", "plus_minus"), 0)
    one, two = (measure_trial(trial, algorithm, 0.01) for algorithm in (1, 2))
    for found in (one, two):
        assert found.n_above_budget == 0
        assert found.e_utility <= 0.02
    noise = measure_laplace(table, trial, FIRST, 0.01, 0)
    assert noise[0] < one.direct.e_privacy


def test_read_table__says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"scene.npz cannot be read"):
        read_table(tmp_path, "scene")
    np.savez(tmp_path / "half.npz", X=np.ones((3, 2)))
    with pytest.raises(InputError, match=r"half.npz cannot be read"):
        read_table(tmp_path, "half")


def write_mulan(folder, name, table):
    """The table as Mulan writes it: an ARFF and an XML list of labels."""
    k = table.labels.shape[1]
    lines = [
        f"@relation {name}",
        *(f"@attribute x{j} numeric" for j in range(table.features.shape[1])),
    ]
    lines += [*(f"@attribute y{j} {{0,1}}" for j in range(k)), "@data"]
    for x, y in zip(table.features, table.labels, strict=True):
        lines.append(",".join([*(repr(float(v)) for v in x), *(str(int(v)) for v in y)]))
    (folder / f"{name}.arff").write_text("\n".join(lines) + "\n")
    names = "".join(f'<label name="y{j}"></label>' for j in range(k))
    header = '<?xml version="1.0" encoding="utf-8"?>'
    (folder / f"{name}.xml").write_text(
        f'{header}<labels xmlns="http://mulan.sourceforge.net/labels">{names}</labels>'
    )


def test_measure_own__takes_any_mulan_table(tmp_path):
    table = make_table()
    binary = LabelTable("own", table.features, table.labels)
    write_mulan(tmp_path, "own", binary)
    read = read_table(tmp_path, "own")
    assert np.array_equal(read.labels, binary.labels)
    assert np.array_equal(read.features, binary.features)
    found = measure_folder(tmp_path, 2)
    assert {cell.verdict for cell in found.cells} == {"not compared"}
    assert {cell.cell.split(",")[0] for cell in found.cells} == {
        f"own {row} algorithm {n}" for row in ("1/3", "2/2", "3/1") for n in (1, 2)
    }
    # The same labels as a plain list.
    (tmp_path / "own.xml").unlink()
    (tmp_path / "own.labels").write_text("y0\ny1\n\ny2\ny3\n")
    again = read_table(tmp_path, "own")
    assert np.array_equal(again.labels, binary.labels)
    assert np.array_equal(again.features, binary.features)


def test_measure_own__says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"no \.arff"):
        measure_folder(tmp_path, 1)
    write_mulan(tmp_path, "own", make_table(20))
    (tmp_path / "own.xml").unlink()
    with pytest.raises(InputError, match="no list of the labels") as caught:
        measure_folder(tmp_path, 1)
    assert "own.labels" in caught.value.remedy
    (tmp_path / "own.labels").write_text("y0\n")
    with pytest.raises(InputError, match="has 1 label"):
        measure_folder(tmp_path, 1)
    (tmp_path / "own.labels").write_text("y0\nz9\n")
    with pytest.raises(OptionError, match="no column 'z9'"):
        measure_folder(tmp_path, 1)


@pytest.fixture(scope="module")
def cells(paper_data):
    """Both figures, of the same trials, each of which is measured once."""
    known = {}

    def measure_once(trial, algorithm, budget):
        [shard] = trial.train.shards()
        content = b"".join(part.tobytes() for part in (shard.features, shard.desired))
        key = (hashlib.sha256(content).digest(), trial.n_desired, algorithm, budget)
        if key not in known:
            known[key] = measure_trial(trial, algorithm, budget)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.reproduce.xu.measure_trial", measure_once)
        found = [*reproduce_xu_fig4(paper_data, 10).cells, *reproduce_xu_fig6(paper_data, 10).cells]
    return {cell.cell: cell for cell in found}


@pytest.mark.paper
@pytest.mark.slow
def test_figures_4_and_6__scene_agrees_in_every_cell(cells):
    rows = [cell for name, cell in cells.items() if "scene" in name]
    assert len(rows) == 6 * 5
    for cell in rows:
        allowed = 5.0 if cell.unit == "percent" else 0.15 * cell.paper
        assert abs(cell.ours - cell.paper) <= allowed, cell.cell


@pytest.mark.paper
@pytest.mark.slow
def test_figures_4_and_6__wq_1_13_agrees(cells):
    rows = [cell for name, cell in cells.items() if "wq 1/13" in name]
    assert len(rows) == 2 * 5
    for cell in rows:
        allowed = 3.0 if cell.unit == "percent" else 0.2 * cell.paper
        assert abs(cell.ours - cell.paper) <= allowed, cell.cell


@pytest.mark.paper
@pytest.mark.slow
def test_figures_4_and_6__what_differs_is_explained(cells):
    printed = [row for row in (*FIGURE_4, *FIGURE_6) if row[0] != "CAL500"]
    assert len(cells) == 3 * len(printed) // 2 + 2 * len(printed) // 2
    differing = [cell for cell in cells.values() if cell.verdict == "differs"]
    assert all(cell.note for cell in differing)
    # The paper's complete privacy is met in all rows but these, whose one label on a side is not
    # named: see the next test. "Agrees" was once within twice the tolerance, which the rows of
    # oes97 (8.8 points) and of algorithm 1 (8.6) were, so that one cell differed; it is within 5.
    percent = {cell.cell: cell for cell in differing if cell.unit == "percent"}
    assert set(percent) <= UNNAMED
    for name, cell in percent.items():
        if name != "Figure 4, wq 13/1 algorithm 2, complete privacy":
            assert cell.lower <= cell.paper <= cell.upper, name


UNNAMED = {
    f"Figure 4, {row} algorithm {algorithm}, complete privacy"
    for row in ("wq 13/1", "oes97 1/15")
    for algorithm in (1, 2)
}


def choose(table, chosen, n_desired):
    """The table with one label alone on its side: the last, or the first where one is desired."""
    rest = [k for k in range(table.labels.shape[1]) if k != chosen]
    order = [chosen, *rest] if n_desired == 1 else [*rest, chosen]
    return LabelTable(table.name, table.features, table.labels[:, order])


def complete_privacy(table, n_desired, algorithm, runs, budget=0.01):
    trials = [draw_trial(table, n_desired, FIRST, run) for run in range(runs)]
    return [measure_trial(t, algorithm, budget).direct.complete_privacy for t in trials]


@pytest.mark.paper
@pytest.mark.parametrize(("algorithm", "paper"), [(1, 0.748), (2, 0.455)])
def test_figure_4__wq_13_1_is_of_a_label_that_the_paper_does_not_name(paper_data, algorithm, paper):
    table = read_table(paper_data, "wq")
    n_labels = table.labels.shape[1]
    found = [
        np.mean(complete_privacy(choose(table, k, 13), 13, algorithm, 3)) for k in range(n_labels)
    ]
    assert min(found) < paper - 0.05
    assert max(found) > paper
    # It is not the grid of the release, which gives away a millionth of the budget: a hundred
    # times as much turns no record.
    one, other = (
        complete_privacy(table, 13, algorithm, 3, budget) for budget in (0.01, 0.01 * (1 - 1e-4))
    )
    assert one == other


@pytest.mark.paper
@pytest.mark.slow
def test_figure_7__laplace_at_equal_utility_hides_less(paper_data):
    cells = {cell.cell: cell for cell in reproduce_xu_fig7(paper_data, 4).cells}
    assert all(cell.note for cell in cells.values() if cell.verdict == "differs")
    for row in ("scene 0.01", "oes97 0.01"):
        noise = cells[f"Figure 7, {row}, Laplace complete privacy"].ours
        assert noise < cells[f"Figure 7, {row}, attacked complete privacy"].ours
        assert noise < cells[f"Figure 7, {row}, complete privacy"].ours


FITS = {
    "greedy": fit_null_space_cleaner,
    "kkt": partial(fit_null_space_cleaner, rule="kkt"),
    "likely": partial(fit_null_space_cleaner, representative="likely"),
    "null_first": fit_targeted_cleaner,
    "simultaneous": partial(fit_targeted_cleaner, variant="simultaneous"),
}


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.filterwarnings("ignore::privpipe.errors.PrivacyWarning")
@pytest.mark.parametrize("intercept", ["separate", "augmented", "none"])
@pytest.mark.parametrize("name", ["wq", "scene", "oes97"])
def test_theorem_1__holds_for_every_record_as_stored(paper_data, name, intercept):
    table = read_table(paper_data, name)
    n_labels = table.labels.shape[1]
    for n_desired, (kind, fit) in product((1, n_labels // 2, n_labels - 1), FITS.items()):
        if intercept == "augmented" and kind == "likely":
            continue  # refused
        trial = draw_trial(table, n_desired, FIRST, 0)
        cleaner = fit(trial.train, utility_budget=0.01, intercept=intercept)
        for dtype in ("float32", "float64"):
            check_bound(
                replace(cleaner, on_unrepresentable="withhold"), table.features.astype(dtype), kind
            )


def check_bound(cleaner, x, kind):
    """No record above the budget, none withheld, next to nothing of the budget given away."""
    released = cleaner.apply(x)
    seen = np.column_stack([x, np.ones(len(x), x.dtype)]) if cleaner.augmented else x
    kept = ~np.isnan(released[:, 0])
    loss = exact_loss(cleaner.predictor, seen[kept], released[kept])
    assert (loss <= 0.01).all()
    assert kept.all()
    if x.dtype == np.float64:
        centred = (seen - cleaner.centre).astype(np.longdouble)
        most = ((centred @ cleaner.predictor.astype(np.longdouble)) ** 2).sum(axis=1)
        assert (1 - np.sqrt(loss / np.minimum(most, 0.01))).max() <= 1e-4


@pytest.mark.paper
@pytest.mark.parametrize("name", ["wq", "oes97", pytest.param("scene", marks=pytest.mark.slow)])
def test_algorithm_2__is_algorithm_1_for_one_desired_label(paper_data, name):
    table = read_table(paper_data, name)
    trial = draw_trial(table, 1, FIRST, 0)
    one = fit_null_space_cleaner(trial.train, utility_budget=0.01)
    two = fit_targeted_cleaner(trial.train, utility_budget=0.01)
    first, second = one.apply(table.features), two.apply(table.features)
    size = np.abs(first).max(axis=1, keepdims=True)
    np.testing.assert_allclose(second / size, first / size, rtol=0, atol=1e-12)


@pytest.mark.paper
def test_printed_algorithm_2__hides_next_to_nothing_from_the_attack(paper_data):
    trial = draw_trial(read_table(paper_data, "scene"), 3, Reading("first", "plus_minus"), 0)
    sound = fit_targeted_cleaner(trial.train, utility_budget=0.01, intercept="augmented")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        printed = PrintedCleaner.from_predictors(
            sound.predictor, sound.confidential, utility_budget=0.01, augmented=True
        )
    leaky, kept = (
        measure_null_space_privacy(cleaner, trial.train, trial.test) for cleaner in (printed, sound)
    )
    assert leaky.attacked.e_privacy < 0.02
    assert kept.attacked.e_privacy > 10 * leaky.attacked.e_privacy


@pytest.mark.paper
@pytest.mark.slow
@pytest.mark.parametrize("name", ["xu-fig4", "xu-fig6", "xu-fig7"])
def test_reproduce__gives_table_json_and_picture(paper_data, name, tmp_path):
    found = run_reproduction(name, paper_data, runs=1)
    document = json.loads(found.to_json())
    assert document["paper"].startswith("Xu et al. 2017")
    assert len(found.table) == len(document["cells"]) == len(found.cells)
    found.figure().savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
