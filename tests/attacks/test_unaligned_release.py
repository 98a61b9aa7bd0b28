"""Releases of others: bad ones are found by the right attack, independent ones are not."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from privpipe.attacks.statistics.compared_columns import choose_column, read_intervals
from privpipe.attacks.threats import unaligned_release
from privpipe.attacks.threats.unaligned_release import (
    Excess,
    UnalignedReport,
    attack_unaligned,
    draw_rows,
    find_threshold,
    measure_retained_target,
)
from privpipe.command.foreign_audit import audit_foreign
from privpipe.errors import GateError, InputError, OptionError
from privpipe.store.sources.plain_tables import read_table
from tests.bench.bad_releases import (
    BAD,
    add_noise,
    audit,
    count_false,
    draw_alike_rows,
    draw_people,
    draw_visits,
)


@pytest.mark.parametrize("name", BAD)
def test_attack_unaligned__finds_each_bad_release_by_the_right_attack(name: str) -> None:
    make, right = BAD[name]
    raw, controls = draw_people(1200, 0), draw_people(1200, 1)
    report = audit(make(raw), raw, controls)
    assert report.verdict == "leaks"
    assert any(one.attack.startswith(right) for one in report.attacks if one.verdict == "leaks")


def test_attack_unaligned__calls_few_independent_releases_leaks() -> None:
    assert count_false(5) <= 1  # a level of .95; the benchmark counts 200


def test_attack_unaligned__is_not_safe_where_a_column_is_not_compared() -> None:
    """Each row holds a whole raw record as a text, under a name that no raw column has."""
    raw, controls, made = (draw_people(1200, seed) for seed in range(3))
    texts = raw.astype(str).agg("; ".join, axis=1).sample(frac=1, random_state=1)
    report = audit(made.assign(note=texts.to_numpy()), raw, controls)
    assert (report.verdict, report.uncompared) == ("unproven", ("note",))
    assert audit(made.rename(columns={"age": "years"}), raw, controls).uncompared == ()


@pytest.mark.parametrize("partner", ["note", "key", "city"])
@pytest.mark.parametrize("mark", ["; ", ", income ", "|"])
def test_attack_unaligned__is_not_safe_where_a_text_holds_a_record(partner: str, mark: str) -> None:
    """A text was compared with texts of its name, or of as many values, by equality alone."""
    raw, controls, made = (
        draw_people(1200, k).assign(key=[f"{k} {hash_key(j)[:9]}" for j in range(1200)], note="x")
        for k in range(3)
    )
    # All columns but keys are independent of the members.
    texts = raw[["age", "weight", "income"]].astype(str).agg(mark.join, axis=1)
    made = made.drop(columns="key" if partner == "key" else [])
    made["letter" if partner == "key" else partner] = texts.to_numpy()
    report = audit(made, raw, controls)
    assert report.uncompared == ("letter" if partner == "key" else partner,)
    assert report.verdict == "unproven"


def test_attack_unaligned__finds_numbers_on_a_falling_curve() -> None:
    """Only rising straight scales, of all columns at once, were undone."""
    raw, controls, made = (draw_people(2000, k) for k in (0, 1, 7))
    curved = {n: -np.log(raw[n] - raw[n].min() + 1) for n in ("weight", "rate", "steps")}
    report = audit(made.assign(**curved).sample(frac=1, random_state=1), raw, controls)
    found = {one.column for one in report.attacks if one.verdict == "leaks"}
    assert found == {"by weight reversed, steps reversed, rate reversed"}


def test_attack_unaligned__compares_texts_that_hold_no_other_column() -> None:
    tables = [draw_people(300, k) for k in range(3)]
    for k, table in enumerate(tables):
        table["name"] = [f"Anna {hash_key(300 * k + j)[:12]}" for j in range(300)]
        low = table["age"] // 10 * 10
        table["age"] = "[" + low.astype(str) + ", " + (low + 10).astype(str) + ")"
    raw, controls, made = tables
    assert audit(made, raw, controls).uncompared == ()


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(9))])
def test_attack_unaligned__of_people_with_many_rows_counts_people(seed: int) -> None:
    """Of 50 rows a person, taken as independent, 17 of 42 independent releases were leaks."""
    raw, controls, made = (draw_alike_rows(3 * seed + k, n_rows=20) for k in range(3))
    released = made.drop(columns="who")
    report = attack_unaligned(
        raw, controls, lambda: [released], confidential=["income"], subject="who"
    )
    assert report.verdict != "leaks"
    assert (report.n_members, report.n_controls, report.recurring) == (100, 100, ())
    # An exact hundredth of a person's success is that of one person, not of one row.
    assert all(one.members * 100 % 1 < 1e-9 for one in report.attacks if one.column == "income")
    rows = attack_unaligned(raw, controls, lambda: [released], confidential=["income"])
    assert (rows.n_members, rows.recurring) == (2000, ("who",))


@pytest.mark.parametrize("name", BAD)
def test_attack_unaligned__of_people_finds_each_bad_release(name: str) -> None:
    make, right = BAD[name]
    raw, controls = draw_visits(1000, 0), draw_visits(1000, 1)
    made = make(raw.drop(columns="who"))
    report = audit(made, raw, controls, subject="who")
    assert report.verdict == "leaks"
    assert report.n_members == 1000
    assert any(one.attack.startswith(right) for one in report.attacks if one.verdict == "leaks")


def test_attack_unaligned__refuses_a_person_on_both_sides_and_too_few_people() -> None:
    raw, controls = draw_alike_rows(0), draw_alike_rows(1)
    mixed = controls.assign(who=controls["who"] % 200)
    about = {"confidential": ["income"], "subject": "who"}
    with pytest.raises(InputError, match=r"Of the holdout .* are raw records"):
        attack_unaligned(raw, mixed, lambda: [raw], **about)
    few = raw[raw["who"] < 20]
    with pytest.raises(InputError, match="20 members and 100 controls"):
        attack_unaligned(few, controls, lambda: [raw], **about)


@pytest.mark.slow
def test_attack_unaligned__keeps_its_level_over_many_releases() -> None:
    assert count_false(60) <= 8


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_attack_unaligned__gives_scarce_rows_to_no_one_first(seed: int) -> None:
    """Of 48 profiles nearly all rows tie; members stood before controls and were given them."""

    def draw(who: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng([seed, who])
        levels = {"region": list("NSEW"), "work": list("abcdef"), "ill": ["yes", "no"]}
        return pd.DataFrame({name: rng.choice(some, n) for name, some in levels.items()})

    released = draw(2, 4000)
    report = attack_unaligned(
        draw(0, 4000), draw(1, 4000), lambda: iter([released]), confidential=["ill"]
    )
    assert report.verdict == "safe"


def test_attack_unaligned__finds_the_same_in_batches_of_any_size() -> None:
    raw, controls = draw_people(300, 0), draw_people(300, 1)
    made = draw_people(500, 2)
    reports = [
        attack_unaligned(
            raw,
            controls,
            lambda step=step: (made[k : k + step] for k in range(0, len(made), step)),
            confidential=["income"],
        )
        for step in (500, 37, 3)
    ]
    # Units are judged by all rows, whatever the batches.
    assert len({json.dumps([one.members for one in r.attacks]) for r in reports[:2]}) == 1
    assert reports[2].n_released == 500


@pytest.mark.parametrize("kind", ["sorted", "negative intervals", "currency", "keys", "dense keys"])
def test_attack_unaligned__finds_a_copy_however_it_is_written(kind: str) -> None:
    """Each of these was called safe: its first batch or its texts were taken for other numbers."""
    rng = np.random.default_rng(5)

    def draw() -> pd.DataFrame:
        # Dense ones could be mere row numbers, but for being confidential.
        salary = rng.permutation(3000 if kind == "dense keys" else 10_000_000)[:2000]
        return pd.DataFrame({"income": rng.lognormal(10, 0.5, 2000).round(2), "salary": salary})

    raw, controls = draw(), draw()
    raw["x"], controls["x"] = (one["income"] / 5e3 - 70 for one in (raw, controls))
    columns = ["income", "salary"] if "keys" in kind else ["x" if "neg" in kind else "income"]
    made = raw[columns].sort_values(columns[0]).reset_index(drop=True)
    if kind == "negative intervals":
        low = (made["x"] * 1000).round() / 1000
        made["x"] = "[" + low.map("{:.3f}".format) + ", " + (low + 1e-3).map("{:.3f}".format) + ")"
    elif kind == "currency":
        made["income"] = made["income"].map("${:,.2f}".format)
    elif kind == "keys":
        made["salary"] += rng.integers(1, 50, 2000)
    elif kind == "dense keys":
        made["income"] += rng.normal(0, 1e-3, 2000)
    report = attack_unaligned(
        raw[columns],
        controls[columns],
        lambda: (made[k : k + 200] for k in range(0, 2000, 200)),
        confidential=["salary"] if "keys" in kind else [],
    )
    assert report.verdict == "leaks"
    assert report.unread == ()


def draw_wide(seed: int, n: int = 500) -> pd.DataFrame:
    """Independent columns: a key, a date, five categories and numbers."""
    rng = np.random.default_rng(seed)
    columns = {f"x{k}": rng.normal(size=n) for k in range(6)}
    columns |= {f"k{k}": rng.choice(list("abcdefgh"), n) for k in range(6)}
    days = pd.to_timedelta(rng.integers(0, 25_000, n), unit="D")
    columns["born"] = (pd.Timestamp("1940-01-01") + days).strftime("%Y-%m-%d")
    return pd.DataFrame(columns | {"id": rng.integers(10**12, size=n)})


def hash_key(value: int) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()


COPIED = {
    "one number": lambda raw: {"x3": raw["x3"]},
    "one number in float32": lambda raw: {"x3": raw["x3"].astype(np.float32)},
    "one number negated": lambda raw: {"x3": -raw["x3"]},
    "one number on a falling scale": lambda raw: {"x3": 70 - 3 * raw["x3"]},
    "one number in other units": lambda raw: {"x3": 4 + 2.2046 * raw["x3"]},
    "one number with little noise": lambda raw: {"x3": raw["x3"] + 1e-5 * raw["x4"]},
    "two numbers with noise": lambda raw: {n: raw[n] + 3e-3 * raw["x4"] for n in ("x1", "x2")},
    "five categories": lambda raw: {f"k{k}": " " + raw[f"k{k}"].str.upper() for k in range(5)},
    "dates as timestamps": lambda raw: {"born": pd.to_datetime(raw["born"])},
    "dates of a zone": lambda raw: {"born": pd.to_datetime(raw["born"]).dt.tz_localize("UTC")},
    "dates as dates": lambda raw: {"born": pd.to_datetime(raw["born"]).dt.date},
    "German dates": lambda raw: {"born": pd.to_datetime(raw["born"]).dt.strftime("%d.%m.%Y")},
    "American dates": lambda raw: {"born": pd.to_datetime(raw["born"]).dt.strftime("%m/%d/%Y")},
    "keys": lambda raw: {"id": raw["id"]},
    "keys as text": lambda raw: {"id": raw["id"].map("{:016d}".format)},
    "keys as hashes": lambda raw: {"id": raw["id"].map(hash_key)},
    "under another name": lambda raw: {"shown": raw["x5"]},
}


@pytest.mark.parametrize("kind", COPIED)
def test_attack_unaligned__finds_few_copied_columns_among_independent_ones(kind: str) -> None:
    """Each of these was called safe: in the distance by all columns a copied one drowns."""
    raw, controls, made = (draw_wide(seed) for seed in range(3))
    if "date" in kind:  # what is released is of one kind
        made["born"] = ""
    copied = COPIED[kind](raw)
    made = made.assign(**copied).sample(frac=1, random_state=3)
    report = attack_unaligned(raw, controls, lambda: [made], confidential=["x0"])
    assert report.verdict == "leaks"
    found = [one.column for one in report.attacks if one.verdict == "leaks"]
    assert any(name in one for one in found if one.startswith("by ") for name in copied)


def draw_classes(n: int, seed: int) -> pd.DataFrame:
    """People of 1,500 classes, of which each has a most frequent income by chance alone."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.integers(0, 6, n), "edu": rng.integers(0, 250, n)})
    return table.assign(income=np.where(rng.random(n) < 0.5, "high", "low"))


