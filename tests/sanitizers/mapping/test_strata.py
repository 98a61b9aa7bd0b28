"""A mapping for each value of a public variable: what would be wrong with one, tried."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.capabilities import Preview
from privpipe.errors import GuaranteeError, InputError, OptionError, PrivacyWarning
from privpipe.fitted_schema import UNKNOWN, NamedCodes
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import IntArray, Shard
from privpipe.sanitizers.mapping import METHOD
from privpipe.sanitizers.mapping.privacy_mapping import check_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, StratifiedMapping
from privpipe.store.models import digest_map, open_model, write_model

NAMES = np.array(["north", "south", "west"])


def draw(n: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Two attributes and a region, (n, 3), and a private value.

    In the south the attributes tell it, in north and west they do not.
    """
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, 4, n), rng.integers(0, 3, n)])
    region = rng.choice(3, n, p=(0.5, 0.3, 0.2))
    chance = np.choose(region, [np.full(n, 0.3), np.where(codes[:, 0] >= 2, 0.9, 0.1), 0.2])
    return np.column_stack([codes, region]), (rng.random(n) < chance).astype(np.int64)


def make_records(codes: IntArray, private: IntArray, n_shards: int = 1) -> Records:
    return Records(
        np.zeros((len(codes), 1)),
        attributes=codes,
        confidential=private.astype(str),
        n_shards=n_shards,
    )


def options(**changes: Any) -> PrivacyMappingOptions:
    given = {
        "name": "privacy_mapping",
        "attributes": ("attribute_0", "attribute_1"),
        "private": ("s",),
        "by": "attribute_2",
        "distortion_budget": 0.3,
        "gap": 1e-4,
    }
    return PrivacyMappingOptions(**{**given, **changes})


def fit(n: int = 6_000, seed: int = 0, **changes: Any) -> StratifiedMapping:
    found = fit_privacy_mapping(make_records(*draw(n, seed)), options(**changes))
    assert isinstance(found, StratifiedMapping)
    return found


def stream_of(n: int, first: int = 0) -> KeyedStream:
    return KeyedStream(bytes(32), partition="ab", first_record=first, n_records=n)


def tell(mapping: SparseMapping, codes: IntArray, private: IntArray) -> float:
    """Information of a mapping under the law of so many records."""
    table = np.zeros((2, mapping.n_symbols))
    np.add.at(table, (private, mapping.find_symbols(codes)), 1 / len(codes))
    masses = np.asarray((mapping.mapping @ table.T).T)
    product = masses.sum(axis=0) * masses.sum(axis=1, keepdims=True)
    used = masses > 0
    return float((masses[used] * np.log(masses[used] / product[used])).sum())


@pytest.fixture(scope="module")
def fitted() -> StratifiedMapping:
    return fit()


def test_fit__each_value_has_its_mapping_within_the_budget(fitted: StratifiedMapping) -> None:
    assert fitted.strata.tolist() == [0, 1, 2]
    assert all(one.distortion <= 0.3 + 1e-9 for one in fitted.maps)
    codes, _ = draw(60_000, 1)
    released = fitted.apply(codes, stream_of(len(codes)))
    np.testing.assert_array_equal(released[:, 2], codes[:, 2])  # public, and as it is
    for value in range(3):
        here = codes[:, 2] == value
        changed = (released[here] != codes[here]).sum(axis=1)
        assert changed.mean() < 0.3 + 5 * changed.std() / np.sqrt(here.sum()) + 0.02


