"""Matching by name: codes and columns may come in any order; what is released stays the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe import (
    PrivacyMappingOptions,
    Records,
    fit_leace_eraser,
    fit_privacy_mapping,
    open_model,
    write_model,
)
from privpipe.errors import FormatError, InputError
from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import (
    UNKNOWN,
    FittedSchema,
    NamedCodes,
    check_numbered_alike,
    match_columns,
)
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Column, ShardSchema
from privpipe.sanitizers.null_space.leace import LeaceEraser
from privpipe.store.arrays.layout import ROOT_DOCUMENT, SEAL, root_document
from privpipe.store.models import digest_map

TOWNS, SIZES = ("Bonn", "Köln", "Ulm", "Worms"), ("L", "S")
TOWN, SIZE = Column("town", 4, TOWNS), Column("size", 2, SIZES)
N = 400


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    return pd.DataFrame({"town": rng.choice(TOWNS, N), "size": rng.choice(SIZES, N)})


@pytest.fixture(scope="module")
def fitted(frame: pd.DataFrame) -> Any:
    rng = np.random.default_rng(3)
    secret = frame.town.isin(TOWNS[:2]) ^ (rng.random(N) < 0.1)
    records = Records(np.empty((N, 0)), attributes=frame, confidential=secret.to_numpy())
    options: Any = {"attributes": ("town", "size"), "private": ("confidential_0",)}
    return fit_privacy_mapping(
        records, PrivacyMappingOptions(name="privacy_mapping", distortion_budget=0.3, **options)
    )


def draw(n_records: int) -> KeyedStream:
    return KeyedStream(bytes(32), partition="p", first_record=0, n_records=n_records)


@pytest.fixture(scope="module")
def expected(frame: pd.DataFrame, fitted: Any) -> pd.DataFrame:
    """What is released of the table as it is."""
    released: pd.DataFrame = fitted.apply(frame, draw(N))
    return released


def test_apply__columns_of_a_frame_may_come_in_any_order(
    frame: pd.DataFrame, fitted: Any, expected: pd.DataFrame
) -> None:
    by_table = fitted.apply(frame[["size", "town"]], draw(N))
    assert [*by_table] == ["size", "town"]
    assert (by_table[["town", "size"]].to_numpy() == expected.to_numpy()).all()


ORDERS = {
    "town": st.permutations([*TOWNS, "Trier", "Mainz"]),
    "size": st.permutations(SIZES),
    "swap": st.booleans(),
}


@settings(max_examples=12, deadline=None)
@given(**ORDERS)
def test_apply__numbering_the_codes_otherwise_changes_no_released_name(
    frame: pd.DataFrame, fitted: Any, expected: pd.DataFrame, **order: Any
) -> None:
    """Further categories, too, as long as no record has them."""
    compare_names(frame, fitted, expected, **order)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(**ORDERS)
def test_apply__numbering_them_in_a_hundred_ways_changes_no_released_name(
    frame: pd.DataFrame, fitted: Any, expected: pd.DataFrame, **order: Any
) -> None:
    compare_names(frame, fitted, expected, **order)


def compare_names(
    frame: pd.DataFrame,
    fitted: Any,
    expected: pd.DataFrame,
    town: list[str],
    size: list[str],
    swap: bool,
) -> None:
    columns = [Column("town", 6, tuple(town)), Column("size", 2, tuple(size))]
    codes = np.column_stack(
        [[one.categories.index(v) for v in frame[one.name]] for one in columns if one.categories]
    )
    order = [1, 0] if swap else [0, 1]
    named = NamedCodes(codes[:, order], tuple(columns[j] for j in order))
    released, n_unseen = fitted.apply_measured(named, draw(N))
    assert n_unseen == 0
    names = np.column_stack([np.array(TOWNS)[released[:, 0]], np.array(SIZES)[released[:, 1]]])
    assert (names == expected.to_numpy()).all()


def test_apply__a_category_without_a_name_has_no_place_in_any_order(fitted: Any) -> None:
    """It is treated by its other attributes alone, and counted."""
    for kind in ("hamming", "squared", "absolute"):
        other = replace(fitted, distortion_kind=kind)
        codes = np.array([[UNKNOWN, 0], [UNKNOWN, 1], [UNKNOWN, UNKNOWN]])
        symbols = other.find_symbols(codes)
        assert other.codes[symbols[:2], 1].tolist() == [0, 1]
        assert symbols[2] == 0
        # Were it a number, a town near to it would weigh more than an equal size.
        apart = replace(other, codes=fitted.codes + [10, 0] * fitted.codes[:, [1]])
        assert apart.codes[apart.find_symbols(codes[:2]), 1].tolist() == [0, 1]
    table = pd.DataFrame({"town": ["Oz", "Ulm", None], "size": ["S", "S", "L"]})
    assert fitted.apply_measured(table, draw(3))[1] == 2
    strict = replace(fitted, unseen="refuse")
    with pytest.raises(InputError, match="not in the mapping's alphabet"):
        strict.find_symbols(np.array([[UNKNOWN, 0]]))


@pytest.mark.parametrize(
    "hide",
    [
        lambda table, gone: table.astype("string").mask(gone, pd.NA),
        lambda table, gone: table.mask(gone, np.nan),
        lambda table, gone: np.ma.masked_array(table.to_numpy(str), mask=gone),
    ],
    ids=["NA", "NaN", "masked"],
)
def test_apply__what_is_missing_is_missing_however_it_is_written(
    frame: pd.DataFrame, fitted: Any, hide: Any
) -> None:
    gone = np.random.default_rng(8).random(frame.shape) < 0.2
    expected = fitted.apply(frame.mask(gone, None), draw(N)).to_numpy()
    released, n_unseen = fitted.apply_measured(hide(frame, gone), draw(N))
    assert n_unseen == gone.any(axis=1).sum()
    assert (np.asarray(released) == expected).all()


def test_apply__whole_numbers_with_missing_ones_are_read_as_they_were_fitted() -> None:
    random = np.random.default_rng(9)
    table = pd.DataFrame(random.integers(0, 3, (N, 2)), columns=["a", "b"], dtype="Int64")
    table = table.mask(random.random(table.shape) < 0.1)
    records = Records(np.empty((N, 0)), attributes=table, confidential=random.random(N) < 0.5)
    options = {"attributes": ("a", "b"), "private": ("s",), "distortion_budget": 0.0}
    found = fit_privacy_mapping(records, PrivacyMappingOptions(**options))  # type: ignore[arg-type]
    released = found.apply(table, draw(N))
    assert (pd.isna(released).to_numpy() == pd.isna(table).to_numpy()).all()


def test_apply__masked_codes_are_missing() -> None:
    codes = np.random.default_rng(10).integers(0, 3, (N, 2)).astype(np.uint8)
    masked = np.ma.masked_array(codes, mask=codes == 2)
    records = Records(
        np.empty((N, 0)),
        attributes=np.where(codes == 2, -1, codes.astype(int)),
        confidential=codes[:, 0] > 0,
    )
    options = {"attributes": ("a", "b"), "private": ("s",), "distortion_budget": 0.0}
    found = fit_privacy_mapping(records, PrivacyMappingOptions(**options))  # type: ignore[arg-type]
    released = found.apply(masked, draw(N))
    assert ((released == -1) == (codes == 2)).all()


def _vary(fitted: Any, **fields: Any) -> Any:
    """The map with other fields, and without names."""
    return replace(fitted, **fields)


def test_open_model__keeps_what_it_was_fitted_on(
    tmp_path: Path, frame: pd.DataFrame, fitted: Any
) -> None:
    digest = write_model(fitted, tmp_path / "m.zarr")
    known: Any = open_model(tmp_path / "m.zarr")
    assert digest == digest_map(known) == digest_map(fitted)
    schema, stored = schema_of(fitted), schema_of(known)
    assert schema is not None
    assert stored is not None
    assert stored.encode() == schema.encode() == FittedSchema.decode(schema.encode()).encode()
    pd.testing.assert_frame_equal(known.apply(frame, draw(N)), fitted.apply(frame, draw(N)))
    assert "True" not in json.dumps(schema.encode()), "classes of labels are hashed"


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s["attributes"][0][2].reverse(),
        lambda s: s["attributes"][0][2].pop(),
        lambda s: s["attributes"].pop(),
        lambda s: s.pop("attributes"),
        lambda s: s.update(labels=[["a"]]),
        lambda s: s.update(feature_names=["x", "y"]),
        lambda s: s["labels"][0].__setitem__(2, "0" * 64),
    ],
)
def test_open_model__refuses_a_damaged_schema(tmp_path: Path, fitted: Any, damage: Any) -> None:
    """Names that were put into another order would relabel every record."""
    write_model(fitted, tmp_path / "m.zarr")
    root = tmp_path / "m.zarr" / ROOT_DOCUMENT
    header = json.loads(root.read_text())["attributes"]["privpipe"]
    header = {key: value for key, value in header.items() if key != SEAL}
    damage(header["schema"])
    root.write_bytes(root_document(header))  # what is damaged before the seal is made
    with pytest.raises(FormatError) as error:
        open_model(tmp_path / "m.zarr")
    assert error.value.code == "model-digest"


@pytest.mark.parametrize(
    ("columns", "message"),
    [([SIZE], "no variable 'town'"), ([Column("town"), SIZE], "'town' holds numbers, and classes")],
)
def test_match_columns__refuses_other_variables(columns: list[Column], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        match_columns(FittedSchema(0, attributes=(TOWN, SIZE)), 0, (), columns)
    assert error.value.code == "schema-drift"


def test_match_columns__labels_are_numbered_as_those_of_the_fit() -> None:
    """A class that the fit had not follows: whose records they are must not be joined."""
    fitted = FittedSchema.of(ShardSchema(2, desired=(TOWN,), confidential=(SIZE,)))
    later = [Column("town", 5, ("Worms", "Oz", *TOWNS[:3])), Column("size", 2, ("S", "L"))]
    found = match_columns(fitted, 2, (), later)
    assert found.tables == {"town": (*TOWNS, "Oz"), "size": SIZES}
    assert found.translate("town", np.array([0, 1, 2, -1], np.int8)).tolist() == [3, 4, 0, -1]
    assert found.translate("size", np.array([0, 1])).tolist() == [1, 0]
    assert found.unknown == {}
    assert not found.is_identity


def test_apply__of_a_chain_reads_a_table_by_name() -> None:
    from privpipe.fitted_names import with_schema
    from privpipe.sanitizers.chain import Chain

    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(50, 2)) * [1, 9], columns=["x", "y"])
    eraser = fit_leace_eraser(Records(table.to_numpy(), confidential=table.x > 0))
    assert isinstance(eraser, LeaceEraser)
    chain = with_schema(Chain((eraser,), eraser.guarantee), FittedSchema(2, ("x", "y")))
    released = chain.apply(table[["y", "x"]])[["x", "y"]]
    np.testing.assert_array_equal(released, chain.apply(table.to_numpy()))


def test_match_columns__takes_the_fitted_features_and_no_more() -> None:
    fitted = FittedSchema(2, ("a", "b"))
    assert match_columns(fitted, 2, ("b", "a"), ()).order == (1, 0)
    for names in (("a", "b", "c"), ("b", "a", "a"), ("a",)):
        with pytest.raises(InputError, match="features of collection and training"):
            match_columns(fitted, len(names), names, ())


def test_match_columns__counts_categories_that_the_map_does_not_name() -> None:
    fitted = FittedSchema(0, attributes=(Column("town", 1, ("Ulm",)),))
    town = Column("town", 3, ("Oz", "Ulm", "Ur"))
    assert match_columns(fitted, 0, (), [town]).unknown == {"town": 2}
    with pytest.raises(InputError, match="not matched"):
        check_numbered_alike(fitted, ShardSchema(0, attributes=(town,)))