@pytest.mark.parametrize("codes", [("high", "low"), ("H", "L"), (1, 0), (True, False), (7, 3)])
@pytest.mark.parametrize("are_raw", [False, True])
def test_attack_unaligned__reads_off_a_column_however_it_is_coded(
    codes: tuple[object, object], are_raw: bool
) -> None:
    """Other codes were never a raw value, so that the attack hit nobody: "safe"."""
    members, controls = draw_classes(3000, 0), draw_classes(3000, 1)
    usual = members.groupby(["age", "edu"])["income"].transform(lambda some: some.mode()[0])
    released = members.assign(income=usual).sample(frac=1, random_state=2)
    named = {"high": codes[0], "low": codes[1]}
    tables = [
        one.assign(income=one["income"].map(named)) if (one is released) != are_raw else one
        for one in (members, controls, released)
    ]
    report = attack_unaligned(*tables[:2], lambda: [tables[2]], confidential=["income"])
    (found,) = [one for one in report.attacks if one.attack == "inference: recoded"]
    assert found.verdict == "leaks"
    assert found.controls == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_attack_unaligned__refuses_controls_that_are_members(share: float) -> None:
    """A plain copy of all raw records was safe beside the raw records as holdout."""
    raw, others = draw_people(1000, 0), draw_people(1000, 1)
    mixed = pd.concat([raw[: int(share * 1000)], others[int(share * 1000) :]], ignore_index=True)
    with pytest.raises(InputError, match=f"Of the holdout {share:.0%} are raw records"):
        attack_unaligned(raw, mixed, lambda: [raw], confidential=["income"])


