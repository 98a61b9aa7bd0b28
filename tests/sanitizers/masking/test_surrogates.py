"""Fits and draws of masking: what is kept, what is refused with its number and its reason."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, LeftOutWarning, OptionError
from privpipe.numerics.random.streams import KeyedStream
from privpipe.records.memory import Records
from privpipe.sanitizers.masking.masked_records import MaskedRecords
from privpipe.sanitizers.masking.masking_model import MaskingModel, draw_masked_records
from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
from privpipe.store.models import digest_map, open_model, write_model

N, D = 600, 5


def make_table(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Features on scales of their own, with a block that depends on the others, and a response."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, D)) * [1, 100, 0.01, 1, 1] + [0, 1e4, 0, 3, 0]
    x[:, 4] = x[:, 0] + 0.5 * random.normal(size=n)
    y = x @ [2.0, 0.03, 50.0, -1.0, 0.5] + 7 + 0.3 * random.normal(size=n)
    return x, y


def make_records(n_shards: int = 3, **more: object) -> Records:
    x, y = make_table()
    return Records(x, desired=y, n_shards=n_shards, **more)


def fit(records: Records | None = None, **options: object) -> MaskingModel:
    return fit_masking(records or make_records(), MaskingOptions(**{"n_surrogates": 90} | options))


def draw(model: MaskingModel, records: Records, first_byte: int = 0) -> MaskedRecords:
    key = bytes([first_byte]) + bytes(31)
    n = records.n_records
    stream = KeyedStream(key, partition="p", first_record=0, n_records=n)
    return draw_masked_records(model, records, stream)


def regress(features: np.ndarray, responses: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(features, responses, rcond=1e-12)[0]


def test_surrogates__have_the_regression_of_the_raw_records() -> None:
    x, y = make_table()
    made = draw(fit(), make_records())
    expected = regress(np.column_stack([x, np.ones(N)]), y)
    assert made.features.shape == (90, D + 1)
    assert made.feature_names[-1] == "bias"
    np.testing.assert_allclose(regress(made.features, made.responses[:, 0]), expected, rtol=1e-4)


def test_surrogates__responses_hold_the_model_and_no_residual() -> None:
    model = fit()
    made = draw(model, make_records())
    left = made.responses - made.features @ regress(made.features, made.responses)
    assert np.linalg.norm(left) <= 1e-10 * np.linalg.norm(made.responses)
    np.testing.assert_allclose(made.features @ model.coefficients, made.responses, rtol=1e-9)


def test_surrogates__have_the_second_moments_in_expectation() -> None:
    x, _ = make_table()
    raw = np.column_stack([x, np.ones(N)])
    model = fit(noise_level=0.0, n_surrogates=30_000)
    made = draw(model, make_records()).features
    scale = np.sqrt(np.diag(raw.T @ raw))
    np.testing.assert_allclose(
        made.T @ made / np.outer(scale, scale), raw.T @ raw / np.outer(scale, scale), atol=0.04
    )


@pytest.mark.parametrize("n_shards", [1, 2, 7, 50])
def test_draw__gives_the_same_bytes_for_any_cut(n_shards: int) -> None:
    model = replace(fit(), tile_rows=64)
    whole = draw(model, make_records(1))
    cut = draw(model, make_records(n_shards))
    assert whole.features.tobytes() == cut.features.tobytes()
    assert whole.responses.tobytes() == cut.responses.tobytes()
    assert not np.array_equal(draw(model, make_records(1), 9).features, whole.features)


def test_model__is_stored_and_travels_whole(tmp_path: Path) -> None:
    model = fit()
    digest = write_model(model, str(tmp_path / "model.zarr"))
    again = open_model(str(tmp_path / "model.zarr"))
    assert isinstance(again, MaskingModel)
    assert digest_map(again) == digest
    assert again.guarantee == model.guarantee
    assert again.guarantee.kind == "none"
    for words in ("Second moments", "Single records are not protected", "Not differential privacy"):
        assert words in again.guarantee.assumptions
    first, second = (
        draw(again, make_records()),
        draw(pickle.loads(pickle.dumps(model)), make_records()),
    )
    assert first.features.tobytes() == second.features.tobytes()


def test_model__maps_no_record() -> None:
    with pytest.raises(OptionError, match="belong to no record"):
        fit().apply(make_table()[0])


def test_fit__classes_are_indicators() -> None:
    x, y = make_table()
    three = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    records = Records(x, desired=np.array(["a", "b", "c"])[three])
    assert fit(records).response_names == ("desired_0=0", "desired_0=1", "desired_0=2")
    assert draw(fit(records), records).responses.shape == (90, 3)


def test_fit__features_on_far_scales_are_kept_and_refused_by_the_literal_solver() -> None:
    x, y = make_table()
    x = x * [1e-6, 1, 1e6, 1, 1]
    records = Records(x, desired=y)
    made = draw(fit(records), records)
    expected = regress(np.column_stack([x, np.ones(N)]) / [1e-6, 1, 1e6, 1, 1, 1], y)
    found = regress(made.features / [1e-6, 1, 1e6, 1, 1, 1], made.responses[:, 0])
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    with pytest.raises(InputError, match="more than 1e6 apart"):
        fit(records, solver="literal")


def test_fit__literal_coefficients_answer_where_responses_are_no_exact_function() -> None:
    """From the directions alone, which span the responses too, all were 0."""
    x = np.random.default_rng(0).normal(size=(500, 5))
    y = 0.01 * (x @ [1, 2, 0, -1, 0.5] + 0.1 * np.random.default_rng(1).normal(size=500))
    found = fit(Records(x, desired=y), solver="literal").coefficients[:, 0]
    expected = regress(np.column_stack([x, np.ones(500)]), y)
    assert np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


def spoil(change) -> Records:
    x, y = make_table()
    change(x, y)
    return Records(x, desired=y)


def test_fit__refuses_too_few_surrogates() -> None:
    with pytest.raises(OptionError, match="6 features, the bias one included"):
        fit(n_surrogates=5)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        MaskingOptions(n_surrogates=0)


def test_fit__refuses_few_records() -> None:
    x, y = make_table(n=12)
    with pytest.raises((InputError, OptionError), match="records"):
        fit(Records(x, desired=y), n_surrogates=8)


def test_fit__refuses_an_outlying_record_and_clips_it_on_demand() -> None:
    def enlarge(x: np.ndarray, y: np.ndarray) -> None:
        x[17, 3] = 1e3

    with pytest.raises(InputError, match="one record holds more than") as caught:
        fit(spoil(enlarge))
    assert "threshold" in caught.value.remedy
    assert "1000" not in str(caught.value)
    model = fit(spoil(enlarge), threshold=4.0)
    assert 0 < model.share_clipped < 0.01
    assert dict(model.guarantee.parameters)["share_clipped"] == model.share_clipped
    assert np.isfinite(draw(model, spoil(enlarge)).features).all()


def find_by_coefficients(x: np.ndarray, made: MaskedRecords, response: int) -> float:
    """Cosine of the first record with what second moments and coefficients say of a response."""
    model = regress(made.features, made.responses[:, response])
    told = (made.features.T @ made.features) @ model
    guess = (told[:-1] / told[-1] - x.mean(axis=0)) / x.std(axis=0)
    first = (x[0] - x.mean(axis=0)) / x.std(axis=0)
    return float(guess @ first / np.linalg.norm(guess) / np.linalg.norm(first))


def test_fit__refuses_a_class_whose_coefficients_are_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Responses hold no residual, but of a class of one record the coefficients are that record."""
    x, y = make_table()
    classes = np.digitize(y, np.quantile(y, [0.3, 0.6])).astype(str).astype(object)
    classes[0] = "alone"
    records = Records(x, desired=classes)
    with pytest.raises(InputError, match=r"one record holds more than 0\.1") as caught:
        fit(records)
    assert caught.value.code == "outlying-response"
    monkeypatch.setattr("privpipe.sanitizers.masking.refusals.bound_share", lambda _: 2.0)
    made = draw(fit(records, n_surrogates=3000, noise_level=0.0), records)
    assert find_by_coefficients(x, made, 3) > 0.95, "what is refused would have shown the record"
    monkeypatch.undo()
    classes[:14] = "alone"
    model = fit(Records(x, desired=classes))
    assert model.response_names[3] == "desired_0=3"
    y[0] = 1e4
    with pytest.raises(InputError, match="one record holds more") as caught:
        fit(Records(x, desired=y))
    assert "10000" not in str(caught.value)