def test_fit__the_promise_is_that_of_the_worst_value(fitted: StratifiedMapping) -> None:
    """North and west tell next to nothing: the mean would hide what the south tells."""
    codes, private = draw(400_000, 2)
    told = []
    for value, one in enumerate(fitted.maps):
        here = codes[:, 2] == value
        told.append(tell(one, codes[here, :2], private[here]))
        assert told[-1] <= (one.guarantee.number or 0.0)
    shares = np.bincount(codes[:, 2]) / len(codes)
    said = dict(fitted.guarantee.parameters)
    assert said["given_attribute_2_at_most"] >= shares @ told
    assert fitted.guarantee.number == max(one.guarantee.number or 0.0 for one in fitted.maps)
    assert said["given_attribute_2_at_most"] < fitted.guarantee.number
    # Of the law's shares whichever are near enough: half the distance moves to the worst value.
    bounds = np.array([one.guarantee.number for one in fitted.maps])
    seen = [said[f"attribute_2={value}: share"] for value in range(3)]
    away = np.sqrt(2 * np.log(2**3 / (0.05 / 4)) / 6_000)
    farthest = seen @ bounds + away / 2 * (bounds.max() - bounds.min())
    assert said["given_attribute_2_at_most"] == pytest.approx(farthest, rel=1e-9)
    assert max(told) > 2 * shares @ told  # the mean says nothing of the south
    assert "of which 1 is the worst" in fitted.guarantee.statement
    assert said["attribute_2=1: share"] == pytest.approx(0.3, abs=0.02)
    # Four bounds share the chance to fail: three values, and the shares of them.
    for one in fitted.maps:
        assert dict(one.guarantee.parameters)["confidence"] == pytest.approx(1 - 0.05 / 4)


@pytest.mark.parametrize(
    # More than "most" of so many draws at .5 come in 8 and in 3 of 1,000 trials.
    ("draws", "most"),
    [(7, 6), pytest.param(12, 10, marks=pytest.mark.slow)],
)
def test_fit__promises_hold_together_at_a_low_confidence(draws: int, most: int) -> None:
    """At confidence .5 at most half of the draws may break any of the promises."""
    codes, private = draw(200_000, 3)
    broken = 0
    for seed in range(draws):
        found = fit(1_500, 100 + seed, confidence=0.5, gap=1e-3)
        said = dict(found.guarantee.parameters)
        told, shares = [], []
        for value, one in zip(found.strata, found.maps, strict=True):
            here = codes[:, 2] == value
            shares.append(here.mean())
            told.append(tell(one, codes[here, :2], private[here]))
        numbers = [one.guarantee.number or 0.0 for one in found.maps]
        within = np.dot(shares, told) <= said["given_attribute_2_at_most"]
        broken += not (within and np.all(np.array(told) <= numbers))
    assert broken <= most


def test_fit__shards_and_workers_change_no_bit(fitted: StratifiedMapping) -> None:
    codes, private = draw(6_000)
    again = fit_privacy_mapping(make_records(codes, private, n_shards=5), options())
    assert digest_map(again) == digest_map(fitted)


