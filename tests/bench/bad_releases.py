"""Twelve releases of others that are bad in a known way, and independent ones, audited.

``python -m tests.bench.bad_releases [N]`` prints which attack finds each, and how many of N
independent releases are called leaks: at a level of .95 at most one in twenty may be. Then the
same of people with several rows, who are counted by ``--subject``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from privpipe.attacks.threats.unaligned_release import UnalignedReport, attack_unaligned

Table = pd.DataFrame
CITIES = [f"city {k}" for k in range(12)]


def draw_people(n: int, seed: int) -> Table:
    """People with correlated numbers, categories, a target and a confidential income."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, n).astype(float)
    weight = np.round(random.normal(60 + 0.2 * age, 12), 1)
    steps = np.round(random.gamma(3, 2500, n))
    rate = np.round(random.normal(75 - steps / 2500, 8), 1)
    city = random.choice(CITIES, n)
    smoker = random.random(n) < 1 / (1 + np.exp((age - 45) / 20))
    income = random.random(n) < 1 / (1 + np.exp(-(age - 50) / 12 - smoker))
    columns = {"age": age, "weight": weight, "steps": steps, "rate": rate, "city": city}
    return Table(
        columns | {"smoker": smoker.astype(int), "income": np.where(income, "high", "low")}
    )


NUMBERS = ["age", "weight", "steps", "rate"]


def add_noise(raw: Table, scale: float, seed: int = 5) -> Table:
    random, noisy = np.random.default_rng(seed), raw.copy()
    for name in NUMBERS:
        noisy[name] = noisy[name] + random.normal(0, scale * noisy[name].std(), len(raw))
    return noisy


def shuffle(raw: Table) -> Table:
    return raw.sample(frac=1, random_state=1, ignore_index=True)


def memorise(raw: Table) -> Table:
    """Synthetic rows of the same law, of which one in ten is a row of the training records."""
    made = draw_people(len(raw), 77)
    return shuffle(pd.concat([made, raw.sample(frac=0.1, random_state=2)], ignore_index=True))