def test_fit__refuses_a_record_that_no_single_feature_shows() -> None:
    def bend(x: np.ndarray, y: np.ndarray) -> None:
        x[17, 4] = x[17, 0]
        x[:, 4] = x[:, 0] + 1e-3 * (x[:, 4] - x[:, 0])
        x[17, 4] += 0.1

    with pytest.raises(InputError, match=r"One record holds .* of a direction of the features"):
        fit(spoil(bend))


@pytest.mark.parametrize("share", [0.09, 0.12])
def test_fit__one_limit_for_what_a_record_holds(share: float) -> None:
    """Of a feature as of a response: whoever holds the share s is met at a cosine of sqrt(s)."""
    for column in ("feature", "response"):
        x, y = make_table()
        values = x[:, 1] if column == "feature" else y
        values -= values.mean()
        rest = float(np.square(values[1:]).sum())
        values[0] = np.sqrt(share / (1 - share) * rest)
        if share < 0.1:
            fit(Records(x, desired=y))
        else:
            with pytest.raises(InputError, match=r"one record holds more than 0\.1 of"):
                fit(Records(x, desired=y))


def repeat_one(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records of which one is there so many times, and whose each is."""
    x, y = make_table()
    order = np.random.default_rng(4).permutation(N + n)
    rows = np.concatenate([np.arange(N), np.zeros(n, int)])[order]
    return x[rows], y[rows], rows


@pytest.mark.parametrize("n_shards", [1, 9])
@pytest.mark.parametrize("n", [300, 2900])
def test_fit__counts_a_person_repeated_as_one(n: int, n_shards: int) -> None:
    x, y, rows = repeat_one(n)
    with pytest.raises(InputError, match="Records that are equal hold") as caught:
        fit(Records(x, desired=y, n_shards=n_shards))
    assert caught.value.code == "repeated-person"
    # Neither equal nor alike, but of one person: a variable says so.
    moved = x + x.std(axis=0) * 1e-3 * np.random.default_rng(5).normal(size=x.shape)
    fit(Records(moved, desired=y, n_shards=n_shards))
    with pytest.raises(InputError, match="The records of one person hold"):
        fit(Records(moved, desired=y, groups=rows, n_shards=n_shards))


def test_fit__equal_records_of_different_people_are_told_apart_by_their_subject() -> None:
    """The remedy that the refusal names."""
    x, y, rows = repeat_one(300)
    with pytest.raises(InputError, match="equal") as caught:
        fit(Records(x, desired=y))
    assert "[collection] subject" in caught.value.remedy
    fit(Records(x, desired=y, groups=np.arange(len(rows))))


def test_person_leverage__knows_the_heaviest_whatever_the_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counters are few and persons many: what is forgotten is bounded, and added."""
    from privpipe.protocols import Shard
    from privpipe.sanitizers.masking import refusals

    random = np.random.default_rng(6)
    people = np.concatenate([np.zeros(40, int), 1 + np.arange(4000) // 2])
    rows = random.permutation(len(people))
    held = random.random((len(people), 3))
    held /= np.sqrt(np.square(held).sum(axis=0))
    truth = np.bincount(people, np.square(held).sum(axis=1)).max()
    monkeypatch.setattr(refusals, "COUNTERS_PER_DIMENSION", 50)
    for n_parts in (1, 3, 40):
        total = None
        for part in np.array_split(rows, n_parts):
            shard = Shard(np.zeros((len(part), 1)), groups=people[part])
            found = refusals.measure_person_leverage(
                shard, held[part], np.zeros((len(part), 1)), 77
            )
            total = found if total is None else total.merge(found)
        assert total is not None
        assert len(total.words) <= total.capacity == 200
        assert truth - 1e-12 <= total.largest <= truth + 2 * 3 / 201


def test_fit__refuses_integers_and_blurs_them_on_demand() -> None:
    def count(x: np.ndarray, y: np.ndarray) -> None:
        x[:, 3] = np.arange(N) % 5

    records = spoil(count)
    with pytest.raises(InputError, match="'feature_3' are integers"):
        fit(records)
    model = fit(records, integers="blur", noise_level=0.0)
    made = draw(model, records)
    steps = made.features[:, 3] * np.sqrt(90)
    off = np.abs(steps - np.rint(steps))
    assert 0.15 < off.mean() < 0.35, "on no lattice"
    x, y = make_table()
    count(x, y)
    expected = regress(np.column_stack([x, np.ones(N)]), y)
    np.testing.assert_allclose(regress(made.features, made.responses[:, 0]), expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: x.__setitem__((3, 1), np.nan), "1 of 600 records hold features"),
        (lambda x, y: x.__setitem__((3, 1), np.inf), "missing or infinite"),
        (lambda x, y: x.__setitem__((slice(None), 1), np.nan), "600 of 600"),
        (lambda x, y: y.__setitem__(slice(None), 2.5), "is constant or missing"),
        (lambda x, y: y.__setitem__(slice(None), np.nan), "is constant or missing"),
        (lambda x, y: y.__setitem__(4, np.inf), "response is infinite"),
        (lambda x, y: x.__setitem__((slice(None), 2), x[:, 2] * 1e202), "600 of 600 .* exceed"),
    ],
)
def test_fit__refuses_bad_records_without_a_value(change, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fit(spoil(change))
    assert "2.5" not in str(caught.value)


def test_fit__needs_something_to_keep_and_options_that_fit_together() -> None:
    with pytest.raises(InputError, match="no desired variable"):
        fit(Records(make_table()[0]))
    with pytest.raises(OptionError, match="threshold works on standardised"):
        fit(solver="literal", threshold=3.0)
    with pytest.raises(OptionError, match="weights"):
        fit(make_records(weights=np.ones(N)))


def test_fit__leaves_records_without_a_response_out_and_says_so() -> None:
    x, y = make_table()
    y[:50] = np.nan
    with pytest.warns(LeftOutWarning, match="50 of 600"):
        model = fit(Records(x, desired=y))
    expected = regress(np.column_stack([x, np.ones(N)])[50:], y[50:])
    np.testing.assert_allclose(model.coefficients[:, 0], expected, rtol=1e-3)


@pytest.mark.parametrize("patterns", ["few", "many"])
def test_fit__completes_missing_entries(patterns: str) -> None:
    random = np.random.default_rng(3)
    factors = random.normal(size=(900, 2))
    x = factors @ random.normal(size=(2, 8)) + 0.05 * random.normal(size=(900, 8))
    y = factors @ [1.0, -2.0] + 0.05 * random.normal(size=900)
    holed = x.copy()
    if patterns == "few":
        holed[:300, 0] = np.nan
        holed[300:500, 4:6] = np.nan
    else:
        holed[random.random(x.shape) < 0.3] = np.nan
    records = Records(holed, desired=y, n_shards=3)
    model = fit(records, missing="complete", n_surrogates=300)
    made = draw(model, records)
    found = regress_ridge(made.features, made.responses[:, 0])
    error = np.column_stack([x, np.ones(900)]) @ found - y
    assert np.sqrt(np.mean(error**2)) < 0.25 * y.std()
    again = draw(model, Records(holed, desired=y, n_shards=11))
    assert made.features.tobytes() == again.features.tobytes()


def regress_ridge(features: np.ndarray, responses: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(features, responses, rcond=1e-3)[0]


def test_fit__refuses_records_that_hold_nothing() -> None:
    x, y = make_table()
    x[7] = np.nan
    with pytest.raises(InputError, match="1 records hold no feature"):
        fit(Records(x, desired=y), missing="complete")
    x, y = make_table()
    x[:, 2] = np.nan
    with pytest.raises(InputError, match="missing in every record"):
        fit(Records(x, desired=y), missing="complete")


@pytest.mark.parametrize("depends", [True, False])
def test_fit_masking__a_model_that_rounding_would_lose_is_refused(depends: bool) -> None:
    """Of begin and end of a trip its duration is hardly more than rounding."""
    random = np.random.default_rng(3)
    begin = 1.7e9 + 3e7 * random.random(2_000)
    duration = random.gamma(4, 2.0, 2_000)
    x = np.column_stack([begin, begin + duration, random.normal(size=2_000)])
    y = (duration if depends else x[:, 2]) + 0.5 * random.normal(size=2_000)
    if depends:
        with pytest.raises(InputError, match="lost to rounding"):
            fit(Records(x, desired=y))
        x[:, 1] = duration
    fitted = fit(Records(x, desired=y))
    told = x @ fitted.coefficients[:-1, 0] + fitted.coefficients[-1, 0]
    assert np.corrcoef(told, y)[0, 1] ** 2 > 0.7