def test_apply__chunks_change_nothing_and_draws_are_those_of_the_mapping(
    fitted: StratifiedMapping,
) -> None:
    codes, _ = draw(900, 4)
    whole = fitted.apply(codes, stream_of(900))
    parts = [fitted.apply(codes[a : a + 300], stream_of(300, a)) for a in range(0, 900, 300)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    south = codes[:, 2] == 1
    alone = fitted.maps[1].apply(codes[:, :2], stream_of(900))
    np.testing.assert_array_equal(whole[south, :2], alone[south])


def test_apply__a_value_without_mapping_is_refused_and_an_unknown_profile_is_not(
    fitted: StratifiedMapping,
) -> None:
    codes, _ = draw(100, 5)
    codes[3, 2], codes[7, 2] = UNKNOWN, 9
    with pytest.raises(InputError, match="2 of 100 records have a value of the public") as error:
        fitted.apply(codes, stream_of(100))
    assert error.value.code == "stratum-unknown"
    codes[[3, 7], 2] = 0
    codes[5, 0] = UNKNOWN
    released, n_unseen = fitted.apply_measured(codes, stream_of(100))
    assert n_unseen == 1
    assert (released >= 0).all()
    with pytest.raises(InputError, match="shape"):
        fitted.apply(codes[:, :2], stream_of(100))


def test_fit__a_missing_value_is_a_value_of_its_own() -> None:
    codes, private = draw(6_000)
    codes[codes[:, 2] == 2, 2] = -1
    found = fit_privacy_mapping(make_records(codes, private), options())
    assert isinstance(found, StratifiedMapping)
    assert found.strata.tolist() == [-1, 0, 1]
    assert dict(found.guarantee.parameters)["attribute_2=missing: share"] > 0.15
    released = found.apply(codes, stream_of(6_000))
    np.testing.assert_array_equal(released[:, 2], codes[:, 2])


def test_fit__a_value_of_one_private_value_has_nothing_to_hide() -> None:
    codes, private = draw(6_000)
    private[codes[:, 2] == 2] = 0
    found = fit_privacy_mapping(make_records(codes, private), options())
    assert isinstance(found, StratifiedMapping)
    assert found.maps[2].information == 0.0
    assert found.maps[2].stopped == "nothing to hide"
    assert 0 < (found.maps[2].guarantee.number or 0.0) < np.log(2)  # others may come


def test_fit__a_variable_that_tells_the_private_one_is_not_public() -> None:
    codes, _ = draw(3_000)
    with pytest.raises(InputError, match="which reveals the private value") as error:
        fit_privacy_mapping(make_records(codes, codes[:, 2]), options())
    assert error.value.code == "stratum-variable"


@pytest.mark.parametrize("n_few", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 12))])
def test_fit__values_of_too_few_records_are_refused_with_the_number_needed(n_few: int) -> None:
    codes, private = draw(6_000)
    codes[:n_few, 2] = 3
    with pytest.raises(
        InputError, match="1 of the 4 values of 'attribute_2' have too few"
    ) as error:
        fit_privacy_mapping(make_records(codes, private), options())
    assert error.value.code == "stratum-small"
    needed = int(str(error.value.remedy).split("About ")[1].split()[0].replace(",", ""))
    codes, private = draw(8_000)
    codes[np.random.default_rng(4).choice(8_000, needed, replace=False), 2] = 3
    fit_privacy_mapping(make_records(codes, private), options())


def test_fit__without_records_that_judge_nothing_is_too_few() -> None:
    codes, private = draw(2_000)
    codes[0, 2] = 3
    found = fit_privacy_mapping(make_records(codes, private), options(held_out=0.0))
    assert found.guarantee.number == pytest.approx(np.log(2))


def test_fit__records_held_out_elsewhere_judge_each_value() -> None:
    shards, judges = make_records(*draw(4_000)), make_records(*draw(4_000, 1))
    found = fit_privacy_mapping(shards, options(), judges=(judges, 0.5))
    assert isinstance(found, StratifiedMapping)
    sizes = [dict(one.guarantee.parameters) for one in found.maps]
    assert sum(one["n_fitted"] for one in sizes) == 4_000
    assert sum(one["n_held_out"] for one in sizes) == 4_000


def test_fit__wanted_information_is_of_every_value() -> None:
    with pytest.raises(GuaranteeError, match=r"wanted_information is 0\.001"):
        fit(wanted_information=0.001)