def generalise(raw: Table) -> Table:
    """Classes of three alike people, with intervals, and one income for each class."""
    by = ["city", "smoker", "age", "steps"]
    ordered = raw.sort_values(by, ignore_index=True)[[*by, "income"]]
    classes = ordered.groupby(ordered.index // 3)
    ordered["income"] = classes["income"].transform(lambda said: said.mode()[0])
    for name in ("age", "steps"):
        low, high = (classes[name].transform(end).astype(str) for end in ("min", "max"))
        ordered[name] = "[" + low + ", " + high + "]"
    return shuffle(ordered)


def interpolate(raw: Table) -> Table:
    """SMOTE-like: points a tenth of the way from each record to another."""
    other, made = raw.sample(frac=1, random_state=3, ignore_index=True), raw.copy()
    for name in NUMBERS:
        made[name] = 0.95 * raw[name] + 0.05 * other[name]
    return shuffle(made)


def top_code(raw: Table) -> Table:
    return shuffle(
        raw.assign(**{name: raw[name].clip(upper=raw[name].quantile(0.9)) for name in NUMBERS})
    )


def rescale(raw: Table) -> Table:
    return shuffle(raw.assign(**{n: (raw[n] - raw[n].mean()) / raw[n].std() for n in NUMBERS}))


def swap(raw: Table) -> Table:
    """Cities dealt out anew; all else is as it was."""
    return shuffle(raw.assign(city=shuffle(raw)["city"]))


BAD: dict[str, tuple[Callable[[Table], Table], tuple[str, ...]]] = {
    "plain copy": (lambda raw: raw, ("linkage", "inference")),
    "shuffled rows": (shuffle, ("linkage", "inference")),
    "rounded": (
        lambda raw: shuffle(raw.round({"age": -1, "weight": 0, "steps": -2, "rate": 0})),
        ("linkage",),
    ),
    "k-anonymous, homogeneous classes": (generalise, ("inference",)),
    "synthetic with memorised rows": (memorise, ("linkage",)),
    "pseudonymised": (
        lambda raw: shuffle(raw.assign(city="x" + raw["city"].str[5:])),
        ("linkage",),
    ),
    "top-coded": (top_code, ("linkage",)),
    "noise too small": (lambda raw: shuffle(add_noise(raw, 0.02)), ("linkage",)),
    "other units": (rescale, ("linkage",)),
    "cities swapped": (swap, ("linkage",)),
    "a half of the people": (lambda raw: raw.sample(frac=0.5, random_state=4), ("linkage",)),
    "interpolated": (interpolate, ("linkage", "membership")),
}
"""How each is made of the raw records, and the attacks of which one must find it."""


def draw_visits(n_people: int, seed: int, n_rows: int = 2) -> Table:
    """Some rows of each person, at whose visits steps and rate are measured anew."""
    people, other = draw_people(n_people, seed), draw_people(n_people * n_rows, seed + 100)
    rows = people.loc[np.repeat(people.index, n_rows)].reset_index(drop=True)
    who = 10**6 * seed + np.arange(len(rows)) // n_rows
    return rows.assign(steps=other["steps"], rate=other["rate"], who=who)


def draw_alike_rows(seed: int, n_people: int = 100, n_rows: int = 50) -> Table:
    """Rows of one person are nearly the same; their numbers are no one else's."""
    random = np.random.default_rng(seed)
    people = Table(random.normal(size=(n_people, 3)), columns=list("abc"))
    people["income"] = np.where(random.random(n_people) < 0.5, "high", "low")
    people["who"] = 10**6 * seed + np.arange(n_people)
    rows = people.loc[np.repeat(people.index, n_rows)].copy()
    rows[["a", "b", "c"]] += 0.1 * random.normal(size=(len(rows), 3))
    return rows.sample(frac=1, random_state=seed, ignore_index=True)


def audit(released: Table, raw: Table, controls: Table, subject: str = "") -> UnalignedReport:
    def batches() -> Iterator[Table]:
        yield from (released[start : start + 4096] for start in range(0, len(released), 4096))

    return attack_unaligned(raw, controls, batches, confidential=["income"], subject=subject)


def count_false_of_people(n: int, subject: str = "who") -> int:
    """Independent releases of 100 people with 50 rows each that are called leaks."""
    found = 0
    for seed in range(n):
        raw, controls, made = (draw_alike_rows(3 * seed + k) for k in range(3))
        found += audit(made.drop(columns="who"), raw, controls, subject).verdict == "leaks"
    return found


def count_false(n: int) -> int:
    """Releases of the law alone that are called leaks."""
    found = 0
    for seed in range(n):
        raw, controls = draw_people(500, 3 * seed), draw_people(500, 3 * seed + 1)
        made = draw_people(600, 3 * seed + 2)
        # Another law too: exchangeability does not need the right one.
        made = add_noise(made, 0.5 * (seed % 3), seed)
        found += audit(made, raw, controls).verdict == "leaks"
    return found


def main(n: int = 200) -> None:
    raw, controls = draw_people(2000, 0), draw_people(2000, 1)
    for name, (make, right) in BAD.items():
        report = audit(make(raw), raw, controls)
        by = sorted({one.attack for one in report.attacks if one.verdict == "leaks"})
        hit = any(one.startswith(right) for one in by)
        print(f"{name:34} {report.verdict:9} {'right' if hit else 'WRONG'}: {', '.join(by)}")
    print(f"{count_false(n)} of {n} independent releases are called leaks")
    raw, controls = draw_visits(1000, 0), draw_visits(1000, 1)
    for name, (make, right) in BAD.items():
        report = audit(make(raw.drop(columns="who")), raw, controls, "who")
        hit = any(a.attack.startswith(right) for a in report.attacks if a.verdict == "leaks")
        print(f"of people, {name:34} {report.verdict:9} {'right' if hit else 'WRONG'}")
    print(f"{count_false_of_people(n)} of {n} with 50 rows a person, counted by --subject")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