def test_attack_unaligned__takes_equal_rows_of_a_small_table_for_chance() -> None:
    members, controls = draw_classes(400, 0), draw_classes(2000, 1)
    assert attack_unaligned(members, controls, lambda: [controls], confidential=["income"])


ODD = {
    "nothing": lambda n: pd.Series([None] * n),
    "flags, some missing": lambda n: pd.Series([True, False, None, True] * n)[:n],
    "open ends": lambda n: pd.Series(["2020-01-01", "9999-12-31"] * n)[:n],
    "early dates": lambda n: pd.Series(["0001-01-01", "2020-05-05"] * n)[:n],
    "days": lambda n: pd.Series([date(9999, 12, 31), date(2000, 1, 1)] * n)[:n],
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("is_secret", [False, True])
def test_attack_unaligned__of_odd_columns_ends_with_a_verdict(kind: str, is_secret: bool) -> None:
    tables = [draw_people(300, k).assign(odd=ODD[kind](300)) for k in range(3)]
    secret = "odd" if is_secret else "income"
    report = attack_unaligned(*tables[:2], lambda: [tables[2]], confidential=[secret])
    assert report.verdict in ("unproven", "safe")


def test_measure_retained_target__of_a_release_without_one_is_unknown() -> None:
    members, released, controls = (draw_people(300, k) for k in range(3))
    gone = released.assign(smoker=np.nan)
    found = measure_retained_target(members, gone, controls, "smoker")
    assert np.isnan(found["released"])
    half = released.assign(smoker=released["smoker"].where(np.arange(300) % 2 == 0))
    assert measure_retained_target(members, half, controls, "smoker")["released"] > 0.5


def test_read_table__leaves_out_what_is_no_column_of_values(tmp_path: Path) -> None:
    table = draw_people(50, 0)
    lists = table.assign(tags=[[1, 2]] * 50, pair=[{"a": 1}] * 50)
    lists.to_parquet(tmp_path / "t.parquet")
    (found,) = read_table(str(tmp_path / "t.parquet"))
    assert list(found) == list(table)
    group = zarr.open_group(str(tmp_path / "t.zarr"), mode="w")
    group.create_array("x", data=np.arange(5.0))
    group.create_array("z", data=np.arange(5) * 1j)
    (found,) = read_table(str(tmp_path / "t.zarr"))
    assert list(found) == ["x"]


@pytest.mark.parametrize(("mark", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ".")])
def test_read_table__finds_semicolons_and_tabs_of_a_csv(
    tmp_path: Path, mark: str, decimal: str
) -> None:
    """One column held all of a row: the two had "no common column"."""
    table = draw_people(50, 0).assign(part=np.arange(50) + 0.5)
    table.to_csv(tmp_path / "t.csv", sep=mark, decimal=decimal, index=False)
    (found,) = read_table(str(tmp_path / "t.csv"))
    assert list(found) == list(table)
    assert found["part"].tolist() == table["part"].tolist()