def test_fit__a_search_that_stops_short_says_so_once() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        fit(max_seconds=1e-9, gap=1e-9)
    said = [one for one in heard if issubclass(one.category, PrivacyWarning)]
    assert 1 <= len(said) <= 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"by": "s"}, "confidential or among"), ({"by": "attribute_1"}, "confidential or among")],
)
def test_fit__the_variable_is_neither_private_nor_released_otherwise(
    changes: dict[str, str], match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        fit(**changes)


def test_fit__another_last_attribute_is_refused() -> None:
    with pytest.raises(InputError, match="is not the last attribute"):
        fit(attributes=("a", "b"), by="c")
    with pytest.raises(InputError, match=r"'region'. as attributes, records have"):
        fit(by="region")


def test_check__refuses_what_the_collection_calls_confidential() -> None:
    schema = make_records(*draw(100)).schema
    secret = replace(schema, confidential=(*schema.confidential, schema.attributes[2]))
    with pytest.raises(OptionError, match="confidential or among"):
        check_mapping(options(), secret)
    check_mapping(options(), schema)


def test_map__is_stored_and_opened_and_a_better_promise_is_not(
    fitted: StratifiedMapping, tmp_path: Path
) -> None:
    digest = write_model(fitted, str(tmp_path / "m.zarr"))
    opened = open_model(str(tmp_path / "m.zarr"))
    assert isinstance(opened, StratifiedMapping)
    assert digest_map(opened) == digest
    codes, _ = draw(500, 6)
    np.testing.assert_array_equal(
        opened.apply(codes, stream_of(500)), fitted.apply(codes, stream_of(500))
    )
    with pytest.raises(GuaranteeError):
        replace(fitted, guarantee=replace(fitted.guarantee, number=0.001))
    with pytest.raises(OptionError, match="do not fit"):
        replace(fitted, strata=fitted.strata[::-1])
    with pytest.raises(OptionError, match="do not fit"):
        replace(fitted, maps=fitted.maps[:2])


def test_write_model__of_plain_codes_whose_distance_nothing_bounds(tmp_path: Path) -> None:
    fitted = fit(distortion="absolute", gap=1e-2)
    assert "distortion_at_most" not in dict(fitted.guarantee.parameters)
    write_model(fitted, str(tmp_path / "m.zarr"))
    assert open_model(str(tmp_path / "m.zarr")).guarantee == fitted.guarantee


def test_apply__reads_names_and_gives_them_back() -> None:
    codes, private = draw(6_000)
    table = np.column_stack([codes[:, :2].astype(str), NAMES[codes[:, 2]]])
    records = make_records(table, private)
    found = fit_privacy_mapping(records, options())
    assert isinstance(found, StratifiedMapping)
    assert "of which south is the worst" in found.guarantee.statement
    released = found.apply(table[:50], stream_of(50))
    np.testing.assert_array_equal(released[:, 2], table[:50, 2])
    # A table that numbers its regions otherwise, and has one more.
    columns = found_columns(records)
    other = replace(columns[2], n_categories=4, categories=("east", "north", "south", "west"))
    shifted = codes[:50] + np.array([0, 0, 1])
    again = found.apply(NamedCodes(shifted, (*columns[:2], other)), stream_of(50))
    np.testing.assert_array_equal(NAMES[again[:, 2]], table[:50, 2])
    strange = np.where(np.arange(50)[:, None] == 4, [0, 0, 0], shifted)
    with pytest.raises(InputError, match="1 of 50"):
        found.apply(NamedCodes(strange, (*columns[:2], other)), stream_of(50))


def found_columns(records: Records) -> tuple[Any, ...]:
    return tuple(records.schema.attributes)


@pytest.mark.parametrize("wanted", [None, 0.05, 1e-6])
def test_forecast__counts_profiles_by_value_and_what_the_smallest_value_needs(
    wanted: float | None,
) -> None:
    codes, private = draw(3_000)
    shard = Shard(np.zeros((3_000, 0)), confidential=private[:, None] * 1.0, attributes=codes)
    few = Preview(True, lambda: [shard], lambda: None, lambda: codes)  # type: ignore[arg-type,return-value]
    assert METHOD.forecast is not None
    found = METHOD.forecast(few, options(wanted_information=wanted))
    assert found.n_profiles == 36
    assert found.n_unseen == 0
    if wanted == 0.05:
        assert found.n_needed > 3_000
    elif wanted:
        assert found.n_needed is None


def test_options__former_keys_and_digests_are_those_of_before() -> None:
    from pydantic import TypeAdapter, ValidationError

    kind = TypeAdapter(PrivacyMappingOptions)
    plain = kind.dump_python(options(by=None), mode="json")
    assert "by" not in plain
    assert plain["smoothing"] == "best"
    assert kind.validate_python(plain) == options(by=None)
    assert kind.dump_python(options(), mode="json")["by"] == "attribute_2"
    with pytest.raises(ValidationError, match="Input should be 'best'"):
        kind.validate_python({**plain, "smoothing": "none"})


def test_fit__the_header_has_whatever_that_of_one_mapping_has() -> None:
    codes, private = draw(6_000)
    both = np.column_stack([private, codes[:, 0] > 1]).astype(str)
    records = Records(np.zeros((6_000, 1)), attributes=codes, confidential=both)
    names = ("confidential_0", "confidential_1")
    changes: dict[str, Any] = {"private": names, "information_budgets": (0.5, 0.5)}
    found = fit_privacy_mapping(records, options(**changes))
    assert isinstance(found, StratifiedMapping)
    every = ("attribute_0", "attribute_1", "attribute_2")
    plain = fit_privacy_mapping(records, options(by=None, attributes=every, **changes))
    said = dict(found.guarantee.parameters)
    assert {name for name, _ in plain.guarantee.parameters} <= {*said}
    parts = [dict(one.guarantee.parameters) for one in found.maps]
    for name in parts[0]:
        each = [one[name] for one in parts]
        if name.startswith("n_"):
            assert said[name] == sum(each)
        elif "plug_in" in name or name == "optimum_at_least":
            assert min(each) <= said[name] <= max(each)
        elif name != "confidence":
            assert said[name] == max(each)
    assert said["n_fitted"] + said["n_held_out"] == 6_000
    assert said["confidence"] == 0.95


def test_fit__odds_that_nothing_bounds_are_called_unbounded() -> None:
    codes, private = draw(6_000)
    private[codes[:, 2] == 2] = 0  # there one value is never seen
    found = fit_privacy_mapping(make_records(codes, private), options())
    assert "posterior_odds_at_most" not in dict(found.guarantee.parameters)
    assert "Unbounded: posterior odds" in found.guarantee.statement
    assert "Unbounded" not in found.maps[0].guarantee.statement


@pytest.mark.parametrize("confidence", [0.5])
def test_fit__odds_of_the_worst_value_hold_for_all(confidence: float) -> None:
    """At confidence .5 at most half of the draws may break them."""
    codes, private = draw(200_000, 3)
    broken = 0
    for seed in range(6):
        found = fit(4_000, 200 + seed, confidence=confidence, gap=1e-3)
        said, worst = dict(found.guarantee.parameters), 0.0
        for value, one in zip(found.strata, found.maps, strict=True):
            here = codes[:, 2] == value
            table = np.zeros((2, one.n_symbols))
            np.add.at(table, (private[here], one.find_symbols(codes[here, :2])), 1.0)
            masses = np.asarray((one.mapping @ (table / table.sum()).T).T)
            given = masses / masses.sum(axis=1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                odds = given.max(axis=0) / given.min(axis=0)
            off = odds > said.get("posterior_odds_at_most", np.inf)
            worst = max(worst, float(masses.sum(axis=0)[off].sum()))
        broken += worst > said["excepted_at_most"]
    assert broken <= 5


def test_forecast__the_promise_and_profiles_that_no_record_had() -> None:
    """`check` said nothing where a run promised as much as there is."""
    from dataclasses import asdict

    assert METHOD.forecast is not None
    for n, useless in ((60, True), (20_000, False)):
        codes, private = draw(n)
        shard = Shard(np.zeros((n, 0)), confidential=private[:, None] * 1.0, attributes=codes)
        few = Preview(
            True,
            lambda shard=shard: [shard],  # type: ignore[misc]
            lambda: None,  # type: ignore[arg-type,return-value]
            lambda codes=codes: codes + (np.arange(len(codes)) % 10 == 0)[:, None] * [4, 0, 0],  # type: ignore[misc]
        )
        every = options(by=None, attributes=("attribute_0", "attribute_1", "attribute_2"))
        found = METHOD.forecast(few, every)
        said = found.describe()
        assert "% have a profile that no training record has" in said
        assert ("The promise will say nothing" in said) == useless
        assert ("The promise will be about" in said) != useless
        # Of few records some that are held out are of a profile of their own, too.
        assert asdict(found)["n_new"] == pytest.approx(n / 10, rel=2.0 if useless else 0.1)
        records = make_records(codes, private)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            promised = fit_privacy_mapping(records, every).guarantee.number
        assert found.most == pytest.approx(promised, rel=0.3, abs=0.01)
        nobody = replace(few, has_subjects=True)
        assert "romise will" not in METHOD.forecast(nobody, every).describe()
