"""The compiled kernel and NumPy give the same bytes; what cannot be kept is withheld."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.numerics.null_space import cleaning
from privpipe.numerics.null_space.cleaning import (
    clean_block,
    clean_with_kernel,
    clean_with_numpy,
    reconstruct_records,
)
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, fit_null_space_cleaner

RULES = ("greedy", "in_order", "kkt")


def make_form(rank, rule, dtype, *, budget=0.3, augmented=False):
    rng = np.random.default_rng(rank)
    cleaner = NullSpaceCleaner.from_predictor(
        rng.normal(size=(20 + augmented, rank)),
        utility_budget=budget,
        rule=rule,
        centre=None if augmented else rng.normal(size=20),
        augmented=augmented,
    )
    return cleaner._form(np.dtype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "augmented", "rule", "dtype", "lifted"),
    [
        *((3, False, rule, "float32", True) for rule in RULES),
        *((4, True, rule, "float64", True) for rule in RULES),
        (1, False, "greedy", "float32", True),
        (1, False, "kkt", "float64", False),
        (3, True, "in_order", "float32", False),
    ],
)
def test_kernel__gives_the_bytes_of_numpy(rank, augmented, rule, dtype, lifted):
    form = make_form(rank, rule, dtype, augmented=augmented)
    x = (np.random.default_rng(0).normal(size=(500, 20)) * 0.4).astype(dtype)
    x[7] = 0
    fast = clean_with_kernel(x, form, dtype, lifted=lifted, out=None)
    plain = clean_with_numpy(x, form, dtype, lifted=lifted, out=None)
    assert fast.released.tobytes() == plain.released.tobytes()
    assert fast.spent.tobytes() == plain.spent.tobytes()
    assert fast.released.dtype == plain.released.dtype
    assert not fast.withheld.any()
    assert not plain.withheld.any()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clean", [clean_with_kernel, clean_with_numpy])
def test_clean__withholds_what_rounding_may_carry_over_the_budget(clean, rule):
    form = replace(make_form(2, rule, "float32", budget=1e-8), balance=None)
    x = np.random.default_rng(0).normal(size=(6, 20)).astype(np.float32)
    x[1] *= 1e6
    x[2, 3] = np.nan
    x[3, 3] = np.inf
    found = clean(x, form, "float32", lifted=True, out=None)
    np.testing.assert_array_equal(found.withheld, [False, True, True, True, False, False])
    assert np.isnan(found.released[found.withheld]).all()
    assert np.isfinite(found.released[~found.withheld]).all()


@pytest.mark.parametrize("clean", [clean_with_kernel, clean_with_numpy])
def test_clean__removes_the_null_space_only_at_budget_zero(clean):
    form = make_form(2, "greedy", "float64", budget=0.0)
    x = np.random.default_rng(0).normal(size=(50, 20)) * 1e9
    found = clean(x, form, "float64", lifted=True, out=None)
    assert not found.withheld.any()
    assert not found.spent.any()
    shifted = x @ form.predictor + form.defects.shift
    expected = form.centre + shifted @ form.defects.turn @ form.lift.T
    np.testing.assert_allclose(found.released, expected, rtol=1e-8, atol=1.0)
    assert (found.released != expected).any(), "it is that of the grid"


@pytest.mark.parametrize("clean", [clean_with_kernel, clean_with_numpy])
def test_clean__leaves_no_negative_zero(clean):
    form = make_form(2, "greedy", "float64", budget=1e6)
    plain = replace(form, centre=np.zeros(20), defects=replace(form.defects, shift=np.zeros(2)))
    x = np.random.default_rng(0).normal(size=(50, 20))
    found = clean(x, plain, "float64", lifted=True, out=None)
    assert not found.released.any()
    assert not np.signbit(found.released).any()


def test_clean_with_numpy__does_not_depend_on_tiles(monkeypatch):
    form = make_form(3, "greedy", "float64")
    x = np.random.default_rng(0).normal(size=(101, 20))
    whole = clean_with_numpy(x, form, "float64", lifted=True, out=None)
    monkeypatch.setattr(cleaning, "TILE_VALUES", 60)
    tiled = clean_with_numpy(x, form, "float64", lifted=True, out=None)
    assert whole.released.tobytes() == tiled.released.tobytes()


def test_clean_block__takes_the_kernel_for_large_blocks_only(monkeypatch):
    form = make_form(3, "greedy", "float32")
    taken = []
    for name in ("kernel", "numpy"):
        real = getattr(cleaning, f"clean_with_{name}")

        def note(*args, name=name, real=real, **kwargs):
            taken.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(cleaning, f"clean_with_{name}", note)
    rows = cleaning.KERNEL_VALUES // 20 + 1
    for x in (np.ones((rows, 20), np.float32), np.ones((5, 20)), np.ones((rows, 20), np.float16)):
        clean_block(x, form, x.dtype, lifted=True, out=None)
    assert taken == ["kernel", "numpy", "numpy"]


def test_reconstruct_records__gives_the_dense_release():
    form = make_form(3, "greedy", "float32")
    x = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    dense = clean_with_numpy(x, form, "float32", lifted=True, out=None).released
    kept = clean_with_numpy(x, form, "float32", lifted=False, out=None).released
    again = reconstruct_records(kept, form.lift, form.centre, "float32")
    assert again.tobytes() == dense.tobytes()
    assert again.dtype == np.float32
    many = np.tile(kept, (cleaning.KERNEL_VALUES // 1000 + 1, 1))
    large = reconstruct_records(many, form.lift, form.centre, "float32")
    assert large[-50:].tobytes() == again.tobytes()


@pytest.mark.parametrize("rows", [6, cleaning.KERNEL_VALUES // 20 + 1])
def test_clean_block__stores_in_balance_what_was_withheld_for_its_margin(rows):
    form = make_form(2, "greedy", "float32", budget=1e-8)
    x = np.random.default_rng(0).normal(size=(rows, 20)).astype(np.float32)
    x[1] *= 1e3
    x[2, 3] = np.nan
    x[3] *= 1e37
    found = clean_block(x, form, "float32", lifted=True, out=None)
    np.testing.assert_array_equal(np.flatnonzero(found.withheld), [2, 3])
    exact = replace(form, margin=form.balance.margin)
    plain = clean_with_numpy(x.astype(np.float64), exact, "float64", lifted=True, out=None).released
    np.testing.assert_allclose(found.released[1], plain[1], rtol=1e-5)
    assert 0.5e-8 < found.spent[1] <= 1e-8


@pytest.mark.parametrize("rows", [6, 200, cleaning.KERNEL_VALUES // 20 + 1])
@pytest.mark.parametrize("budget", [0.0, 1e-8, 0.3])
def test_clean_block__releases_into_the_place_of_the_records_what_it_releases_elsewhere(
    rows, budget
):
    form = make_form(2, "greedy", "float32", budget=budget)
    x = np.random.default_rng(0).normal(size=(rows, 20)).astype(np.float32)
    x[1] *= 1e3  # to be mended
    x[2, 3] = np.nan
    x[3] *= 1e37
    elsewhere = clean_block(x, form, "float32", lifted=True, out=None)
    before = x.copy()
    found = clean_block(x, form, "float32", lifted=True, out=x)
    assert found.released is x
    assert not (x == before).all(axis=1).any(), "no record may remain"
    for name in ("released", "spent", "withheld"):
        np.testing.assert_array_equal(getattr(found, name), getattr(elsewhere, name))


@pytest.mark.slow
@pytest.mark.parametrize("lifted", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_kernel__shrinks_equal_and_zero_coordinates_as_numpy_does(rank, lifted):
    form = make_form(rank, "greedy", "float64", budget=0.3)
    rng = np.random.default_rng(0)
    b = rng.integers(-2, 3, size=(300, rank)) * 0.3
    x = form.centre + b @ form.lift.T  # whose coordinates are b
    fast = clean_with_kernel(x, form, "float64", lifted=lifted, out=None)
    plain = clean_with_numpy(x, form, "float64", lifted=lifted, out=None)
    assert fast.spent.tobytes() == plain.spent.tobytes()
    assert fast.released.tobytes() == plain.released.tobytes()


WITHOUT_COMPILER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ImportError(name)

sys.meta_path.insert(0, Block())
sys.path.insert(0, sys.argv[2])
import numpy as np
from flows.reproduce.laplace import LaplaceMechanism
from privpipe import Records, fit_leace_eraser, fit_null_space_cleaner
from privpipe.errors import NumericalError
from privpipe.numerics.random.streams import KeyedStream

x = np.random.default_rng(0).normal(size=(20000, 20)).astype(np.float32)
cleaner = fit_null_space_cleaner(Records(x, desired=x[:, :2]), utility_budget=0.01)
np.save(sys.argv[1], cleaner.apply(x))
fit_leace_eraser(Records(x, confidential=x[:, 2])).apply(x)
try:
    LaplaceMechanism.from_predictor(x[0], utility_budget=1.0).apply(
        x, KeyedStream(bytes(32), partition="p", first_record=0, n_records=len(x))
    )
    raise AssertionError("draws have no second form")
except NumericalError as error:
    assert "privpipe[cluster]" in error.remedy
assert not {"numba", "llvmlite"} & set(sys.modules)
"""


def test_cleaning__works_where_no_compiler_loads(tmp_path):
    path = tmp_path / "released.npy"
    root = str(Path(__file__).parents[3])
    given = [sys.executable, "-c", WITHOUT_COMPILER, str(path), root]
    subprocess.run(given, check=True, timeout=60)
    x = np.random.default_rng(0).normal(size=(20000, 20)).astype(np.float32)
    cleaner = fit_null_space_cleaner(Records(x, desired=x[:, :2]), utility_budget=0.01)
    assert x.size >= cleaning.KERNEL_VALUES
    compiled = cleaner.apply(x)
    assert np.load(path).tobytes() == compiled.tobytes()