@pytest.mark.parametrize(("rows", "keys"), [(500, ("id",)), (99, ())])
def test_report__is_not_safe_of_undecided_keys_or_a_few_rows(
    rows: int, keys: tuple[str, ...]
) -> None:
    one = Excess("linkage", "", 0.0, 0.0, 0.0, 0.0, 0.1, 0.1)
    assert UnalignedReport((one,), 500, 500, 500, ("x",), ()).verdict == "safe"
    assert UnalignedReport((one,), 500, 500, rows, ("x",), (), (), keys).verdict == "unproven"


def number_rows(rows: pd.DataFrame, first: int = 0, seed: int = 3) -> pd.DataFrame:
    numbered = rows.assign(id=first + np.arange(len(rows)))
    return numbered.sample(frac=1, random_state=seed, ignore_index=True)


@pytest.mark.parametrize("first", [0, 500])
@pytest.mark.parametrize("is_text", [False, True])
def test_attack_unaligned__takes_a_number_alone_for_no_link_and_not_for_safe(
    first: int, is_text: bool
) -> None:
    tables = [number_rows(draw_wide(k), first if k == 1 else 0, k) for k in range(3)]
    if is_text and first == 0:
        tables = [table.assign(id="P" + table["id"].astype(str)) for table in tables]
    raw, controls, made = tables
    report = attack_unaligned(raw, controls, lambda: [made], confidential=["x0"])
    assert report.undecided == ("id",)
    assert report.verdict == "unproven"
    assert not [one for one in report.attacks if one.verdict == "leaks"]


