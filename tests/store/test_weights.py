"""Records that count by a weight: the same fit as on repeated records, and bad weights refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, OptionError
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner, fit_targeted_cleaner
from privpipe.sanitizers.null_space.leace import fit_leace_eraser
from privpipe.store.collections.collection import Collection, open_collection
from tests.standard import make_standard, write_standard

ROLES = {"desired": ("height",), "confidential": ("income",)}


EXAMPLES = Path(__file__).parents[1] / "examples"


def open_weighted(folder: Path, n_records: int = 150, **changes: str | None) -> Collection:
    write_standard(str(folder / "records.zarr"), n_records, chunk_rows=40)
    return open_collection(str(folder / "records.zarr"), **ROLES, weights="person", **changes)


def repeat_standard(n_records: int) -> Records:
    """Every record as often as its number says, which is what `person` holds."""
    x, variables = make_standard(n_records)
    rows = np.repeat(np.arange(n_records), np.arange(n_records))
    return Records(
        x[rows], desired=variables["height"][rows], confidential=variables["income"][rows]
    )


@pytest.mark.parametrize(("solver", "ridge"), [("co-moments", 1e-3), ("tsqr", 1e-6)])
def test_fit__of_a_weighted_collection_is_that_of_repeated_records(
    tmp_path: Path, solver: str, ridge: float
) -> None:
    weighted, repeated = open_weighted(tmp_path), repeat_standard(150)
    for fit in (fit_null_space_cleaner, fit_targeted_cleaner):
        one, two = (fit(s, utility_budget=0.1, ridge=ridge) for s in (weighted, repeated))
        assert one.solver == solver
        np.testing.assert_allclose(one.predictor, two.predictor, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(one.centre, two.centre, rtol=1e-9)
    plain = fit_null_space_cleaner(
        open_collection(weighted.url, **ROLES), utility_budget=0.1, ridge=ridge
    )
    assert np.abs(plain.centre - one.centre).max() > 1e-3


def test_leace__counts_by_weight(tmp_path: Path) -> None:
    one, two = (fit_leace_eraser(s) for s in (open_weighted(tmp_path), repeat_standard(150)))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-9)
    np.testing.assert_allclose(one.left @ one.right.T, two.left @ two.right.T, atol=1e-9)


def test_open_collection__refuses_weights_that_are_no_numbers(tmp_path: Path) -> None:
    url = open_weighted(tmp_path).url
    with pytest.raises(InputError, match="'party' are a categorical variable"):
        open_collection(url, weights="party")
    with pytest.raises(InputError, match="did you mean 'person'"):
        open_collection(url, weights="persn")


def test_shard__refuses_negative_weights_without_showing_one(tmp_path: Path) -> None:
    url = open_weighted(tmp_path).url
    negative = open_collection(url, desired=["height"], weights="income")
    n_bad = int((make_standard(150)[1]["income"][:40] < 0).sum())
    with pytest.raises(InputError, match=f"^{n_bad} of 40 records from record 0 on") as caught:
        fit_null_space_cleaner(negative, utility_budget=0.1, ridge=1e-6)
    assert "0 leaves it out" in caught.value.remedy


def test_methods__that_do_not_weigh_refuse_weights_in_memory() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 2, (60, 2)).astype(bool)
    codes = rng.integers(0, 3, (60, 2))
    records = Records(
        x, desired=y[:, 0], confidential=y[:, 1], attributes=codes, weights=np.ones(60)
    )
    options = {
        "pca": {"n_filtered": 2},
        "privacy_lds": {"n_filtered": 1},
        "minimax_neural": {"n_hidden": (4, 2)},
        "masking": {"n_surrogates": 20},
        "masking_private": {"epsilon": 1.0, "delta": 1e-3, "n_surrogates": 9, "bound": {}},
        "noisy": {"epsilon": 1.0, "threshold": 1.0, "centre": False},
        "minimax_own": {
            "filter": "Convolution",
            "module": str(EXAMPLES / "convolution.py"),
            "settings": {"axes": 1, "width": 3, "kernels": 2},
        },
        "privacy_mapping": {"attributes": ("a",), "private": ("b",), "distortion_budget": 0.1},
    }
    asked = [
        m for m in METHODS.values() if not m.options.weighs and m.name != "rand"
    ]  # reads no record
    assert len(asked) >= 8
    for method in asked:
        with pytest.raises(OptionError, match="counts every record once"):
            method.fit(records, method.options(name=method.name, **options.get(method.name, {})))
