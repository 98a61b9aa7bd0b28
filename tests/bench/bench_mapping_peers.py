"""Other ways to change attributes, beside a privacy mapping: at equal true information or change.

``python -m tests.bench mapping_peers``. Adult's counts are the law, so that every figure is exact.
Each peer is tuned until it reveals of the private value what a mapping that changes a tenth of the
attributes reveals; how many attributes a record it changes is compared. Generalisation cannot be
tuned so finely: there a mapping changes as much, and the information is compared.

ANJANA (Saenz de Cea et al. 2024) generalises and suppresses. It asks for other versions of NumPy
than we have, so it is installed in an environment of its own, where packages can be had.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from flows.reproduce.exponential import fit_exponential_mechanism
from privpipe.protocols import FloatArray
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from tests.bench.bench_mapping import THREE, read_adult
from tests.laws_of_records import RecordLaw, make_laws

Row = tuple[Any, ...]

Change = Callable[[FloatArray, float], FloatArray]
"""Of a marginal and a chance: what becomes of each category, columns are original ones."""

GENERALISED = {
    "education": [range(6), (6, 7, 8, 11, 15), (9, 12, 10, 14), (13,)],
    "marital_status": [(1, 2, 3), (0, 5, 6), (4,)],
    "occupation": [(0, 3, 9, 11, 12), (2, 4, 5, 6, 13), (1, 7, 8, 10, 14)],
}
"""Groups of categories in alphabetical order, as a careful person draws them; then all in one."""

ANJANA = """
import json, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd
from anjana.anonymity import k_anonymity
given = json.load(open(sys.argv[1]))
table = pd.DataFrame(given["rows"], columns=given["names"])
table["record"] = range(len(table))
levels = {name: {int(k): v for k, v in one.items()} for name, one in given["levels"].items()}
found = k_anonymity(table, [], given["names"], int(sys.argv[2]), float(sys.argv[3]), levels)
rows = found[given["names"]].astype(str).values.tolist()
json.dump({"records": found["record"].tolist(), "rows": rows}, open(sys.argv[4], "w"))
"""


def respond_at_random(marginal: FloatArray, chance: float) -> FloatArray:
    """k-ary randomised response (Kairouz, Bonawitz and Ramage 2016)."""
    k = len(marginal)
    return (1 - chance) * np.eye(k) + chance / k


def swap(marginal: FloatArray, chance: float) -> FloatArray:
    """Values swapped among random records (Dalenius and Reiss 1982): the marginals stay."""
    return (1 - chance) * np.eye(len(marginal)) + chance * marginal[:, None]


def measure(masses: FloatArray) -> float:
    """Mutual information of rows and columns, nats."""
    product = masses.sum(axis=0) * masses.sum(axis=1, keepdims=True)
    used = masses > 0
    return float((masses[used] * np.log(masses[used] / product[used])).sum())


def change_attributes(law: RecordLaw, change: Change, chance: float) -> tuple[float, float]:
    """Information and attributes changed a record, each changed by itself."""
    sizes = law.codes.max(axis=0) + 1
    table = np.zeros((len(law.joint), *sizes))
    table[:, *law.codes.T] = law.joint
    profile, spent = table.sum(axis=0), 0.0
    for k in range(len(sizes)):
        marginal = profile.sum(axis=tuple(set(range(len(sizes))) - {k}))
        kernel = change(marginal, chance)
        spent += float(marginal @ (1 - np.diag(kernel)))
        table = np.moveaxis(np.tensordot(kernel, table, axes=(1, k + 1)), 0, k + 1)
    return measure(table.reshape(len(law.joint), -1)), spent


def compare_changes(name: str, law: RecordLaw, change: Change, nats: float, spent: float) -> Row:
    """Attributes that a peer changes to reveal no more than a mapping."""
    chance = brentq(lambda one: change_attributes(law, change, one)[0] - nats, 1e-6, 1.0, xtol=1e-6)
    found = change_attributes(law, change, chance)[1]
    return f"{name}, changed", found, "attributes a record", "mapping", spent, found / spent


def compare_exponential(law: RecordLaw, nats: float, spent: float) -> Row:
    """The same for the exponential mechanism over whole profiles."""

    def release(budget: float) -> float:
        return fit_exponential_mechanism(law.joint, law.codes, distortion_budget=budget).information

    most = float(law.codes.shape[1])
    found = brentq(lambda budget: release(budget) - nats, spent, most, xtol=1e-3)
    return (
        "exponential mechanism, changed",
        found,
        "attributes a record",
        "mapping",
        spent,
        (found / spent),
    )


def compare_generalisation(law: RecordLaw, n: int) -> Iterator[Row]:
    """k-anonymous tables of records of the law, beside mappings that change as much.

    A generalised value is changed where it is not the one that most records of its class have.
    """
    rows = np.repeat(law.codes, np.rint(law.joint.sum(axis=0) * n).astype(int), axis=0)
    levels = {}
    for name, groups in GENERALISED.items():
        place = {code: f"group {i}" for i, group in enumerate(groups) for code in group}
        codes = sorted(place)
        levels[name] = {0: codes, 1: [place[code] for code in codes], 2: ["*"] * len(codes)}
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        venv.create(Path(folder, "venv"), with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "anjana==1.2.3"], check=True)
        given, out = Path(folder, "given.json"), Path(folder, "out.json")
        names = list(GENERALISED)
        given.write_text(json.dumps({"rows": rows.tolist(), "names": names, "levels": levels}))
        for k in (5, 50, 500):
            subprocess.run([python, "-c", ANJANA, given, str(k), "5", out], check=True)
            yield from _compare_table(f"{k}-anonymous", law, rows, json.loads(out.read_text()))


def _compare_table(name: str, law: RecordLaw, rows: Any, found: dict[str, Any]) -> Iterator[Row]:
    kept = zip(found["records"], found["rows"], strict=True)
    words = {tuple(rows[i]): str(row) for i, row in kept}
    _, place = np.unique([words.get(tuple(code), "") for code in law.codes], return_inverse=True)
    masses = np.zeros((len(law.joint), place.max() + 1))
    np.add.at(masses.T, place, law.joint.T)
    profile, spent = law.joint.sum(axis=0), 0.0
    for codes in law.codes.T:
        votes = np.zeros((place.max() + 1, codes.max() + 1))
        np.add.at(votes, (place, codes), profile)
        spent += float(1 - votes.max(axis=1).sum())
    mapping = solve_privacy_mapping(law.joint, law.codes, distortion_budget=spent, gap=1e-4)
    nats, ours = measure(masses), mapping.information
    yield f"{name}, changed", spent, "attributes a record", "mapping", mapping.distortion, 1.0
    yield f"{name}, revealed", nats, "nats", "mapping", ours, nats / max(ours, 1e-6)


def run(small: bool = False) -> list[Row]:
    """All peers."""
    law = make_laws()["random"] if small else read_adult(THREE, ["income"], 0.3)
    budget = 0.1 * law.codes.shape[1]
    mapping = solve_privacy_mapping(law.joint, law.codes, distortion_budget=budget, gap=1e-4)
    given = max(mapping.information, 1e-4), mapping.distortion
    return [
        compare_changes("randomised response", law, respond_at_random, *given),
        compare_changes("swapping", law, swap, *given),
        compare_exponential(law, *given),
        *([] if small else compare_generalisation(law, 48_842)),
    ]


if __name__ == "__main__":
    print(*run("--small" in sys.argv), sep="\n")