@pytest.mark.parametrize("first", [0, 500])
def test_attack_unaligned__links_by_row_numbers_that_other_columns_confirm(first: int) -> None:
    raw, controls, made = (draw_wide(k) for k in range(3))
    made["k1"] = raw["k1"]
    raw, made, controls = number_rows(raw), number_rows(made), number_rows(controls, first)
    report = attack_unaligned(raw, controls, lambda: [made], confidential=["x0"])
    assert report.verdict == "leaks"


def test_attack_unaligned__calls_few_rows_leaks_or_nothing() -> None:
    """A hundred copies in fifteen thousand are less than a hundredth of the members."""
    raw, controls = draw_people(12_000, 0), draw_people(12_000, 1)
    columns = ["age", "weight", "steps", "rate"]
    made = raw[columns][:110]
    report = attack_unaligned(raw[columns], controls[columns], lambda: [made], confidential=[])
    assert report.verdict == "leaks"
    few = attack_unaligned(raw[columns], controls[columns], lambda: [made[:9]], confidential=[])
    assert few.verdict == "unproven"


@pytest.mark.parametrize("kind", ["numbers", "categories", "intervals", "copies"])
def test_look_up__finds_the_nearest_of_all_rows_though_most_are_left_out(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unaligned_release, "GATHERED", 9_000)
    known, made = draw_people(700, 0), draw_people(9_000, 1)
    if kind == "categories":
        known, made = (t[["city", "smoker", "income"]].astype(str) for t in (known, made))
    elif kind == "intervals":
        ends = made["age"].round(-1), made["age"].round(-1) + 10
        made["age"] = "[" + ends[0].astype(str) + ", " + ends[1].astype(str) + "]"
    elif kind == "copies":  # of one row without end, and of known rows far on
        made = pd.concat([made[:1]] * 5_000 + [made[:3_000], known], ignore_index=True)
    columns = {name: choose_column(known[name], made[name]) for name in known}
    compared = {name: one for name, one in columns.items() if not one.is_text}
    batches = [made[k : k + 2_048] for k in range(0, len(made), 2_048)]
    views = {"": list(compared)} | {"income": [n for n in compared if n != "income"]}
    found = unaligned_release._look_up(known, lambda: batches, compared, views)
    for view, names in views.items():
        mine = {name: compared[name] for name in names}
        x, (z, half) = (
            unaligned_release._place(known, mine)[0],
            unaligned_release._place(made, mine, released=True),
        )
        for i in range(0, len(known), 7):
            gap = np.maximum(np.abs(x[i] - z) - half, 0)
            apart = np.linalg.norm(gap, axis=1) + unaligned_release.NARROW * half.sum(axis=1)
            near = found[view]
            np.testing.assert_allclose(near.distance[i], np.sort(apart)[:5], atol=1e-9)
            np.testing.assert_allclose(near.distance[i], apart[near.row[i]], atol=1e-9)
            assert len(set(near.row[i])) == 5
    told = compared["income"].place(made["income"], released=True)[0]
    near = found["income"]
    np.testing.assert_array_equal(near.value, told[near.row])


@pytest.mark.parametrize("rows", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_attack_unaligned__leaves_out_more_the_longer_a_release_is(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, square = [0], unaligned_release._square

    def count(probes: np.ndarray, norms: np.ndarray, gallery: np.ndarray) -> np.ndarray:
        computed[0] += len(probes) * gallery.shape[1]
        return square(probes, norms, gallery)

    monkeypatch.setattr(unaligned_release, "_square", count)
    monkeypatch.setattr(unaligned_release, "BLOCK", (64, 64))
    raw, controls, pairs = draw_people(400, 0), draw_people(400, 1), []
    for n in (rows, 4 * rows):
        computed[0], made = 0, add_noise(draw_people(n, 2), 0.3)
        batches = [made[k : k + 10_000] for k in range(0, n, 10_000)]
        attack_unaligned(raw, controls, lambda made=batches: made, confidential=["income"])
        pairs.append(computed[0])
    assert pairs[0] < 0.5 * 2 * 800 * rows
    assert pairs[1] < 2.5 * pairs[0]  # four times as many rows


def test_read_intervals__takes_the_ways_in_which_tools_write_them() -> None:
    middle, half = read_intervals(pd.Series(["30-39", "[1, 2]", ">=90", "7", "*"]))
    assert middle[:4].tolist() == [34.5, 1.5, 90.0, 7.0]
    assert half.tolist() == [4.5, 0.5, 0.0, 0.0, 0.0]
    assert np.isnan(middle[4])


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S", ""])
def test_read_intervals__of_a_date_is_the_same_in_every_type(form: str) -> None:
    dates = pd.Series(pd.to_datetime(["1999-12-31", "2020-02-29", "9999-12-31", "1850-01-01"]))
    texts = dates.dt.strftime(form) if form else dates.dt.tz_localize("UTC")
    middle, half = read_intervals(texts)
    assert middle.tolist() == read_intervals(dates)[0].tolist()
    assert middle[1] == 1_582_934_400.0
    assert not half.any()


def test_read_intervals__takes_a_column_for_dates_by_its_rows_not_by_its_kinds() -> None:
    junk = [f"open {k}" for k in range(8)]
    assert np.isfinite(read_intervals(pd.Series(["2020-02-29"] * 200 + junk))[0]).sum() == 200
    seen = read_intervals(pd.Series(["open"] * 200 + ["2020-02-29"] * 8))[0]
    assert np.isnan(seen[:200]).all()
    assert not (seen[200:] > 1e9).any()


def test_find_threshold__is_where_shares_differ_most() -> None:
    assert find_threshold(np.array([1.0, 2, 3]), np.array([4.0, 5, 6])) == 3


def test_attack_unaligned__refuses_what_cannot_be_judged() -> None:
    raw, others = draw_people(120, 0), draw_people(120, 1)
    with pytest.raises(InputError, match="50 controls"):
        attack_unaligned(raw, raw[:50], lambda: [raw], confidential=["income"])
    with pytest.raises(InputError, match="no common column"):
        attack_unaligned(raw, others, lambda: [raw.add_prefix("x")], confidential=["income"])
    with pytest.raises(InputError, match="no row"):
        attack_unaligned(raw, others, lambda: [], confidential=["income"])


def test_draw_rows__is_a_simple_sample_of_bounded_size() -> None:
    batches = (pd.DataFrame({"x": np.arange(k, k + 100)}) for k in range(0, 5000, 100))
    drawn = draw_rows(batches, 400)["x"]
    assert len(drawn) == 400 == drawn.nunique()
    assert 2200 < drawn.mean() < 2800


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_audit__of_a_table_of_another_tool_writes_a_report_and_closes(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, controls = draw_people(400, 0), draw_people(400, 1)
    places = [str(tmp_path / f"{name}.{ending}") for name in ("raw", "holdout", "released")]
    for table, place in zip((raw, controls, BAD["rounded"][0](raw)), places, strict=True):
        table.to_csv(place, index=False) if ending == "csv" else table.to_parquet(place)
    given = {"desired": ["smoker"], "confidential": ["income"]}
    with pytest.raises(GateError, match="reveals who was in it"):
        audit_foreign(places[0], places[2], holdout=places[1], **given)
    folder = Path(f"{places[2]}.audit")
    found = json.loads((folder / "audit.json").read_text())
    assert found["verdict"] == "leaks"
    assert found["target"][0]["target"] == "smoker"
    page = (folder / "report.html").read_text()
    assert "Leaks" in page
    # Numbers about records, no value of one.
    assert not set(raw["city"].unique()) & set(page.split())
    assert "leaks" in capsys.readouterr().out
    with pytest.raises(OptionError, match="Without records that the release was not made from"):
        audit_foreign(places[0], places[2], holdout="", **given)
    with pytest.raises(OptionError, match="no column 'incom'"):
        audit_foreign(places[0], places[2], holdout=places[1], desired=(), confidential=["incom"])


def test_read_table__refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table that can be read"):
        next(read_table("people.docx"))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        next(read_table(str(broken)))
